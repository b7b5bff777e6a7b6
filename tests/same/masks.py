"""Masks built from positions and from data: skipped tiles, tiles cut by the mask, rows without a key."""

import math

import pytest
import torch
from catalogue import rnd
from same.inputs import agrees
from stages import record


def positions(q, k):
    i = torch.arange(q.shape[-2], device=q.device)[:, None]
    return i, torch.arange(k.shape[-2], device=k.device)[None, :]


def masked(keep):
    def fn(q, k, v, *more):
        i, j = positions(q, k)
        s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.softmax(s.masked_fill(~keep(i, j, *more), float("-inf")), -1) @ v

    return fn


def inputs(queries, keys):
    return rnd(2, queries, 16), rnd(2, keys, 16, seed=1), rnd(2, keys, 8, seed=2)


KEPT = {
    "causal": (lambda i, j: j <= i, (37, 37)),
    "the last queries": (lambda i, j: j <= i + 40, (9, 49)),
    "more queries than keys": (lambda i, j: j <= i, (40, 20)),
    "window": (lambda i, j: (j <= i) & (i - j < 10), (50, 50)),
    "both sides": (lambda i, j: (j - i).abs() <= 7, (50, 50)),
    "prefix": (lambda i, j: (j <= i) | (j < 12), (40, 40)),
    "strictly later": (lambda i, j: j > i, (30, 50)),
}


@pytest.mark.parametrize("keep, shape", KEPT.values(), ids=KEPT)
def test_positions(kernels, schedule, keep, shape):
    agrees(kernels, record(masked(keep), inputs(*shape)), [schedule])


def test_documents(kernels, schedule):
    """Which document a position belongs to is data."""
    documents = torch.tensor([0] * 11 + [1] * 20 + [2] * 9)
    keep = lambda i, j, d: (d[:, None] == d[None, :]) & (j <= i)  # noqa: E731
    agrees(kernels, record(masked(keep), (*inputs(40, 40), documents)), [schedule])


def test_no_key_for_some_queries(kernels, schedule):
    agrees(kernels, record(masked(lambda i, j: j < i - 5), inputs(30, 40)), [schedule])
