"""One query per sequence over a long cache: grouped-query attention, and latent attention in its absorbed form."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.entries.heads import attention_flops, flex, head_samples
from benchmarks.entry import Entry, Inputs, Maker, leading

LATENT, ROPE = 512, 64


def grouped_decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(B, H, 1, D) over (B, Hk, L, D), twice -> (B, H, 1, D): a group of query heads shares its key head."""
    b, h, _, d = q.shape
    grouped = q.reshape(b, k.shape[1], h // k.shape[1], d)
    weights = (grouped @ k.transpose(-1, -2) / math.sqrt(d)).softmax(-1)
    return (weights @ v).reshape(b, h, 1, d)


def latent_decode(q: Tensor, latent: Tensor, rope: Tensor) -> Tensor:
    """(B, H, 576) over a latent (B, L, 512) and rotary keys (B, L, 64) that all heads share -> (B, H, 512)."""
    keys = torch.cat([latent, rope], dim=-1)
    scores = q @ keys.transpose(-1, -2) / math.sqrt(192)
    return scores.softmax(-1) @ latent


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _flex_latent(inputs: Inputs) -> Callable[[], Tensor]:
    q, latent, rope = inputs
    keys = torch.cat([latent, rope], dim=-1)  # outside what is timed: a cache would hold it joined
    call = flex((q[:, :, None], keys[:, None], latent[:, None]), scale=1 / math.sqrt(192))
    return lambda: call()[:, :, 0]


def grouped(name: str, b: int, h: int, hk: int, length: int, quick: bool) -> Entry:
    d = 128
    if quick:
        b, h, hk, length, d = min(b, 2), 4, 2, 200, 64

    def inputs(make: Maker) -> Inputs:
        return make.normal(b, h, 1, d), make.normal(b, hk, length, d), make.normal(b, hk, length, d)

    return Entry(
        name=name,
        suite="paper",
        shape=f"{b}x{h}/{hk}x1 over {length}x{d}",
        fn=grouped_decode,
        inputs=inputs,
        flops=attention_flops(b, h, length, d, d),
        samples=head_samples(b, h, hk),
        sdpa=_sdpa,
        flex=flex,
        cold=True,
        graph=True,
    )


def latent(name: str, b: int, length: int, quick: bool) -> Entry:
    h = 128
    if quick:
        b, h, length = min(b, 2), 4, 200

    def inputs(make: Maker) -> Inputs:
        return make.normal(b, h, LATENT + ROPE), make.normal(b, length, LATENT), make.normal(b, length, ROPE)

    return Entry(
        name=name,
        suite="paper",
        shape=f"{b}x{h} over {length}x({LATENT}+{ROPE})",
        fn=latent_decode,
        inputs=inputs,
        flops=attention_flops(b, h, length, LATENT + ROPE, LATENT),
        samples=leading(1, (True, True, True), b),
        flex=_flex_latent,
        cold=True,
        graph=True,
    )


def entries(quick: bool) -> list[Entry]:
    return [
        latent("mla-decode-b1", 1, 8192, quick),
        latent("mla-decode-b32", 32, 4096, quick),
        latent("mla-decode-b128", 128, 8192, quick),
        grouped("gqa-decode-32-b1", 1, 32, 8, 8192, quick),
        grouped("gqa-decode-32-b16", 16, 32, 8, 8192, quick),
        grouped("gqa-decode-64-b128", 128, 64, 8, 8192, quick),
        grouped("gqa-decode-64-b1-long", 1, 64, 8, 131072, quick),
    ]
