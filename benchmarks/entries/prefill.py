"""Attention over whole sequences."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.entries.heads import attention_flops, causal_mask, flex, head_samples, repeat_heads, tiny
from benchmarks.entry import Entry, Inputs, Maker


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(B, H, L, D), three times -> (B, H, L, D)."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Query i sees keys 0 … i; key heads may be fewer than query heads."""
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    i = torch.arange(q.shape[-2], device=q.device)
    scores = scores.masked_fill(i[:, None] < i[None, :], float("-inf"))
    return scores.softmax(-1) @ v


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _sdpa_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def prefill(name: str, suite: str, size: tuple[int, int, int, int, int], causal: bool, quick: bool) -> Entry:
    b, h, hk, length, d = tiny(*size) if quick else size

    def inputs(make: Maker) -> Inputs:
        return make.normal(b, h, length, d), make.normal(b, hk, length, d), make.normal(b, hk, length, d)

    pairs = length * (length + 1) // 2 if causal else length * length
    return Entry(
        name=name,
        suite=suite,
        shape=f"{b}x{h}{f'/{hk}' if hk != h else ''}x{length}x{d}{' causal' if causal else ''}",
        fn=causal_attention if causal else attention,
        inputs=inputs,
        flops=attention_flops(b, h, pairs, d, d),
        samples=head_samples(b, h, hk),
        eager_bytes=3 * 2 * b * h * length * length,
        sdpa=_sdpa_causal if causal else _sdpa,
        flex=(lambda given: flex(given, mask_mod=causal_mask)) if causal else flex,
    )


SIZES: dict[str, tuple[tuple[int, int, int, int, int], bool]] = {
    "attention-bert": ((32, 12, 12, 512, 64), False),
    "attention-vit-base": ((32, 12, 12, 577, 64), False),
    "attention-vit-huge": ((32, 16, 16, 257, 80), False),
    "attention-llama-65b": ((4, 64, 64, 2048, 128), True),
    "attention-llama-7b": ((4, 32, 32, 4096, 128), True),
    "attention-qwen3-8b": ((1, 32, 8, 8192, 128), True),
    "attention-qwen3-32b": ((1, 64, 8, 8192, 128), True),
    "attention-long": ((1, 32, 32, 16384, 128), False),
}


def entries(quick: bool) -> list[Entry]:
    return [prefill(name, "paper", size, causal, quick) for name, (size, causal) in SIZES.items()]
