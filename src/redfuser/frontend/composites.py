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
    if reduction == _NONE or (weight is not None and (label_smoothing or target.is_floating_point())):
        return NotImplemented
    if label_smoothing and not target.is_floating_point():
        total = _smoothed(logits, target, ignore_index, label_smoothing).sum()
    else:
        total = aten.cross_entropy_loss(logits, target, weight, _NONE, ignore_index, label_smoothing).sum()
    if reduction == _SUM:
        return total
    if target.is_floating_point():
        return total / (target.numel() // target.shape[min(1, target.dim() - 1)])
    counted = target != ignore_index
    if weight is None:
        return total / counted.sum()
    return total / torch.where(counted, weight[torch.where(counted, target, 0)], 0.0).sum()


def _smoothed(logits: Tensor, target: Tensor, ignored: int, smoothing: float) -> Tensor:
    """The loss of each row where the target shares a part of its weight with all classes."""
    classes = 0 if logits.dim() == 1 else 1
    p = aten.log_softmax(logits, classes)
    even = torch.where(target == ignored, 0.0, -p.sum(classes))
    hit: Tensor = aten.nll_loss_nd(p, target, None, _NONE, ignored)
    return hit * (1 - smoothing) + even * (smoothing / logits.shape[classes])


def _kl_div(input: Tensor, target: Tensor, reduction: int = _MEAN, *, log_target: bool = False) -> Any:
    """As for cross-entropy. The classes are taken to be the last dimension; any choice gives the same sum."""
    if reduction == _NONE or input.dim() < 2:
        return NotImplemented
    each = aten.kl_div(input, target, _NONE, log_target=log_target)
    total = each.sum(-1).sum()
    return total if reduction == _SUM else total / each.numel()


APART: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.cross_entropy_loss.default: _cross_entropy,
    aten.kl_div.default: _kl_div,
}
