"""One computation written in many ways gives one cascade: the same reducers, treatments, passes and numbers."""

import math

import pytest
import torch
import torch.nn.functional as F
from catalogue import rnd
from helpers import assert_close, double
from stages import fused_runs

import redfuser

L, D = 70, 16


def shape_of(fn, *args):
    """What must be equal between spellings: for each reduction its reducer, treatments and pass, in order."""
    analysis = redfuser.analyze(fn, *args)
    assert not analysis.refusals, [str(r) for r in analysis.refusals]
    (cascade,) = analysis.cascades
    return [(str(r.reducer), sorted(map(str, r.treatment)), r.in_pass) for r in cascade.reductions]


def check(fn, *args, tolerance=2e-5):
    """By the reference backend: spellings of one cascade differ in names alone when a kernel is printed."""
    fused = redfuser.fuse(fn, backend="reference", rest="eager", strategy="single", tile=16, strict=True)
    with fused_runs() as runs:
        got = fused(*args)
    assert_close(got, fn(*double(args)), tolerance=tolerance, like=fn(*args))
    assert runs, "nothing was fused"


def by_hand(x):
    e = torch.exp(x - x.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def by_hand_amax(x):
    m = x.amax(-1, keepdim=True)
    return (x - m).exp() / (x - m).exp().sum(dim=-1, keepdim=True)


def shifted_twice(x):
    return torch.softmax(x - x.max(dim=-1, keepdim=True)[0], -1)


SOFTMAX = {
    "torch.softmax": lambda x: torch.softmax(x, -1),
    "F.softmax": lambda x: F.softmax(x, dim=-1),
    "x.softmax": lambda x: x.softmax(x.dim() - 1),
    "exp of log_softmax": lambda x: F.log_softmax(x, -1).exp(),
    "by hand, max": by_hand,
    "by hand, amax": by_hand_amax,
    "shifted twice": shifted_twice,
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_rows(name):
    softmax = SOFTMAX[name]
    args = rnd(5, L, scale=3.0), rnd(L, D, seed=1)

    def fn(x, v):
        return softmax(x) @ v

    assert shape_of(fn, *args) == shape_of(lambda x, v: torch.softmax(x, -1) @ v, *args)
    check(fn, *args)


def test_softmax_without_max_gets_one():
    """exp/sum without a maximum: a running maximum is added, so large inputs do not overflow."""
    args = rnd(5, L, scale=3.0) + 200, rnd(L, D, seed=1)

    def fn(x, v):
        e = x.exp()
        return (e / e.sum(-1, keepdim=True)) @ v

    (cascade,) = redfuser.analyze(fn, *args).cascades
    assert cascade.passes == 1 and "rescale" in {str(t) for t in cascade.reductions[-1].treatment}
    got = redfuser.fuse(fn, rest="eager", strategy="single", tile=16)(*args)
    assert_close(got, torch.softmax(args[0].double(), -1) @ args[1].double())


Q, K, V = rnd(2, 3, 9, D), rnd(2, 3, L, D, seed=1), rnd(2, 3, L, 8, seed=2)
MASK = torch.where(rnd(9, L, seed=3) > -0.7, 0.0, float("-inf"))
KEEP = MASK == 0


def scores(q, k):
    return q @ k.transpose(-1, -2)


ATTENTION = {
    "/ sqrt(d)": lambda q, k, v: torch.softmax(scores(q, k) / math.sqrt(D), -1) @ v,
    "* scale": lambda q, k, v: torch.softmax(scores(q, k) * D**-0.5, -1) @ v,
    "scaled q": lambda q, k, v: torch.softmax((q * D**-0.5) @ k.mT, -1) @ v,
    "matmul": lambda q, k, v: torch.matmul(F.softmax(torch.matmul(q, k.transpose(2, 3)) * 0.25, -1), v),
    "bmm": lambda q, k, v: torch.bmm(
        torch.softmax(torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT) * 0.25, -1), v.flatten(0, 1)
    ).unflatten(0, (2, 3)),
    "einsum": lambda q, k, v: torch.einsum(
        "bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).mul(0.25).softmax(-1), v
    ),
    "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    fn = ATTENTION[name]
    assert shape_of(fn, Q, K, V) == shape_of(ATTENTION["/ sqrt(d)"], Q, K, V)
    check(fn, Q, K, V)


MASKED = {
    "mask + scores": lambda q, k, v, m, keep: torch.softmax(m + scores(q, k), -1) @ v,
    "scores + mask": lambda q, k, v, m, keep: torch.softmax(scores(q, k) + m, -1) @ v,
    "masked_fill": lambda q, k, v, m, keep: torch.softmax(scores(q, k).masked_fill(~keep, -math.inf), -1) @ v,
    "where": lambda q, k, v, m, keep: torch.softmax(torch.where(keep, scores(q, k), -math.inf), -1) @ v,
    "sdpa bool": lambda q, k, v, m, keep: F.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=1.0),
    "sdpa float": lambda q, k, v, m, keep: F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=1.0),
}


@pytest.mark.parametrize("name", MASKED)
def test_masks(name):
    fn = MASKED[name]
    args = (Q, K, V, MASK, KEEP)
    assert shape_of(fn, *args) == shape_of(MASKED["scores + mask"], *args)
    check(fn, *args)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (2, 1, 3), (1, 2, 1, 3)])
def test_any_number_of_batch_dimensions(batch):
    args = rnd(*batch, 9, D), rnd(*batch, L, D, seed=1), rnd(*batch, L, 8, seed=2)
    assert len(shape_of(ATTENTION["/ sqrt(d)"], *args)) == 3
    check(ATTENTION["/ sqrt(d)"], *args)


@pytest.mark.parametrize("queries, keys", [(9, L), (L, L), (L, 9), (1, L)])
@pytest.mark.parametrize("grouped", [False, True])
def test_sdpa_causal_and_grouped(queries, keys, grouped):
    heads = 6
    q = rnd(2, heads, queries, D)
    k, v = rnd(2, 2 if grouped else heads, keys, D, seed=1), rnd(2, 2 if grouped else heads, keys, 8, seed=2)

    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)

    assert [r for r, _, _ in shape_of(fn, q, k, v)] == ["max", "sum", "sum"]
    check(fn, q, k, v)


CAUSAL = {
    "tril": lambda s, n, m: s.masked_fill(~torch.ones(n, m).tril(m - n).bool(), -math.inf),
    "triu fill": lambda s, n, m: s + torch.full((n, m), -math.inf).triu(m - n + 1),
    "arange": lambda s, n, m: torch.where(
        torch.arange(m) <= torch.arange(n)[:, None] + (m - n), s, torch.tensor(-math.inf)
    ),
    "arange masked_fill": lambda s, n, m: s.masked_fill(
        torch.arange(m)[None] > torch.arange(n)[:, None] + m - n, -math.inf
    ),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_masks_by_hand(name):
    def fn(q, k, v):
        s = scores(q, k) * 0.25
        return CAUSAL[name](s, q.shape[-2], k.shape[-2]).softmax(-1) @ v

    assert [r for r, _, _ in shape_of(fn, Q, K, V)] == ["max", "sum", "sum"]
    check(fn, Q, K, V)


GROUPED = {
    "repeat_interleave": lambda t, g: t.repeat_interleave(g, 1),
    "expand": lambda t, g: t[:, :, None].expand(-1, -1, g, -1, -1).flatten(1, 2),
    "repeat of a view": lambda t, g: t.unsqueeze(2).repeat(1, 1, g, 1, 1).reshape(t.shape[0], -1, *t.shape[2:]),
}


@pytest.mark.parametrize("name", GROUPED)
def test_shared_heads_need_no_copies(name):
    q, k, v = rnd(2, 6, 9, D), rnd(2, 2, L, D, seed=1), rnd(2, 2, L, 8, seed=2)

    def fn(q, k, v):
        k, v = (GROUPED[name](t, 3) for t in (k, v))
        return torch.softmax(scores(q, k) * 0.25, -1) @ v

    assert [r for r, _, _ in shape_of(fn, q, k, v)] == ["max", "sum", "sum"]
    check(fn, q, k, v)


def test_merged_heads_are_views():
    """(b, s, h·d) ↔ (b, h, s, d) on the way in and out."""

    def fn(x, y):
        q, k, v = (t.view(2, -1, 4, 8).transpose(1, 2) for t in (x, y, y.roll(1, -1)))
        o = torch.softmax(scores(q, k) * 0.3, -1) @ v
        return o.transpose(1, 2).reshape(2, -1, 32)

    check(fn, rnd(2, 9, 32), rnd(2, L, 32, seed=1))


STATISTICS = {
    "x.var": lambda x: x.var(-1, correction=0),
    "torch.var_mean": lambda x: torch.var_mean(x, -1, correction=0)[0],
    "mean of squares": lambda x: (x - x.mean(-1, keepdim=True)).pow(2).mean(-1),
    "product": lambda x: ((x - x.mean(-1, keepdim=True)) * (x - x.mean(-1, keepdim=True))).sum(-1) / x.shape[-1],
    "square": lambda x: torch.square(x - x.sum(-1, keepdim=True) / x.shape[-1]).mean(-1),
    "std": lambda x: x.std(-1, correction=0) ** 2,
}


@pytest.mark.parametrize("name", STATISTICS)
def test_variance(name):
    x = rnd(5, L) + 3
    assert shape_of(STATISTICS[name], x) == shape_of(STATISTICS["mean of squares"], x)
    check(STATISTICS[name], x)
