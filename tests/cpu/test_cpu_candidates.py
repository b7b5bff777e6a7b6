"""Which schedules and lanes are tried at which lengths, and what is chosen without measuring. Nothing is compiled here."""

import pytest
import torch
from stages import record

from redfuser.backends.cpu.candidates import candidates
from redfuser.backends.cpu.compile import find_compiler
from redfuser.runtime.native import CpuEngine
from redfuser.settings import Options
from redfuser.tile.build import build
from redfuser.tile.nodes import Role, Strategy


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def tried(fn, *shapes, threads=2, dynamic=(), **forced):
    """``dynamic``: (argument, dimension) of the lengths that are known at the call only."""
    args = tuple(torch.randn(s) for s in shapes)
    for n, d in dynamic:
        torch._dynamo.mark_dynamic(args[n], d)
    (r,) = record(fn, args)
    found = candidates(r.planned.region, r.planned.derivation, r.sizes, threads, **forced)
    for s in found:
        assert build(r.planned.region, r.planned.derivation, s).kernels
    return found


def test_many_rows_of_products_lie_in_lanes():
    found = tried(attention, (2, 100, 16), (2, 90, 16), (2, 90, 16))
    assert {s.vector for s in found} == {Role.ROW} and all(s.row >= 16 for s in found if s.strategy is Strategy.SINGLE)
    alone = tried(attention, (1, 20, 16), (1, 2000, 16), (1, 2000, 16), threads=4)
    assert alone[0].strategy is Strategy.MULTI, "one block of rows for four threads"


def test_few_rows_keep_features_in_lanes_and_are_cut_for_the_threads():
    found = tried(attention, (2, 1, 16), (2, 2000, 16), (2, 2000, 16), threads=4)
    assert found[0].strategy is Strategy.MULTI and found[0].segments >= 4
    assert {s.vector for s in found} == {Role.COLUMN}
    (one,) = {s.strategy for s in tried(attention, (64, 1, 16), (64, 2000, 16), (64, 2000, 16), threads=2)}
    assert one is Strategy.SINGLE


def test_rows_of_their_own_lie_along_the_lanes():
    assert {s.vector for s in tried(lambda x: x.logsumexp(-1), (64, 50_000))} == {Role.CASCADE}
    short = tried(lambda x: x.softmax(-1).topk(4, -1), (300, 128))
    assert short[0].vector is Role.ROW and short[1].vector is Role.CASCADE


def test_one_long_row_is_cut():
    found = tried(lambda x: x.logsumexp(-1), (1, 500_000), threads=8)
    assert found[0].strategy is Strategy.MULTI


@pytest.mark.parametrize("strategy", [Strategy.WHOLE, Strategy.SINGLE, Strategy.MULTI])
def test_what_is_asked_for_is_tried_alone(strategy):
    found = tried(attention, (2, 100, 16), (2, 90, 16), (2, 90, 16), strategy=strategy, tile=32, segments=3)
    assert found and all(s.strategy is strategy and s.tile == 32 for s in found)


def test_lengths_that_are_open_share_their_kernels():
    """What is compiled for one length serves the others."""
    open_lengths = (0, 1), (1, 1), (2, 1)
    many = [
        tried(attention, (8, n, 16), (8, m, 16), (8, m, 16), dynamic=open_lengths)[0]
        for n, m in ((16, 40), (33, 90), (70, 300), (200, 5000))
    ]
    assert len(set(many)) == 1 and many[0].row == 64
    few = [tried(attention, (8, n, 16), (8, 50, 16), (8, 50, 16), dynamic=open_lengths)[0] for n in (2, 5, 15)]
    assert len(set(few)) == 1 and few[0].row == 8
    rows = [
        tried(lambda x: x.logsumexp(-1), (64, n), dynamic=[(0, 1)], strategy=Strategy.SINGLE)[0] for n in (1100, 3000)
    ]
    assert len(set(rows)) == 1


def test_tiny_work_is_decided_by_the_model():
    (small,) = record(lambda x: x.logsumexp(-1), (torch.randn(4, 60),))
    (large,) = record(lambda x: x.logsumexp(-1), (torch.randn(64, 6000),))
    engine = CpuEngine(find_compiler(), "native", Options())
    for r, measured in ((small, False), (large, True)):
        p = r.planned
        assert bool(engine.candidates(p.region, p.derivation, r.sizes, Options())) is measured
        assert engine.decide(p.region, p.derivation, r.sizes, Options()).schedule is not None
