"""Building expressions with the obvious simplifications: constants fold, index arithmetic stays index arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable

from redfuser.index.expr import (
    COMPARISONS,
    LOGIC,
    Apply,
    Cast,
    Const,
    DType,
    Expr,
    Fn,
    Position,
    const,
    dtype_of,
    position,
)
from redfuser.index.ints import Gather, Int, as_int, floordiv, less, mod

TRUE, FALSE = const(True, DType.BOOL), const(False, DType.BOOL)
_WIDE = (DType.INT64, DType.INT32)

_FLOAT_FOLDS: dict[Fn, Callable[..., float]] = {
    Fn.ADD: lambda a, b: a + b,
    Fn.SUB: lambda a, b: a - b,
    Fn.MUL: lambda a, b: a * b,
    Fn.NEG: lambda a: -a,
    Fn.SQRT: lambda a: math.sqrt(a) if a >= 0 else math.nan,
}


def index_of(e: Expr) -> Int | None:
    """The integer expression that an int64 value is, when it depends on no data."""
    match e:
        case Position():
            return e.index
        case Const(value=v, dtype=DType.INT64 | DType.INT32) if not isinstance(v, bool):
            return as_int(int(v))
        case _:
            return None


def as_index(e: Expr, bound: Int) -> Int:
    """A value used as an index into an axis of length ``bound``: data-dependent where it must be."""
    known = index_of(e)
    return known if known is not None else as_int(Gather(e, bound))


def cast(e: Expr, dtype: DType) -> Expr:
    """A conversion. Widening a float is exact and stays implicit, since arithmetic on it is done in the wider type."""
    source = dtype_of(e)
    if source is dtype:
        return e
    if isinstance(e, Const):
        folded = _cast_const(e, dtype)
        if folded is not None:
            return folded
    if isinstance(e, Position) and dtype is DType.INT32:
        return e
    if source.is_float and dtype.is_float and _widens(source, dtype):
        return e
    return Cast(e, dtype)


def exactly(e: Expr, dtype: DType) -> Expr:
    """The same value as an expression whose dtype is ``dtype``: what a stored value must be."""
    return e if dtype_of(e) is dtype else Cast(e, dtype)


def _widens(a: DType, b: DType) -> bool:
    if b is DType.FLOAT64:
        return True
    return b is DType.FLOAT32 and a.bytes < 4


def _cast_const(c: Const, dtype: DType) -> Const | None:
    v = c.value
    if dtype in (DType.FLOAT32, DType.FLOAT64) or (dtype.is_float and (v == 0 or math.isinf(v) or v == 1)):
        return const(float(v), dtype)
    if dtype is DType.BOOL:
        return const(bool(v), dtype)
    if dtype in _WIDE and math.isfinite(v):
        return const(int(v), dtype)
    return None


def apply(fn: Fn, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """``Apply`` with folding. Only identities that hold for every value, NaN and infinities included, are used."""
    if fn in COMPARISONS or (fn in LOGIC and dtype is DType.BOOL):
        folded = _fold_logic(fn, args)
    elif fn is Fn.WHERE:
        condition, yes, no = args
        if isinstance(condition, Apply) and condition.fn is Fn.NOT:
            return apply(Fn.WHERE, (condition.args[0], no, yes), dtype)
        opposite = _fold_not(condition)
        if isinstance(yes, Const) and not isinstance(no, Const) and opposite is not None:
            # one form for masks: what is kept where it is kept, and a constant elsewhere
            return apply(Fn.WHERE, (opposite, no, yes), dtype)
        folded = _fold_where(args, dtype)
    elif dtype in _WIDE:
        folded = _fold_int(fn, args)
    elif dtype in (DType.FLOAT32, DType.FLOAT64):
        folded = _fold_float(fn, args, dtype)
    else:
        folded = None
    return Apply(fn, args, dtype) if folded is None else folded


def _fold_int(fn: Fn, args: tuple[Expr, ...]) -> Expr | None:
    found = [index_of(a) for a in args]
    ints = [i for i in found if i is not None]
    if len(ints) != len(args):
        return None
    match fn, ints:
        case Fn.ADD, [a, b]:
            return position(a + b)
        case Fn.SUB, [a, b]:
            return position(a - b)
        case Fn.MUL, [a, b]:
            return position(a * b)
        case Fn.NEG, [a]:
            return position(-a)
        case Fn.FLOORDIV, [a, b] if (b.value or 0) > 0:
            return position(floordiv(a, b))
        case Fn.REMAINDER, [a, b] if (b.value or 0) > 0:
            return position(mod(a, b))
        case _:
            return None


def _fold_float(fn: Fn, args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    values = [a.value for a in args if isinstance(a, Const)]
    if len(values) == len(args) and fn in _FLOAT_FOLDS:
        return const(_FLOAT_FOLDS[fn](*(float(v) for v in values)), dtype)
    if fn in (Fn.MUL, Fn.DIV) and _is(args[1], 1.0):
        return args[0]
    if fn is Fn.MUL and _is(args[0], 1.0):
        return args[1]
    if fn in (Fn.ADD, Fn.SUB) and _is(args[1], 0.0):
        return args[0]
    if fn is Fn.ADD and _is(args[0], 0.0):
        return args[1]
    if fn is Fn.POW and isinstance(args[1], Const):
        return _fold_power(args[0], float(args[1].value), dtype)
    return None


def _fold_power(base: Expr, n: float, dtype: DType) -> Expr | None:
    if n == 1:
        return base
    if n == 2:
        return Apply(Fn.MUL, (base, base), dtype)
    if n == 0.5:
        return Apply(Fn.SQRT, (base,), dtype)
    if n == -0.5:
        return Apply(Fn.RSQRT, (base,), dtype)
    if n == -1:
        return Apply(Fn.DIV, (const(1.0, dtype), base), dtype)
    return None


def _is(e: Expr, value: float) -> bool:
    return isinstance(e, Const) and e.value == value and not isinstance(e.value, bool)


def _fold_where(args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    condition, yes, no = args
    if condition is TRUE or yes is no:
        return yes
    if condition is FALSE:
        return no
    if dtype is DType.BOOL and no is FALSE:
        return apply(Fn.AND, (condition, yes), dtype)
    if dtype is DType.BOOL and yes is TRUE:
        return apply(Fn.OR, (condition, no), dtype)
    return apply(Fn.NOT, (condition,), dtype) if yes is FALSE and no is TRUE else None


def _fold_logic(fn: Fn, args: tuple[Expr, ...]) -> Expr | None:
    match fn:
        case Fn.AND | Fn.OR:
            stop, neutral = (FALSE, TRUE) if fn is Fn.AND else (TRUE, FALSE)
            a, b = args
            if stop in (a, b):
                return stop
            if a is b or b is neutral:
                return a
            return b if a is neutral else None
        case Fn.NOT:
            (a,) = args
            if isinstance(a, Const):
                return const(not a.value, DType.BOOL)
            return _fold_not(a)
        case Fn.XOR:
            return None
        case _:
            return _fold_comparison(fn, args)


OPPOSITE = {Fn.LT: Fn.GE, Fn.GE: Fn.LT, Fn.GT: Fn.LE, Fn.LE: Fn.GT, Fn.EQ: Fn.NE, Fn.NE: Fn.EQ}


def _fold_not(a: Expr) -> Expr | None:
    """Comparisons of integers turn around; those of floats do not, because of NaN."""
    if not isinstance(a, Apply):
        return None
    if a.fn is Fn.NOT:
        return a.args[0]
    if a.fn in OPPOSITE and not any(dtype_of(x).is_float for x in a.args):
        return apply(OPPOSITE[a.fn], a.args, DType.BOOL)
    return None


def _fold_comparison(fn: Fn, args: tuple[Expr, ...]) -> Expr | None:
    a, b = args
    if isinstance(a, Const) and isinstance(b, Const):
        x, y = a.value, b.value
        answer = {
            Fn.LT: x < y, Fn.LE: x <= y, Fn.GT: x > y, Fn.GE: x >= y, Fn.EQ: x == y, Fn.NE: x != y,
        }[fn]  # fmt: skip
        return const(answer, DType.BOOL)
    chosen = _choice(a)
    if chosen is not None and isinstance(b, Const):
        # a mask that was made a number and is now compared: (1.0 if c else 0.0) == 0.0 is not c
        condition, yes, no = chosen
        answers = apply(fn, (yes, b), DType.BOOL), apply(fn, (no, b), DType.BOOL)
        return apply(Fn.WHERE, (condition, *answers), DType.BOOL)
    i, j = index_of(a), index_of(b)
    if i is None or j is None:
        return None
    decided = compare(fn, i, j)
    return const(decided, DType.BOOL) if decided is not None else _ordered(fn, i, j)


def _choice(e: Expr) -> tuple[Expr, Const, Const] | None:
    """Condition and the two constants between which it chooses."""
    match e:
        case Apply(fn=Fn.WHERE, args=(condition, Const() as yes, Const() as no)):
            return condition, yes, no
        case Cast(arg=condition) if dtype_of(condition) is DType.BOOL:
            return condition, const(1, e.dtype), const(0, e.dtype)
        case _:
            return None


def _ordered(fn: Fn, a: Int, b: Int) -> Expr | None:
    """One form for comparisons of positions: ``l <= j`` for ``j >= l``, ``l < j + 1`` and ``l - j < 1``."""
    if fn in (Fn.GT, Fn.GE):
        fn, a, b = (Fn.LT if fn is Fn.GT else Fn.LE), b, a
    if fn not in (Fn.LT, Fn.LE):
        return None
    difference = b - a
    left, right = (Int(tuple((m, s * c) for m, c in difference.terms if s * c > 0)) for s in (-1, 1))
    number = dict(right.terms).get((), 0)
    if fn is Fn.LT and number >= 1 and len(right.terms) > 1:
        fn, right = Fn.LE, right - 1
    elif fn is Fn.LE and dict(left.terms).get((), 0) >= 1:
        fn, left = Fn.LT, left - 1
    elif fn is Fn.LE and right.value is not None:
        fn, right = Fn.LT, right + 1
    return Apply(fn, (position(left), position(right)), DType.BOOL)


def compare(fn: Fn, a: Int, b: Int) -> bool | None:
    """The answer of a comparison of two integer expressions when it is the same for all axes and sizes, else None."""
    match fn:
        case Fn.LT:
            return less(a, b)
        case Fn.GE:
            return _negated(less(a, b))
        case Fn.GT:
            return less(b, a)
        case Fn.LE:
            return _negated(less(b, a))
        case Fn.EQ | Fn.NE:
            same = True if a is b else False if less(a, b) or less(b, a) else None
            return same if fn is Fn.EQ else _negated(same)
        case _:
            raise AssertionError(fn)


def _negated(x: bool | None) -> bool | None:
    return None if x is None else not x


def refold(e: Expr, args: tuple[Expr, ...]) -> Expr:
    """The node with new children, simplified again: after a substitution a predicate may have become constant."""
    match e:
        case Apply():
            return apply(e.fn, args, e.dtype)
        case Cast():
            return args[0] if dtype_of(args[0]) is e.dtype else Cast(args[0], e.dtype)
        case _:
            return e
