"""Reducers with torch: one tile, two partial results, and the ordered lists of top-k and arg reductions."""

from __future__ import annotations

import torch
from torch import Tensor

from redfuser.backends.torch_expr import TORCH
from redfuser.index.expr import DType
from redfuser.index.nodes import Reducer
from redfuser.tile.identity import NO_POSITION

Best = tuple[Tensor, Tensor]


def reduce(x: Tensor, dim: int, reducer: Reducer, dtype: DType) -> Tensor:
    """reducer along a dimension, which stays with length 1."""
    kept = TORCH[dtype]
    match reducer:
        case Reducer.SUM:
            return torch.sum(x.to(kept), dim, keepdim=True)
        case Reducer.PROD:
            return torch.prod(x.to(kept), dim, keepdim=True)
        case Reducer.MAX:
            return torch.amax(x.to(kept), dim, keepdim=True)
        case Reducer.MIN:
            return torch.amin(x.to(kept), dim, keepdim=True)
        case Reducer.ANY:
            return torch.any(x, dim, keepdim=True)
        case Reducer.ALL:
            return torch.all(x, dim, keepdim=True)
        case Reducer.LOGSUMEXP:
            return torch.logsumexp(x.to(kept), dim, keepdim=True)
        case _:
            raise ValueError(f"{reducer} keeps positions")


def dealt(x: Tensor, dim: int, lanes: int, count: int, run: int, reducer: Reducer, dtype: DType) -> Tensor:
    """``run`` positions of ``dim`` to each of ``count`` lanes in turn: what each has stays along ``dim``, the lanes are
    along ``lanes``, where x has length 1. Where a lane has fewer positions than others, it has the identity."""
    x = x.to(TORCH[dtype])
    shape = list(x.shape)
    shape[dim] = -x.shape[dim] % (count * run)
    if shape[dim]:
        x = torch.cat([x, x.new_full(shape, reducer.identity(dtype).value)], dim)
    shape[dim : dim + 1] = [x.shape[dim] // (count * run), count, run]
    return x.reshape(shape).movedim(dim + 1, -1).flatten(dim, dim + 1).transpose(lanes, -1).squeeze(-1)


def combine(reducer: Reducer, a: Tensor, b: Tensor) -> Tensor:
    match reducer:
        case Reducer.SUM:
            return a + b
        case Reducer.PROD:
            return a * b
        case Reducer.MAX:
            return torch.maximum(a, b)
        case Reducer.MIN:
            return torch.minimum(a, b)
        case Reducer.ANY:
            return torch.logical_or(a, b)
        case Reducer.ALL:
            return torch.logical_and(a, b)
        case Reducer.LOGSUMEXP:
            return torch.logaddexp(a, b)
        case _:
            raise ValueError(f"{reducer} keeps positions")


def best(x: Tensor, dim: int, start: int, reducer: Reducer, k: tuple[int, int] | None) -> Best:
    """The best along a dimension and where: positions count from ``start``.

    For lists, ``k`` is the dimension and the length of the list.
    """
    if k is None:
        return _one(x, dim, start, reducer)
    k_dim, count = k
    have = min(count, x.shape[dim])
    values, at = _first(x, dim, have, reducer is Reducer.TOPK)
    at = at + start
    if have < count:
        shape = list(values.shape)
        shape[dim] = count - have
        values = torch.cat([values, values.new_full(shape, _worst(x, reducer))], dim)
        at = torch.cat([at, at.new_full(shape, NO_POSITION.value)], dim)
    return values.transpose(dim, k_dim), at.transpose(dim, k_dim)


def _one(x: Tensor, dim: int, start: int, reducer: Reducer) -> Best:
    if reducer is Reducer.BOTTOMK:
        values, at = _first(x, dim, 1, False)
        return values, at + start
    keys = x.to(torch.uint8) if x.dtype is torch.bool else x.to(torch.float32) if _narrow(x) else x
    at = (torch.argmax if reducer is Reducer.ARGMAX else torch.argmin)(keys, dim, keepdim=True)
    return torch.gather(x, dim, at), at + start


def _first(x: Tensor, dim: int, count: int, largest: bool) -> Best:
    """The first ``count`` in the order of Select; by sorting only where a tie decides which are in."""
    if 2 * count < x.shape[dim] and x.dtype is not torch.bool:
        values, at = torch.topk(x, count + 1, dim, largest)
        last, next_ = values.narrow(dim, count - 1, 1), values.narrow(dim, count, 1)
        if bool((last > next_ if largest else last < next_).all()):
            return _ordered(values.narrow(dim, 0, count), at.narrow(dim, 0, count), dim, largest)
    values, at = torch.sort(x, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, count), at.narrow(dim, 0, count)


def _ordered(values: Tensor, at: Tensor, dim: int, largest: bool) -> Best:
    """A list by value (NaN is the largest), equals by position."""
    at, order = torch.sort(at, dim=dim, stable=True)
    values, second = torch.sort(torch.gather(values, dim, order), dim=dim, descending=largest, stable=True)
    return values, torch.gather(at, dim, second)


def merge(a: Best, b: Best, reducer: Reducer, k: tuple[int, int] | None) -> Best:
    """The best of two, in the order of Select: by value, equals by position."""
    if k is None:
        return _merge_one(a, b, reducer)
    k_dim, count = k
    lists = []
    for values, at in (a, b):
        shape = [max(n, m) for n, m in zip(a[0].shape, b[0].shape, strict=True)]
        shape[k_dim] = count
        lists.append((values.expand(shape), at.expand(shape)))
    values, at = (torch.cat([lists[0][n], lists[1][n]], k_dim) for n in (0, 1))
    values, at = _ordered(values, at, k_dim, reducer is Reducer.TOPK)
    return values.narrow(k_dim, 0, count), at.narrow(k_dim, 0, count)


def _merge_one(a: Best, b: Best, reducer: Reducer) -> Best:
    (x, i), (y, j) = a, b
    better = torch.gt(y, x) if reducer is Reducer.ARGMAX else torch.lt(y, x)
    same = x == y
    if x.dtype.is_floating_point:
        x_nan, y_nan = torch.isnan(x), torch.isnan(y)
        better = better | (x_nan & ~y_nan if reducer is Reducer.BOTTOMK else y_nan & ~x_nan)
        same = same | (x_nan & y_nan)
    take = better | (same & (j < i))
    return torch.where(take, y, x), torch.where(take, j, i)


def _narrow(x: Tensor) -> bool:
    return x.dtype.is_floating_point and x.dtype.itemsize < 2


def _worst(x: Tensor, reducer: Reducer) -> float | int | bool:
    dtype = next(d for d, t in TORCH.items() if t is x.dtype)
    return reducer.identity(dtype).value
