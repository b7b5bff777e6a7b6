"""Attention with masks, biases and other weights than a softmax's, each in plain PyTorch. Key heads serve groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.entries.heads import attention_flops, causal_mask, flex, head_samples, repeat_heads, tiny
from benchmarks.entries.prefill import _sdpa_causal, causal_attention
from benchmarks.entry import Entry, Function, Inputs, Maker

CAP = 50.0


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ repeat_heads(k, q.shape[1]).transpose(-1, -2) / math.sqrt(q.shape[-1])


def _positions(q: Tensor) -> tuple[Tensor, Tensor]:
    i = torch.arange(q.shape[-2], device=q.device)
    return i[:, None], i[None, :]


def soft_cap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = CAP * torch.tanh(_scores(q, k) / CAP)
    return scores.softmax(-1) @ repeat_heads(v, q.shape[1])


def alibi(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    """Causal, with a penalty that grows with distance at each head's own slope."""
    i, j = _positions(q)
    scores = _scores(q, k) + slopes[:, None, None] * (j - i)
    return scores.masked_fill(j > i, float("-inf")).softmax(-1).to(v.dtype) @ repeat_heads(v, q.shape[1])


def window(q: Tensor, k: Tensor, v: Tensor, width: int = 1024) -> Tensor:
    """Causal; a query sees itself and the ``width - 1`` keys before it."""
    i, j = _positions(q)
    seen = (j <= i) & (j > i - width)
    return torch.where(seen, _scores(q, k), float("-inf")).softmax(-1) @ repeat_heads(v, q.shape[1])


def prefix_lm(q: Tensor, k: Tensor, v: Tensor, prefix: int = 1024) -> Tensor:
    """Causal after a prefix that everyone sees."""
    i, j = _positions(q)
    scores = _scores(q, k).masked_fill((j > i) & (j >= prefix), float("-inf"))
    return scores.softmax(-1) @ repeat_heads(v, q.shape[1])


def documents(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
    """A query sees the keys of its own document; ids (B, L)."""
    same = ids[:, None, :, None] == ids[:, None, None, :]
    return _scores(q, k).masked_fill(~same, float("-inf")).softmax(-1) @ repeat_heads(v, q.shape[1])


def sink(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    """Causal, with one more logit for each head that takes weight and gives nothing; sinks (H,)."""
    i, j = _positions(q)
    scores = _scores(q, k).masked_fill(j > i, float("-inf"))
    extra = sinks[None, :, None, None].expand(*scores.shape[:-1], 1)
    weights = torch.cat([scores, extra], dim=-1).softmax(-1)[..., :-1]
    return weights @ repeat_heads(v, q.shape[1])


def additive_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """A learned bias (H, L, L)."""
    return (_scores(q, k) + bias).softmax(-1) @ repeat_heads(v, q.shape[1])


def sigmoid_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal, with weights that need no normaliser."""
    i, j = _positions(q)
    weights = torch.sigmoid(_scores(q, k)).masked_fill(j > i, 0.0)
    return weights @ repeat_heads(v, q.shape[1])


def cosine_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores are ten times the cosine of the angle between query and key."""
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    scores = 10.0 * (q @ repeat_heads(k, q.shape[1]).transpose(-1, -2))
    return scores.softmax(-1) @ repeat_heads(v, q.shape[1])


def _flex_soft_cap(inputs: Inputs) -> Callable[[], Tensor]:
    return flex(inputs, score_mod=lambda s, b, h, i, j: CAP * torch.tanh(s / CAP))


def _flex_alibi(inputs: Inputs) -> Callable[[], Tensor]:
    slopes = inputs[3]
    return flex(inputs, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i), mask_mod=causal_mask)


def _flex_window(width: int) -> Callable[[Inputs], Callable[[], Tensor]]:
    return lambda inputs: flex(inputs, mask_mod=lambda b, h, i, j: (j <= i) & (j > i - width))


def _flex_prefix(prefix: int) -> Callable[[Inputs], Callable[[], Tensor]]:
    return lambda inputs: flex(inputs, mask_mod=lambda b, h, i, j: (j <= i) | (j < prefix))


def _flex_documents(inputs: Inputs) -> Callable[[], Tensor]:
    ids = inputs[3]
    return flex(inputs, mask_mod=lambda b, h, i, j: ids[b, i] == ids[b, j], batches=ids.shape[0])


def _flex_sink(inputs: Inputs) -> Callable[[], Tensor]:
    sinks = inputs[3]

    def scale_out(out: Tensor, lse: Tensor) -> Tensor:
        return (out * torch.sigmoid(lse - sinks[None, :, None])[..., None]).to(out.dtype)

    return flex(inputs, mask_mod=causal_mask, after=scale_out)


def _flex_bias(inputs: Inputs) -> Callable[[], Tensor]:
    bias = inputs[3]
    return flex(inputs, score_mod=lambda s, b, h, i, j: s + bias[h, i, j])


def _flex_cosine(inputs: Inputs) -> Callable[[], Tensor]:
    return flex(inputs, before=lambda q, k, v: (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v), scale=10.0)


def _sdpa_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None].expand(q.shape[0], -1, -1, -1), enable_gqa=True)


@dataclass(frozen=True)
class Variant:
    """A function of q, k, v and perhaps one more input, the pairs it looks at, and its FlexAttention form."""

    fn: Function
    pairs: int
    flex: Callable[[Inputs], Callable[[], Tensor]] | None
    extra: Callable[[Maker], Tensor] | None = None
    cut: str = ""
    sdpa: Function | None = None
    sdpa_backends: tuple[str, ...] = ("flash", "cudnn")


def entries(quick: bool) -> list[Entry]:
    size = (4, 32, 8, 4096, 128)
    b, h, hk, length, d = tiny(*size) if quick else size
    width, prefix, document = (length // 4, length // 4, length // 8)
    full, causal = length * length, length * (length + 1) // 2

    def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return window(q, k, v, width)

    def prefixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return prefix_lm(q, k, v, prefix)

    def slopes(make: Maker) -> Tensor:
        return torch.exp2(-8.0 * torch.arange(1, h + 1, device=make.device) / h)

    def ids(make: Maker) -> Tensor:
        return (torch.arange(length, device=make.device) // document).expand(b, length).contiguous()

    variants = {
        "causal": Variant(causal_attention, causal, lambda x: flex(x, mask_mod=causal_mask), sdpa=_sdpa_causal),
        "soft-cap": Variant(soft_cap, full, _flex_soft_cap),
        "alibi": Variant(alibi, causal, _flex_alibi, slopes, "head"),
        "window": Variant(windowed, width * length - width * (width - 1) // 2, _flex_window(width)),
        "prefix-lm": Variant(prefixed, causal + prefix * (prefix - 1) // 2, _flex_prefix(prefix)),
        "documents": Variant(documents, length * document, _flex_documents, ids, "batch"),
        "sink": Variant(sink, causal, _flex_sink, lambda make: make.normal(h), "head"),
        "bias": Variant(
            additive_bias, full, _flex_bias, lambda make: make.normal(h, length, length), "head",
            sdpa=_sdpa_bias, sdpa_backends=("cudnn",),
        ),
        "sigmoid": Variant(sigmoid_attention, causal, None),
        "cosine": Variant(cosine_attention, full, _flex_cosine),
    }  # fmt: skip

    def entry(name: str, it: Variant) -> Entry:
        def inputs(make: Maker) -> Inputs:
            q, k, v = make.normal(b, h, length, d), make.normal(b, hk, length, d), make.normal(b, hk, length, d)
            return (q, k, v) if it.extra is None else (q, k, v, it.extra(make))

        return Entry(
            name=name,
            suite="variants",
            shape=f"{b}x{h}/{hk}x{length}x{d}",
            fn=it.fn,
            inputs=inputs,
            flops=attention_flops(b, h, it.pairs, d, d),
            samples=head_samples(b, h, hk, (it.cut,) if it.extra is not None else ()),
            eager_bytes=4 * 2 * b * h * length * length,
            sdpa=it.sdpa,
            sdpa_backends=it.sdpa_backends,
            flex=it.flex,
        )

    return [entry(name, it) for name, it in variants.items()]
