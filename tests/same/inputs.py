"""Shapes, strides, dtypes and values that kernels must take as they come."""

import math

import pytest
import torch
from catalogue import rnd
from helpers import EPS, assert_close
from stages import record

from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

SINGLE = Schedule(Strategy.SINGLE, row=4, tile=16)
MULTI = Schedule(Strategy.MULTI, row=4, tile=16, segments=3)


def agrees(kernels, regions, schedules, wide=False):
    """Every region by its kernels against its oracle: twice eager's error, n roundings, and one of the output's dtype."""
    assert regions
    for r in regions:
        n = max((max(x.shape, default=1) for x in r.inputs.values()), default=1)
        want, eager = r.oracle(), r.eager()
        for schedule in schedules:
            got = kernels.launch(r, schedule, wide)
            assert [g.dtype for g in got] == [e.dtype for e in eager]
            for g, w, e in zip(got, want, eager, strict=True):
                error = assert_close(e, w, tolerance=0.1) if e.is_floating_point() else 0.0
                fine = EPS[torch.float64 if e.dtype is torch.float64 else torch.float32]
                output = EPS[e.dtype] if e.dtype in (torch.bfloat16, torch.float16) else 0.0
                assert_close(g, w, tolerance=2 * error + n * fine + output)


def softmax(x):
    return torch.softmax(x, -1)


def weighted(x, v):
    return torch.softmax(x, -1) @ v


def spread(x):
    return x.var(-1)


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


@pytest.mark.parametrize("rows, length", [(1, 50), (7, 2), (3, 15), (4, 16), (5, 17), (9, 33)])
def test_ragged(kernels, schedule, rows, length):
    agrees(kernels, record(softmax, (rnd(rows, length),)), [schedule])
    agrees(kernels, record(weighted, (rnd(rows, length), rnd(length, 5, seed=1))), [schedule])


def test_grouped_heads_and_several_queries(kernels, schedule):
    """Rows are (group, query): 3 x 5 of them in blocks of 4, and a block crosses a head of the group."""

    def grouped(q, k, v):
        b, h, n, d = q.shape
        rows = q.reshape(b, k.shape[1], h // k.shape[1], n, d)
        p = torch.softmax(rows @ k[:, :, None].transpose(-1, -2) / math.sqrt(d), -1)
        return (p @ v[:, :, None]).reshape(b, h, n, d)

    agrees(
        kernels, record(grouped, (rnd(2, 6, 5, 16), rnd(2, 2, 37, 16, seed=1), rnd(2, 2, 37, 16, seed=2))), [schedule]
    )


def test_repeated_heads(kernels, schedule):
    def repeated(q, k, v):
        k, v = (x.repeat_interleave(3, 1) for x in (k, v))
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    inputs = rnd(1, 6, 5, 16, scale=0.3), rnd(1, 2, 37, 16, seed=1), rnd(1, 2, 37, 16, seed=2)
    agrees(kernels, record(repeated, inputs), [schedule])


@pytest.mark.parametrize("size, value", [(80, 80), (96, 96), (72, 40), (576, 512)])
def test_head_sizes(kernels, size, value):
    inputs = rnd(1, 5, size), rnd(1, 35, size, seed=1), rnd(1, 35, value, seed=2)
    agrees(kernels, record(attention, inputs), [SINGLE, MULTI])


@pytest.mark.parametrize("column", [16, 32, None])
def test_columns_in_blocks(kernels, column):
    schedule = Schedule(Strategy.SINGLE, row=4, tile=16, column=column)
    agrees(kernels, record(weighted, (rnd(5, 40), rnd(40, 50, seed=1))), [schedule])
    split = Schedule(Strategy.MULTI, row=4, tile=16, segments=2, column=column, merge_row=1, merge_column=16)
    agrees(kernels, record(weighted, (rnd(5, 40), rnd(40, 50, seed=1))), [split])


def test_a_value_that_is_key_and_value(kernels):
    def latent(q, c, rope):
        keys = torch.cat([c, rope], -1)
        return torch.softmax(q @ keys.transpose(-1, -2) / 13.0, -1) @ c

    agrees(kernels, record(latent, (rnd(2, 5, 80), rnd(2, 40, 64, seed=1), rnd(2, 40, 16, seed=2))), [SINGLE, MULTI])


STRIDED = {
    "transposed": lambda: rnd(40, 6).t(),
    "every second": lambda: rnd(6, 80)[:, ::2],
    "rows apart": lambda: rnd(6, 64)[:, 3:43],
    "one row for all": lambda: rnd(1, 40).expand(6, 40),
    "one value a row": lambda: rnd(6, 1).expand(6, 40),
    "no alignment": lambda: rnd(241)[1:].view(6, 40),
}


@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
def test_strides(kernels, schedule, make):
    agrees(kernels, record(softmax, (make(),)), [schedule])
    agrees(kernels, record(weighted, (make(), rnd(9, 40, seed=1).t())), [schedule])


def test_strides_may_change_from_call_to_call(kernels):
    """One prepared program takes each of them."""
    r = record(softmax, (rnd(6, 40),))[0]
    run = kernels.launcher(r, SINGLE).prepare(r.sizes)
    for make in (*STRIDED.values(), *STRIDED.values()):
        x = make()
        assert_close(run([x])[0], torch.softmax(x.double(), -1), tolerance=40 * 2.0**-23)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_dtypes(kernels, schedule, dtype):
    x, v = rnd(5, 50).to(dtype), rnd(50, 6, seed=1).to(dtype)
    agrees(kernels, record(softmax, (x,)), [schedule])
    agrees(kernels, record(spread, (x,)), [schedule])
    agrees(kernels, record(lambda x: x.logsumexp(-1), (x,)), [schedule])
    agrees(kernels, record(weighted, (x, v)), [schedule])
    q, k = (rnd(2, 5, 16, seed=3).to(dtype), rnd(2, 40, 16, seed=4).to(dtype))
    agrees(kernels, record(attention, (q, k, k.clone())), [schedule])


def test_rows_that_are_not_finite(kernels, schedule):
    inf, nan = float("inf"), float("nan")
    x = rnd(8, 40)
    x[0], x[1, 3], x[2, :20], x[3, 25:], x[4, 39], x[5], x[6, 0] = -inf, nan, -inf, -inf, inf, nan, -inf
    for fn in (softmax, lambda x: x.logsumexp(-1)):
        for r in record(fn, (x,)):
            (got,) = kernels.launch(r, schedule)
            want = fn(x.double())
            assert torch.equal(got.isnan(), want.isnan())
            kept = ~want.isnan()
            assert_close(got[kept], want[kept], tolerance=40 * 2.0**-23)


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_squares_that_overflow(kernels, schedule):
    """Where x * x overflows the variance is infinite, as in eager PyTorch, and what divides by it is 0: never NaN."""

    def both(x):
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return variance, (centred * torch.rsqrt(variance + 1e-5)).amax(-1)

    scale = torch.tensor([1.0, 1e15, 1e18, 1e20, 1e25, 1e36])[:, None]
    for x in ((1 + 0.2 * rnd(6, 40)) * scale, torch.cat([torch.ones(6, 20), -torch.ones(6, 20)], -1) * scale):
        (r,) = record(both, (x,))
        for got, want in zip(kernels.launch(r, schedule), both(x), strict=True):
            assert torch.equal(got.isfinite(), want.isfinite()) and not got.isnan().any()
            fine = want.isfinite()
            assert torch.allclose(got[fine], want[fine], rtol=1e-4)


def test_squares_that_underflow(kernels, schedule):
    """Where x * x is 0 the variance is: no rest of the mean, whose numbers may have a larger range, makes it negative."""

    def both(x):
        deviation = x.std(-1, keepdim=True)
        return deviation, ((x - x.mean(-1, keepdim=True)) / (deviation + 1e-6)).amax(-1)

    x = rnd(6, 40) * torch.tensor([1.0, 1e-15, 1e-20, 1e-24, 1e-30, 1e-40])[:, None]
    (r,) = record(both, (x,))
    for got, want in zip(kernels.launch(r, schedule), both(x), strict=True):
        assert torch.equal(got.isfinite(), want.isfinite())
        assert torch.allclose(got, want, rtol=1e-4, atol=1e-21)


def test_weights_that_underflow(kernels, schedule):
    """Where the weights of all that is kept are 0 as floats a part of nothing is NaN, whichever tile they were first in."""

    def kept(x, keep):
        p = torch.where(keep, (x - x.amax(-1, keepdim=True)).exp(), 0.0)
        total = p.sum(-1, keepdim=True)
        return total, (p * x).sum(-1, keepdim=True) / total

    x, keep = rnd(4, 40), torch.arange(40) != 39
    x[1] -= torch.arange(40)
    x[:, 39] = torch.tensor([0.0, 20.0, 300.0, 1e4])
    (r,) = record(kept, (x, keep))
    for got, want in zip(kernels.launch(r, schedule), kept(x, keep), strict=True):
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.allclose(got, want, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("length, segments", [(20, 5), (5, 4), (33, 8), (16, 2)])
def test_segments_without_elements(kernels, length, segments):
    schedule = Schedule(Strategy.MULTI, row=4, tile=16, segments=segments)
    agrees(kernels, record(softmax, (rnd(5, length),)), [schedule])
    agrees(kernels, record(weighted, (rnd(5, length), rnd(length, 3, seed=1))), [schedule])
    agrees(kernels, record(spread, (rnd(5, length),)), [schedule])
    agrees(kernels, record(lambda x: torch.topk(softmax(x), 4, -1), (rnd(5, length),)), [schedule])


def test_one_program_for_every_length(kernels, schedule):
    """Lengths and rows are arguments: what was built for the first call runs at the others."""

    def call(rows, length):
        x, v = rnd(rows, length), rnd(length, 6, seed=1)
        for dim in (0, 1):
            torch._dynamo.mark_dynamic(x, dim)
        torch._dynamo.mark_dynamic(v, 0)
        return x, v

    calls = [call(*s) for s in ((5, 40), (9, 100), (2, 7), (4, 16), (33, 3))]
    regions = record(weighted, *calls)
    assert len({id(r.planned) for r in regions}) == 1 and len({tuple(r.sizes.values()) for r in regions}) == 5
    program = kernels.launcher(regions[0], schedule)
    for r, (x, v) in zip(regions, calls, strict=True):
        (got,) = program.prepare(r.sizes)(list(r.inputs.values()))
        error = assert_close(weighted(x, v), weighted(x.double(), v.double()))
        assert_close(got, weighted(x.double(), v.double()), tolerance=2 * error + 100 * 2.0**-23)


def test_a_wrong_input_is_refused(kernels):
    r = record(softmax, (rnd(6, 40),))[0]
    run = kernels.launcher(r, SINGLE).prepare(r.sizes)
    for wrong in (rnd(6, 41), rnd(40), rnd(6, 40).double()):
        with pytest.raises(ValueError, match="the program takes"):
            run([wrong])
