"""What the attention entries share: samples by head, flops, and the FlexAttention call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.entry import Inputs, Sample

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """(B, Hk, L, D) -> (B, heads, L, D): each key head serves a group of query heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def tiny(b: int, h: int, hk: int, length: int, d: int) -> tuple[int, int, int, int, int]:
    """The same shape at a size for trying things: group, head size and ragged tail are kept."""
    hk_tiny = min(hk, 2)
    return min(b, 2), min(h // hk, 4) * hk_tiny, hk_tiny, 64 + length % 64, min(d, 80)


def head_samples(b: int, h: int, hk: int, extra: Sequence[str] = ()) -> tuple[Sample, ...]:
    """The first head of the first batch and the last head of the last one, of inputs q, k, v and ``extra``.

    An extra input is cut along a leading axis of ``"head"``s or ``"batch"``es, or kept (``""``).
    """

    def cut(bi: int, hi: int) -> Sample:
        batch, head, key = slice(bi, bi + 1), slice(hi, hi + 1), slice(hi // (h // hk), hi // (h // hk) + 1)
        by_name = {"head": head, "batch": batch, "": slice(None)}

        def inputs(given: Inputs) -> Inputs:
            q, k, v, *rest = given
            more = (x[by_name[e]] for x, e in zip(rest, extra, strict=True))
            return q[batch, head], k[batch, key], v[batch, key], *more

        return Sample(inputs, lambda outputs: (outputs[0][batch, head],))

    return cut(0, 0), cut(b - 1, h - 1)


def attention_flops(b: int, h: int, pairs: int, d_scores: int, d_values: int) -> float:
    """Two GEMMs over the (query, key) pairs that are not masked."""
    return 2.0 * b * h * pairs * (d_scores + d_values)


def causal_mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def flex(
    inputs: Inputs,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    batches: int | None = None,
    before: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None,
    after: Callable[[Tensor, Tensor], Tensor] | None = None,
    scale: float | None = None,
) -> Callable[[], Tensor]:
    """torch.compile of flex_attention over q, k, v, ready to call. The block mask is built here, outside what is timed.

    ``before`` maps q, k, v; ``after`` maps the output and its logsumexp. Both are compiled with the attention.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = inputs[:3]
    block_mask = None
    if mask_mod is not None:
        block_mask = create_block_mask(mask_mod, batches, None, q.shape[-2], k.shape[-2], device=q.device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if before is not None:
            q, k, v = before(q, k, v)
        more: dict[str, Any] = {"enable_gqa": q.shape[1] != k.shape[1], "scale": scale}
        if after is None:
            result: Any = flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask, **more)
            return result  # type: ignore[no-any-return]
        out, lse = flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask, return_lse=True, **more)
        return after(out, lse)

    compiled = torch.compile(attend, dynamic=False)
    return lambda: compiled(q, k, v)
