"""Writing one kernel: names, the pieces of its dimensions, and lines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from redfuser.backends.triton.expr import Scope, show, show_int
from redfuser.backends.triton.layout import RESERVED, Dim, Layout
from redfuser.backends.triton.printed import Argument, Form, Length
from redfuser.index.expr import DType, Expr, Ref, ref
from redfuser.index.expr import walk as expression_nodes
from redfuser.index.ints import Axis, Size
from redfuser.tile.names import Names
from redfuser.tile.nodes import (
    Bound,
    Declare,
    Dot,
    Guard,
    Kernel,
    Loop,
    Program,
    Read,
    Rename,
    Role,
    Store,
    Value,
)
from redfuser.tile.uses import every


@dataclass(slots=True)
class Lines:
    """Lines being written, with the loads that they hold."""

    lines: list[str] = field(default_factory=list)
    loaded: dict[str, str] = field(default_factory=dict)


class Writer:
    """Names and lines of one kernel. Every value has a variable for each piece of the dimensions that it spans."""

    def __init__(self, p: Program, k: Kernel, form: Form, used: set[str], name: str) -> None:
        self.program, self.k, self.form, self.used, self.name = p, k, form, used, name
        self.layout = Layout(k)
        self.names = Names((*RESERVED, *(b.name for b in self.layout.blocks)))
        self.ids: dict[tuple[str, str], str] = {}
        self.arguments: dict[str, Argument] = {}
        self.tile = {t.axis: t for t in k.axes}
        self.ends = {a: (t, a is t.last) for t in k.axes for a in (t.first, t.last)}
        self.values: dict[str, Value] = {}
        self.dtypes: dict[str, DType] = {}
        self.wanted: dict[str, None] = {}  # axis vectors and placeholders that the body names
        self.blocks = [Lines()]
        self.full: dict[Axis, bool] = {}
        self.bulk: dict[str, tuple[str, int]] = {}
        self.named: dict[Bound, str] = {}  # bounds of loops that have a name
        self.states = {s.state.name for s in every(k.body) if isinstance(s, Declare)}
        self.same: dict[str, str] = {}  # values that are another one, as a guard that guards nothing
        self.last_use = k.backwards  # what is read now is not wanted again
        self.again = _again(p, k)
        self.coarse: set[str] = set()
        self.raw = {
            n
            for s in every(k.body)
            for n in (
                (s.left, s.right) if isinstance(s, Dot) else (s.arg,) if isinstance(s, Rename) else (s.value,)
                if isinstance(s, Store) else ()
            )
        }  # fmt: skip
        for s in every(k.body):
            if isinstance(s, Guard | Rename) and s.out.name in self.raw:
                self.raw.add(s.arg)

    # -- names -------------------------------------------------------------------------------------------------------
    def id(self, kind: str, wish: str) -> str:
        key = (kind, wish)
        if key not in self.ids:
            clean = "".join(c if c.isalnum() or c == "_" else "_" for c in wish)
            self.ids[key] = self.names.new(clean if not clean[:1].isdigit() else f"_{clean}")
        return self.ids[key]

    def axis_id(self, a: Axis, suffix: str = "") -> str:
        return self.id("axis", self.layout.names[a] + suffix)

    def known_axis(self, a: Axis, suffix: str = "") -> str | None:
        return self.ids.get(("axis", self.layout.names[a] + suffix))

    def argument(self, wish: str, a: Argument) -> str:
        name = self.id("argument", wish)
        self.arguments[name] = a
        return name

    def size(self, s: Size) -> str:
        return self.argument(s.name, Length(s.name))

    def use(self, helper: str) -> str:
        self.used.add(helper)
        return helper

    def index_name(self, d: Dim, piece: int) -> str:
        suffix = f"_{piece}" if len(d.pieces) > 1 else ""
        return self.id("axis", f"{d.name}{suffix}")

    # -- scopes ------------------------------------------------------------------------------------------------------
    def scope(self, dims: tuple[Dim, ...], at: dict[Dim, int], plain: bool = False) -> Scope:
        """Names in a block with dimensions ``dims``, at the given pieces; ``plain`` names vectors by what they hold."""

        def atom(a: Axis) -> tuple[str, tuple[Dim, ...]]:
            return self.axis(a, at, plain)

        def value(name: str) -> tuple[str, tuple[Dim, ...], DType]:
            v = self.values[name]
            own = self.layout.of(v.axes)
            return self.variable(name, own, at), own, self.dtypes.get(name, v.dtype)

        return Scope(dims, value, atom, self.size, self.use, self.is_coarse)

    def is_coarse(self, e: Expr) -> bool:
        """True for an expression of sums of 16-bit products, and of constants."""
        names = [x.name for x in expression_nodes(e) if isinstance(x, Ref)]
        return self.form.coarse and bool(names) and all(n in self.coarse for n in names)

    def variable(self, name: str, dims: tuple[Dim, ...], at: dict[Dim, int]) -> str:
        name = self.same.get(name, name)
        suffix = "".join(f"_{at[d]}" for d in dims if len(d.pieces) > 1)
        return self.id("value", name + suffix)

    def axis(self, a: Axis, at: dict[Dim, int], plain: bool = False) -> tuple[str, tuple[Dim, ...]]:
        """The positions of an axis in the block at hand, or a bound of them."""
        if a in self.ends:
            t, _ = self.ends[a]
            if t.axis not in self.layout.dims and t.role is not Role.ROW:
                return self.axis(t.axis, at)
            name = self.axis_id(a)
            self.wanted[name] = None
            return name, ()
        d = self.layout.dims.get(a)
        if d is None:
            name = self.axis_id(a)
            self.wanted[name] = None
            return name, ()
        piece = d.pieces[at[d]]
        if plain and d.whole and len(d.axes) == 1 and a not in self.layout.beside:
            return f"arange({piece.start}, {piece.length})", (d,)
        name = self.index_name(d, at[d])
        if len(d.axes) > 1:
            flat, name = name, self.axis_id(a, f"_{at[d]}" if len(d.pieces) > 1 else "")
            self.wanted[flat] = None
        self.wanted[name] = None
        return name, self.layout.of(frozenset((a,)))

    def flat(self, d: Dim, at: dict[Dim, int]) -> str:
        name = self.index_name(d, at[d])
        self.wanted[name] = None
        return name

    def along(self, d: Dim) -> tuple[Dim, ...]:
        """The dimensions of the positions of a dimension's axes."""
        return self.layout.of(frozenset(d.axes))

    def inside(self, d: Dim, at: dict[Dim, int], read: bool) -> str | None:
        """The condition that positions of a dimension exist; None where all do. Rows beyond the end are only not read."""
        piece = d.pieces[at[d]]
        if d.role is Role.ROW and not read:
            return None
        if d.role is Role.CASCADE and self.full.get(d.axes[0]):
            return None
        if piece.valid is not None and not isinstance(piece.length, str):
            if piece.valid == piece.length:
                return None
            return f"{self.flat(d, at)} < {piece.start + piece.valid}"
        if isinstance(piece.length, str) and piece.valid is not None:
            return None
        return f"{self.flat(d, at)} < {show_int(d.extent, self.scope((), at))}"

    def mask(self, dims: Sequence[Dim], at: dict[Dim, int], read: bool = True) -> str | None:
        s = self.scope(tuple(dims), at)
        parts = [s.spread(c, self.along(d)) for d in dims if (c := self.inside(d, at, read)) is not None]
        if len(parts) == 1 and len(dims) == 1:
            return parts[0]
        return " & ".join(p if p.startswith("(") else f"({p})" for p in parts) if parts else None

    def everywhere(self, dims: Sequence[Dim]) -> Iterator[dict[Dim, int]]:
        """All choices of pieces."""
        for choice in itertools.product(*(range(len(d.pieces)) for d in dims)):
            yield dict(zip(dims, choice, strict=True))

    # -- lines -------------------------------------------------------------------------------------------------------
    def line(self, text: str) -> None:
        self.blocks[-1].lines.append(text)

    def define(self, v: Value, dtype: DType | None = None) -> tuple[Dim, ...]:
        self.values[v.name] = v
        self.same.pop(v.name, None)
        if dtype is not None and dtype is not v.dtype:
            self.dtypes[v.name] = dtype
        else:
            self.dtypes.pop(v.name, None)
        return self.layout.of(v.axes)

    def set(self, v: Value, dims: tuple[Dim, ...], at: dict[Dim, int], text: str, note: str = "") -> None:
        name = self.variable(v.name, dims, at)
        if text != name:
            self.line(f"{name} = {text}{f'  # {note}' if note else ''}")

    def shape(self, dims: Sequence[Dim], at: dict[Dim, int]) -> str:
        return "[" + ", ".join(str(d.pieces[at[d]].length) for d in dims) + "]"

    def get(self, name: str, dims: tuple[Dim, ...], at: dict[Dim, int], dtype: DType | None = None) -> str:
        """A value spread over ``dims``."""
        v = self.values[name]
        return show(ref(name, v.dtype), self.scope(dims, at), dtype or self.dtypes.get(name, v.dtype))


def unbracketed(text: str) -> str:
    """Without the brackets around the whole."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and n + 1 < len(text):
            return text
    return text[1:-1]


def _again(p: Program, k: Kernel) -> set[str]:
    """Tensors that are read once more, from the end, after a first sweep: by a later loop of the kernel or a later kernel."""
    later = p.kernels[[x.name for x in p.kernels].index(k.name) + 1 :]
    backwards = [x.body for x in later if x.backwards]
    backwards += [s.body for s in every(k.body) if isinstance(s, Loop) and s.backwards]
    return {s.tensor for body in backwards for s in every(body) if isinstance(s, Read)}
