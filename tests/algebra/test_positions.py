"""Positions of extrema under a mask, in rows of NaN, of infinities, and where nothing is kept: eager's, at every tiling."""

import math

import pytest
import torch
from stages import record

from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

L = 100
SCHEDULES = [
    Schedule(Strategy.SINGLE, row=2, tile=16),
    Schedule(Strategy.MULTI, row=2, tile=16, segments=3),
    Schedule(Strategy.WHOLE, row=2, tile=128),
]


def rows():
    x = torch.randn(12, L)
    keep = torch.rand(12, L) < 0.5
    keep[:, :3] = False
    x[1] = -math.inf
    x[2, 50] = math.nan
    x[3] = math.inf
    x[4, 10] = math.nan
    x[5], keep[5] = -math.inf, False
    x[6] = 0.0
    x[7, 3], keep[7] = math.nan, False
    x[8], keep[8] = -math.inf, True
    x[9], keep[9] = -math.inf, torch.arange(L) // 10 == 6
    x[10] = x[10].masked_fill(keep[10], -math.inf)
    x[11] = x[11].masked_fill(keep[11] & (torch.arange(L) < 90), -math.inf)
    return x, keep


def shifted(x, keep):
    return (x - x.amax(-1, keepdim=True)).masked_fill(~keep, -math.inf)


def softmax(x, keep):
    return x.softmax(-1).masked_fill(~keep, -math.inf)


def log_softmax(x, keep):
    return torch.where(keep, x.log_softmax(-1), -math.inf)


def exp_of_masked(x, keep):
    return torch.exp(torch.where(keep, x - x.amax(-1, keepdim=True), -math.inf))


def exp(x, keep):
    return torch.where(keep, torch.exp(x - x.amax(-1, keepdim=True)), -math.inf)


def tanh(x, keep):
    return torch.where(keep, torch.tanh(x - x.amax(-1, keepdim=True)), -math.inf)


def twice(x, keep):
    return shifted(x, keep).masked_fill(torch.arange(L) % 7 == 3, -math.inf)


BODIES = [shifted, softmax, log_softmax, exp_of_masked, exp, tanh, twice]


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_largest(body):
    x, keep = rows()
    (region,) = record(lambda x, keep: body(x, keep).argmax(-1), [x, keep])
    assert len(region.planned.derivation.passes) == 1
    for schedule in SCHEDULES:
        assert torch.equal(region.scheduled(schedule)[0], body(x, keep).argmax(-1)), schedule


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_smallest(body):
    x, keep = rows()
    (region,) = record(lambda x, keep: (-body(x, keep)).argmin(-1), [x, keep])
    for schedule in SCHEDULES:
        assert torch.equal(region.scheduled(schedule)[0], body(x, keep).argmax(-1)), schedule


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_largest_with_its_value(body):
    x, keep = rows()
    (region,) = record(lambda x, keep: body(x, keep).max(-1), [x, keep])
    want = body(x, keep).max(-1)
    for schedule in SCHEDULES:
        values, positions = region.scheduled(schedule)
        assert torch.equal(positions, want.indices), schedule
        assert torch.allclose(values, want.values, equal_nan=True), schedule


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_largest_four(body):
    """PyTorch leaves the order of equal values open; here the lowest position goes first."""
    x, keep = rows()
    (region,) = record(lambda x, keep: body(x, keep).topk(4, -1), [x, keep])
    want, (_, places) = body(x, keep).topk(4, -1), region.oracle()
    for schedule in SCHEDULES:
        values, positions = region.scheduled(schedule)
        assert torch.allclose(values, want.values, equal_nan=True), schedule
        assert torch.equal(positions, places), schedule


def test_noise_keeps_its_digits():
    """Added to log-probabilities it has more digits than beside the elements, which are large."""
    x, g = 1e4 + torch.randn(6, L), torch.randn(6, L)
    (region,) = record(lambda x, g: (x.log_softmax(-1) + g).max(-1), [x, g])
    want = (x.double().log_softmax(-1) + g.double()).max(-1)
    for schedule in SCHEDULES:
        values, positions = region.scheduled(schedule)
        assert torch.equal(positions, want.indices), schedule
        assert torch.allclose(values.double(), want.values, rtol=0, atol=5e-6), schedule
