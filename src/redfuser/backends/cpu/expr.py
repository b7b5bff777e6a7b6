"""Scalar expressions and indices as C++ text, for one number or for a vector of them.

Floats narrower than float are computed as float and rounded where the program says so, as PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from redfuser.backends.cpu.layout import Kind, kind_of
from redfuser.backends.indices import show_sum
from redfuser.index.expr import COMPARISONS, LOGIC, Apply, Cast, Const, DType, Expr, Fn, Position, Ref
from redfuser.index.ints import Atom, Axis, FloorDiv, Gather, Int, Mod, Size
from redfuser.tile.strategy import Unsupported

_SYMBOL = {
    Fn.ADD: "+", Fn.SUB: "-", Fn.MUL: "*", Fn.DIV: "/", Fn.LT: "<", Fn.LE: "<=", Fn.GT: ">", Fn.GE: ">=",
    Fn.EQ: "==", Fn.NE: "!=", Fn.AND: "&", Fn.OR: "|", Fn.XOR: "^",
}  # fmt: skip
_ROUND = {
    DType.BFLOAT16: "as_bf16", DType.FLOAT16: "as_f16", DType.FLOAT8_E4M3: "as_e4m3", DType.FLOAT8_E5M2: "as_e5m2",
    DType.INT8: "wrap_i8", DType.INT16: "wrap_i16", DType.UINT8: "wrap_u8",
}  # fmt: skip
_PAIR = {
    Fn.MAXIMUM: "larger",
    Fn.MINIMUM: "smaller",
    Fn.POW: "x_pow",
    Fn.FLOORDIV: "x_floordiv",
    Fn.REMAINDER: "x_remainder",
}
_NARROW = 2**31


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression may name. ``lane``: the axis along the lanes, None for single numbers.

    ``value``: the text of a value, a vector where there are lanes; ``position``: the text of an axis's position (of the
    first lane, for ``lane``) or of an end of its block; ``wide``: positions need 64 bits.
    """

    lane: Axis | None
    value: Callable[[str], tuple[str, Kind]]
    position: Callable[[Axis], str]
    size: Callable[[Size], str]
    spans: Callable[[str], frozenset[Axis]]
    wide: bool
    narrow: bool = False  # single floats are as wide as their dtype says

    def kind(self, dtype: DType) -> Kind:
        """The kind in which numbers of a dtype are computed: single floats as double, they are few and sum up the most."""
        kind = kind_of(dtype)
        return Kind.DOUBLE if self.lane is None and kind is Kind.FLOAT and not self.narrow else kind


# -- integers --------------------------------------------------------------------------------------------------------
def show_int(i: Int, s: Scope) -> str:
    """An index as a number (i64)."""
    return show_sum(i, lambda a: _atom(a, s))


def _atom(a: Atom, s: Scope) -> str:
    match a:
        case Size():
            return s.size(a)
        case Axis():
            text = s.position(a)
            return text if text.isidentifier() else f"({text})"
        case Gather():
            assert isinstance(a.value, Ref)
            text, kind = s.value(a.value.name)
            return text if kind is Kind.LONG else f"(i64){text}"
        case FloorDiv() | Mod():
            name = "divide" if isinstance(a, FloorDiv) else "modulo"
            return f"{name}((i64){_closed(show_int(a.num, s))}, (i64){_closed(show_int(a.den, s))})"


def _closed(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() or text.startswith("(") else f"({text})"


def _along(i: Int, s: Scope) -> bool:
    """True when an index differs from lane to lane."""
    for a in i.atoms():
        match a:
            case Axis():
                if a is s.lane:
                    return True
            case Gather():
                assert isinstance(a.value, Ref)
                if s.lane in s.spans(a.value.name):
                    return True
            case FloorDiv() | Mod():
                if _along(a.num, s) or _along(a.den, s):
                    return True
            case _:
                pass
    return False


def _vector_int(i: Int, s: Scope, kind: Kind) -> str:
    """An index in every lane, of kind INT or LONG."""
    if not _along(i, s):
        return f"bc(({kind.scalar}){_closed(show_int(i, s))})"
    fixed, terms = Int(tuple(t for t in i.terms if not _along(Int((t,)), s))), []
    for t in i.terms:
        if _along(Int((t,)), s):
            monomial, c = t
            parts = [_vector_atom(a, s, kind) for a, n in monomial for _ in range(n)]
            terms.append(" * ".join([*parts, *([f"({kind.scalar}){_closed(str(c))}"] if c != 1 else [])]))
    if fixed.terms:
        terms.insert(0, f"bc(({kind.scalar}){_closed(show_int(fixed, s))})")
    return terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"


def _vector_atom(a: Atom, s: Scope, kind: Kind) -> str:
    match a:
        case Axis() if a is s.lane:
            return f"(bc(({kind.scalar})({s.position(a)})) + {'iota()' if kind is Kind.INT else 'iotal()'})"
        case Gather():
            assert isinstance(a.value, Ref)
            text, have = s.value(a.value.name)
            return convert(text, have, kind)
        case FloorDiv() | Mod() if _along(Int((((((a, 1),), 1)),)), s):
            name = "divide" if isinstance(a, FloorDiv) else "modulo"
            return f"{name}({_vector_int(a.num, s, kind)}, {_vector_int(a.den, s, kind)})"
        case _:
            return f"bc(({kind.scalar}){_closed(_atom(a, s))})"


# -- scalars ---------------------------------------------------------------------------------------------------------
def show_const(value: float | int | bool, kind: Kind) -> str:
    """A number of a kind."""
    match kind:
        case Kind.MASK:
            return "true" if value else "false"
        case Kind.INT | Kind.LONG:
            n = int(value)
            text = "(-9223372036854775807LL - 1)" if n == -(2**63) else "(-2147483647 - 1)" if n == -(2**31) else str(n)
            return f"(i64){text}{'LL' if text.lstrip('-').isdigit() else ''}" if kind is Kind.LONG else text
        case _:
            v = float(value)
            f = "f" if kind is Kind.FLOAT else ""
            if math.isnan(v):
                return f'__builtin_nan{f}("")'
            if math.isinf(v):
                return f"{'-' if v < 0 else ''}__builtin_inf{f}()"
            text = str(np.float32(v)) if kind is Kind.FLOAT else repr(v)
            return text + f if "inf" not in text else f"{'-' if v < 0 else ''}__builtin_inff()"


def convert(text: str, have: Kind, want: Kind) -> str:
    if have is want:
        return text
    if want is Kind.MASK:
        zero = {"f": "0.f", "d": "0.", "i": "0", "l": "(i64)0"}[have.value]
        return f"mk({text} != {zero})"
    return f"from_m_{want.value}({text})" if have is Kind.MASK else f"as_{want.value}({text})"


def show(e: Expr, s: Scope, kind: Kind) -> str:
    """An expression as a vector (where there are lanes) or a number, converted to a kind."""
    if isinstance(e, Const):
        text = show_const(_as(e.value, kind), kind)
        return text if s.lane is None else f"bc({text})"
    text, have = _show(e, s, kind)
    return convert(text, have, kind)


def _as(value: float | int | bool, kind: Kind) -> float | int | bool:
    if kind is Kind.MASK:
        return bool(value)
    return int(value) if kind in (Kind.INT, Kind.LONG) else float(value)


def _show(e: Expr, s: Scope, wish: Kind) -> tuple[str, Kind]:
    match e:
        case Const():
            return show(e, s, s.kind(e.dtype)), s.kind(e.dtype)
        case Ref():
            return s.value(e.name)
        case Position():
            return _position(e.index, s, wish)
        case Cast():
            kind = s.kind(e.dtype)
            return rounded(show(e.arg, s, kind), e.dtype, kind), kind
        case Apply():
            return _apply(e, s)
        case _:
            raise Unsupported(f"a load of {e.source} inside an expression of a tile")


def _position(i: Int, s: Scope, wish: Kind) -> tuple[str, Kind]:
    if s.lane is None:
        return _closed(show_int(i, s)), Kind.LONG
    kind = Kind.INT if wish is Kind.INT and not s.wide else Kind.LONG
    return _vector_int(i, s, kind), kind


def rounded(text: str, dtype: DType, kind: Kind | None = None) -> str:
    """A number rounded to a dtype; of the given kind again, where that is double."""
    if dtype not in _ROUND:
        return text
    text = f"{_ROUND[dtype]}({text})"
    return convert(text, Kind.FLOAT, kind) if kind is Kind.DOUBLE else text


def _literal(e: Expr, s: Scope, kind: Kind) -> str:
    """An operand of an operator: a number may stand beside a vector."""
    return show_const(_as(e.value, kind), kind) if isinstance(e, Const) else show(e, s, kind)


def _narrow(e: Expr) -> bool:
    """An index, or a number that is compared with one."""
    if isinstance(e, Const):
        return not e.dtype.is_float and abs(int(e.value)) < _NARROW
    if isinstance(e, Cast):
        return e.dtype is DType.INT64 and _narrow(e.arg)
    return isinstance(e, Position)


def _common(args: tuple[Expr, ...], s: Scope) -> Kind:
    """The kind in which numbers are compared."""
    if s.lane is not None and not s.wide and all(_narrow(a) for a in args):
        return Kind.INT
    kinds = {_kind(a, s) for a in args}
    for k in (Kind.DOUBLE, Kind.FLOAT, Kind.LONG, Kind.INT):
        if k in kinds:
            return k
    return Kind.MASK


def _kind(e: Expr, s: Scope) -> Kind:
    return Kind.LONG if isinstance(e, Position) else s.kind(e.dtype)


def _apply(e: Apply, s: Scope) -> tuple[str, Kind]:
    kind = s.kind(e.dtype)
    if e.fn in COMPARISONS:
        common = _common(e.args, s)
        a, b = _sides(e, s, common)
        return f"mk({a} {_SYMBOL[e.fn]} {b})", Kind.MASK
    if e.fn is Fn.ISNAN:
        k = _kind(e.args[0], s)
        x = show(e.args[0], s, k)
        return f"mk({x} != {x})", Kind.MASK
    if e.fn is Fn.WHERE:
        c, a, b = show(e.args[0], s, Kind.MASK), show(e.args[1], s, kind), show(e.args[2], s, kind)
        return f"sel({c}, {a}, {b})", kind
    if e.fn in LOGIC:
        if e.fn is Fn.NOT:
            x = show(e.args[0], s, kind)
            return (f"no({x})" if kind is Kind.MASK else rounded(f"(~{x})", e.dtype)), kind
        a, b = (show(x, s, kind) for x in e.args)
        return rounded(f"({a} {_SYMBOL[e.fn]} {b})", e.dtype), kind
    if kind is Kind.MASK:
        return _of_masks(e, s), kind
    return rounded(_arithmetic(e, s, kind), e.dtype, kind), kind


def _sides(e: Apply, s: Scope, kind: Kind) -> tuple[str, str]:
    a, b = e.args
    if isinstance(a, Const) and isinstance(b, Const):
        return show(a, s, kind), show(b, s, kind)
    if kind is Kind.MASK:
        return show(a, s, kind), show(b, s, kind)
    return _literal(a, s, kind), _literal(b, s, kind)


def _of_masks(e: Apply, s: Scope) -> str:
    args = [show(x, s, Kind.MASK) for x in e.args]
    symbol = {Fn.ADD: "|", Fn.MAXIMUM: "|", Fn.MUL: "&", Fn.MINIMUM: "&", Fn.SUB: "^"}.get(e.fn)
    if symbol is None:
        raise Unsupported(f"{e.fn.value} of bool")
    return f"({args[0]} {symbol} {args[1]})"


def _arithmetic(e: Apply, s: Scope, kind: Kind) -> str:
    if e.fn in (Fn.ADD, Fn.SUB, Fn.MUL):
        left, right = _sides(e, s, kind)
        return f"({left} {_SYMBOL[e.fn]} {right})"
    if e.fn is Fn.DIV:
        x, by = e.args
        if isinstance(by, Const) and kind in (Kind.FLOAT, Kind.DOUBLE) and _power_of_two(by.value):
            return f"({_literal(x, s, kind)} * {show_const(1.0 / float(by.value), kind)})"
        left, right = _sides(e, s, kind)
        return f"({left} / {right})"
    if e.fn is Fn.POW and isinstance(e.args[1], Const):
        special = _power(show(e.args[0], s, kind), float(e.args[1].value), kind, s)
        if special is not None:
            return special
    args = [show(x, s, kind) for x in e.args]
    if e.fn in _PAIR:
        return f"{_PAIR[e.fn]}({', '.join(args)})"
    if e.fn is Fn.NEG:
        return f"(-({args[0]}))" if args[0].startswith("-") else f"(-{args[0]})"
    if kind in (Kind.INT, Kind.LONG) and e.fn in (Fn.FLOOR, Fn.CEIL, Fn.ROUND, Fn.TRUNC):
        return args[0]
    return f"x_{e.fn.value}({args[0]})"


def _power_of_two(v: float) -> bool:
    m, n = math.frexp(float(v))
    return abs(m) == 0.5 and -100 < n < 100


def _power(x: str, n: float, kind: Kind, s: Scope) -> str | None:
    """Powers that PyTorch takes by products and roots."""
    if n in (2.0, 3.0):
        return f"({' * '.join([x] * int(n))})"
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        one = show_const(1.0, kind)
        if n == 0.5:
            return f"x_sqrt({x})"
        if n == -0.5:
            return f"x_rsqrt({x})"
        if n in (-1.0, -2.0):
            return f"({one} / {x if n == -1.0 else f'({x} * {x})'})"
    return None
