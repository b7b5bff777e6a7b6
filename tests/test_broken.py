"""Functions that once failed: each was computed wrongly, raised, or silently ran unfused."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_close, double
from stages import fused_runs

import redfuser

pytestmark = pytest.mark.usefixtures("quick_kernels")
CASES: list[Any] = []


@dataclass(frozen=True)
class Case:
    name: str
    fn: Any
    args: tuple[torch.Tensor, ...]
    passes: tuple[int, ...]
    expected: dict[str, Any] = field(default_factory=dict)


def case(*args, passes=(1,), **expected):
    def add(fn):
        CASES.append(Case(fn.__name__, fn, args, passes, expected))
        return fn

    return add


def rnd(*shape, seed=0, scale=1.0, shift=0.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))) * scale + shift


def ints(high, *shape, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


Q, K, V = rnd(2, 3, 9, 16), rnd(2, 3, 70, 16, seed=1), rnd(2, 3, 70, 8, seed=2)


@case(Q, K, V)
def scores_of_normalised_operands(q, k, v):
    """The scores share the reduced axis of q's norm, but the tiles of the softmax compute them."""
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return F.softmax(q @ k.mT * 10, -1) @ v


@case(Q.bfloat16(), K.bfloat16(), V.bfloat16(), tolerance=2e-2)
def casts_that_check_metadata(q, k, v):
    """The check that ``.float()`` leaves in the graph is no reader of the scores."""
    s = q @ k.mT
    return F.softmax(s / 4, -1) @ v, F.softmax(s.float() / 4, -1).to(q.dtype) @ v


@case(ints(50, 5, 70), passes=(2,))
def integers_stay_exact(x):
    return (x - x.amax(-1, keepdim=True)).sum(-1)


@case(rnd(2, 9, 12), rnd(12, 12, seed=1))
def the_layout_of_results_is_the_users(x, w):
    """The result lies as (batch, length, heads, width), so that it has a view as (batch, length, model)."""
    q = (x @ w).view(2, 9, 3, 4).transpose(1, 2)
    out = F.scaled_dot_product_attention(q, q, q)
    return out.transpose(1, 2).view(2, 9, 12)


@case(rnd(6, 70), ints(70, 6))
def label_smoothing(x, t):
    return F.cross_entropy(x, t, label_smoothing=0.1), F.cross_entropy(x, t, label_smoothing=0.1, reduction="sum")


@case(rnd(6, 70), torch.tensor([3, -100, 5, 0, -100, 69]))
def label_smoothing_of_ignored_rows(x, t):
    return F.cross_entropy(x, t, label_smoothing=0.1)


@case(rnd(6, 70), F.softmax(rnd(6, 70, seed=3), -1))
def losses_of_soft_targets(x, p):
    return F.cross_entropy(x, p), F.kl_div(F.log_softmax(x, -1), p, reduction="batchmean")


@case(rnd(4, 70, shift=1e5), tolerance=2e-6, gradient=0.2)
def shifts_that_rounding_spoils(x):
    """Not even in one tile may the mean be rounded before it is subtracted: eager keeps it in double."""
    return x.var(-1), x.std(-1)


@case(rnd(2, 7, 5), ints(7, 2, 5), rnd(7, seed=3).abs())
def weighted_classes(x, t, w):
    """The weights have no gradient, nor may the backward ask for one."""
    return F.cross_entropy(x, t, weight=w), F.cross_entropy(x, t, weight=w, reduction="sum")


@case(rnd(2, 17, 32), rnd(32), rnd(32, 32))
def a_reader_of_the_first_row_only(x, w, m):
    """The product needs the statistics of one row; the other rows of the result are computed all the same."""
    y = F.layer_norm(x, (32,), w)
    return y, y[:, 0] @ m


@case(rnd(2, 17, 32), rnd(32), rnd(32, 32))
def only_the_first_row_is_read(x, w, m):
    return F.layer_norm(x, (32,), w)[:, 0] @ m


@case(rnd(2, 17, 32), rnd(32, 32))
def a_reader_of_some_rows(x, m):
    y = F.softmax(x, -1)
    return y, y[:, 3:9] @ m


@case(rnd(2, 6, 32), rnd(3, 32, 32))
def readers_of_different_rows(x, m):
    y = F.softmax(x, -1)
    return y[:, 0] @ m[0], y[:, 1] @ m[1], y[:, ::2] @ m[2]


@case(rnd(5, 70, scale=3.0), tolerance=1e-14)
def sums_wider_than_their_elements(x):
    """The maximum is as narrow as the elements, but what is subtracted from it and corrected is not."""
    return x.softmax(-1, dtype=torch.float64)


@case(rnd(2, 9, 32))
def rows_that_meet_each_other(x):
    """The products read two rows at once, so they stay outside; the softmax alone still is a cascade."""
    p = x.softmax(-1)
    return (p[:, :, None] * p[:, None]).sum(-1), p @ p.mT


@case(rnd(2, 9, 32), rnd(32, 20))
def gathered_rows(x, m):
    y = F.layer_norm(x, (32,))
    return y[:, torch.tensor([0, 3, 3])] @ m, y[0]


@case(rnd(2, 9, 32), rnd(32), rnd(32, 20), rnd(32, 20, seed=1))
def results_that_meet_afterwards(x, w, gate, up):
    """Two products of one norm have columns of their own until an output reads both at the same column."""
    y = F.rms_norm(x, (32,), w)
    return F.silu(y @ gate) * (y @ up)


@case(rnd(2, 9, 32), rnd(32), rnd(32, 20), rnd(32, 20, seed=1))
def results_that_meet_transposed(x, w, a, b):
    y = F.rms_norm(x, (32,), w)
    return (y @ a).mT * (y @ b).mT, (y @ b).mT.exp()


@pytest.mark.parametrize("c", CASES, ids=lambda c: c.name)
def test_passes(c):
    found = redfuser.analyze(c.fn, *c.args)
    assert tuple(sorted({x.passes for x in found.cascades})) == c.passes
    assert "check_failed" not in {str(r.kind) for r in found.refusals}


@pytest.mark.parametrize("tiling", [("single", 7, 0), ("multi", 16, 3), ("whole", 0, 0)], ids=lambda t: t[0])
@pytest.mark.parametrize("c", CASES, ids=lambda c: c.name)
def test_numbers(c, tiling, caplog):
    strategy, tile, segments = tiling
    fused = redfuser.fuse(c.fn, rest="eager", strategy=strategy, tile=tile, segments=segments, strict=True)
    with caplog.at_level(logging.WARNING, "redfuser"), fused_runs() as runs:
        got = fused(*c.args)
    assert runs, "nothing was fused"
    assert not caplog.records, caplog.text
    assert_close(got, c.fn(*double(c.args)), like=c.fn(*c.args), tolerance=c.expected.get("tolerance", 2e-5))


@pytest.mark.parametrize("c", CASES, ids=lambda c: c.name)
def test_gradients(c):
    first = c.args[0]
    if not first.is_floating_point():
        pytest.skip("integers have no gradient")

    def gradient(fn, args):
        x = args[0].detach().clone().requires_grad_()
        total = sum(y.double().square().sum() for y in torch.utils._pytree.tree_leaves(fn(x, *args[1:])))
        return torch.autograd.grad(total, x)[0]

    # at the tiling of test_numbers, whose kernels these are
    got = gradient(redfuser.fuse(c.fn, rest="eager", strategy="single", tile=7, strict=True), c.args)
    assert got.dtype is first.dtype
    assert_close(
        got,
        gradient(c.fn, double(c.args)),
        tolerance=c.expected.get("gradient", 5e-2 if got.dtype.itemsize == 2 else 1e-4),
    )


def test_an_empty_axis_is_a_refusal():
    found = redfuser.analyze(lambda x: x.softmax(-1).sum(-1), torch.zeros(4, 0))
    assert not found.cascades and "empty" in found.refusals[0].reason


def test_strides_are_those_of_eager():
    def f(q, k, v):
        return F.softmax(q @ k.mT, -1).transpose(1, 2), F.scaled_dot_product_attention(q, k, v), math.pi

    got = redfuser.fuse(f, rest="eager", strategy="single", strict=True)(Q, K, V)
    want = f(Q, K, V)
    assert [x.stride() for x in got[:2]] == [x.stride() for x in want[:2]]
