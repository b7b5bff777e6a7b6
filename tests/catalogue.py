"""Cascades as users write them: ordinary PyTorch functions with inputs, and what must be said about each.

``ONE_PASS`` fuse in one loop; ``SEVERAL`` must be refused in one loop and planned in several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

R, L, N = 5, 150, 6  # rows, reduced length (no multiple of any tile), columns
EPS = 1e-6


@dataclass(frozen=True)
class Case:
    """What may differ from eager, relative to the scale of the result: ``step``, one step of a rounding to integers;
    ``cast``, one rounding to a narrow float format that was moved behind a correction."""

    name: str
    fn: Callable[..., Any]
    inputs: Callable[[], tuple[Tensor, ...]]
    passes: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    step: float = 0.0
    cast: float = 0.0
    last: frozenset[str] = frozenset()  # treatments of the last reduction (a subset must hold)
    kinds: frozenset[str] = frozenset()  # refusal kinds that must occur


ONE_PASS: list[Case] = []
SEVERAL: list[Case] = []


_draw = 0


@contextmanager
def draw(n: int) -> Iterator[None]:
    """The n-th draw of every random input made inside; the first is 0."""
    global _draw
    before, _draw = _draw, n
    try:
        yield
    finally:
        _draw = before


def rnd(*shape: int, seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    g = torch.Generator().manual_seed(1000 * seed + 100_003 * _draw + sum(shape))
    return torch.randn(*shape, generator=g) * scale + shift


def x_() -> tuple[Tensor, ...]:
    return (rnd(R, L, scale=2.0),)


def xw() -> tuple[Tensor, ...]:
    return rnd(R, L), rnd(L, N, seed=1)


def xv() -> tuple[Tensor, ...]:
    return rnd(R, L, scale=2.0), rnd(L, N, seed=1)


def xy() -> tuple[Tensor, ...]:
    return rnd(R, L), rnd(R, L, seed=1)


def qkv() -> tuple[Tensor, ...]:
    return rnd(2, 3, 9, 16), rnd(2, 3, L, 16, seed=1), rnd(2, 3, L, 8, seed=2)


def one(inputs: Callable[[], tuple[Tensor, ...]], last: str = "", **kw: Any) -> Callable[[Any], Any]:
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        ONE_PASS.append(Case(fn.__name__, fn, inputs, last=frozenset(last.split()), **kw))
        return fn

    return add


def several(
    inputs: Callable[[], tuple[Tensor, ...]], kinds: str = "", passes: int = 2, **kw: Any
) -> Callable[[Any], Any]:
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        SEVERAL.append(Case(fn.__name__, fn, inputs, passes=passes, kinds=frozenset(kinds.split()), **kw))
        return fn

    return add


# ------------------------------------------------------------------------------------------ softmax and friends
@one(lambda: (rnd(R, L, scale=2.0), rnd(R, L, seed=1, scale=3.0), rnd(L, N, seed=2)), "rescale defer")
def gated_scores(x, gate, v):
    return torch.softmax(x + F.logsigmoid(gate), -1) @ v


@one(lambda: (rnd(R, L).abs(),), "rescale")
def score_with_a_logarithm(x):
    return torch.softmax(3 * x - x.log1p(), -1)


@one(x_, "rescale")
def safe_softmax(x):
    return torch.softmax(x, -1)


@one(xv, "rescale defer")
def softmax_weighted_rows(x, v):
    return torch.softmax(x, -1) @ v


@one(lambda: (rnd(R, L, 20), rnd(20, seed=1)), "rescale defer")
def rows_pooled_by_their_own_weights(x, w):
    return ((x @ w).softmax(1).unsqueeze(-1) * x).sum(1)


@one(qkv, "rescale defer")
def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


@one(lambda: (*qkv(), rnd(3, 9, L, seed=5)), "rescale defer")
def attention_bias(q, k, v, bias):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25 + bias, -1) @ v


@one(lambda: (*qkv(), rnd(2, 1, 9, L, seed=6) > -0.5), "rescale defer")
def attention_mask(q, k, v, keep):
    s = (q @ k.transpose(-1, -2) * 0.25).masked_fill(~keep, float("-inf"))
    return torch.softmax(s, -1) @ v


@one(qkv, "rescale defer")
def attention_softcap(q, k, v):
    s = 5.0 * torch.tanh(q @ k.transpose(-1, -2) / 5.0)
    return torch.softmax(s, -1) @ v


@one(lambda: (*qkv(), torch.tensor([0.5, 0.25, 0.125])), "rescale defer")
def attention_alibi_causal(q, k, v, slopes):
    i = torch.arange(q.shape[-2], device=q.device)[:, None] + k.shape[-2] - q.shape[-2]
    j = torch.arange(k.shape[-2], device=q.device)
    s = q @ k.transpose(-1, -2) * 0.25 + slopes[:, None, None] * (j - i)
    return torch.softmax(s.masked_fill(j > i, float("-inf")), -1) @ v


@one(lambda: (*qkv(), rnd(3, 1, 1, seed=7)), "rescale defer")
def attention_sink(q, k, v, sink):
    s = q @ k.transpose(-1, -2) * 0.25
    p = torch.softmax(torch.cat([s, sink.expand(2, 3, 9, 1)], -1), -1)
    return p[..., :-1] @ v


def many():
    return rnd(2, 40, 8), rnd(2, L, 8, seed=1), rnd(2, L, 6, seed=2)


@one(many)
def attention_sigmoid(q, k, v):
    s = torch.sigmoid(q @ k.transpose(-1, -2) * 0.25)
    late = torch.arange(s.shape[-1], device=s.device) > torch.arange(s.shape[-2], device=s.device)[:, None] + 9
    return s.masked_fill(late, 0.0) @ v


@one(lambda: many()[:2])
def best_match(q, k):
    return (q @ k.transpose(-1, -2)).amax(-1)


@one(lambda: many()[:2])
def nearest_code(q, k):
    return ((k * k).sum(-1)[..., None, :] - 2 * (q @ k.transpose(-1, -2))).argmin(-1)


@one(lambda: (rnd(2, 9, 24), rnd(2, L, 16, seed=1), rnd(2, L, 8, seed=2)), "rescale defer")
def attention_latent(q, latent, rope):
    keys = torch.cat([latent, rope], -1)
    return torch.softmax(q @ keys.transpose(-1, -2) * 0.25, -1) @ latent


@one(lambda: (*xv(), torch.tensor(0.7)), "rescale defer")
def temperature_softmax(x, v, alpha):
    e = torch.exp((x - x.amax(-1, keepdim=True)) * alpha)
    return (e / e.sum(-1, keepdim=True)) @ v


@one(xv, "rescale defer")
def softmax_without_max(x, v):
    e = torch.exp(x)
    return (e / e.sum(-1, keepdim=True)) @ v


@one(x_)
def softmax_row_sums(x):
    return torch.softmax(x, -1).sum(-1)


@one(x_)
def variance_of_softmax(x):
    return torch.softmax(x, -1).var(-1)


@one(lambda: (rnd(R, L), rnd(R, L, seed=3), rnd(L, N, seed=1)), "rescale defer")
def mixture_of_softmaxes(x, y, v):
    return (0.3 * torch.softmax(x, -1) + 0.7 * torch.softmax(y, -1)) @ v


@one(x_)
def logsumexp_by_hand(x):
    m = x.amax(-1, keepdim=True)
    return m.squeeze(-1) + torch.log(torch.exp(x - m).sum(-1))


@one(x_)
def shifted_logsumexp(x):
    return torch.logsumexp(x - x.amax(-1, keepdim=True), -1)


# ------------------------------------------------------------------------------------------ losses
@one(lambda: (rnd(R, L, scale=2.0), torch.softmax(rnd(R, L, seed=1), -1)), "rebase")
def cross_entropy_soft(x, t):
    return -(t * torch.log_softmax(x, -1)).sum(-1)


@one(lambda: (rnd(R, L, scale=2.0), torch.arange(R) * 29 % L))
def cross_entropy(x, y):
    return F.cross_entropy(x, y, reduction="none")


@one(lambda: (rnd(R, L, scale=2.0), torch.softmax(rnd(R, L, seed=1), -1)))
def nll_of_soft_targets(x, t):
    return -(t * (x - torch.logsumexp(x, -1, keepdim=True))).sum(-1)


@one(lambda: (rnd(R, L, scale=2.0), torch.arange(R) * 29 % L))
def focal_loss(x, y):
    logp = torch.log_softmax(x, -1).gather(-1, y[:, None]).squeeze(-1)
    return -((1 - logp.exp()) ** 2) * logp


@one(x_, "rebase")
def entropy(x):
    p = torch.softmax(x, -1)
    return -(p * p.log()).sum(-1)


@one(xy, "rebase")
def kl_divergence(x, y):
    p, q = torch.log_softmax(x, -1), torch.log_softmax(y, -1)
    return (p.exp() * (p - q)).sum(-1)


@one(xy, "rebase")
def distillation(x, y):
    return 4 * F.kl_div(torch.log_softmax(x / 2, -1), torch.softmax(y / 2, -1), reduction="none").sum(-1)


@one(x_, "rebase")
def entropy_of_probabilities(x):
    return torch.special.entr(torch.softmax(x, -1)).sum(-1)


@one(x_)
def renyi_entropy(x):
    p = torch.softmax(x, -1)
    return -torch.log((p**2).sum(-1))


# ------------------------------------------------------------------------------------------ softmax moments, backward
@one(lambda: (rnd(R, L, scale=2.0), rnd(R, L, seed=1)), "rebase")
def softmax_weighted_variance(x, v):
    p = torch.softmax(x, -1)
    mu = (p * v).sum(-1, keepdim=True)
    return (p * (v - mu) ** 2).sum(-1)


@one(lambda: (rnd(R, L, scale=2.0), rnd(R, L, seed=1), rnd(L, N, seed=2)))
def softmax_backward_dq(x, dp, k):
    p = torch.softmax(x, -1)
    delta = (p * dp).sum(-1, keepdim=True)
    return (p * (dp - delta)) @ k


# ------------------------------------------------------------------------------------------ order
@one(x_, "order")
def topk_of_softmax(x):
    return torch.topk(torch.softmax(x, -1), 4, dim=-1)


@one(x_, "order")
def topk_of_normalised_sigmoid(x):
    s = torch.sigmoid(x)
    return torch.topk(s / s.sum(-1, keepdim=True), 3, dim=-1)


@one(x_, "order")
def weights_of_the_chosen(x):
    weights, chosen = torch.topk(torch.softmax(x, -1), 6, dim=-1)
    return weights / weights.sum(-1, keepdim=True), chosen


@one(x_)
def softmax_of_the_chosen(x):
    logits, chosen = torch.topk(x, 5, dim=-1)
    return torch.softmax(logits, -1), chosen


@one(x_)
def max_probability_times_x(x):
    p = torch.softmax(x, -1).amax(-1, keepdim=True)
    return (p * x).sum(-1)


@one(x_, "order")
def zscore_max(x):
    return ((x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + EPS)).amax(-1)


@one(x_, "order")
def zscore_min(x):
    return ((x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + EPS)).amin(-1)


# ------------------------------------------------------------------------------------------ quantisation
@one(xw, "defer")
def amax_scale_gemm(x, w):
    scale = 448.0 / x.abs().amax(-1, keepdim=True)
    return (x * scale) @ w / scale


@one(xw, cast=2.0**-4)
def amax_fp8_gemm(x, w):
    scale = 448.0 / x.abs().amax(-1, keepdim=True).clamp_min(EPS)
    q = (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return q.to(x.dtype) @ w / scale


@one(xw)
def amax_fp8_power_of_two(x, w):
    amax = x.abs().amax(-1, keepdim=True).clamp_min(EPS)
    scale = torch.exp2(-torch.ceil(torch.log2(amax / 448.0)))
    return (x * scale).to(torch.float8_e4m3fn).to(x.dtype) @ w / scale


@one(xw, options={"fuse_rounding": True}, step=0.01)
def int8_asymmetric(x, w):
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = (high - low).clamp_min(EPS) / 255.0
    return (torch.round(x / scale) - torch.round(low / scale)) @ w * scale


@one(xw, "rebase")
def int8_asymmetric_unrounded(x, w):
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return ((x - low) / (high - low)) @ w


# ------------------------------------------------------------------------------------------ norms
@one(xw, "defer")
def rmsnorm_gemm(x, w):
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)) @ w


@one(xw, cast=2.0**-4)
def rmsnorm_amax_quantise_gemm(x, w):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
    scale = 448.0 / y.abs().amax(-1, keepdim=True)
    return (y * scale).to(torch.float8_e4m3fn).to(x.dtype) @ w / scale


@one(x_, "rebase")
def layernorm_stats(x):
    mu = x.mean(-1, keepdim=True)
    return mu.squeeze(-1), ((x - mu) ** 2).mean(-1)


@one(x_)
def layer_norm(x):
    return F.layer_norm(x, (x.shape[-1],))


@one(lambda: (rnd(2, 6, 4, 5), rnd(6, seed=1), rnd(6, seed=2)), "rebase")
def group_norm(x, w, b):
    return F.group_norm(x, 3, w, b)


@one(xw, "rebase defer")
def layernorm_gemm(x, w):
    return F.layer_norm(x, (x.shape[-1],)) @ w


@one(xy)
def cosine_similarity(x, y):
    return ((x / x.norm(dim=-1, keepdim=True)) * (y / y.norm(dim=-1, keepdim=True))).sum(-1)


# ------------------------------------------------------------------------------------------ statistics
@one(x_, "rebase")
def variance(x):
    return x.var(-1)


@one(x_)
def variance_expanded(x):
    mu = x.mean(-1, keepdim=True)
    return (x * x - 2 * x * mu + mu * mu).sum(-1) / x.shape[-1]


@one(lambda: (rnd(R, L), rnd(R, L, seed=1).exp()), "rebase")
def weighted_variance(x, w):
    total = w.sum(-1, keepdim=True)
    mu = (w * x).sum(-1, keepdim=True) / total
    return (w * (x - mu) ** 2).sum(-1) / total.squeeze(-1)


@one(xy, "rebase")
def covariance(x, y):
    return ((x - x.mean(-1, keepdim=True)) * (y - y.mean(-1, keepdim=True))).mean(-1)


@one(xy)
def pearson(x, y):
    a, b = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    return (a * b).sum(-1) * torch.rsqrt((a * a).sum(-1) * (b * b).sum(-1))


@one(x_, "rebase")
def skewness(x):
    a = x - x.mean(-1, keepdim=True)
    return ((a * torch.rsqrt((a * a).mean(-1, keepdim=True) + EPS)) ** 3).mean(-1)


@one(x_, "rebase")
def kurtosis(x):
    a = x - x.mean(-1, keepdim=True)
    return ((a * torch.rsqrt((a * a).mean(-1, keepdim=True) + EPS)) ** 4).mean(-1)


@one(lambda: (rnd(R, L, 3), rnd(R, L, seed=1).exp()))
def moment_of_inertia(r, m):
    total = m.sum(-1)
    cx, cy, cz = ((m * r[..., d]).sum(-1) / total for d in range(3))
    square = (r[..., 0] - cx[:, None]) ** 2 + (r[..., 1] - cy[:, None]) ** 2 + (r[..., 2] - cz[:, None]) ** 2
    return (m * square).sum(-1)


@one(x_, "rebase")
def minmax_normalised_sum(x):
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return ((x - low) / (high - low)).sum(-1)


@one(x_)
def scaled_square_norm(x):
    return ((x / x.abs().amax(-1, keepdim=True)) ** 2).sum(-1)


@one(lambda: (rnd(R, L).exp(),))
def normalised_product(x):
    return (x / x.amax(-1, keepdim=True)).prod(-1)


@one(x_)
def exp_around_mean(x):
    return torch.exp(x - x.mean(-1, keepdim=True)).sum(-1)


@one(xy)
def regression_residual(x, y):
    slope = (x * y).sum(-1, keepdim=True) / (y * y).sum(-1, keepdim=True)
    return ((x - slope * y) ** 2).sum(-1)


# ------------------------------------------------------------------------------------------ several passes
def zscore(x):
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + EPS)


@several(xv, "product_in_exp")
def softmax_of_zscores(x, v):
    return torch.softmax(zscore(x), -1) @ v


@several(xv, "product_in_exp")
def softmax_of_normalised(x, v):
    return torch.softmax(x / x.abs().amax(-1, keepdim=True), -1) @ v


@several(xv, "product_in_exp")
def data_dependent_temperature(x, v):
    return torch.softmax(x / x.abs().mean(-1, keepdim=True), -1) @ v


@several(x_)
def gaussian_kernel_of_mean(x):
    return torch.exp(-((x - x.mean(-1, keepdim=True)) ** 2)).sum(-1)


@several(x_)
def softmax_of_softmax(x):
    return torch.softmax(torch.softmax(x, -1), -1).square().sum(-1)


@several(x_, "nonlinear")
def tanh_of_centred(x):
    return torch.tanh(x - x.mean(-1, keepdim=True)).sum(-1)


@several(x_, "nonlinear")
def sigmoid_of_centred(x):
    return torch.sigmoid(x - x.mean(-1, keepdim=True)).sum(-1)


@several(x_)
def silu_of_zscores(x):
    return F.silu(zscore(x)).sum(-1)


@several(x_, "nonlinear")
def softplus_of_gap(x):
    return torch.log(1 + torch.exp(x - x.amax(-1, keepdim=True))).sum(-1)


@several(xy, "nonlinear")
def jensen_shannon(x, y):
    p, q = torch.softmax(x, -1), torch.softmax(y, -1)
    m = 0.5 * (p + q)
    return 0.5 * (p * (p / m).log()).sum(-1) + 0.5 * (q * (q / m).log()).sum(-1)


@several(x_)
def probabilities_above_uniform(x):
    return torch.relu(torch.softmax(x, -1) - 1.0 / x.shape[-1]).sum(-1)


@several(x_)
def sparsemax_step(x):
    tau = (x.sum(-1, keepdim=True) - 1) / x.shape[-1]
    return torch.relu(x - tau).sum(-1)


@several(x_)
def entmax_step(x):
    return (torch.relu(x / 2 - x.mean(-1, keepdim=True)) ** 2).sum(-1)


@several(x_, "data_branch")
def count_below_mean(x):
    return (x < x.mean(-1, keepdim=True)).sum(-1)


@several(x_)
def huber_around_mean(x):
    d = x - x.mean(-1, keepdim=True)
    return torch.where(d.abs() < 1, 0.5 * d * d, d.abs() - 0.5).sum(-1)


@several(x_, "data_branch")
def mean_absolute_deviation(x):
    return (x - x.mean(-1, keepdim=True)).abs().mean(-1)


@several(lambda: (rnd(R, L).exp(),))
def harmonic_shift(x):
    return (1 / (x + x.amin(-1, keepdim=True))).sum(-1)


@several(lambda: (rnd(R, L), rnd(R, L, seed=1)), "order")
def affine_max(x, y):
    return (x.abs().sum(-1, keepdim=True) * x + y).amax(-1)


@several(lambda: (rnd(R, L), rnd(L, seed=1)), "order")
def weighted_deviation_max(x, g):
    return ((x - x.mean(-1, keepdim=True)) * g).abs().amax(-1)
