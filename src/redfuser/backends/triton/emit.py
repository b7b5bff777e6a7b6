"""Tile programs as Triton source: one ``@triton.jit`` function for each kernel.

The text names no shape that may change from call to call: symbolic lengths and strides are arguments, blocks are
constexprs. Values keep the names of the tile program, which are the user's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from redfuser.backends.triton import functions
from redfuser.backends.triton.expr import TL, Scope, show, show_const, show_int
from redfuser.backends.triton.layout import RESERVED, Block, Dim, Layout, Piece, walk
from redfuser.backends.triton.scales import pull_scales
from redfuser.index.expr import Const, DType, Expr, Position, Ref, ref
from redfuser.index.expr import walk as expression_nodes
from redfuser.index.ints import ONE, ZERO, Axis, FloorDiv, Gather, Int, Mod, Size, as_int, product
from redfuser.index.nodes import Reducer
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
    Least,
    Loop,
    Lowest,
    Map,
    Program,
    Read,
    Reduce,
    Rename,
    Role,
    Select,
    SelectMerge,
    Statement,
    Store,
    TileAxis,
    Up,
    Value,
)
from redfuser.tile.strategy import Unsupported


@dataclass(frozen=True, slots=True)
class Pointer:
    tensor: str


@dataclass(frozen=True, slots=True)
class Stride:
    tensor: str
    dim: int


@dataclass(frozen=True, slots=True)
class Length:
    size: str


Argument = Pointer | Stride | Length


@dataclass(frozen=True, slots=True)
class Printed:
    """A kernel as text, what it is called with, and the number of its programs: a product of ``grid``."""

    name: str
    text: str
    arguments: tuple[tuple[str, Argument], ...]
    blocks: tuple[Block, ...]
    grid: tuple[tuple[Int, str | None], ...]  # (positions, the constexpr they are taken at a time)
    bulk: tuple[tuple[str, int], ...]  # tensors that are read in bulk, and the dimension that must be contiguous


@dataclass(frozen=True, slots=True)
class Form:
    """Choices that the printer makes beside the schedule.

    ``bulk``: tiles of loops are loaded by the bulk copy engine, which needs unit strides and 16-byte rows; ``wide``:
    64-bit offsets; ``group``: batches whose row blocks of uneven work run together, heaviest first; ``precision`` of
    float32 dots; ``coarse``: functions of sums of 16-bit products by NVIDIA's instructions that are right to 11 bits,
    where the sum itself, rounded by PyTorch to 8 or 11, is no better.

    Triton's own split into loading and computing warps (``warp_specialize``) is not used: with 3.6 these kernels then
    compile on Hopper and give wrong results.
    """

    wide: bool = False
    group: int = 8
    precision: str = "ieee"
    coarse: bool = False
    bulk: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    text: str
    kernels: tuple[Printed, ...]


HEADER = '''"""{note}"""

import torch
import triton
import triton.language as tl

'''


def emit(p: Program, form: Form) -> Source:
    """The module that runs a tile program. Raises Unsupported where Triton has no form for it."""
    used: set[str] = set()
    names = Names(RESERVED)
    printed = [_Emitter(p, pull_scales(k), form, used, names.new(f"{p.name}_{k.name}")).kernel() for k in p.kernels]
    helpers = functions.source(used)
    body = "\n\n".join(k.text for k in printed)
    header = HEADER.format(note=f"{p.name}: " + "; ".join(k.note for k in p.kernels) + ".")
    return Source(header + (helpers + "\n\n" if helpers else "\n") + body, tuple(printed))


@dataclass(slots=True)
class _Block:
    """Lines being written, with the loads that they hold."""

    lines: list[str] = field(default_factory=list)
    loaded: dict[str, str] = field(default_factory=dict)


class _Emitter:
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
        self.blocks = [_Block()]
        self.full: dict[Axis, bool] = {}
        self.bulk: dict[str, tuple[str, int]] = {}
        self.coarse: set[str] = set()
        self.raw = {
            n
            for s in walk(k.body)
            for n in (
                (s.left, s.right) if isinstance(s, Dot) else (s.arg,) if isinstance(s, Rename) else (s.value,)
                if isinstance(s, Store) else ()
            )
        }  # fmt: skip
        for s in walk(k.body):
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
        if plain and d.whole and len(d.axes) == 1:
            return f"arange({piece.start}, {piece.length})", (d,)
        name = self.index_name(d, at[d])
        if len(d.axes) > 1:
            flat, name = name, self.axis_id(a, f"_{at[d]}" if len(d.pieces) > 1 else "")
            self.wanted[flat] = None
        self.wanted[name] = None
        return name, (d,)

    def flat(self, d: Dim, at: dict[Dim, int]) -> str:
        name = self.index_name(d, at[d])
        self.wanted[name] = None
        return name

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
        parts = [s.spread(c, (d,)) for d in dims if (c := self.inside(d, at, read)) is not None]
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

    def statement(self, s: Statement) -> None:
        match s:
            case Read():
                self.read(s)
            case Map() | Correct():
                dims = self.define(s.out)
                if self.is_coarse(s.expr):
                    self.coarse.add(s.out.name)
                for at in self.everywhere(dims):
                    text = show(s.expr, self.scope(dims, at), s.out.dtype)
                    if not any(isinstance(x, Ref | Position) for x in expression_nodes(s.expr)):
                        text = f"tl.full([], {text}, {TL[s.out.dtype]})"
                    self.set(s.out, dims, at, _open(text))
            case Guard():
                self.guard(s)
            case Dot():
                self.dot(s)
            case Reduce():
                self.reduce(s)
            case Combine():
                dims = self.define(s.out, s.out.dtype.compute)
                for at in self.everywhere(dims):
                    pair = [self.get(n, dims, at, s.out.dtype.compute) for n in (s.left, s.right)]
                    self.set(s.out, dims, at, self.joined(s.reducer, s.out.dtype, *pair))
            case Select():
                self.select(s)
            case SelectMerge():
                self.merge_lists(s)
            case Rename():
                self.rename(s)
            case Declare():
                self.declare(s)
            case Assign():
                dims = self.layout.of(self.values[s.state].axes)
                for at in self.everywhere(dims):
                    text = self.get(s.value, dims, at, self.values[s.state].dtype.compute)
                    own = self.layout.of(self.values[s.value].axes)
                    if own != dims:
                        text = f"tl.broadcast_to({text}, {self.shape(dims, at)})"
                    self.set(self.values[s.state], dims, at, text)
            case Store():
                self.store(s)
            case Loop():
                self.loop(s)

    def declare(self, s: Declare) -> None:
        kept = s.state.dtype.compute
        dims = self.define(s.state, kept)
        for at in self.everywhere(dims):
            if isinstance(s.init, Const):
                text = f"tl.full({self.shape(dims, at)}, {show_const(s.init)}, {TL[kept]})"
            else:
                text = self.get(s.init, dims, at, kept)
                if self.layout.of(self.values[s.init].axes) != dims:
                    text = f"tl.broadcast_to({text}, {self.shape(dims, at)})"
            note = "" if s.role in ("result", "") else s.role
            self.set(s.state, dims, at, text, note)

    # -- memory ------------------------------------------------------------------------------------------------------
    def address(self, tensor: str, index: Sequence[Int], clip: Sequence[bool], scope: Scope, at: dict[Dim, int],
                plain: bool = False) -> str:  # fmt: skip
        """Pointer arithmetic: scalars first, then one vector for each set of dimensions."""
        shape = self.program.tensor(tensor).shape
        groups: dict[tuple[Dim, ...], list[str]] = {}
        for n, (i, clipped) in enumerate(zip(index, clip, strict=True)):
            if not i.terms:
                continue
            stride = self.argument(f"{tensor}_stride_{n}", Stride(tensor, n))
            parts = [i] if clipped else [Int((t,)) for t in i.terms]
            for part in parts:
                dims = self.index_dims(part)
                inner = self.scope(dims, at, plain)
                text = show_int(part, inner)
                if clipped:
                    text = f"tl.minimum(tl.maximum({text}, 0), {show_int(shape[n] - 1, inner)})"
                groups.setdefault(dims, []).append(f"{text} * {stride}" if text != "1" else stride)
        pointer = self.argument(f"{tensor}_ptr", Pointer(tensor))
        texts = [pointer]
        for dims in sorted(groups, key=lambda g: (len(g), [d.rank for d in g])):
            texts.append(scope.spread(" + ".join(groups[dims]), dims) if dims else " + ".join(groups[dims]))
        return " + ".join(texts)

    def index_dims(self, i: Int) -> tuple[Dim, ...]:
        axes: set[Axis] = set()
        for a in i.atoms():
            match a:
                case Axis():
                    axes.add(a)
                case FloorDiv() | Mod():
                    return self.layout.of(frozenset(axes) | i.axes() | self._gathered(i))
                case Gather():
                    axes |= self._gathered(as_int(a))
                case _:
                    pass
        return self.layout.of(frozenset(axes))

    def _gathered(self, i: Int) -> frozenset[Axis]:
        return frozenset[Axis]().union(
            *(self.values[g.value.name].axes for g in i.gathers() if isinstance(g.value, Ref))
        )

    def read(self, s: Read) -> None:
        narrow = s.out.dtype.is_float and s.out.dtype.bytes < 4
        lifted = narrow and s.out.name not in self.raw
        dims = self.define(s.out, DType.FLOAT32 if lifted else None)
        copied = self.form.bulk and not lifted and self.copied(s, dims)
        for at in self.everywhere(dims):
            mask = self.mask(dims, at)
            options = f", mask={mask}, other=0" if mask else ""
            tail = ".to(tl.float32)" if lifted else ""
            text = f"tl.load({self.address(s.tensor, s.index, s.clip, self.scope(dims, at), at)}{options}){tail}"
            key = self.address(s.tensor, s.index, s.clip, self.scope(dims, at, True), at, True) + options + tail
            if copied:
                text, options, tail = self.copy(s, dims, at), "", ""
            name = self.variable(s.out.name, dims, at)
            known = next((b.loaded[key] for b in self.blocks if key in b.loaded), None)
            self.line(f"{name} = {known or text}")
            if known is None:
                self.blocks[-1].loaded[key] = name

    def copied(self, s: Read, dims: tuple[Dim, ...]) -> bool:
        """True for a tile of a loop's axis and one whole axis, each an index of its own, at a place that the program fixes."""
        if len(dims) != 2 or not dims[1].whole or any(len(d.axes) > 1 for d in dims) or any(s.clip):
            return False
        if dims[0].role is not Role.CASCADE or dims[0].axes[0] not in self.full:
            return False
        inner = {d.axes[0] for d in dims}
        own = [i.axis for i in s.index if i.axes() & inner]
        fixed = [i for i in s.index if not i.axes() & inner]
        rows = frozenset(self.layout.row.axes if self.layout.row is not None else ())
        still = all(not any(True for _ in i.gathers()) and not i.axes() & rows for i in fixed)
        return len(own) == 2 and own == [d.axes[0] for d in dims] and still

    def copy(self, s: Read, dims: tuple[Dim, ...], at: dict[Dim, int]) -> str:
        """A load by descriptor. The descriptor is made once, before the loop; beyond the tensor's end it gives 0."""
        scope = self.scope((), at)
        places = [n for n, i in enumerate(s.index) if i.axis in {d.axes[0] for d in dims}]
        index = [ZERO if n in places else i for n, i in enumerate(s.index)]
        pointer = self.address(s.tensor, index, s.clip, scope, {})
        shape = ", ".join(show_int(as_int(d.axes[0].size), scope) for d in dims)
        stride = self.argument(f"{s.tensor}_stride_{places[0]}", Stride(s.tensor, places[0]))
        block = ", ".join(str(d.pieces[at[d]].length) for d in dims)
        made = f"tl.make_tensor_descriptor({pointer}, [{shape}], [{stride}, 1], [{block}])"
        name = self.descriptor(s.tensor, made)
        self.bulk[s.tensor] = (s.tensor, places[1])
        start = self.axis_id(dims[0].axes[0], "_start")
        return f"{name}.load([{start}, {dims[1].pieces[at[dims[1]]].start}])"

    def descriptor(self, tensor: str, made: str) -> str:
        key = ("descriptor", made)
        if key not in self.ids:
            self.ids[key] = self.names.new(f"{tensor}_tiles")
            self.blocks[0].lines.append(f"{self.ids[key]} = {made}")
        return self.ids[key]

    def store(self, s: Store) -> None:
        dims = self.layout.of(frozenset(s.axes))
        v = self.values[s.value]
        for at in self.everywhere(dims):
            scope = self.scope(dims, at)
            text = self.get(s.value, dims, at, v.dtype)
            if self.layout.of(v.axes) != dims:
                text = f"tl.broadcast_to({text}, {self.shape(dims, at)})"
            mask = self.mask(dims, at)
            pointer = self.address(s.tensor, s.index, [False] * len(s.index), scope, at)
            pointers = self.layout.of(frozenset[Axis]().union(*(i.axes() for i in s.index)))
            if pointers != dims:
                raise Unsupported(f"{s.tensor} is stored along an axis that its index lacks")
            self.line(f"tl.store({pointer}, {text}{f', mask={mask}' if mask else ''})")

    # -- operations --------------------------------------------------------------------------------------------------
    def guard(self, s: Guard) -> None:
        own = self.layout.of(self.values[s.arg].axes)
        dims = self.define(s.out, self.dtypes.get(s.arg))
        if s.arg in self.coarse:
            self.coarse.add(s.out.name)
        d = self.layout.dims.get(s.axis)
        for at in self.everywhere(dims):
            scope = self.scope(dims, at)
            condition = None if d is None else self.inside(d, at, False)
            text = self.get(s.arg, dims, at)
            if condition is not None:
                filled = f"tl.where({scope.spread(condition, (d,)) if d else ''}, {text}, {show_const(s.fill)})"
                text = (
                    filled
                    if own or s.out.dtype.bytes > 4
                    else f"{filled}.to({TL[self.dtypes.get(s.out.name, s.out.dtype)]})"
                )
            elif own != dims:
                text = f"tl.broadcast_to({text}, {self.shape(dims, at)})"
            self.set(s.out, dims, at, text)

    def rename(self, s: Rename) -> None:
        own = self.layout.of(self.values[s.arg].axes)
        dims = self.define(s.out, self.dtypes.get(s.arg))
        moved = {self.layout.dims.get(a): self.layout.dims.get(b) for a, b in s.axes}
        if [moved.get(d, d) for d in own] != list(dims) or any(
            a is None or b is None or a.pieces != b.pieces for a, b in moved.items()
        ):
            raise Unsupported(f"{s.arg} is used as {s.out.name}, whose axes are laid out differently")
        back = {b: a for a, b in moved.items()}
        for at in self.everywhere(dims):
            there = {d if back.get(d) is None else back[d]: n for d, n in at.items()}
            self.set(s.out, dims, at, self.variable(s.arg, own, {k: n for k, n in there.items() if k is not None}))

    def joined(self, reducer: Reducer, dtype: DType, a: str, b: str) -> str:
        match reducer:
            case Reducer.SUM:
                return f"{a} + {b}"
            case Reducer.PROD:
                return f"{a} * {b}"
            case Reducer.MAX | Reducer.MIN:
                name = "larger" if reducer is Reducer.MAX else "smaller"
                if dtype.is_float:
                    return f"{self.use(name)}({a}, {b})"
                return f"tl.{'maximum' if reducer is Reducer.MAX else 'minimum'}({a}, {b})"
            case Reducer.ANY:
                return f"{a} | {b}"
            case Reducer.ALL:
                return f"{a} & {b}"
            case _:
                raise Unsupported(f"{reducer} has no form in a kernel")

    def reduce(self, s: Reduce) -> None:
        arg = self.values[s.arg]
        own = self.layout.of(arg.axes)
        d = self.layout.dims.get(s.over)
        dims = self.define(s.out, s.out.dtype.compute)
        if d is not None and len(d.axes) > 1:
            raise Unsupported(f"{s.over.name} is reduced apart from the axes it is flattened with")
        for at in self.everywhere(dims):
            whole = [at] if d is None else [{**at, d: n} for n in range(len(d.pieces))]
            texts = [self.reduced(s, own, d, a) for a in whole]
            text = texts[0]
            for other in texts[1:]:
                text = self.joined(s.reducer, s.out.dtype, text, other)
            self.set(s.out, dims, at, text)

    def reduced(self, s: Reduce, own: tuple[Dim, ...], d: Dim | None, at: dict[Dim, int]) -> str:
        summed = s.reducer in (Reducer.SUM, Reducer.PROD)
        work = s.out.dtype if summed else self.values[s.arg].dtype.compute
        x = self.get(s.arg, own, at, work)
        if d is None:
            return x
        n = own.index(d)
        match s.reducer:
            case Reducer.SUM:
                return f"tl.sum({x}, {n})"
            case Reducer.PROD:
                return f"tl.reduce({x}, {n}, {self.use('times')})"
            case Reducer.MAX | Reducer.MIN if s.out.dtype.is_float:
                return f"tl.reduce({x}, {n}, {self.use('larger' if s.reducer is Reducer.MAX else 'smaller')})"
            case Reducer.MAX | Reducer.MIN if s.out.dtype is not DType.BOOL:
                return f"tl.{s.reducer.value}({x}, {n})"
            case Reducer.ANY | Reducer.MAX:
                return f"(tl.max(({x}).to(tl.int32), {n}) != 0)"
            case Reducer.ALL | Reducer.MIN:
                return f"(tl.min(({x}).to(tl.int32), {n}) != 0)"
            case _:
                raise Unsupported(f"{s.reducer} has no form in a kernel")

    # -- dots --------------------------------------------------------------------------------------------------------
    def dot(self, s: Dot) -> None:
        left, right = (self.layout.of(self.values[n].axes) for n in (s.left, s.right))
        over = self.layout.of(frozenset(s.over))
        dims = self.define(s.out)
        if all(self.values[n].dtype in (DType.BFLOAT16, DType.FLOAT16) for n in (s.left, s.right)):
            self.coarse.add(s.out.name)
        rows = tuple(d for d in left if d not in over and d not in right)
        columns = tuple(d for d in right if d not in over and d not in left)
        shared = tuple(d for d in left if d in right and d not in over)
        matrix = len(over) == 1 and len(rows) == 1 and len(columns) == 1 and not shared
        for at in self.everywhere(dims):
            add = None if s.add is None else self.get(s.add, dims, at, s.out.dtype)
            choices = list(self.everywhere(over))
            for pieces in choices:
                here = at | pieces
                if matrix:
                    text = self.matrix(s, left, right, over[0], rows[0], columns[0], here, add)
                else:
                    text = self.products(s, left, right, over, dims, here, add)
                self.set(s.out, dims, at, text)
                add = self.variable(s.out.name, dims, at)

    def matrix(self, s: Dot, left: tuple[Dim, ...], right: tuple[Dim, ...], over: Dim, row: Dim, column: Dim,
               at: dict[Dim, int], add: str | None) -> str:  # fmt: skip
        kinds = [self.dtypes.get(n, self.values[n].dtype) for n in (s.left, s.right)]
        same = kinds[0] if kinds[0] is kinds[1] and kinds[0].bytes <= s.out.dtype.bytes else s.out.dtype
        if row.rank > column.rank:
            s_left, s_right, left, right, row, column = s.right, s.left, right, left, column, row
        else:
            s_left, s_right = s.left, s.right
        a, b = self.get(s_left, left, at, same), self.get(s_right, right, at, same)
        a = a if left == (row, over) else f"tl.trans({a})"
        b = b if right == (over, column) else f"tl.trans({b})"
        options = f', input_precision="{self.form.precision}"' if same is DType.FLOAT32 else ""
        if same.bytes == 8:
            options += ", out_dtype=tl.float64"
        if add is None:
            return f"tl.dot({a}, {b}{options})"
        return f"tl.dot({a}, {b}, {add}{options})"

    def products(self, s: Dot, left: tuple[Dim, ...], right: tuple[Dim, ...], over: tuple[Dim, ...],
                 dims: tuple[Dim, ...], at: dict[Dim, int], add: str | None) -> str:  # fmt: skip
        """A dot that is none of two matrices: multiplied, then summed over one dimension after the other."""
        every = tuple(sorted({*left, *right}, key=lambda d: d.rank))
        a, b = (self.get(n, every, at, s.out.dtype) for n in (s.left, s.right))
        text = f"{a} * {b}"
        for d in sorted(over, key=lambda d: -d.rank):
            text = f"tl.sum({text}, {every.index(d)})"
            every = tuple(x for x in every if x is not d)
        return text if add is None else f"{add} + {text}"

    # -- lists -------------------------------------------------------------------------------------------------------
    def keys(self, value: str, index: str, dims: tuple[Dim, ...], at: dict[Dim, int], reducer: Reducer) -> str:
        """Values of a list with their positions, as integers that sort."""
        v = self.values[value]
        if v.dtype is DType.FLOAT64 or (not v.dtype.is_float and v.dtype.bytes > 4):
            raise Unsupported(f"{value} is {v.dtype.value}: its values and positions do not fit one integer")
        if not v.dtype.is_float:
            raise Unsupported(f"{value} holds integers; the best of them are selected outside")
        smallest = reducer is Reducer.ARGMIN
        return f"{self.use('order_key')}({self.get(value, dims, at, DType.FLOAT32)}, {index}, {smallest})"

    def select(self, s: Select) -> None:
        own = self.layout.of(self.values[s.arg].axes)
        d = self.layout.dims.get(s.over)
        if d is None or len(d.pieces) > 1 or len(d.axes) > 1:
            raise Unsupported(f"{s.over.name} is selected from in pieces")
        at = dict.fromkeys(own, 0)
        if any(len(x.pieces) > 1 for x in own):
            raise Unsupported(f"{s.arg} is selected from in pieces")
        index = self.scope(own, at).spread(self.flat(d, at), (d,))
        keys = self.id("value", f"{s.out.name}_keys")
        self.line(f"{keys} = {self.keys(s.arg, index, own, at, s.reducer)}")
        self.best(s.out, s.index, s.reducer, s.k, own, d, "best_keys", [keys])

    def best(self, out: Value, index: Value, reducer: Reducer, k: Axis | None, dims: tuple[Dim, ...], d: Dim, fn: str,
             keys: list[str]) -> None:  # fmt: skip
        """The best of lists of keys along a dimension, as values and positions."""
        made = self.define(out)
        self.define(index)
        self.use("key_value"), self.use("key_index")
        smallest = reducer is Reducer.ARGMIN
        at = dict.fromkeys(made, 0)
        found = self.id("value", f"{out.name}_best")
        slots = self.layout.dims.get(k) if k is not None else None
        if slots is None:
            text = f"tl.max({keys[0]}, {dims.index(d)})" if d in dims else keys[0]
            if len(keys) > 1:
                text = f"tl.maximum({keys[0]}, {keys[1]})"
            self.line(f"{found} = {text}")
        else:
            where = tuple(slots if x is d else x for x in dims)
            self.use(fn)
            slot = self.scope(where, at | {slots: 0}).spread(self.flat(slots, {slots: 0}), (slots,))
            n = slots.pieces[0].valid
            self.line(f"{found} = {fn}({', '.join(keys)}, {slot}, {dims.index(d)}, {n})")
            if where != made:
                self.line(f"{found} = tl.trans({found})")
        value = f"key_value({found}, {smallest})"
        value = value if out.dtype is DType.FLOAT32 else f"{value}.to({TL[out.dtype]})"
        self.set(out, made, at, value)
        self.set(index, made, at, f"key_index({found})")

    def merge_lists(self, s: SelectMerge) -> None:
        self.values.setdefault(s.out.name, s.out)
        dims = self.layout.of(s.out.axes)
        at = dict.fromkeys(dims, 0)
        keys = []
        for side, (value, index) in (("left", (s.left, s.left_index)), ("right", (s.right, s.right_index))):
            name = self.id("value", f"{s.out.name}_{side}")
            self.line(f"{name} = {self.keys(value, self.get(index, dims, at), dims, at, s.reducer)}")
            keys.append(name)
        slots = self.layout.dims.get(s.k) if s.k is not None else None
        self.best(s.out, s.index, s.reducer, s.k, dims, slots or _NOTHING, "merged_keys", keys)

    # -- loops -------------------------------------------------------------------------------------------------------
    def loop(self, s: Loop) -> None:
        scope = self.scope((), {})
        start, stop = self.bound(s.start, scope), self.bound(s.stop, scope)
        d = self.layout.dims.get(s.axis)
        self.blocks.append(_Block())
        before, self.full[s.axis] = self.full.get(s.axis, False), s.full or (d is None)
        for inner in s.body:
            self.statement(inner)
        body = self.blocks.pop().lines
        self.full[s.axis] = before
        if s.note:
            self.line(f"# {s.note}")
        if d is None:
            self.line(f"for {self.id('axis', s.axis.name)} in tl.range({start}, {stop}):")
            head = []
        else:
            piece = d.pieces[0]
            first = self.axis_id(s.axis, "_start")
            self.line(f"for {first} in tl.range({start}, {stop}, {piece.length}):")
            head = [f"{self.index_name(d, 0)} = {first} + tl.arange(0, {piece.length})"]
            for a, text in self.first_and_last(s.axis, first, str(piece.length)):
                head.append(f"{a} = {text}")
        self.blocks[-1].lines += [f"    {line}" for line in (*head, *body)]

    def first_and_last(self, axis: Axis, first: str, length: str) -> Iterator[tuple[str, str]]:
        t = self.tile[axis]
        for a, text in ((t.first, first), (t.last, None)):
            name = self.known_axis(a)
            if name in self.wanted:
                extent = show_int(as_int(axis.size), self.scope((), {}))
                yield name, text or f"tl.minimum({first} + {length}, {extent}) - 1"

    def bound(self, b: Bound, s: Scope) -> str:
        match b:
            case At():
                text = show_int(b.index, s)
                return text[1:-1] if text.startswith("(") and b.index.value is None and text.endswith(")") else text
            case Down():
                n = self.step(b.tile)
                inner = self.bound(b.arg, s)
                if inner.isdigit() and n.isdigit():
                    return str(int(inner) // int(n) * int(n))
                return f"({inner}) // {n} * {n}"
            case Up():
                n = self.step(b.tile)
                return f"tl.cdiv({self.bound(b.arg, s)}, {n}) * {n}"
            case Lowest() | Highest():
                dims = self.layout.of(self.values[b.value].axes)
                at = dict.fromkeys(dims, 0)
                text = self.get(b.value, dims, at)
                text = f"tl.{'min' if isinstance(b, Lowest) else 'max'}({text})" if dims else text
                return text if self.form.wide else f"{text}.to(tl.int32)"
            case Least() | Greatest():
                fn = "tl.minimum" if isinstance(b, Least) else "tl.maximum"
                parts = list(dict.fromkeys(self.bound(x, s) for x in b.args))
                numbers = [int(p) for p in parts if p.isdigit()]
                if len(numbers) > 1:
                    one = min(numbers) if isinstance(b, Least) else max(numbers)
                    parts = [p for p in parts if not p.isdigit()] + [str(one)]
                text = parts[0]
                for p in parts[1:]:
                    text = f"{fn}({text}, {p})"
                return text

    def step(self, tile: int) -> str:
        """A tile's length: the constexpr of the cascade axis."""
        d = next(
            (x for x in self.layout.dims.values() if x.role is Role.CASCADE and x.pieces[0].length == "TILE"), None
        )
        return "TILE" if d is not None else str(tile)

    # -- the kernel --------------------------------------------------------------------------------------------------
    def kernel(self) -> Printed:
        for s in self.k.body:
            self.statement(s)
        body = self.blocks[0].lines
        head, grid = self.prologue()
        lines = [f'"""{self.k.note[:1].upper()}{self.k.note[1:]}."""', *head, *body]
        blocks = list(self.layout.blocks)
        order = {Pointer: 0, Stride: 1, Length: 2}
        self.arguments = dict(sorted(self.arguments.items(), key=lambda x: order[type(x[1])]))
        names = [*self.arguments, *(f"{b.name}: tl.constexpr" for b in blocks)]
        lengths = [n for n, a in self.arguments.items() if isinstance(a, Length)]
        decorator = f"@triton.jit(do_not_specialize={lengths!r})" if lengths else "@triton.jit"
        signature = f"def {self.name}({', '.join(names)}):"
        if len(signature) > 110:
            signature = f"def {self.name}(\n    {_wrapped(names)},\n):"
        text = "\n".join([decorator, signature, *(f"    {line}" for line in lines)]) + "\n"
        return Printed(
            self.name, text, tuple(self.arguments.items()), tuple(blocks), tuple(grid), tuple(self.bulk.values())
        )

    def prologue(self) -> tuple[list[str], list[tuple[Int, str | None]]]:
        """The place of a program in the grid, and the index vectors that the body names."""
        lines: list[str] = []
        rows = [t for t in self.k.grid if t.role is Role.ROW]
        others = [t for t in self.k.grid if t.role is not Role.ROW]
        others.sort(key=lambda t: t.role is Role.BATCH)
        wide = ".to(tl.int64)" if self.form.wide else ""
        grid: list[tuple[Int, str | None]] = []
        counted: list[tuple[str, str, TileAxis | None]] = []
        total = product(as_int(t.axis.size) for t in rows)
        if rows and total is not ONE:
            step = "ROWS" if self.layout.row is not None else None
            grid.append((total, step))
            counted.append((self.count(total, step), "row_tile" if step else self.row_name(), None))
        for t in others:
            d = self.layout.dims.get(t.axis)
            step = None if d is None else str(d.pieces[0].length)
            n = as_int(t.axis.size)
            if n.value != 1:
                grid.append((n, step))
                counted.append((self.count(n, step), "_tile" if step else "", t))
        uneven = self.uneven() and self.layout.row is not None and len(counted) > 1
        if len(counted) > 0:
            lines.append(f"pid = tl.program_id(0){wide}")
        if uneven:
            lines += self.heavy_first(counted)
            counted = counted[1:]
            rest = "rest"
        else:
            rest = "pid"
        for place, (count, wish, owner) in enumerate(counted):
            name = wish if owner is None else self.axis_id(owner.axis, wish)
            last = place + 1 == len(counted)
            lines.append(f"{name} = {rest}" if last else f"{name} = {rest} % {count}")
            if not last:
                lines.append(f"{rest} = {rest} // {count}")
        for t in (*others, *(rows if total is ONE else ())):
            if as_int(t.axis.size).value == 1 and self.layout.dims.get(t.axis) is None:
                name = self.axis_id(t.axis)
                if name in self.wanted:
                    lines.append(f"{name} = 0")
        lines += self.vectors(rows, total, wide)
        for t in others:
            d = self.layout.dims.get(t.axis)
            if d is None:
                continue
            step = str(d.pieces[0].length)
            tile = self.axis_id(t.axis, "_tile") if as_int(t.axis.size).value != 1 else "0"
            name = self.index_name(d, 0)
            lines.append(f"{name} = {tile} * {step} + tl.arange(0, {step})")
            lines += [f"{a} = {text}" for a, text in self.first_and_last(t.axis, f"{tile} * {step}", step)]
        lines += self.whole(wide)
        return lines, grid

    def row_name(self) -> str:
        """The flat position of the rows where they are taken one at a time."""
        rows = [t for t in self.k.grid if t.role is Role.ROW]
        return self.axis_id(rows[0].axis) if len(rows) == 1 else self.id("axis", "row")

    def count(self, n: Int, step: str | None) -> str:
        text = show_int(n, self.scope((), {}))
        return text if step is None else f"tl.cdiv({text}, {step})"

    def uneven(self) -> bool:
        """True when the work of a program grows with its rows: a loop stops at a place that depends on them."""
        ends = {a for a, (t, _) in self.ends.items() if t.role is Role.ROW}
        return any(_mentions(s.stop, ends) for s in self.k.body if isinstance(s, Loop))

    def heavy_first(self, counted: list[tuple[str, str, TileAxis | None]]) -> list[str]:
        others = " * ".join(c for c, _, _ in counted[1:])
        n = self.form.group
        return [
            f"# the longest loops first, {n} batches at a time, whose operands stay in the cache",
            f"row_tiles = {counted[0][0]}",
            f"group = pid // ({n} * row_tiles)",
            f"batches = tl.minimum({others} - group * {n}, {n})",
            f"place = pid - group * {n} * row_tiles",
            f"rest = group * {n} + place % batches",
            "row_tile = row_tiles - 1 - place // batches",
        ]

    def vectors(self, rows: list[TileAxis], total: Int, wide: str) -> list[str]:
        if not rows or total is ONE:
            return []
        lines = []
        d = self.layout.row
        single = len(rows) == 1
        flat = self.row_name() if d is None else self.index_name(d, 0)
        if d is not None:
            lines.append(f"{flat} = row_tile * ROWS + tl.arange(0, ROWS)")
        inner = ONE
        scope = self.scope((), {})
        last = f"tl.minimum(row_tile * ROWS + ROWS, {show_int(total, scope)}) - 1" if d is not None else flat
        first = "row_tile * ROWS" if d is not None else flat
        ends = {self.known_axis(a) for t in rows for a in (t.first, t.last)} & set(self.wanted)
        if ends and not single:
            lines += [f"row_first = {first}", f"row_last = {last}"]
            first, last = "row_first", "row_last"
        for t in reversed(rows):
            size = show_int(as_int(t.axis.size), scope)
            below = show_int(inner, scope)
            name = self.axis_id(t.axis)
            outermost = t is rows[0]

            def digit(x: str, below: str = below, size: str = size, outermost: bool = outermost) -> str:
                text = x if below == "1" else f"{x} // {below}"
                return text if outermost else f"{text} % {size}"

            if name in self.wanted and name != flat:
                lines.append(f"{name} = {digit(flat)}")
            for a, text in ((t.first, first), (t.last, last)):
                end = self.known_axis(a)
                if end not in self.wanted:
                    continue
                if outermost:
                    lines.append(f"{end} = {digit(text) if single or below != '1' else text}")
                else:
                    # a block that runs over the end of this axis has all of its positions
                    over = f"row_first // ({below} * {size}) != row_last // ({below} * {size})"
                    lines.append(f"{end} = tl.where({over}, {'0' if a is t.first else f'{size} - 1'}, {digit(text)})")
            inner = inner * as_int(t.axis.size)
        return lines

    def whole(self, wide: str) -> list[str]:
        """Index vectors of the axes that are whole in a tile."""
        lines = []
        for d in dict.fromkeys(self.layout.dims.values()):
            tiled = any(t.axis in d.axes and t.block is not None for t in self.k.axes)
            if d is self.layout.row or tiled:
                continue
            for n, piece in enumerate(d.pieces):
                name = self.index_name(d, n)
                if name not in self.wanted:
                    continue
                start = f"{piece.start} + " if piece.start else ""
                lines.append(f"{name} = {start}tl.arange(0, {piece.length})")
                inner = ONE
                for a in reversed(d.axes if len(d.axes) > 1 else ()):
                    own = self.known_axis(a, f"_{n}" if len(d.pieces) > 1 else "")
                    if own in self.wanted:
                        text = name if inner is ONE else f"{name} // {show_int(inner, self.scope((), {}))}"
                        outermost = a is d.axes[0]
                        lines.append(
                            f"{own} = {text}"
                            + ("" if outermost else f" % {show_int(as_int(a.size), self.scope((), {}))}")
                        )
                    inner = inner * as_int(a.size)
        return lines


_NOTHING = Dim("nothing", Role.RANK, (), (Piece(0, 1, 1),), 0)


def _open(text: str) -> str:
    """Without the brackets around the whole."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and n + 1 < len(text):
            return text
    return text[1:-1]


def _mentions(b: Bound, axes: set[Axis]) -> bool:
    match b:
        case At():
            return bool(set(b.index.axes()) & axes)
        case Down() | Up():
            return _mentions(b.arg, axes)
        case Lowest() | Highest():
            return False
        case Least() | Greatest():
            return any(_mentions(x, axes) for x in b.args)


def _wrapped(names: Sequence[str]) -> str:
    lines, line = [], ""
    for n in names:
        if line and len(line) + len(n) > 104:
            lines.append(line)
            line = ""
        line = f"{line}, {n}" if line else n
    return ",\n    ".join([*lines, line])
