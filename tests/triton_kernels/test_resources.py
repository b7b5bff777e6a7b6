"""What the kernels for the shapes of the benchmarks take of a GPU that is not here."""

import itertools

import pytest
from compiling import compiled, usage
from planning import regions
from shapes import SHAPES, logsumexp, of

from redfuser.backends.triton.candidates import candidates
from redfuser.backends.triton.resources import machine
from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

TARGET = "cuda:90"
FIRST = 8  # as many as quick tuning measures


@pytest.mark.parametrize("name", SHAPES)
def test_one_of_the_first_schedules_keeps_to_registers(name, tmp_path):
    fn, args = SHAPES[name]
    spilling = []
    for shaped in regions(fn, args):
        region, derivation = shaped.planned.region, shaped.planned.derivation
        found = candidates(region, derivation, {}, machine(TARGET))
        found = list(itertools.islice(found, FIRST))
        assert found
        if name == "decode":
            assert found[0].strategy is Strategy.MULTI
        for schedule in found:
            kernels = compiled(shaped, schedule, tmp_path, TARGET, bulk=schedule.bulk, coarse=True)
            shared = [k.metadata.shared for k in kernels]
            assert max(shared) <= machine(TARGET).shared, f"{schedule}: {shared} bytes of shared memory"
            uses = [usage(k) for k in kernels]
            if not any(u.spills for u in uses):
                break
            spilling.append((schedule, uses))
        else:
            pytest.fail(f"every schedule spills: {spilling}")


def offered(name):
    (shaped,) = regions(*SHAPES[name])
    return candidates(shaped.planned.region, shaped.planned.derivation, {}, machine(TARGET))


def test_lanes_are_offered_for_long_rows():
    found = [s for s in offered("long rows")[:FIRST] if s.lanes]
    assert found and all(s.lanes == 32 * s.warps and s.run == 8 and s.tile % (s.lanes * s.run) == 0 for s in found)
    assert any(s.lanes for s in offered("logsumexp")) and not any(s.lanes for s in offered("decode"))
    assert all(s.strategy is not Strategy.WHOLE for s in offered("logsumexp") if s.lanes)
    odd = candidates(*region(of(64, 131070)), {}, machine(TARGET))
    assert {s.run for s in odd if s.lanes} == {1}


def region(x):
    (shaped,) = regions(logsumexp, [x])
    return shaped.planned.region, shaped.planned.derivation


def test_spills_are_seen(tmp_path):
    (shaped,) = regions(*SHAPES["causal 128"])
    (kernel,) = compiled(shaped, Schedule(Strategy.SINGLE, row=256, tile=128, warps=4), tmp_path, TARGET)
    assert usage(kernel).spills
