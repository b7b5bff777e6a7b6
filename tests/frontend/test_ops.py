"""Every family of operations, evaluated in float64 from the lowered program, against eager in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering import check

X = torch.randn(4, 6)
Y = torch.randn(4, 6)
P = torch.rand(4, 6) + 0.1
T = torch.randn(2, 3, 4, 6)
M = torch.randn(2, 4, 8)
IDS = torch.tensor([[0, 2, 1], [3, 3, 0]])
I = torch.randint(-9, 9, (4, 6))
B = torch.rand(4, 6) > 0.5

POINTWISE: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda: (lambda x, y: (x + y * 2 - x / y) * -x + 1.5, X, Y),
    "alpha": lambda: (lambda x, y: torch.add(x, y, alpha=3) - torch.rsub(x, y, alpha=2), X, Y),
    "powers": lambda: (lambda x, y: x**2 + x.pow(3) + y**0.5 + y**-0.5 + y**-1 + y.pow(x), X, P),
    "scalar base": lambda: (lambda x: 2.0**x, X),
    "exponentials": lambda: (lambda x, y: x.exp() + x.expm1() + x.exp2() + y.log() + y.log2() + y.log1p(), X, P),
    "roots": lambda: (lambda x: x.sqrt() + x.rsqrt() + x.reciprocal() + x.square(), P),
    "circular": lambda: (lambda x: x.sin() + x.cos() + x.tanh() + x.sigmoid() + x.erf(), X),
    "activations": lambda: (lambda x: F.silu(x) + F.gelu(x) + F.gelu(x, approximate="tanh") + F.relu(x), X),
    "decomposed activations": lambda: (lambda x: F.softplus(x) + F.elu(x) + F.leaky_relu(x) + F.mish(x), X),
    "rounding": lambda: (lambda x: (x * 3).floor() + (x * 3).ceil() + (x * 3).round() + (x * 3).trunc(), X),
    "signs": lambda: (lambda x: x.abs() * x.sign() - (-x), X),
    "extrema": lambda: (lambda x, y: torch.maximum(x, y) - torch.minimum(x, y), X, Y),
    "clamp": lambda: (lambda x, y: x.clamp(-0.5, 0.5) + x.clamp(min=0) + x.clamp(max=y) + x.clamp_min(0.1), X, Y),
    "where": lambda: (lambda x, y: torch.where(x > y, x, 0.0) + torch.where(x <= 0, y, x), X, Y),
    "masked_fill": lambda: (lambda x, b: x.masked_fill(b, 3.0) + x.masked_fill(~b, 2), X, B),
    "comparisons": lambda: (lambda x, y: ((x < y) & (x >= 0)) | (x == y) ^ (x != 1), X, Y),
    "logic": lambda: (lambda x, b: torch.logical_and(x, b) | torch.logical_not(x > 0), X, B),
    "non-finite": lambda: (lambda x: torch.isnan(x / x) | torch.isinf(1 / x) | torch.isfinite(x.log()), X.round()),
    "integers": lambda: (lambda i: (i * 3 - 7) // 4 + i % 5 + (i * i), I),
    "true division of integers": lambda: (lambda i: i / 4, I.double().round().long()),
    "mixed dtypes": lambda: (lambda x, i, b: x * i + b, X, I, B),
    "compare int and float": lambda: (lambda x, i: (x > i) & (i < 2.5), X, I),
    "casts": lambda: (lambda x: x.to(torch.int32) + (x * 4).long().to(torch.int16), X),
    "broadcast": lambda: (lambda x, y: x[:, :1] * y[0] + y[:, None, :].sum(0), X, Y),
    "lerp and addcmul": lambda: (lambda x, y: torch.lerp(x, y, 0.3) + torch.addcmul(x, x, y, value=2), X, Y),
    "scalar tensor": lambda: (lambda x, s: x * s, X, torch.tensor(0.25)),
}
VIEWS: dict[str, Callable[..., Any]] = {
    "transpose": lambda: (lambda t: t.transpose(1, 3).permute(2, 0, 1, 3) * 2, T),
    "strided input": lambda: (lambda t: t * 2, T.transpose(0, 2)[::1, :, :, ::2]),
    "reshape": lambda: (lambda t: t.reshape(6, 24) + t.view(2, 12, 6).reshape(6, 24), T),
    "reshape across": lambda: (lambda t: t.reshape(9, 16) * 2, T),
    "heads": lambda: (lambda t: t.transpose(1, 2).reshape(2, 4, 18).view(2, 4, 3, 6).transpose(1, 2) + t, T),
    "slices": lambda: (lambda t: t[:, 1:, ::2, -3:] + t[:, :2, 1::2, :3], T),
    "select": lambda: (lambda t: t[1, :, -1] * t[0, 0, 0, 0], T),
    "squeeze": lambda: (lambda t: t[:1].squeeze(0).unsqueeze(-1).squeeze() + 1, T),
    "expand": lambda: (lambda x: x[:, None].expand(4, 3, 6).expand(2, -1, -1, -1) * 1, X),
    "split": lambda: (lambda t: sum(t.split(2, -1)) + t.chunk(3, -1)[1] + t.unbind(1)[0][:, None, :, :2], T),
    "split sizes": lambda: (lambda t: t.split([1, 2, 3], -1)[2] * 2, T),
    "repeat": lambda: (lambda x: x.repeat(2, 3) * 2, X),
    "repeat_interleave": lambda: (lambda x: x.repeat_interleave(3, 1) * 2, X),
    "flip and diagonal": lambda: (lambda t: t.flip(2).diagonal(0, 2, 3) * 1, T),
    "unfold by view": lambda: (lambda t: t.unflatten(-1, (2, 3)).flatten(0, 2) * 1, T),
    "movedim": lambda: (lambda t: t.movedim(1, -1) * 1, T),
    "roll": lambda: (lambda t: t.roll(2, -1) + t.roll((1, -1), (0, 2)), T),
    "empty": lambda: (lambda x: (x[:0] * 2, x[:0].sum(0), x[:, :0].sum(1)), X),
}
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda: (lambda t: (t.sum(), t.sum(1), t.sum((0, -1), keepdim=True)), T),
    "mean": lambda: (lambda t: (t.mean(), t.mean(-1), t.mean((1, 2))), T),
    "extrema": lambda: (lambda t: (t.amax(-1), t.amin((0, 1)), t.max(), t.min()), T),
    "max.dim": lambda: (lambda t: (*t.max(1), *t.min(-1, keepdim=True)), T),
    "max.dim values only": lambda: (lambda t: t.max(-1).values * 2, T),
    "argmax": lambda: (lambda t: (t.argmax(), t.argmin(1), t.argmax(-1, keepdim=True)), T),
    "topk": lambda: (lambda t: t.topk(3, -1), T),
    "topk of the smallest": lambda: (lambda t: t.topk(3, -1, largest=False), T),
    "topk of the smallest one": lambda: (lambda t: t.topk(1, -1, largest=False), T),
    "topk of one": lambda: (lambda t: t.topk(1, -1), T),
    "topk of another dimension": lambda: (lambda t: t.topk(2, 1), T),
    "any and all": lambda: (lambda t: ((t > 0).any(-1), (t > -1).all(), t.bool().any((0, 1))), T),
    "count": lambda: (lambda t: ((t > 0).sum(-1), torch.count_nonzero(t > 0, 1)), T),
    "prod": lambda: (lambda t: (t.prod(-1), t.prod()), T),
    "aminmax": lambda: (lambda t: torch.aminmax(t, dim=-1), T),
    "var": lambda: (lambda t: (t.var(-1), t.var((1, 2), correction=0), t.std(0, keepdim=True), t.var()), T),
    "var_mean": lambda: (lambda t: (*torch.var_mean(t, -1), *torch.std_mean(t, (0, 1), keepdim=True)), T),
    "norms": lambda: (lambda t: (t.norm(dim=-1), t.norm(p=1, dim=1), t.norm(p=3, dim=0), t.norm()), T),
    "vector norms": lambda: (
        lambda t: tuple(torch.linalg.vector_norm(t, o, -1) for o in (0, 1, 2, float("inf"), -float("inf"))),
        T,
    ),
    "normalize": lambda: (lambda t: F.normalize(t, dim=-1) + F.normalize(t, p=1, dim=1), T),
    "cosine": lambda: (lambda x, y: F.cosine_similarity(x, y, dim=-1), X, Y),
    "softmax": lambda: (lambda t: t.softmax(1) + F.softmax(t, -1) + torch.softmax(t, 0), T),
    "log_softmax": lambda: (lambda t: t.log_softmax(-1), T),
    "logsumexp": lambda: (lambda t: (t.logsumexp(-1), t.logsumexp((0, 1), keepdim=True)), T),
    "softmin": lambda: (lambda t: F.softmin(t, -1), T),
    "layer_norm": lambda: (lambda t, w, b: F.layer_norm(t, (6,), w, b) + F.layer_norm(t, (6,)), T, X[0], X[1]),
    "rms_norm": lambda: (lambda t, w: F.rms_norm(t, (6,), w, 1e-6), T, X[0]),
    "group_norm": lambda: (lambda t, w: F.group_norm(t, 2, w, w), torch.randn(2, 4, 3, 5), torch.randn(4)),
    "cross_entropy": lambda: (
        lambda x, t: (F.cross_entropy(x, t), F.cross_entropy(x, t, reduction="sum")),
        X,
        torch.tensor([1, 0, 5, 3]),
    ),
    "cross_entropy ignoring": lambda: (
        lambda x, t: F.cross_entropy(x, t, ignore_index=0, reduction="none"),
        X,
        torch.tensor([1, 0, 5, 3]),
    ),
    "weighted cross_entropy": lambda: (lambda x, t, w: F.cross_entropy(x, t, w), X, torch.tensor([1, 0, 5, 3]), P[0]),
    "cross_entropy of images": lambda: (
        lambda x, t: F.cross_entropy(x, t),
        torch.randn(2, 5, 3),
        torch.tensor([[0, 4, 2], [1, 1, 3]]),
    ),
    "nll_loss": lambda: (lambda x, t: F.nll_loss(x.log_softmax(-1), t), X, torch.tensor([1, 0, 5, 3])),
    "mse and l1": lambda: (lambda x, y: F.mse_loss(x, y) + F.l1_loss(x, y), X, Y),
    "kl_div": lambda: (lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="sum"), X, Y),
    "length one": lambda: (
        lambda x: (x[:1].sum(0), x[:, :1].softmax(-1), x[:1].amax(0), x[:1].var(0, correction=0)),
        X,
    ),
}
CONTRACTIONS: dict[str, Callable[..., Any]] = {
    "matmul": lambda: (lambda x, y: x @ y.T, X, Y),
    "batched": lambda: (lambda m: m @ m.mT + torch.bmm(m, m.transpose(1, 2)), M),
    "broadcast batches": lambda: (lambda t, x: t @ x.T + (t[:, :1] @ t.transpose(-1, -2)[:1, :, :, :]).sum(), T, X),
    "vectors": lambda: (lambda x: (x[0] @ x[1], x @ x[0], x[0] @ x.T, torch.dot(x[0], x[1]), torch.mv(x, x[0])), X),
    "vector and batch": lambda: (lambda m: (m @ m[0, 0], m[0, :, 0] @ m), M),
    "linear": lambda: (lambda t, x, b: F.linear(t, x, b) + F.linear(t, x), T, X, X[:, 0]),
    "addmm": lambda: (lambda x, y: torch.addmm(x[:, :4], x, y.T, beta=0.5, alpha=2), X, Y),
    "baddbmm": lambda: (lambda m: torch.baddbmm(m[:, :, :4], m, m.mT), M),
    "einsum": lambda: (
        lambda t: torch.einsum("bhid,bhjd->bhij", t, t) + torch.einsum("b h i d -> b h i", t)[..., None],
        T,
    ),
    "einsum implicit": lambda: (lambda x, y: torch.einsum("ij,kj", x, y), X, Y),
    "einsum outer": lambda: (lambda x, y: torch.einsum("i,j->ij", x[0], y[1]), X, Y),
    "einsum ellipsis": lambda: (lambda t: torch.einsum("...id,...jd->...ij", t, t), T),
    "einsum of three": lambda: (lambda x, y: torch.einsum("ij,kj,kl->il", x, y, y), X, Y),
    "outer": lambda: (lambda x: torch.outer(x[0], x[1]), X),
    "boolean": lambda: (lambda x: (x > 0).long() @ (x > 0).long().T, X),
    "multi-head module": lambda: (lambda m: MHA(m, m, m, need_weights=False)[0], M.double()),
}
MHA = torch.nn.MultiheadAttention(8, 2, batch_first=True).double().eval()
INDEXING: dict[str, Callable[..., Any]] = {
    "arange": lambda: (lambda x: x + torch.arange(6) * 2 + torch.arange(1, 13, 2), X),
    "causal": lambda: (lambda x: x.masked_fill(torch.ones(4, 6, dtype=torch.bool).triu(1), 0.0), X),
    "tril": lambda: (lambda x: x.tril(1) + x.triu(-1), X),
    "embedding": lambda: (lambda x, i: F.embedding(i, x), X, IDS),
    "gather": lambda: (lambda x, i: x.gather(1, i) * 2, X[:2], IDS),
    "index": lambda: (lambda x, i: x[i] + x[i, 1][..., None] + x[:, i[0]].sum(), X, IDS),
    "negative indices": lambda: (lambda x, i: x[i - 4], X, IDS),
    "index apart": lambda: (lambda t, i: t[i[0, :2], :, i[1, :2] - 3], T, IDS.clamp(max=1)),
    "index_select": lambda: (lambda x, i: x.index_select(0, i[0]), X, IDS),
    "one_hot": lambda: (lambda i: F.one_hot(i, 5), IDS),
    "take_along_dim": lambda: (lambda x, i: torch.take_along_dim(x, i, 1), X[:2], IDS),
    "constants": lambda: (lambda x: x * torch.full((6,), 2.5) + torch.zeros_like(x) + x.new_ones(6), X),
    "eye": lambda: (lambda x: x[:, :4] @ torch.eye(4).to(x), X),
    "scatter a constant": lambda: (lambda x, i: torch.zeros_like(x).scatter(1, i, 1.0) * x, X[:2], IDS),
}
STRUCTURE: dict[str, Callable[..., Any]] = {
    "cat": lambda: (lambda x, y: torch.cat([x, y, x], 1).sum(1) + torch.cat([x, y])[3, 0], X, Y),
    "stack": lambda: (lambda x, y: torch.stack([x, y], 1).amax(1), X, Y),
    "rotate half": lambda: (lambda t: torch.cat((-t[..., 3:], t[..., :3]), -1) @ t.mT, T),
    "pad": lambda: (lambda x: F.pad(x, (1, 2)).sum(-1) + F.pad(x, (0, 0, 1, 0), value=2.0)[1:, 0], X),
    "assign slice": lambda: (lambda x, y: slice_assigned(x, y), X, Y),
    "diff": lambda: (lambda x: x.diff(dim=-1), X),
    "glu": lambda: (lambda x: F.glu(x, -1), X),
    "dropout without": lambda: (lambda x: F.dropout(x, 0.0, True) + F.dropout(x, 0.5, False), X),
    "in place": lambda: (lambda x: in_place(x), X),
}


def slice_assigned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    out[1:3, 2:] = y[1:3, 2:]
    out[0] = 1.0
    return out


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.mul_(2).add_(1)
    y[:, 0].zero_()
    return y.sum(-1)


FAMILIES = {
    "pointwise": POINTWISE, "views": VIEWS, "reductions": REDUCTIONS, "contractions": CONTRACTIONS,
    "indexing": INDEXING, "structure": STRUCTURE,
}  # fmt: skip
CASES = [pytest.param(c, id=f"{f}-{n}") for f, cases in FAMILIES.items() for n, c in cases.items()]


@pytest.mark.parametrize("case", CASES)
def test_matches_eager(case: Callable[[], tuple[Any, ...]]) -> None:
    fn, *args = case()
    check(fn, *args, tolerance=1e-6)
