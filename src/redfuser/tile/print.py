"""Tile programs as readable pseudo-Python: what ``explain`` shows as the loop."""

from __future__ import annotations

from collections.abc import Iterator

from redfuser.index.expr import Const, Expr, substitute
from redfuser.index.ints import Axis, Int, as_int
from redfuser.index.nodes import Reducer
from redfuser.index.print import Namer, short, show, show_const, show_int
from redfuser.tile.names import Names
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
    Highest,
    Kernel,
    Kind,
    Least,
    Loop,
    Lowest,
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


class _Axes:
    """The axes of a kernel in order, each with a name of its own."""

    def __init__(self, k: Kernel) -> None:
        self.order = [t.axis for t in k.axes]
        self._own: dict[Axis, Int] = {}
        names = Names()
        for t in k.axes:
            name = names.new(t.axis.name)
            if name != t.axis.name:
                for axis, text in ((t.axis, name), (t.first, f"{name}.first"), (t.last, f"{name}.last")):
                    self._own[axis] = as_int(Axis(text, axis.size))

    def name(self, a: Axis) -> str:
        own = self._own.get(a)
        return a.name if own is None else show_int(own)

    def int(self, i: Int) -> str:
        return show_int(i.substitute(self._own) if self._own else i)

    def expr(self, e: Expr, namer: Namer) -> str:
        return show(substitute(e, self._own) if self._own else e, namer)

    def bound(self, b: Bound) -> str:
        match b:
            case At():
                return self.int(b.index)
            case Down():
                return f"down({self.bound(b.arg)}, {b.tile})"
            case Up():
                return f"up({self.bound(b.arg)}, {b.tile})"
            case Least():
                return f"min({', '.join(self.bound(x) for x in b.args)})"
            case Greatest():
                return f"max({', '.join(self.bound(x) for x in b.args)})"
            case Lowest() | Highest():
                return f"{type(b).__name__.lower()}({b.value})"


def _value(v: Value, axes: _Axes, namer: Namer) -> str:
    spans = ", ".join(axes.name(a) for a in axes.order if a in v.axes)
    return f"{namer(v.name)}[{spans}]" if spans else namer(v.name)


def _statement(s: Statement, axes: _Axes, namer: Namer) -> Iterator[str]:
    def out(v: Value) -> str:
        return _value(v, axes, namer)

    match s:
        case Read():
            marks = [axes.int(i) + ("?" if c else "") for i, c in zip(s.index, s.clip, strict=True)]
            yield f"{out(s.out)} = {namer(s.tensor)}" + (f"[{', '.join(marks)}]" if marks else "")
        case Map():
            yield f"{out(s.out)} = {axes.expr(s.expr, namer)}"
        case Correct():
            yield f"{out(s.out)} = {axes.expr(s.expr, namer)}    # {namer(s.state)}, corrected"
        case Guard():
            a = s.axis
            yield f"{out(s.out)} = where({axes.name(a)} < {show_int(a.size)}, {namer(s.arg)}, {show_const(s.fill)})"
        case Dot():
            over = ", ".join(axes.name(a) for a in s.over)
            plus = f"{namer(s.add)} + " if s.add is not None else ""
            yield f"{out(s.out)} = {plus}dot({namer(s.left)}, {namer(s.right)}, over={over})"
        case Reduce():
            yield f"{out(s.out)} = {s.reducer}({namer(s.arg)}, over={axes.name(s.over)})"
        case Select():
            k = f", k={show_int(s.k.size)}" if s.k is not None else ""
            yield f"{out(s.out)}, {out(s.index)} = {s.reducer}({namer(s.arg)}, over={axes.name(s.over)}{k})"
        case Combine():
            left, right = namer(s.left), namer(s.right)
            join = _JOIN.get(s.reducer)
            yield f"{out(s.out)} = " + (f"{left}{join}{right}" if join else f"{_CALL[s.reducer]}({left}, {right})")
        case SelectMerge():
            pairs = f"({namer(s.left)}, {namer(s.left_index)}), ({namer(s.right)}, {namer(s.right_index)})"
            yield f"{out(s.out)}, {out(s.index)} = merge_{s.reducer}({pairs})"
        case Rename():
            pairs = ", ".join(f"{axes.name(a)}={axes.name(b)}" for a, b in s.axes)
            yield f"{out(s.out)} = {namer(s.arg)} with {pairs}"
        case Declare():
            init = show_const(s.init) if isinstance(s.init, Const) else namer(s.init)
            yield f"{out(s.state)}: {short(s.state.dtype)} = {init}" + (f"    # {s.role}" if s.role else "")
        case Assign():
            yield f"{namer(s.state)} = {namer(s.value)}"
        case Store():
            index = f"[{', '.join(axes.int(i) for i in s.index)}]" if s.index else ""
            yield f"store {namer(s.tensor)}{index} = {namer(s.value)}"
        case Loop():
            bounds = f"{axes.bound(s.start)}, {axes.bound(s.stop)}, {s.tile}"
            yield f"for {axes.name(s.axis)} in tiles({bounds}):" + (f"    # {s.note}" if s.note else "")
            for x in s.body:
                yield from ("    " + line for line in _statement(x, axes, namer))


def _differ_in_guards(a: Loop, b: Loop, axes: _Axes, namer: Namer) -> bool:
    """True when the second does what the first does, but for what it guards."""
    guarded = {s.out.name: s.arg for s in b.body if isinstance(s, Guard)}
    rest = [x for x in b.body if not isinstance(x, Guard)]
    same = [_statement(x, axes, lambda n: namer(guarded.get(n, n))) for x in rest]
    return a.axis is b.axis and [[*x] for x in same] == [[*_statement(x, axes, namer)] for x in a.body]


def _guards(s: Loop, axes: _Axes, namer: Namer) -> str:
    guards = [x for x in s.body if isinstance(x, Guard)]
    text = ", ".join(
        f"{show_const(x.fill)} for {namer(x.arg)} where {axes.name(x.axis)} >= {show_int(x.axis.size)}" for x in guards
    )
    return f", with {text}" if text else ""


def _axis(t: TileAxis, axes: _Axes) -> str:
    block = "whole" if t.block is None else f"by {t.block}"
    return f"{axes.name(t.axis)}<{show_int(t.axis.size)} {block} ({t.role})"


def show_kernel(k: Kernel, namer: Namer = str) -> str:
    lines = [f"kernel {k.name}:    # {k.note}"]
    axes = _Axes(k)
    for label, members in (("grid", k.grid), ("tile", k.inside)):
        if members:
            lines.append(f"    {label} {', '.join(_axis(t, axes) for t in members)}")
    if k.lanes is not None:
        x = k.lanes
        lines.append(f"    deal {axes.name(x.of)} to {axes.name(x.axis)}, {x.run} at a time")
    for n, s in enumerate(k.body):
        text = list(_statement(s, axes, namer))
        before = k.body[n - 1] if n else None
        if isinstance(s, Loop) and isinstance(before, Loop) and _differ_in_guards(before, s, axes, namer):
            text[1:] = [f"    as in the loop above{_guards(s, axes, namer)}"]
        lines += ["    " + line for line in text]
    return "\n".join(lines)


def show_program(p: Program, namer: Namer = str) -> str:
    """The whole program; ``namer`` renames tensors and values."""
    lines = []
    for kind in Kind:
        for t in p.of(kind):
            shape = ", ".join(show_int(i) for i in t.shape)
            lines.append(f"{kind.value} {namer(t.name)}[{shape}]: {short(t.dtype)}")
    return "\n".join([*lines, *(show_kernel(k, namer) for k in p.kernels)])
