"""Chains of dependent reductions as people write them: every one lowers without an uncovered operation, and exactly."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering import check

Tensor = torch.Tensor
S = torch.randn(5, 9)
X, W = torch.randn(5, 9), torch.randn(9, 4)
V = torch.randn(9, 4)
T = torch.tensor([1, 0, 8, 3, 3])


def slopes(s: Tensor) -> Tensor:
    distance = (torch.arange(9) - torch.arange(5)[:, None]).to(s.dtype)
    return (s - distance.abs() * 0.1).softmax(-1)


def soft_capped(s: Tensor, v: Tensor) -> Tensor:
    return (30 * torch.tanh(s / 30)).softmax(-1) @ v


def cross_entropy_by_hand(x: Tensor, t: Tensor) -> Tensor:
    return (x.logsumexp(-1) - x.gather(-1, t[:, None])[:, 0]).mean()


def focal(x: Tensor, t: Tensor) -> Tensor:
    log_p = F.log_softmax(x, -1).gather(-1, t[:, None])[:, 0]
    return (-((1 - log_p.exp()) ** 2) * log_p).mean()


def entropy(x: Tensor) -> Tensor:
    p = x.softmax(-1)
    return -(p * p.log()).sum(-1)


def divergence(x: Tensor, y: Tensor) -> Tensor:
    return F.kl_div(y.log_softmax(-1), x.log_softmax(-1), log_target=True, reduction="none").sum(-1)


def softmax_backward(s: Tensor, do: Tensor) -> Tensor:
    p = s.softmax(-1)
    return p * (do - (do * p).sum(-1, keepdim=True))


def moments_under_softmax(s: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    p = s.softmax(-1)
    mean = (p * x).sum(-1, keepdim=True)
    return mean, (p * (x - mean) ** 2).sum(-1)


def routed(x: Tensor) -> tuple[Tensor, Tensor]:
    values, index = x.sigmoid().topk(3)
    return values / values.sum(-1, keepdim=True), index


def quantised(x: Tensor, w: Tensor) -> Tensor:
    scale = 448.0 / x.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    return (x * scale) @ w / scale


def power_of_two(x: Tensor, w: Tensor) -> Tensor:
    scale = torch.exp2(torch.ceil(torch.log2(x.abs().amax(-1, keepdim=True) / 448)))
    return (x / scale) @ w * scale


def asymmetric_int8(x: Tensor, w: Tensor) -> Tensor:
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = (high - low) / 255
    return torch.round((x - low) / scale) @ w


def norm_then_quantise(x: Tensor, w: Tensor) -> Tensor:
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return quantised(y, w)


def z_score(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


def central(x: Tensor, n: int) -> Tensor:
    return ((x - x.mean(-1, keepdim=True)) ** n).mean(-1)


def pearson(x: Tensor, y: Tensor) -> Tensor:
    a, b = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def inertia(x: Tensor, m: Tensor) -> Tensor:
    centroid = (m[:, :, None] * x).sum(1, keepdim=True) / m.sum(1)[:, None, None]
    return (m * (x - centroid).square().sum(-1)).sum(-1)


def regression(x: Tensor, y: Tensor) -> Tensor:
    mx, my = x.mean(-1, keepdim=True), y.mean(-1, keepdim=True)
    slope = ((x - mx) * (y - my)).sum(-1, keepdim=True) / (x - mx).square().sum(-1, keepdim=True)
    return (y - my - slope * (x - mx)).square().sum(-1)


def sparsemax_step(x: Tensor) -> Tensor:
    tau = (x.amax(-1, keepdim=True) + x.mean(-1, keepdim=True)) / 2
    return F.relu(x - tau).sum(-1)


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "softmax": (lambda s: s.softmax(-1), (S,)),
    "soft-capped attention": (soft_capped, (S, V)),
    "slopes": (slopes, (S,)),
    "temperature": (lambda s, v: (s / 0.7).softmax(-1) @ v, (S, V)),
    "logsumexp": (lambda x: x.logsumexp(-1), (X,)),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), (X, T)),
    "cross entropy by hand": (cross_entropy_by_hand, (X, T)),
    "negative log likelihood": (lambda x, t: F.nll_loss(F.log_softmax(x, -1), t, reduction="none"), (X, T)),
    "focal loss": (focal, (X, T)),
    "entropy": (entropy, (X,)),
    "KL": (divergence, (X, S)),
    "Renyi": (lambda x: x.softmax(-1).pow(3).sum(-1).log() / -2, (X,)),
    "mean and variance under softmax": (moments_under_softmax, (S, X)),
    "softmax backward": (softmax_backward, (S, X)),
    "top-k of softmax": (lambda x: x.softmax(-1).topk(2), (X,)),
    "top-k of sigmoid": (routed, (X,)),
    "quantised product": (quantised, (X, W)),
    "power-of-two scale": (power_of_two, (X, W)),
    "asymmetric int8": (asymmetric_int8, (X, W)),
    "RMSNorm, product": (lambda x, w: F.rms_norm(x, (9,), eps=1e-6) @ w, (X, W)),
    "RMSNorm, quantised product": (norm_then_quantise, (X, W)),
    "LayerNorm, product": (lambda x, w: F.layer_norm(x, (9,)) @ w, (X, W)),
    "extremes of z-scores": (lambda x: (z_score(x).amax(-1), z_score(x).amin(-1)), (X,)),
    "cosine similarity": (lambda x, y: F.cosine_similarity(x, y), (X, S)),
    "covariance": (lambda x, y: ((x - x.mean(-1, keepdim=True)) * (y - y.mean(-1, keepdim=True))).mean(-1), (X, S)),
    "Pearson": (pearson, (X, S)),
    "skewness": (lambda x: central(x, 3) / central(x, 2) ** 1.5, (X,)),
    "kurtosis": (lambda x: central(x, 4) / central(x, 2) ** 2, (X,)),
    "inertia": (inertia, (torch.randn(3, 9, 2), torch.rand(3, 9))),
    "min-max": (lambda x: ((x - x.amin(-1, True)) / (x.amax(-1, True) - x.amin(-1, True))).sum(-1), (X,)),
    "scaled squares": (lambda x: (x / x.abs().amax(-1, keepdim=True)).square().sum(-1), (X,)),
    "scaled product": (lambda x: (x / x.amax(-1, keepdim=True)).prod(-1), (X,)),
    "exponentials about the mean": (lambda x: (x - x.mean(-1, keepdim=True)).exp().sum(-1), (X,)),
    "regression residual": (regression, (X, S)),
    "mixture": (lambda s, x, v: (0.3 * s.softmax(-1) + 0.7 * x.softmax(-1)) @ v, (S, X, V)),
    "softmax of softmax": (lambda x: x.softmax(-1).softmax(-1), (X,)),
    "softmax of z-scores": (lambda x: z_score(x).softmax(-1), (X,)),
    "data-dependent temperature": (lambda x: (x * x.std(-1, keepdim=True)).softmax(-1), (X,)),
    "Gaussian kernel": (lambda x: (-((x - x.mean(-1, keepdim=True)) ** 2)).exp().sum(-1), (X,)),
    "squashed difference": (lambda x: torch.tanh(x - x.mean(-1, keepdim=True)).sum(-1), (X,)),
    "softplus of difference": (lambda x: F.softplus(x - x.amax(-1, keepdim=True)).sum(-1), (X,)),
    "sparsemax step": (sparsemax_step, (X,)),
    "counts below": (lambda x: (x < x.mean(-1, keepdim=True)).sum(-1), (X,)),
    "Huber": (lambda x: F.huber_loss(x, x.mean(-1, keepdim=True).expand_as(x), reduction="none").sum(-1), (X,)),
    "mean absolute deviation": (lambda x: (x - x.mean(-1, keepdim=True)).abs().sum(-1), (X,)),
    "weighted extreme": (lambda x, s: ((x - x.mean(-1, keepdim=True)) * s).abs().amax(-1), (X, S)),
}


@pytest.mark.parametrize("name", CASES)
def test_lowers(name: str) -> None:
    fn, args = CASES[name]
    assert len(list(check(fn, *args, tolerance=1e-7).program.reductions)) > 1
