"""Routing to experts, and reductions that feed a GEMM. ``wide`` is float32 as users write it, float64 for the reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.entry import Entry, Inputs, Maker, Outputs, leading

E4M3_MAX = 448.0


def route(logits: Tensor, k: int = 8, wide: torch.dtype = torch.float32) -> Outputs:
    """(tokens, experts) -> weights and indices of the k best experts of each token."""
    weights, experts = logits.softmax(-1, dtype=wide).topk(k, dim=-1)
    return weights, experts


def route_renormalised(logits: Tensor, k: int = 8, wide: torch.dtype = torch.float32) -> Outputs:
    """The same, with weights that sum to 1."""
    weights, experts = logits.softmax(-1, dtype=wide).topk(k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), experts


def quantised_gemm(a: Tensor, w: Tensor, w_scale: Tensor, wide: torch.dtype = torch.float32) -> Tensor:
    """(M, K) bf16, quantised to e4m3 with a scale per row, by (N, K) e4m3 with a scale per row -> (M, N) bf16."""
    scale = a.to(wide).abs().amax(-1, keepdim=True) / E4M3_MAX
    codes = (a.to(wide) / scale).to(torch.float8_e4m3fn)
    exact = torch.bfloat16 if wide == torch.float32 else wide  # holds every e4m3 number
    product = codes.to(exact) @ w.to(exact).T
    return (product.to(wide) * scale * w_scale).to(a.dtype)


def norm_gemm(x: Tensor, weight: Tensor, w: Tensor, wide: torch.dtype = torch.float32) -> Tensor:
    """RMSNorm over K, then a GEMM: (M, K), (K,), (N, K) -> (M, N)."""
    y = x.to(wide)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (y.to(x.dtype) * weight) @ w.T


def _scaled_mm(a: Tensor, w: Tensor, w_scale: Tensor) -> Tensor:
    scale = a.float().abs().amax(-1, keepdim=True) / E4M3_MAX
    codes = (a.float() / scale).to(torch.float8_e4m3fn)
    return torch._scaled_mm(codes, w.T, scale, w_scale, out_dtype=torch.bfloat16)


def _judge_route(outputs: Outputs, inputs: Inputs) -> Outputs:
    """Ties make indices ambiguous: judged is the probability they point at, and that no expert is named twice."""
    weights, experts = outputs
    ordered = experts.sort(-1).values
    distinct = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(-1)
    return weights, inputs[0].double().softmax(-1).gather(-1, experts), distinct


def routing(name: str, fn: Callable[..., Outputs], tokens: int, experts: int, quick: bool) -> Entry:
    if quick:
        tokens = 33

    def inputs(make: Maker) -> Inputs:
        return (make.normal(tokens, experts),)

    return Entry(
        name=name,
        suite="paper",
        shape=f"{tokens}x{experts} k=8",
        fn=fn,
        reference=partial(fn, wide=torch.float64),
        inputs=inputs,
        flops=4.0 * tokens * experts,
        samples=leading(512, (True,), tokens),
        judge=_judge_route,
        cold=True,
        graph=True,
    )


def entries(quick: bool) -> list[Entry]:
    m, n, k = (16, 48, 96) if quick else (512, 2112, 7168)
    rows, columns, inner = (16, 48, 96) if quick else (4096, 4096, 4096)

    def quantised(make: Maker) -> Inputs:
        w = make.normal(n, k).clamp(-4, 4).to(torch.float8_e4m3fn)
        return make.normal(m, k), w, make.normal(1, n, dtype=torch.float32).abs() * 0.01 + 0.001

    def normed(make: Maker) -> Inputs:
        return make.normal(rows, inner), make.normal(inner), make.normal(columns, inner, scale=0.02)

    return [
        routing("route-256", route, 8192, 256, quick),
        routing("route-128", route, 8192, 128, quick),
        routing("route-256-renormalised", route_renormalised, 8192, 256, quick),
        routing("route-128-renormalised", route_renormalised, 8192, 128, quick),
        Entry(
            name="quantise-gemm",
            suite="paper",
            shape=f"{m}x{n}x{k} e4m3",
            fn=quantised_gemm,
            reference=partial(quantised_gemm, wide=torch.float64),
            inputs=quantised,
            flops=2.0 * m * n * k,
            samples=leading(64, (True, False, False), m),
            library=_scaled_mm,
            library_name="scaled-mm",
            graph=True,
        ),
        Entry(
            name="rmsnorm-gemm",
            suite="paper",
            shape=f"{rows}x{columns}x{inner}",
            fn=norm_gemm,
            reference=partial(norm_gemm, wide=torch.float64),
            inputs=normed,
            flops=2.0 * rows * columns * inner,
            samples=leading(64, (True, False, False), rows),
        ),
    ]
