"""The meaning of an index program, in float64: the oracle of the test suite. Vectorised over axes, nothing clever.

Exact mode ignores casts between float formats: it computes what the program means. Rounded mode rounds where the
program says so: at casts, and where a reduction's result is stored. Integers and booleans are exact in both, and
wrap around at their dtype as PyTorch's do. A load out of range is clipped: it stands in a branch that is not taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redfuser.index.expr import Apply, Cast, Const, DType, Expr, Fn, Load, Part, Position, Ref, dtype_of
from redfuser.index.ints import Axis, FloorDiv, Gather, Int, Mod, Size
from redfuser.index.nodes import Definition, Map, Program, Reduce, Reducer

Array = NDArray[Any]
Values = Mapping[tuple[str, Part], Array]

_NUMPY = {
    DType.BOOL: np.dtype(np.bool_), DType.UINT8: np.dtype(np.uint8), DType.INT8: np.dtype(np.int8),
    DType.INT16: np.dtype(np.int16), DType.INT32: np.dtype(np.int32), DType.INT64: np.dtype(np.int64),
}  # fmt: skip
# explicit mantissa bits, smallest normal exponent, largest finite value, whether it has infinities
_FORMATS = {
    DType.FLOAT16: (10, -14, 65504.0, True),
    DType.BFLOAT16: (7, -126, float.fromhex("0x1.fep127"), True),
    DType.FLOAT8_E4M3: (3, -6, 448.0, False),
    DType.FLOAT8_E5M2: (2, -14, 57344.0, True),
}


def numpy_dtype(dtype: DType) -> np.dtype[np.generic]:
    """The array dtype that holds values of ``dtype`` here: float64 for every float."""
    return _NUMPY.get(dtype, np.dtype(np.float64))


def round_to(x: Array, dtype: DType) -> Array:
    """float64 values rounded to a float format (to nearest, ties to even), as PyTorch converts."""
    if dtype is DType.FLOAT64:
        return x
    with np.errstate(all="ignore"):
        if dtype is DType.FLOAT32:
            return np.asarray(x, np.float32).astype(np.float64)
        mantissa, low, top, infinite = _FORMATS[dtype]
        # PyTorch narrows through float32
        y = np.asarray(x, np.float32).astype(np.float64)
        _, exponent = np.frexp(y)
        ulp = np.ldexp(1.0, np.maximum(exponent - 1, low) - mantissa)
        out = np.where(np.isfinite(y), np.rint(y / ulp) * ulp, y)
        # a format without infinities saturates (PyTorch before 2.13 gave NaN there)
        return np.where(np.abs(out) > top, np.copysign(np.inf if infinite else top, out), out)


@dataclass
class Scope:
    """What an expression is evaluated in: the axes' grids (broadcastable), sizes, and the arrays that loads read."""

    axes: Mapping[Axis, Array]
    sizes: Mapping[str, int]
    values: Values
    refs: Mapping[tuple[str, bool, Part], Array] = field(default_factory=dict)
    rounded: bool = False
    memo: dict[Expr | Int, Array] = field(default_factory=dict)


def evaluate(
    program: Program, inputs: Mapping[str, Array], sizes: Mapping[str, int], *, rounded: bool = False
) -> list[Array]:
    """The outputs of a program. Floats are float64 arrays whatever their dtype; inputs may be of any width."""
    values: dict[tuple[str, Part], Array] = {}
    for i in program.inputs:
        values[i.name, Part.VALUE] = np.asarray(inputs[i.name]).astype(numpy_dtype(i.dtype))
    for d in program.definitions:
        for part, array in define(d, values, sizes, rounded=rounded).items():
            values[d.name, part] = array
    return [values[o.value, o.part] for o in program.outputs]


def define(d: Definition, values: Values, sizes: Mapping[str, int], *, rounded: bool = False) -> dict[Part, Array]:
    """The components of one definition, given the arrays it reads."""
    kept = [int_size(a.size, sizes) for a in d.axes]
    if isinstance(d, Map):
        body = evaluate_over(d.body, d.axes, sizes, values, rounded=rounded)
        return {Part.VALUE: body.astype(numpy_dtype(d.dtype))}
    body = evaluate_over(d.body, (*d.axes, *d.over), sizes, values, rounded=rounded)
    flat = body.reshape(*kept, math.prod(int_size(a.size, sizes) for a in d.over))
    parts = reduce_last(flat, d, None if d.k is None else int_size(d.k.size, sizes))
    if rounded and d.dtype.is_float:
        parts[Part.VALUE] = round_to(parts[Part.VALUE], d.dtype)
    parts[Part.VALUE] = parts[Part.VALUE].astype(numpy_dtype(d.dtype))
    return parts


def evaluate_over(
    e: Expr, axes: tuple[Axis, ...], sizes: Mapping[str, int], values: Values, *, rounded: bool = False
) -> Array:
    """An expression as an array with one dimension per axis."""
    lengths = [int_size(a.size, sizes) for a in axes]
    grids = {}
    for n, (axis, length) in enumerate(zip(axes, lengths, strict=True)):
        grids[axis] = np.arange(length).reshape([-1 if m == n else 1 for m in range(len(axes))])
    found = evaluate_expr(e, Scope(grids, sizes, values, rounded=rounded))
    return np.broadcast_to(found, lengths)


def evaluate_expr(e: Expr, scope: Scope) -> Array:
    """An expression on broadcastable grids."""
    done = scope.memo.get(e)
    if done is None:
        with np.errstate(all="ignore"):
            done = _expr(e, scope)
        scope.memo[e] = done
    return done


def int_size(e: Int, sizes: Mapping[str, int]) -> int:
    return e.evaluate({s: sizes[s.name] for s in e.sizes()})


def _expr(e: Expr, scope: Scope) -> Array:
    match e:
        case Const():
            return np.asarray(e.value, numpy_dtype(e.dtype))
        case Position():
            return evaluate_int(e.index, scope)
        case Load():
            return _load(e, scope)
        case Ref():
            return scope.refs[e.name, e.old, e.part]
        case Cast():
            return _cast(evaluate_expr(e.arg, scope), dtype_of(e.arg), e.dtype, scope.rounded)
        case Apply():
            args = [evaluate_expr(a, scope) for a in e.args]
            return _apply(e.fn, args, e.dtype)


def evaluate_int(e: Int, scope: Scope) -> Array:
    done = scope.memo.get(e)
    if done is None:
        done = np.asarray(0, np.int64)
        for m, c in e.terms:
            term = np.asarray(c, np.int64)
            for a, n in m:
                term = term * _atom(a, scope) ** n
            done = done + term
        scope.memo[e] = done
    return done


def _atom(a: Axis | Size | FloorDiv | Mod | Gather, scope: Scope) -> Array:
    match a:
        case Axis():
            return scope.axes[a]
        case Size():
            return np.asarray(scope.sizes[a.name], np.int64)
        case FloorDiv():
            return evaluate_int(a.num, scope) // evaluate_int(a.den, scope)
        case Mod():
            return evaluate_int(a.num, scope) % evaluate_int(a.den, scope)
        case Gather():
            return evaluate_expr(a.value, scope).astype(np.int64)


def _load(e: Load, scope: Scope) -> Array:
    source = scope.values[e.source, e.part]
    if not e.index:
        return source
    if source.size == 0:
        shape = np.broadcast_shapes(*(evaluate_int(i, scope).shape for i in e.index))
        return np.zeros(shape, source.dtype)
    index = [np.clip(evaluate_int(i, scope), 0, n - 1) for i, n in zip(e.index, source.shape, strict=True)]
    found: Array = source[tuple(np.broadcast_arrays(*index))]
    return found


def _cast(x: Array, source: DType, target: DType, rounded: bool) -> Array:
    if target.is_float:
        y = x.astype(np.float64)
        return round_to(y, target) if rounded else y
    if source.is_float and target is not DType.BOOL:
        y = np.trunc(x)
        # out of range is undefined in PyTorch too; wrapping through int64 is what its CPU code does
        return np.where(np.isfinite(y), y, 0).astype(np.int64).astype(numpy_dtype(target))
    return x.astype(numpy_dtype(target))


# one table for the two interpreters in numpy: this one, and the checker's
UNARY: dict[Fn, Callable[[Array], Array]] = {
    Fn.NEG: np.negative, Fn.ABS: np.abs, Fn.SIGN: np.sign, Fn.EXP: np.exp, Fn.EXP2: np.exp2, Fn.EXPM1: np.expm1,
    Fn.LOG: np.log, Fn.LOG2: np.log2, Fn.LOG1P: np.log1p, Fn.SQRT: np.sqrt, Fn.RSQRT: lambda x: 1.0 / np.sqrt(x),
    Fn.SIN: np.sin, Fn.COS: np.cos, Fn.TANH: np.tanh, Fn.SIGMOID: lambda x: _sigmoid(x), Fn.ERF: lambda x: _erf(x),
    Fn.FLOOR: np.floor, Fn.CEIL: np.ceil, Fn.ROUND: np.rint, Fn.TRUNC: np.trunc, Fn.ISNAN: np.isnan,
}  # fmt: skip
BINARY: dict[Fn, Callable[[Array, Array], Array]] = {
    Fn.ADD: np.add, Fn.SUB: np.subtract, Fn.MUL: np.multiply, Fn.DIV: np.true_divide, Fn.FLOORDIV: np.floor_divide,
    Fn.REMAINDER: np.remainder, Fn.POW: np.power, Fn.MAXIMUM: np.maximum, Fn.MINIMUM: np.minimum,
}  # fmt: skip
COMPARE: dict[Fn, Callable[[Array, Array], Array]] = {
    Fn.LT: np.less, Fn.LE: np.less_equal, Fn.GT: np.greater, Fn.GE: np.greater_equal, Fn.EQ: np.equal,
    Fn.NE: np.not_equal,
}  # fmt: skip
LOGICAL: dict[Fn, Callable[..., Array]] = {
    Fn.AND: np.bitwise_and, Fn.OR: np.bitwise_or, Fn.XOR: np.bitwise_xor, Fn.NOT: np.invert,
}  # fmt: skip


def _apply(fn: Fn, args: list[Array], dtype: DType) -> Array:
    kind = numpy_dtype(dtype)
    if fn is Fn.WHERE:
        return np.where(args[0], args[1].astype(kind), args[2].astype(kind))
    if fn in COMPARE:
        return COMPARE[fn](*args)
    if fn in LOGICAL:
        return LOGICAL[fn](*(a.astype(kind) for a in args))
    if fn is Fn.ISNAN:
        return np.isnan(args[0].astype(np.float64))
    if dtype is DType.BOOL:
        return _apply(fn, [a.astype(np.int64) for a in args], DType.INT64).astype(np.bool_)
    same = [a.astype(kind) for a in args]
    return (UNARY[fn](same[0]) if len(same) == 1 else BINARY[fn](*same)).astype(kind)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


_erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[np.float64])


def reduce_last(x: Array, d: Reduce, k: int | None = None) -> dict[Part, Array]:
    """One reducer over the last dimension: value, and position where it has one."""
    wide = x.astype(numpy_dtype(d.dtype.accumulator)) if d.reducer in (Reducer.SUM, Reducer.PROD) else x
    with np.errstate(all="ignore"):
        match d.reducer:
            case Reducer.SUM:
                return {Part.VALUE: wide.sum(-1)}
            case Reducer.PROD:
                return {Part.VALUE: wide.prod(-1)}
            case Reducer.MAX:
                return {Part.VALUE: wide.max(-1, initial=d.dtype.lowest)}
            case Reducer.MIN:
                return {Part.VALUE: wide.min(-1, initial=d.dtype.highest)}
            case Reducer.ANY:
                return {Part.VALUE: np.asarray(x.astype(np.bool_).any(-1))}
            case Reducer.ALL:
                return {Part.VALUE: np.asarray(x.astype(np.bool_).all(-1))}
            case Reducer.LOGSUMEXP:
                return {Part.VALUE: logsumexp(x.astype(np.float64))}
            case Reducer.ARGMAX | Reducer.ARGMIN:
                at = x.argmax(-1) if d.reducer is Reducer.ARGMAX else x.argmin(-1)
                return {Part.VALUE: np.take_along_axis(x, at[..., None], -1)[..., 0], Part.INDEX: at.astype(np.int64)}
            case Reducer.TOPK | Reducer.BOTTOMK:
                found = _best(x, k or 1, d.reducer is Reducer.TOPK)
                return found if d.k is not None else {part: v[..., 0] for part, v in found.items()}


def logsumexp(x: Array) -> Array:
    """Over the last dimension, in any float; exact where the largest element is infinite."""
    top = np.asarray(x.max(-1, initial=-math.inf))
    safe = np.where(np.isfinite(top), top, 0.0)
    total = np.log(np.exp(x - safe[..., None]).sum(-1)) + safe
    return np.where(np.isinf(top), top, total)


def _best(x: Array, k: int, largest: bool) -> dict[Part, Array]:
    """Largest (or smallest) first; NaN above everything; the lowest position first among equals."""
    sign = -1 if largest else 1
    if numpy_dtype(DType.FLOAT64) == x.dtype:
        lost = np.isnan(x)
        order = np.lexsort((sign * np.where(lost, 0.0, x), sign * lost), axis=-1)
    else:
        order = np.argsort(sign * x.astype(np.int64), axis=-1, kind="stable")
    at = order[..., :k]
    return {Part.VALUE: np.take_along_axis(x, at, -1), Part.INDEX: at.astype(np.int64)}
