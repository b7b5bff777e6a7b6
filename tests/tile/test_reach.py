"""Tiles that data empty: a kernel before the loop finds where each row's positions count."""

import math

import pytest
import torch
from helpers import assert_close
from stages import record

from redfuser.tile.build import build
from redfuser.tile.nodes import Highest, Loop, Lowest, Strategy
from redfuser.tile.strategy import Schedule
from redfuser.tile.uses import bound_values

L = 150


def attention(q, k, v, segment, causal):
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    same = segment[:, None, :, None] == segment[:, None, None, :]
    if causal:
        n = torch.arange(s.shape[-1])
        same = same & (n[None, :] <= n[:, None])
    return torch.softmax(s.masked_fill(~same, float("-inf")), -1) @ v


SEGMENTS = {
    "in order": torch.arange(L) // 31,
    "mixed": torch.arange(L) * 7 % 5,
    "one": torch.zeros(L, dtype=torch.int64),
    "all different": torch.arange(L),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SEGMENTS)
def test_numbers(name, causal):
    ids = SEGMENTS[name][None].expand(2, -1).contiguous()
    args = [*(torch.randn(2, 3, L, 8) for _ in range(3)), ids]
    (region,) = record(lambda q, k, v, s: attention(q, k, v, s, causal), args)
    for row, tile in ((4, 16), (32, 32), (64, 128)):
        assert_close(region.scheduled(Schedule(Strategy.SINGLE, row=row, tile=tile)), region.oracle())


ORDERS = {
    "at least": lambda row, along: along >= row,
    "below": lambda row, along: along < row,
    "the row at least": lambda row, along: row >= along,
    "between": lambda row, along: (row - 9 < along) & (along <= row),
    "other": lambda row, along: row != along,
}
FARTHEST = torch.iinfo(torch.int64)
NUMBERS = {
    "in order": torch.arange(L) // 7,
    "mixed": torch.arange(L) * 7 % 23,
    "farthest": torch.where(torch.arange(L) % 40 < 20, FARTHEST.min, FARTHEST.max),
    "real": torch.where(torch.arange(L) == 77, math.nan, torch.arange(L) // 7),
}


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("order", ORDERS)
def test_orders(order, numbers):
    """A run of positions is judged by its range, where there is one: real numbers may be NaN, which lies in none."""
    args = [*(torch.randn(3, L, 8) for _ in range(3)), NUMBERS[numbers], NUMBERS[numbers].flip(0)]

    def f(q, k, v, row, along):
        seen = ORDERS[order](row[:, None], along[None, :])
        return torch.softmax((q @ k.transpose(-1, -2)).masked_fill(~seen, float("-inf")), -1) @ v

    (region,) = record(f, args)
    for row, tile, lanes in ((4, 16, False), (32, 32, True), (64, 128, False)):
        schedule = Schedule(Strategy.SINGLE, row=row, tile=tile, search_lanes=lanes)
        assert_close(region.scheduled(schedule), region.oracle())


def test_rows_without_any_position():
    q, k, v = (torch.randn(2, 3, L, 8) for _ in range(3))
    here, there = torch.arange(L) // 50, torch.arange(L) // 50 + 1

    def f(q, k, v, here, there):
        s = (q @ k.transpose(-1, -2)).masked_fill(here[:, None] != there, float("-inf"))
        return torch.softmax(s, -1) @ v

    (region,) = record(f, [q, k, v, here, there])
    got, want = region.scheduled(Schedule(Strategy.SINGLE, row=16, tile=32)), region.oracle()
    assert want[0].isnan().any() and not want[0].isnan().all()
    assert_close(got, want)


def test_only_tiles_that_count_are_visited(monkeypatch):
    ids = SEGMENTS["in order"][None].expand(2, -1).contiguous()
    args = [*(torch.randn(2, 3, L, 8) for _ in range(3)), ids]
    (region,) = record(lambda q, k, v, s: attention(q, k, v, s, False), args)
    program = build(region.planned.region, region.planned.derivation, Schedule(Strategy.SINGLE, row=31, tile=16))
    assert [k.name for k in program.kernels] == ["reach1", "single"]
    loops = [s for s in program.kernels[1].body if isinstance(s, Loop)]
    assert all(set(bound_values(s.stop)) for s in loops)

    from redfuser.backends import reference

    visited = []
    run = reference._Execution.set

    def seen(self, axis, start, stop):
        if self.kernel.name == "single" and any(t.axis is axis and t.block == 16 for t in self.kernel.inside):
            visited.append(start)
        run(self, axis, start, stop)

    monkeypatch.setattr(reference._Execution, "set", seen)
    region.scheduled(Schedule(Strategy.SINGLE, row=31, tile=16))
    blocks = -(-L // 31)
    assert len(visited) / blocks <= 6 * 4, "each block of rows has one segment of 31 positions: 3 tiles, not 10"


def test_masks_of_their_own_are_not_looked_through():
    """A mask that runs along rows and the axis costs as much to search as it saves."""
    args = [*(torch.randn(2, 3, L, 8) for _ in range(3)), torch.rand(L, L) < 0.5]

    def f(q, k, v, mask):
        return torch.softmax((q @ k.transpose(-1, -2)).masked_fill(mask, float("-inf")), -1) @ v

    (region,) = record(f, args)
    program = build(region.planned.region, region.planned.derivation, Schedule(Strategy.SINGLE, row=16, tile=16))
    assert len(program.kernels) == 1
    assert not any(
        isinstance(b, Lowest | Highest)
        for s in program.kernels[0].body
        if isinstance(s, Loop)
        for b in (s.start, s.stop)
    )
