"""Lists of the best and their positions: any k, ties, NaN. Positions are exact, the lowest wins among equals."""

import pytest
import torch
from catalogue import rnd
from helpers import assert_close
from stages import record

NAN, INF = float("nan"), float("inf")


def ties():
    return (rnd(6, 50) * 2).round()


def special():
    """NaN in several places, rows of one value only, infinities at both ends."""
    x = rnd(6, 50)
    x[0, 7] = x[0, 40] = NAN
    x[1], x[2, ::3], x[3, 0], x[4] = 1.0, -INF, -INF, -INF
    x[5, 49] = NAN
    return x


def few_numbers():
    """Rows with less numbers than a list has slots."""
    x = torch.full((6, 50), NAN)
    x[0, 30:33], x[1, 49], x[2, ::7], x[3, 3:5], x[4, 1] = 1.0, INF, INF, -INF, 2.0
    return x


def counted(x):
    """A first reduction that NaN does not spread through."""
    return 1.0 + (x > 0).sum(-1, keepdim=True)


def exact(kernels, fn, x, schedule):
    """Values within n roundings, positions equal to the oracle's."""
    regions = record(fn, (x,))
    assert regions
    for r in regions:
        for g, w in zip(kernels.launch(r, schedule), r.oracle(), strict=True):
            if w.is_floating_point():
                assert torch.equal(g.isnan(), w.isnan())
                g, w = g.nan_to_num(nan=0.0, posinf=1e9, neginf=-1e9), w.nan_to_num(nan=0.0, posinf=1e9, neginf=-1e9)
            assert_close(g, w, tolerance=50 * 2.0**-23)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_top_k(kernels, schedule, k):
    exact(kernels, lambda x: torch.topk(torch.softmax(x, -1), k, dim=-1), rnd(6, 50), schedule)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("make", [ties, special])
def test_top_k_of_equals_and_nan(kernels, schedule, k, make):
    exact(kernels, lambda x: torch.topk(x * counted(x), k, dim=-1), make(), schedule)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("make", [ties, special, few_numbers])
def test_top_k_of_what_is_kept(kernels, schedule, k, make):
    """Under a mask after the softmax: in a row that is NaN, what is kept goes first."""

    keep = torch.arange(50) % 3 == 1
    exact(kernels, lambda x: torch.softmax(x, -1).masked_fill(~keep, -INF).topk(k, -1), make(), schedule)
    exact(kernels, lambda x: (-torch.softmax(x, -1)).masked_fill(~keep, -INF).topk(k, -1), make(), schedule)
    exact(kernels, lambda x: torch.softmax(x, -1).masked_fill(~keep, INF).topk(k, -1, largest=False), make(), schedule)
    exact(kernels, lambda x: (x - x.amax(-1, keepdim=True)).masked_fill(~keep, -INF).topk(k, -1), make(), schedule)


@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("make", [ties, special, few_numbers])
def test_the_smallest(kernels, schedule, k, make):
    """NaN counts as the largest, so it comes last, behind infinity."""
    exact(kernels, lambda x: torch.topk(x * counted(x), k, dim=-1, largest=False), make(), schedule)


@pytest.mark.parametrize("make", [ties, special])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_of_the_best(kernels, schedule, make, name):
    exact(kernels, lambda x: getattr(x * counted(x), name)(-1), make(), schedule)


def test_positions_where_every_element_is_nan(kernels, schedule):
    """One NaN in a row makes its softmax NaN everywhere, so the lowest positions come first, not that of the NaN."""

    def best(x):
        p = torch.softmax(x, -1)
        return *p.topk(3, -1), *p.topk(3, -1, largest=False), p.argmin(-1)

    exact(kernels, best, special(), schedule)


def test_more_than_there_are_in_a_segment(kernels, schedule):
    exact(kernels, lambda x: torch.topk(torch.softmax(x, -1), 17, dim=-1), rnd(3, 18), schedule)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_dtypes(kernels, schedule, dtype):
    x = (rnd(6, 50) * 2).round().to(dtype)
    exact(kernels, lambda x: torch.topk(x * (x > 0).any(-1, keepdim=True), 5, dim=-1), x, schedule)
