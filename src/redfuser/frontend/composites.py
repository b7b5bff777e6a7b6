"""Composite operations taken apart before lowering, where a part of them belongs to a cascade and another does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_NONE, _MEAN, _SUM = 0, 1, 2  # how a loss reduces its batch


def _cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """The loss of each row, then its mean or sum: the first runs along the classes, the second along the rows."""
    if reduction == _NONE or weight is not None or label_smoothing != 0.0 or target.is_floating_point():
        return NotImplemented
    total = aten.cross_entropy_loss(logits, target, None, _NONE, ignore_index, 0.0).sum()
    return total if reduction == _SUM else total / (target != ignore_index).sum()


APART: dict[torch._ops.OpOverload, Callable[..., Any]] = {aten.cross_entropy_loss.default: _cross_entropy}
