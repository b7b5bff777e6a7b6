"""What a reducer gives, and what a base starts as."""

from __future__ import annotations

from redfuser.index.eval import Scope, evaluate_expr
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
    """e with every part that holds no value of the kernel worked out: what a base starts as."""
    args = tuple(constant(a) for a in children(e))
    new = rebuild(e, args) if args else e
    if not isinstance(new, Apply) or not all(isinstance(a, Const) for a in args):
        if isinstance(new, Apply) and new.fn is Fn.WHERE and isinstance(args[0], Const):
            return args[1] if args[0].value else args[2]
        return new
    value = evaluate_expr(new, Scope({}, {}, {})).item()
    return const(bool(value) if new.dtype is DType.BOOL else value, new.dtype)
