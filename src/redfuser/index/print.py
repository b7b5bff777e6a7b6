"""Index programs, expressions and integers as readable text."""

from __future__ import annotations

import math
from collections.abc import Callable

from redfuser.index.expr import Apply, Cast, Const, DType, Expr, Fn, Load, Part, Position, Ref
from redfuser.index.ints import Axis, FloorDiv, Gather, Int, Mod, Size
from redfuser.index.nodes import Input, Map, Program, Reduce

_SHORT = {
    DType.BOOL: "bool", DType.UINT8: "u8", DType.INT8: "i8", DType.INT16: "i16", DType.INT32: "i32", DType.INT64: "i64",
    DType.FLOAT8_E4M3: "e4m3", DType.FLOAT8_E5M2: "e5m2", DType.FLOAT16: "f16", DType.BFLOAT16: "bf16",
    DType.FLOAT32: "f32", DType.FLOAT64: "f64",
}  # fmt: skip
# function -> (text, precedence); higher binds tighter
_INFIX = {
    Fn.OR: ("|", 1), Fn.XOR: ("^", 1), Fn.AND: ("&", 2),
    Fn.LT: ("<", 3), Fn.LE: ("<=", 3), Fn.GT: (">", 3), Fn.GE: (">=", 3), Fn.EQ: ("==", 3), Fn.NE: ("!=", 3),
    Fn.ADD: ("+", 4), Fn.SUB: ("-", 4), Fn.MUL: ("*", 5), Fn.DIV: ("/", 5), Fn.POW: ("**", 7),
    Fn.FLOORDIV: ("//", 5), Fn.REMAINDER: ("%", 5),
}  # fmt: skip
Namer = Callable[[str], str]


def short(dtype: DType) -> str:
    return _SHORT[dtype]


def show_int(e: Int) -> str:
    if not e.terms:
        return "0"
    out = ""
    # axes first, then sizes, the number last
    for m, c in sorted(e.terms, key=lambda t: (not t[0], [(a.key, n) for a, n in t[0]])):
        factors = [_atom(a) + (f"**{n}" if n > 1 else "") for a, n in m]
        if abs(c) != 1 or not factors:
            factors.insert(0, str(abs(c)))
        sign = ("-" if c < 0 else "") if not out else (" - " if c < 0 else " + ")
        out += sign + "*".join(factors)
    return out


def _atom(a: Axis | Size | FloorDiv | Mod | Gather) -> str:
    match a:
        case Axis() | Size():
            return a.name
        case FloorDiv():
            return f"({_grouped(a.num)} // {_grouped(a.den)})"
        case Mod():
            return f"({_grouped(a.num)} % {_grouped(a.den)})"
        case Gather():
            return show(a.value)


def _grouped(e: Int) -> str:
    text = show_int(e)
    return f"({text})" if " " in text or "*" in text else text


def show_const(c: Const) -> str:
    v = c.value
    if isinstance(v, bool) or not isinstance(v, float):
        return str(v)
    if math.isinf(v) or math.isnan(v):
        return f"{v}"
    return repr(v) if v != int(v) or abs(v) >= 1e16 else f"{v:.1f}"


def show(e: Expr, namer: Namer = str, tight: int = 0) -> str:
    """Python-like text. ``namer`` renames sources and state; ``tight`` is the precedence of what surrounds it."""
    match e:
        case Const():
            text = show_const(e)
            return f"({text})" if text.startswith("-") and tight > 4 else text
        case Position():
            text = show_int(e.index)
            return f"({text})" if tight > 3 and " " in text else text
        case Load():
            name = namer(e.source) + (".index" if e.part is Part.INDEX else "")
            return f"{name}[{', '.join(show_int(i) for i in e.index)}]" if e.index else name
        case Ref():
            return namer(e.name) + ("'" if e.old else "") + (".index" if e.part is Part.INDEX else "")
        case Cast():
            return f"{short(e.dtype)}({show(e.arg, namer)})"
        case Apply():
            return _show_apply(e, namer, tight)


def _show_apply(e: Apply, namer: Namer, tight: int) -> str:
    if e.fn in _INFIX and len(e.args) == 2:
        text, p = _INFIX[e.fn]
        left = show(e.args[0], namer, p if e.fn is not Fn.POW else p + 1)
        right = show(e.args[1], namer, p if e.fn in (Fn.ADD, Fn.MUL, Fn.AND, Fn.OR, Fn.POW) else p + 1)
        body = f"{left} {text} {right}" if p < 7 else f"{left}{text}{right}"
        return f"({body})" if p < tight else body
    if e.fn is Fn.NEG:
        body = "-" + show(e.args[0], namer, 6)
        return f"({body})" if tight > 4 else body
    if e.fn is Fn.NOT:
        return "~" + show(e.args[0], namer, 8)
    return f"{e.fn.value}({', '.join(show(a, namer) for a in e.args)})"


def show_axes(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{a.name}<{show_int(a.size)}" for a in axes)


def show_definition(d: Input | Map | Reduce, namer: Namer = str) -> str:
    head = f"{namer(d.name)}[{show_axes(d.axes)}]: {short(d.dtype)}"
    match d:
        case Input():
            return f"input {head}"
        case Map():
            return f"{head} = {show(d.body, namer)}"
        case Reduce():
            k = f" k<{show_int(d.k.size)}" if d.k is not None else ""
            return f"{head} = {d.reducer}{k} over {show_axes(d.over)} of {show(d.body, namer)}"


def show_program(p: Program, namer: Namer = str) -> str:
    lines = [show_definition(x, namer) for x in (*p.inputs, *p.definitions)]
    outs = ", ".join(namer(o.value) + (".index" if o.part is Part.INDEX else "") for o in p.outputs)
    return "\n".join([*lines, f"return {outs}"])
