"""Which schedules are offered for a GPU that is not here, and in which order."""

import pytest
import torch
from compiling import compiled, usage
from planning import regions
from shapes import SHAPES, logsumexp, of

from redfuser.backends.triton.candidates import candidates
from redfuser.backends.triton.resources import REGISTERS, Estimate, machine
from redfuser.tile.build import build
from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

TARGET = "cuda:90"
FIRST = 8  # as many as quick tuning measures


def offered(name):
    (shaped,) = regions(*SHAPES[name])
    return list(candidates(shaped.planned.region, shaped.planned.derivation, {}, machine(TARGET)))


def group_norm(x, w, b):
    return torch.nn.functional.group_norm(x, 32, w, b)


def pooled(x, w):
    """Rows pooled by weights of their own, as long as many columns."""
    return ((x @ w).softmax(1).unsqueeze(-1) * x).sum(1)


@pytest.mark.parametrize(
    ("fn", "shapes"), [(group_norm, [(16, 512, 32, 32), (512,), (512,)]), (pooled, [(64, 512, 768), (768,)])]
)
def test_results_along_several_axes_and_rows_with_a_matrix_of_their_own_fit(fn, shapes):
    (shaped,) = regions(fn, [of(*n) for n in shapes])
    dropped = []
    found = list(candidates(shaped.planned.region, shaped.planned.derivation, {}, machine(TARGET), dropped=dropped))
    assert len(found) >= FIRST and found[0].row == 1, dropped
    program = build(shaped.planned.region, shaped.planned.derivation, found[0])
    assert all(Estimate(k, {}, found[0].warps, found[0].stages).need().tensor == 0 for k in program.kernels)


def registers(name, schedule):
    (shaped,) = regions(*SHAPES[name])
    program = build(shaped.planned.region, shaped.planned.derivation, schedule)
    return max(Estimate(k, {}, schedule.warps, schedule.stages).need().registers for k in program.kernels)


def test_the_first_keeps_to_registers_and_the_others_are_in_the_order_of_the_list():
    first, *rest = offered("causal 128")
    assert registers("causal 128", rest[0]) > REGISTERS >= registers("causal 128", first)
    assert [(s.row, s.tile, s.warps) for s in (rest[0], first)] == [(128, 64, 4), (64, 64, 4)]
    assert first not in rest and len(set(rest)) == len(rest)


def test_few_rows_are_cut_in_segments():
    assert offered("decode")[0].strategy is Strategy.MULTI


def test_lanes_are_offered_for_long_rows():
    found = [s for s in offered("long rows")[:FIRST] if s.lanes]
    assert found and all(s.lanes == 32 * s.warps and s.run == 8 and s.tile % (s.lanes * s.run) == 0 for s in found)
    assert any(s.lanes for s in offered("logsumexp")) and not any(s.lanes for s in offered("decode"))
    assert all(s.strategy is not Strategy.WHOLE for s in offered("logsumexp") if s.lanes)
    odd = list(candidates(*region(of(64, 131070)), {}, machine(TARGET)))
    assert {s.run for s in odd if s.lanes} == {1}


def region(x):
    (shaped,) = regions(logsumexp, [x])
    return shaped.planned.region, shaped.planned.derivation


def test_spills_are_seen(tmp_path):
    (shaped,) = regions(*SHAPES["causal 128"])
    (kernel,) = compiled(shaped, Schedule(Strategy.SINGLE, row=256, tile=128, warps=4), tmp_path, TARGET)
    assert usage(kernel).spills
