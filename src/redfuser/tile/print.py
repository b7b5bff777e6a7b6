"""Tile programs as readable pseudo-Python: what ``explain`` shows as the loop."""

from __future__ import annotations

from collections.abc import Iterator

from redfuser.index.expr import Const
from redfuser.index.ints import Axis
from redfuser.index.nodes import Reducer
from redfuser.index.print import Namer, short, show, show_const, show_int
from redfuser.tile.nodes import (
    Assign,
    At,
    Bound,
    Combine,
    Correct,
    Declare,
    Dot,
    Down,
    Greatest,
    Guard,
    Kernel,
    Kind,
    Least,
    Loop,
    Map,
    Program,
    Read,
    Reduce,
    Rename,
    Select,
    SelectMerge,
    Statement,
    Store,
    TileAxis,
    Up,
    Value,
)

_JOIN = {Reducer.SUM: " + ", Reducer.PROD: " * ", Reducer.ANY: " | ", Reducer.ALL: " & "}
_CALL = {Reducer.MAX: "maximum", Reducer.MIN: "minimum", Reducer.LOGSUMEXP: "logaddexp"}


def show_bound(b: Bound) -> str:
    match b:
        case At():
            return show_int(b.index)
        case Down():
            return f"down({show_bound(b.arg)}, {b.tile})"
        case Up():
            return f"up({show_bound(b.arg)}, {b.tile})"
        case Least():
            return f"min({', '.join(show_bound(x) for x in b.args)})"
        case Greatest():
            return f"max({', '.join(show_bound(x) for x in b.args)})"


def _order(k: Kernel) -> list[Axis]:
    return [t.axis for t in k.axes]


def _value(v: Value, order: list[Axis], namer: Namer) -> str:
    axes = ", ".join(a.name for a in order if a in v.axes)
    return f"{namer(v.name)}[{axes}]" if axes else namer(v.name)


def _statement(s: Statement, order: list[Axis], namer: Namer) -> Iterator[str]:
    def out(v: Value) -> str:
        return _value(v, order, namer)

    match s:
        case Read():
            marks = [show_int(i) + ("?" if c else "") for i, c in zip(s.index, s.clip, strict=True)]
            yield f"{out(s.out)} = {namer(s.tensor)}" + (f"[{', '.join(marks)}]" if marks else "")
        case Map():
            yield f"{out(s.out)} = {show(s.expr, namer)}"
        case Correct():
            yield f"{out(s.out)} = {show(s.expr, namer)}    # {namer(s.state)}, corrected"
        case Guard():
            a = s.axis
            yield f"{out(s.out)} = where({a.name} < {show_int(a.size)}, {namer(s.arg)}, {show_const(s.fill)})"
        case Dot():
            over = ", ".join(a.name for a in s.over)
            plus = f"{namer(s.add)} + " if s.add is not None else ""
            yield f"{out(s.out)} = {plus}dot({namer(s.left)}, {namer(s.right)}, over={over})"
        case Reduce():
            yield f"{out(s.out)} = {s.reducer}({namer(s.arg)}, over={s.over.name})"
        case Select():
            k = f", k={show_int(s.k.size)}" if s.k is not None else ""
            yield f"{out(s.out)}, {out(s.index)} = {s.reducer}({namer(s.arg)}, over={s.over.name}{k})"
        case Combine():
            left, right = namer(s.left), namer(s.right)
            join = _JOIN.get(s.reducer)
            yield f"{out(s.out)} = " + (f"{left}{join}{right}" if join else f"{_CALL[s.reducer]}({left}, {right})")
        case SelectMerge():
            pairs = f"({namer(s.left)}, {namer(s.left_index)}), ({namer(s.right)}, {namer(s.right_index)})"
            yield f"{out(s.out)}, {out(s.index)} = merge_{s.reducer}({pairs})"
        case Rename():
            pairs = ", ".join(f"{a.name}={b.name}" for a, b in s.axes)
            yield f"{out(s.out)} = {namer(s.arg)} with {pairs}"
        case Declare():
            init = show_const(s.init) if isinstance(s.init, Const) else namer(s.init)
            yield f"{out(s.state)}: {short(s.state.dtype)} = {init}" + (f"    # {s.role}" if s.role else "")
        case Assign():
            yield f"{namer(s.state)} = {namer(s.value)}"
        case Store():
            index = f"[{', '.join(show_int(i) for i in s.index)}]" if s.index else ""
            yield f"store {namer(s.tensor)}{index} = {namer(s.value)}"
        case Loop():
            bounds = f"{show_bound(s.start)}, {show_bound(s.stop)}, {s.tile}"
            yield f"for {s.axis.name} in tiles({bounds}):" + (f"    # {s.note}" if s.note else "")
            for x in s.body:
                yield from ("    " + line for line in _statement(x, order, namer))


def _axis(t: TileAxis) -> str:
    block = "whole" if t.block is None else f"by {t.block}"
    return f"{t.axis.name}<{show_int(t.axis.size)} {block} ({t.role})"


def show_kernel(k: Kernel, namer: Namer = str) -> str:
    lines = [f"kernel {k.name}:    # {k.note}"]
    for label, axes in (("grid", k.grid), ("tile", k.inside)):
        if axes:
            lines.append(f"    {label} {', '.join(_axis(t) for t in axes)}")
    for s in k.body:
        lines += ["    " + line for line in _statement(s, _order(k), namer)]
    return "\n".join(lines)


def show_program(p: Program, namer: Namer = str) -> str:
    """The whole program; ``namer`` renames tensors and values."""
    lines = []
    for kind in Kind:
        for t in p.of(kind):
            shape = ", ".join(show_int(i) for i in t.shape)
            lines.append(f"{kind.value} {namer(t.name)}[{shape}]: {short(t.dtype)}")
    return "\n".join([*lines, *(show_kernel(k, namer) for k in p.kernels)])
