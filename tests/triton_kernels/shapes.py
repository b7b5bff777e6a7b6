"""Functions at the shapes of the benchmarks, and the regions that they are at those."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.entry import Maker


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    i = torch.arange(scores.shape[-2], device=q.device)[:, None]
    j = torch.arange(scores.shape[-1], device=q.device)[None]
    return torch.softmax(scores.masked_fill(j > i, float("-inf")), -1) @ v


def decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def logsumexp(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


def variance(x: Tensor) -> Tensor:
    return x.var(-1)


def routing(x: Tensor) -> tuple[Tensor, Tensor]:
    values, experts = x.softmax(-1).topk(8, -1)
    return values / values.sum(-1, keepdim=True), experts


def norm_product(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],)) @ w


class Shapes(Maker):
    """The inputs of benchmarks without data."""

    def __init__(self) -> None:
        self.device = torch.device("meta")

    def normal(self, *size: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
        return torch.empty(size, dtype=dtype, device=self.device)

    def integers(self, high: int, *size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int64, device=self.device)


def of(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


Shape = tuple[Callable[..., Any], list[Tensor]]

SHAPES: dict[str, Shape] = {
    "causal 128": (causal, [of(1, 32, 4096, 128) for _ in range(3)]),
    "causal 64": (causal, [of(2, 32, 4096, 64) for _ in range(3)]),
    "decode": (decode, [of(1, 8, 4, 128), of(1, 8, 32768, 128), of(1, 8, 32768, 128)]),
    "softmax": (softmax, [of(8192, 8192)]),
    "logsumexp": (logsumexp, [of(8192, 8192)]),
    "long rows": (logsumexp, [of(64, 1048576)]),
    "variance": (variance, [of(8192, 8192, dtype=torch.float32)]),
    "routing": (routing, [of(8192, 256, dtype=torch.float32)]),
    "norm and product": (norm_product, [of(4096, 4096), of(4096, 4096)]),
}
