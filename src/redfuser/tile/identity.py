"""What a reducer gives, and what a base starts as."""

from __future__ import annotations

from redfuser.index.expr import Apply, Const, DType, Expr, Fn, children, const, rebuild
from redfuser.index.nodes import Reducer

NO_POSITION = const(DType.INT64.highest, DType.INT64)


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


def constant(e: Expr) -> Expr:
    """e with comparisons, choices, signs and absolute values of numbers worked out: what a base starts as."""
    args = tuple(constant(a) for a in children(e))
    new = rebuild(e, args) if args else e
    if not isinstance(new, Apply):
        return new
    numbers = [a.value for a in args if isinstance(a, Const)]
    if new.fn is Fn.WHERE and isinstance(args[0], Const):
        return args[1] if args[0].value else args[2]
    if len(numbers) < len(args):
        return new
    match new.fn, numbers:
        case Fn.EQ, [a, b]:
            return const(a == b, DType.BOOL)
        case Fn.NE, [a, b]:
            return const(a != b, DType.BOOL)
        case Fn.AND, [a, b] if new.dtype is DType.BOOL:
            return const(a and b, DType.BOOL)
        case Fn.OR, [a, b] if new.dtype is DType.BOOL:
            return const(a or b, DType.BOOL)
        case Fn.NOT, [a] if new.dtype is DType.BOOL:
            return const(not a, DType.BOOL)
        case Fn.ABS, [a] if new.dtype.is_float:
            return const(abs(a), new.dtype)
        case Fn.NEG, [a] if new.dtype.is_float:
            return const(-a, new.dtype)
        case _:
            return new
