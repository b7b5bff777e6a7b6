"""The value that changes nothing: what a reducer starts from."""

from __future__ import annotations

import math

from redfuser.index.expr import Const, DType, const
from redfuser.index.nodes import Reducer

_INTEGER_RANGE = {
    DType.UINT8: (0, 2**8 - 1),
    DType.INT8: (-(2**7), 2**7 - 1),
    DType.INT16: (-(2**15), 2**15 - 1),
    DType.INT32: (-(2**31), 2**31 - 1),
    DType.INT64: (-(2**63), 2**63 - 1),
}
NO_POSITION = const(2**63 - 1, DType.INT64)
LOW = (Reducer.MAX, Reducer.ARGMAX, Reducer.TOPK, Reducer.LOGSUMEXP)


def identity(reducer: Reducer, dtype: DType) -> Const:
    """e with ``e (reducer) x == x``."""
    match reducer:
        case Reducer.SUM:
            return const(0, dtype)
        case Reducer.PROD:
            return const(1, dtype)
        case Reducer.ANY:
            return const(False, dtype)
        case Reducer.ALL:
            return const(True, dtype)
        case _:
            low = reducer in LOW
            if dtype.is_float:
                return const(-math.inf if low else math.inf, dtype)
            if dtype is DType.BOOL:
                return const(not low, dtype)
            return const(_INTEGER_RANGE[dtype][0 if low else 1], dtype)


def result_dtype(reducer: Reducer, body: DType) -> DType:
    """The dtype a reduction of a body is kept in."""
    match reducer:
        case Reducer.SUM | Reducer.PROD:
            return body.accumulator
        case Reducer.LOGSUMEXP:
            return body.compute
        case Reducer.ANY | Reducer.ALL:
            return DType.BOOL
        case _:
            return body
