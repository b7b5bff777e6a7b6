"""Scalar expressions and indices as Triton text.

Every text has the dtype its block has in Triton: floats narrower than float32 are computed in float32, as PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from redfuser.backends.indices import show_sum
from redfuser.backends.triton.layout import Dim
from redfuser.index.expr import COMPARISONS, Apply, Cast, Const, DType, Expr, Fn, Load, Position, Ref, dtype_of
from redfuser.index.ints import Atom, Axis, FloorDiv, Gather, Int, Mod, Size, nonnegative
from redfuser.tile.strategy import Unsupported

TL = {
    DType.BOOL: "tl.int1", DType.UINT8: "tl.uint8", DType.INT8: "tl.int8", DType.INT16: "tl.int16",
    DType.INT32: "tl.int32", DType.INT64: "tl.int64", DType.FLOAT8_E4M3: "tl.float8e4nv",
    DType.FLOAT8_E5M2: "tl.float8e5", DType.FLOAT16: "tl.float16", DType.BFLOAT16: "tl.bfloat16",
    DType.FLOAT32: "tl.float32", DType.FLOAT64: "tl.float64",
}  # fmt: skip

_SYMBOL = {
    Fn.ADD: "+", Fn.SUB: "-", Fn.MUL: "*", Fn.DIV: "/", Fn.LT: "<", Fn.LE: "<=", Fn.GT: ">", Fn.GE: ">=",
    Fn.EQ: "==", Fn.NE: "!=", Fn.AND: "&", Fn.OR: "|", Fn.XOR: "^",
}  # fmt: skip
_CALL = {
    Fn.ABS: "tl.abs", Fn.EXP: "tl.exp", Fn.EXP2: "tl.exp2", Fn.LOG: "tl.log", Fn.LOG2: "tl.log2", Fn.SQRT: "tl.sqrt",
    Fn.RSQRT: "tl.rsqrt", Fn.SIN: "tl.sin", Fn.COS: "tl.cos", Fn.ERF: "tl.erf", Fn.FLOOR: "tl.floor",
    Fn.CEIL: "tl.ceil",
}  # fmt: skip
_HELPER = {
    Fn.EXPM1: "expm1", Fn.LOG1P: "log1p", Fn.TANH: "tanh", Fn.SIGMOID: "sigmoid", Fn.ROUND: "nearest",
    Fn.TRUNC: "truncate", Fn.SIGN: "sign", Fn.MAXIMUM: "larger", Fn.MINIMUM: "smaller",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression may name: the text of a value or of an axis in a block with dimensions ``dims``.

    ``coarse`` says that an expression carries the rounding of 16-bit numbers anyway.
    """

    dims: tuple[Dim, ...]
    value: Callable[[str], tuple[str, tuple[Dim, ...], DType]]
    atom: Callable[[Axis], tuple[str, tuple[Dim, ...]]]
    size: Callable[[Size], str]
    use: Callable[[str], str]
    coarse: Callable[[Expr], bool] = lambda e: False

    def spread(self, text: str, dims: tuple[Dim, ...]) -> str:
        """A block with dimensions ``dims`` among those at hand."""
        if not dims or dims == self.dims:
            return text
        at = ", ".join(":" if d in dims else "None" for d in self.dims)
        return f"{_closed(text)}[{at}]"


def _closed(text: str) -> str:
    return text if text.isidentifier() else f"({text})"


# -- integers --------------------------------------------------------------------------------------------------------
def show_int(i: Int, s: Scope) -> str:
    """An index as text; a negative number is in brackets."""
    return show_sum(i, lambda a: _atom(a, s))


def show_factor(i: Int, s: Scope) -> str:
    """An index as an operand of a product or a division: in brackets unless it is one name or number."""
    text = show_int(i, s)
    return text if text.isdigit() or text.startswith("(") else _closed(text)


def _atom(a: Atom, s: Scope) -> str:
    match a:
        case Size():
            return s.size(a)
        case Axis():
            text, dims = s.atom(a)
            return s.spread(text, dims)
        case Gather():
            assert isinstance(a.value, Ref)
            text, dims, _ = s.value(a.value.name)
            return s.spread(text, dims)
        case FloorDiv() | Mod():
            n, d = show_factor(a.num, s), show_factor(a.den, s)
            if nonnegative(a.num):
                return f"({n} {'//' if isinstance(a, FloorDiv) else '%'} {d})"
            return f"{s.use('floor_div' if isinstance(a, FloorDiv) else 'floor_mod')}({n}, {d})"


# -- scalars ---------------------------------------------------------------------------------------------------------
def show_const(c: Const) -> str:
    v = c.value
    if isinstance(v, bool):
        return "1" if v else "0"
    if isinstance(v, float) and not math.isfinite(v):
        return f'float("{v}")'
    if isinstance(v, float):
        return repr(v)
    return repr(float(v)) if c.dtype.is_float else str(v)


def show(e: Expr, s: Scope, dtype: DType) -> str:
    """An expression as a block of the given dtype."""
    text, have = _show(e, s)
    if isinstance(e, Position) and dtype is DType.INT64 and e.index.axes():
        return f"{_closed(text)}.to(tl.int64)"  # an index has 32 bits
    return _to(text, have, dtype, s, e)


def _to(text: str, have: DType, want: DType, s: Scope, e: Expr) -> str:
    if have is want:
        return text
    if isinstance(e, Const):
        if want is DType.BOOL or have is DType.BOOL:
            return text
        return show_const(Const(float(e.value), want)) if want.is_float else text
    if want is DType.BOOL:
        return f"({text} != 0)"
    if want is DType.FLOAT8_E4M3:
        return f"{s.use('to_e4m3')}({_to(text, have, DType.FLOAT32, s, e)})"
    return f"{_closed(text)}.to({TL[want]})"


def _show(e: Expr, s: Scope) -> tuple[str, DType]:
    match e:
        case Const():
            return show_const(e), e.dtype
        case Ref():
            text, dims, dtype = s.value(e.name)
            return s.spread(text, dims), dtype
        case Position():
            return show_int(e.index, s), DType.INT64
        case Cast():
            return show(e.arg, s, e.dtype), e.dtype
        case Load():
            raise ValueError(f"a load of {e.source} inside an expression of a tile program")
        case Apply():
            return _apply(e, s)


def _apply(e: Apply, s: Scope) -> tuple[str, DType]:
    if e.fn is Fn.WHERE:
        a, b = (show(x, s, e.dtype) for x in e.args[1:])
        condition = show(e.args[0], s, DType.BOOL)
        if isinstance(e.args[1], Const) and isinstance(e.args[2], Const):
            return f"tl.where({condition}, {a}, {b}).to({TL[e.dtype]})", e.dtype
        return f"tl.where({condition}, {a}, {b})", e.dtype
    if e.fn is Fn.ISNAN:
        x, _ = _show(e.args[0], s)
        return f"({x} != {x})", DType.BOOL
    if e.fn in COMPARISONS:
        work = _common([dtype_of(x) for x in e.args])
        plain = all(isinstance(x, Position | Const) for x in e.args)
        a, b = (_show(x, s)[0] if plain else show(x, s, work) for x in e.args)
        return f"({a} {_SYMBOL[e.fn]} {b})", DType.BOOL
    if e.fn is Fn.NOT:
        a = show(e.args[0], s, e.dtype)
        return (f"({a} == 0)" if e.dtype is DType.BOOL else f"(~{a})"), e.dtype
    work = e.dtype.compute
    args = [show(x, s, work) for x in e.args]
    text = _arithmetic(e, args, work, s)
    return (text, e.dtype) if work is e.dtype else (_to(text, work, e.dtype, s, e), e.dtype)


def _arithmetic(e: Apply, args: list[str], work: DType, s: Scope) -> str:
    if e.fn in _SYMBOL:
        if not work.is_float and e.fn is Fn.DIV:
            raise Unsupported("a true division of integers")
        return f"({args[0]} {_SYMBOL[e.fn]} {args[1]})"
    if e.fn is Fn.NEG:
        return f"(-{args[0]})"
    if e.fn in (Fn.MAXIMUM, Fn.MINIMUM) and not work.is_float:
        return f"tl.{e.fn.value}({args[0]}, {args[1]})"
    if e.fn in _CALL:
        if e.fn is Fn.ABS and work is DType.BOOL:
            return args[0]
        return f"{_CALL[e.fn]}({args[0]})"
    if e.fn in _HELPER:
        name = _HELPER[e.fn]
        if name in ("tanh", "sigmoid") and work is DType.FLOAT32 and s.coarse(e.args[0]):
            name = f"coarse_{name}"
        return f"{s.use(name)}({', '.join(args)})"
    match e.fn:
        case Fn.FLOORDIV:
            return (
                f"tl.floor({args[0]} / {args[1]})" if work.is_float else f"{s.use('floor_div')}({args[0]}, {args[1]})"
            )
        case Fn.REMAINDER:
            return f"{s.use('float_mod' if work.is_float else 'floor_mod')}({args[0]}, {args[1]})"
        case Fn.POW:
            return _power(e, args, s)
        case _:
            raise Unsupported(f"{e.fn.value} has no form in a kernel")


def _power(e: Apply, args: list[str], s: Scope) -> str:
    exponent = e.args[1].value if isinstance(e.args[1], Const) else None
    if exponent == 2:
        return f"({args[0]} * {args[0]})"
    if exponent == 3:
        return f"({args[0]} * {args[0]} * {args[0]})"
    if exponent == 0.5:
        return f"tl.sqrt({args[0]})"
    if not e.dtype.is_float:
        raise Unsupported("a power of integers")
    return f"{s.use('power')}({args[0]}, {args[1]})"


def _common(dtypes: list[DType]) -> DType:
    """The dtype two operands of a comparison meet in."""
    floats = [d.compute for d in dtypes if d.is_float]
    if floats:
        return max(floats, key=lambda d: d.bytes)
    return max(dtypes, key=lambda d: d.bytes)
