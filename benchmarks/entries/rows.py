"""Reductions along rows that are bound by memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.entries.weights import E4M3_MAX
from benchmarks.entry import Entry, Function, Inputs, Maker, Outputs, Sample, leading


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def log_softmax(x: Tensor) -> Tensor:
    return x.log_softmax(-1)


def logsumexp(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


def entropy(x: Tensor, wide: torch.dtype = torch.float32) -> Tensor:
    """Of softmax(x), in float32 as autocast computes it."""
    log_p = x.log_softmax(-1, dtype=wide)
    return -(log_p.exp() * log_p).sum(-1)


def rounded_entropy(x: Tensor) -> Tensor:
    """The same with log-probabilities rounded to the dtype of x: an exponent rounded after the sum needs two passes."""
    log_p = x.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def kl(x: Tensor, y: Tensor, wide: torch.dtype = torch.float32) -> Tensor:
    """Of softmax(x) from softmax(y), in float32."""
    log_p, log_q = x.log_softmax(-1, dtype=wide), y.log_softmax(-1, dtype=wide)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, reduction="none")


def variance(x: Tensor) -> Tensor:
    return x.var(-1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def norm_quantise(x: Tensor, weight: Tensor, wide: torch.dtype = torch.float32) -> Outputs:
    """RMSNorm, then e4m3 codes with a scale per row."""
    y = x.to(wide)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.to(wide)
    scale = y.abs().amax(-1, keepdim=True) / E4M3_MAX
    return (y / scale).to(torch.float8_e4m3fn), scale


def top8(x: Tensor) -> Outputs:
    values, indices = x.topk(8, dim=-1)
    return values, indices


def _judge_top(outputs: Outputs, inputs: Inputs) -> Outputs:
    """Ties make indices ambiguous: judged is the value they point at, and that none is named twice."""
    values, indices = outputs
    ordered = indices.sort(-1).values
    distinct = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(-1)
    return values, inputs[0].double().gather(-1, indices), distinct


def _judge_codes(outputs: Outputs, inputs: Inputs) -> Outputs:
    codes, scale = outputs
    return codes.double() * scale.double(), scale


@dataclass(frozen=True)
class Kind:
    """A function of rows: what it takes beside x, and what it costs for each element."""

    fn: Function
    extra: tuple[str, ...] = ()
    flops: float = 4.0
    reference: Function | None = None
    judge: Callable[[Outputs, Inputs], Outputs] | None = None


KINDS = {
    "softmax": Kind(softmax),
    "log-softmax": Kind(log_softmax),
    "logsumexp": Kind(logsumexp),
    "entropy": Kind(entropy, flops=6.0, reference=partial(entropy, wide=torch.float64)),
    "rounded-entropy": Kind(rounded_entropy, flops=6.0),
    "kl": Kind(kl, ("rows",), flops=8.0, reference=partial(kl, wide=torch.float64)),
    "cross-entropy": Kind(cross_entropy, ("targets",)),
    "variance": Kind(variance),
    "layer-norm": Kind(layer_norm, ("columns", "columns"), flops=8.0),
    "norm-quantise": Kind(norm_quantise, ("columns",), 8.0, partial(norm_quantise, wide=torch.float64), _judge_codes),
    "top8": Kind(top8, (), 1.0, None, _judge_top),
}

BF16, F32 = torch.bfloat16, torch.float32
SIZES: list[tuple[str, int, int, torch.dtype]] = [
    ("softmax", 8192, 8192, BF16), ("softmax", 8192, 8192, F32), ("softmax", 4096, 131072, BF16),
    ("softmax", 64, 1048576, BF16), ("softmax", 1, 16777216, BF16),
    ("log-softmax", 8192, 8192, BF16), ("log-softmax", 4096, 131072, BF16),
    ("logsumexp", 8192, 8192, BF16), ("logsumexp", 8192, 8192, F32), ("logsumexp", 4096, 131072, BF16),
    ("logsumexp", 64, 1048576, BF16), ("logsumexp", 1, 16777216, BF16),
    ("entropy", 8192, 8192, BF16), ("entropy", 4096, 131072, BF16), ("entropy", 8192, 8192, F32),
    ("rounded-entropy", 8192, 8192, BF16),
    ("kl", 8192, 8192, BF16), ("kl", 4096, 131072, BF16),
    ("cross-entropy", 8192, 8192, BF16), ("cross-entropy", 4096, 131072, BF16),
    ("variance", 8192, 8192, BF16), ("variance", 8192, 8192, F32), ("variance", 64, 4194304, BF16),
    ("variance", 1, 16777216, BF16),
    ("layer-norm", 8192, 8192, BF16), ("layer-norm", 8192, 8192, F32), ("layer-norm", 8192, 7168, BF16),
    ("norm-quantise", 8192, 7168, BF16),
    ("top8", 8192, 8192, BF16), ("top8", 4096, 131072, BF16),
]  # fmt: skip


def row_entry(kind: str, rows: int, length: int, dtype: torch.dtype, quick: bool) -> Entry:
    name = f"{kind}-{rows}x{length}{'-f32' if dtype == F32 else ''}"
    k = KINDS[kind]
    if quick:
        rows, length = min(rows, 5), 100 + length % 1000

    def inputs(make: Maker) -> Inputs:
        draw = {
            "rows": lambda: make.normal(rows, length, dtype=dtype),
            "columns": lambda: make.normal(length, dtype=dtype),
            "targets": lambda: make.integers(length, rows),
        }
        return make.normal(rows, length, dtype=dtype), *(draw[e]() for e in k.extra)

    samples: tuple[Sample, ...] = leading(
        min(64, max(1, 2**24 // length)), (True, *(e != "columns" for e in k.extra)), rows
    )
    return Entry(
        name=name,
        suite="memory",
        shape=f"{rows}x{length} {'float32' if dtype == F32 else 'bf16'}",
        fn=k.fn,
        reference=k.reference,
        inputs=inputs,
        flops=k.flops * rows * length,
        samples=samples,
        judge=k.judge,
        eager_bytes=4 * 4 * rows * length,
        cold=True,
        graph=rows * length * dtype.itemsize <= 2**28,
    )


def entries(quick: bool) -> list[Entry]:
    return [row_entry(*size, quick) for size in SIZES]
