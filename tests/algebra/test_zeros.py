"""Tests of probabilities against zero (xlogy, entr, kl_div) in one pass, on rows where they are zero, NaN or too small."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_close
from stages import record

import redfuser
from redfuser.algebra.checked import derive_checked
from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

from .cascades import BY_NAME

L = 150
LOWEST = torch.finfo(torch.float32).min
SCHEDULES = [
    Schedule(Strategy.SINGLE, row=2, tile=16),
    Schedule(Strategy.MULTI, row=2, tile=16, segments=3),
    Schedule(Strategy.WHOLE, row=2, tile=256),
]


def hard(seed):
    """Rows of logits, by what is odd about them."""
    x = torch.randn(17, L, generator=torch.Generator().manual_seed(seed))
    early, some = torch.arange(L) < 70, torch.rand(17, L, generator=torch.Generator().manual_seed(seed)) < 0.5
    x[1] += 1e4
    x[2] = x[2].masked_fill(some[2], -math.inf)
    x[3] = -math.inf
    x[4] = x[4].masked_fill(early, -math.inf)
    x[5] = x[5].masked_fill(~early, -math.inf)
    x[6] *= 300  # most probabilities are too small for float32
    x[7] = torch.where(torch.arange(L) == 40, 1e4, 0.0)
    x[8, 33] = math.nan
    x[9, 100] = math.inf
    x[10] = x[10].masked_fill(early, LOWEST)
    x[11] = 3.0
    x[12] = torch.where(torch.arange(L) == 77, 0.3, -math.inf)
    x[13] = torch.where(torch.arange(L) == 5, math.nan, -math.inf)
    x[14] = torch.where(torch.arange(L) == 9, math.inf, -math.inf)
    x[15] += torch.where(early, -500.0, 500.0)
    x[16] = LOWEST
    return x


def by_xlogy(x):
    p = x.softmax(-1)
    return torch.xlogy(p, p).sum(-1)


def by_entr(x):
    return torch.special.entr(x.softmax(-1)).sum(-1)


def by_entr_of_exp(x):
    return torch.special.entr(x.log_softmax(-1).exp()).sum(-1)


def with_a_sink(x):
    p = torch.cat([x, torch.linspace(-9.0, 9.0, len(x), dtype=x.dtype)[:, None]], -1).softmax(-1)[:, :-1]
    return torch.xlogy(p, p).sum(-1)


def masked(x):
    keep = torch.arange(L) % 3 != 1
    return torch.special.entr(x.masked_fill(~keep, -math.inf).softmax(-1)).sum(-1)


def by_sign(x):
    p = x.softmax(-1)
    return torch.where(p == 0, 0.0, p * x.log_softmax(-1)).sum(-1)


def where_positive(x):
    """0 where the row is NaN."""
    p = x.softmax(-1)
    return torch.where(p > 0, p * p.log(), 0.0).sum(-1)


ENTROPIES = [by_xlogy, by_entr, by_entr_of_exp, with_a_sink, masked, by_sign, where_positive]


@pytest.mark.parametrize("fn", ENTROPIES, ids=lambda f: f.__name__)
def test_entropy(fn):
    x = hard(0)
    (region,) = record(fn, [x])
    assert len(region.planned.derivation.passes) == 1
    for schedule in SCHEDULES:
        for got, want in zip(*region.scheduled(schedule), fn(x.double()), strict=True):
            assert_close(got, want)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_divergence(temperature):
    def fn(x, y):
        t = temperature
        return F.kl_div((x / t).log_softmax(-1), (y / t).softmax(-1), reduction="none").sum(-1)

    y = hard(1)
    for x in (torch.randn(17, L), 30 * torch.randn(17, L), hard(2)[torch.arange(17) * 5 % 17] / 2):
        (region,) = record(fn, [x, y])
        assert len(region.planned.derivation.passes) == 1
        for schedule in SCHEDULES:
            for got, want in zip(*region.scheduled(schedule), fn(x.double(), y.double()), strict=True):
                if not want.abs() > 1e37:  # as large as the sum before it is divided may be
                    assert_close(got, want)


def test_distillation_in_one_pass():
    def mean(x, y):
        return F.kl_div(x.float().log_softmax(-1), y.float().softmax(-1), reduction="batchmean")

    for dtype in (torch.float32, torch.bfloat16):
        redfuser.assert_fused(mean, torch.randn(5, 300).to(dtype), torch.randn(5, 300).to(dtype))


def test_the_proof_tells_why():
    d = derive_checked(BY_NAME["entropy_by_xlogy"].problem())
    (rule,) = [r for r in d.proof.rules if r.rule == "branch"]
    assert rule.after.startswith("where(x[b, l] == -inf, 0, ") or rule.after.startswith("where(x == -inf, 0, ")
    assert len(rule.conditions) == 3
