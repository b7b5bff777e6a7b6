"""What a CPU without a GPU beside it is asked for: float32 unless the name says otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.entries.heads import attention_flops, head_samples
from benchmarks.entries.prefill import _sdpa, _sdpa_causal, attention, causal_attention
from benchmarks.entries.rows import logsumexp, softmax, variance
from benchmarks.entries.weights import _judge_route
from benchmarks.entry import Entry, Function, Inputs, Maker, Outputs, Sample, leading

F32 = torch.float32


def soft_cap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores bent by a tanh: no library kernel has it."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return (30.0 * torch.tanh(scores / 30.0)).softmax(-1) @ v


def entropy(x: Tensor) -> Tensor:
    p = x.softmax(-1)
    return -(p * p.log()).sum(-1)


def inertia(m: Tensor, r: Tensor) -> Tensor:
    """Of sets of particles about their centres of mass: (B, N), (B, N, 3) -> (B,)."""
    total = m.sum(-1)
    x, y, z = r.unbind(-1)
    cx, cy, cz = ((m * along).sum(-1, keepdim=True) / total[:, None] for along in (x, y, z))
    return (m * ((x - cx) ** 2 + (y - cy) ** 2 + (z - cz) ** 2)).sum(-1)


def route(x: Tensor) -> Outputs:
    """The best 8 of 128 by softmax, renormalised."""
    p = x.softmax(-1)
    weights, experts = p.topk(8, dim=-1)
    return weights / weights.sum(-1, keepdim=True), experts


def norm_gemm(x: Tensor, w: Tensor) -> Tensor:
    """RMSNorm over K, then a GEMM: (M, K), (K, N) -> (M, N)."""
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) @ w


def _judge(outputs: Outputs, inputs: Inputs) -> Outputs:
    weights, experts = outputs
    _, chosen, distinct = _judge_route((weights, experts), inputs)
    return weights, chosen, distinct


def heads(
    name: str, fn: Function, sdpa: Function | None, queries: int, keys: int, quick: bool, dtype: torch.dtype = F32
) -> Entry:
    h, d = (2, 16) if quick else (8, 64)
    queries, keys = (min(queries, 40), 48) if quick else (queries, keys)
    if name.startswith("causal"):
        keys = queries

    def inputs(make: Maker) -> Inputs:
        return tuple(make.normal(1, h, n, d, dtype=dtype) for n in (queries, keys, keys))

    pairs = queries * (queries + 1) // 2 if name.startswith("causal") else queries * keys
    return Entry(
        name=name,
        suite="cpu",
        shape=f"1x{h}x{queries}{f'/{keys}' if keys != queries else ''}x{d} {'bf16' if dtype != F32 else 'float32'}",
        fn=fn,
        inputs=inputs,
        flops=attention_flops(1, h, pairs, d, d),
        samples=head_samples(1, h, h),
        sdpa=sdpa,
        sdpa_backends=("flash",),
    )


def rows(name: str, fn: Function, shapes: Sequence[tuple[int, ...]], flops: float, quick: bool) -> Entry:
    """``flops`` for each element of the first input; rows are independent."""
    if quick:
        shapes = [(min(s[0], 5), 60 + s[1] % 100, *s[2:]) for s in shapes]
    count, length = shapes[0][:2]

    def inputs(make: Maker) -> Inputs:
        first = make.normal(*shapes[0], dtype=F32)
        return (first.abs() if len(shapes) > 1 else first), *(make.normal(*s, dtype=F32) for s in shapes[1:])

    samples: Sequence[Sample] = leading(min(64, max(1, 2**22 // length)), [True] * len(shapes), count)
    judge: Callable[[Outputs, Inputs], Outputs] | None = _judge if name.startswith("route") else None
    return Entry(
        name=name,
        suite="cpu",
        shape=" ".join("x".join(map(str, s)) for s in shapes),
        fn=fn,
        inputs=inputs,
        flops=flops * count * length,
        samples=samples,
        judge=judge,
    )


def entries(quick: bool) -> list[Entry]:
    m, n, k = (16, 48, 64) if quick else (1024, 2048, 2048)

    def weights(make: Maker) -> Inputs:
        return make.normal(m, k, dtype=F32), make.normal(k, n, dtype=F32, scale=0.02)

    return [
        heads("attention", attention, _sdpa, 2048, 2048, quick),
        heads("causal", causal_attention, _sdpa_causal, 2048, 2048, quick),
        heads("soft-cap", soft_cap, None, 2048, 2048, quick),
        heads("decode", attention, _sdpa, 1, 32768, quick),
        heads("attention-bf16", attention, _sdpa, 2048, 2048, quick, torch.bfloat16),
        rows("logsumexp", logsumexp, [(256, 131072)], 4.0, quick),
        rows("entropy", entropy, [(256, 131072)], 6.0, quick),
        rows("variance", variance, [(64, 1048576)], 4.0, quick),
        rows("inertia", inertia, [(64, 262144), (64, 262144, 3)], 18.0, quick),
        rows("route", route, [(8192, 128)], 4.0, quick),
        rows("softmax", softmax, [(4096, 4096)], 4.0, quick),
        Entry(
            name="rmsnorm-gemm",
            suite="cpu",
            shape=f"{m}x{n}x{k}",
            fn=norm_gemm,
            inputs=weights,
            flops=2.0 * m * n * k,
            samples=leading(64, (True, False), m),
        ),
    ]
