"""Running state in lanes: rows shorter than a run, lanes that see nothing, infinities and NaN, by Triton's interpreter."""

import functools
from dataclasses import replace

import pytest
import torch
from catalogue import rnd
from helpers import assert_close
from printed import launch, launcher
from stages import record

from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule, Unsupported

LANES = Schedule(Strategy.SINGLE, row=1, tile=32, lanes=4, run=4)
SCHEDULES = {
    "two turns": LANES,
    "one turn, rows": Schedule(Strategy.SINGLE, row=4, tile=16, lanes=4, run=4),
    "segments": Schedule(Strategy.MULTI, row=1, tile=16, segments=3, lanes=8, run=2),
    "one lane": Schedule(Strategy.SINGLE, row=1, tile=8, lanes=1, run=4),
    "no runs": Schedule(Strategy.SINGLE, row=1, tile=16, lanes=8, run=1),
}
schedules = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


def logsumexp(x):
    return x.logsumexp(-1)


def spread(x):
    return x.var(-1, unbiased=False)


def disorder(x):
    log_p = x.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def weights(x):
    return x.softmax(-1)


@functools.cache
def region(fn):
    """Of rows of any length."""
    x = rnd(3, 50)
    torch._dynamo.mark_dynamic(x, 1)
    (r,) = record(fn, (x,))
    assert len(r.sizes) == 1
    return r


def agrees(fn, x, schedule, directory):
    """As eager has it in float64, NaN and infinities included."""
    r = region(fn)
    (got,) = launch(
        replace(r, inputs=dict.fromkeys(r.inputs, x), sizes=dict.fromkeys(r.sizes, x.shape[1])), schedule, directory
    )
    want = fn(x.double())
    assert torch.equal(torch.isfinite(got), torch.isfinite(want)) and torch.equal(torch.isnan(got), torch.isnan(want))
    finite = torch.isfinite(want)
    assert_close(torch.where(finite, got, 0), torch.where(finite, want, 0), tolerance=1e-5)


@schedules
@pytest.mark.parametrize("length", [1, 3, 5, 16, 50])
@pytest.mark.parametrize("fn", [logsumexp, spread, disorder, weights])
def test_lengths(fn, length, schedule, tmp_path):
    agrees(fn, rnd(3, length), schedule, tmp_path)


@schedules
def test_no_positions(schedule, tmp_path):
    agrees(logsumexp, rnd(3, 0), schedule, tmp_path)


@schedules
@pytest.mark.parametrize("fn", [logsumexp, weights])
def test_lanes_that_see_only_infinities(fn, schedule, tmp_path):
    x = rnd(3, 50)
    x[0, :] = float("-inf")
    x[1, 1:] = float("-inf")
    x[2, :49] = float("-inf")
    agrees(fn, x, schedule, tmp_path)
    x = rnd(3, 50)
    x[0, 7] = float("inf")
    x[1, 11] = float("nan")
    agrees(fn, x, schedule, tmp_path)


def test_uneven_tiles_are_refused(tmp_path):
    (r,) = record(logsumexp, (rnd(3, 50),))
    with pytest.raises(Unsupported, match="not dealt evenly"):
        launcher(r, Schedule(Strategy.SINGLE, row=1, tile=16, lanes=3, run=4), tmp_path).source()
