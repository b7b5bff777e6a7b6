"""Expressions into tile operations: every load, dot and reduction gets a name, and what is used twice is computed once.

A value lives at a level: 0 for the kernel's own block, 1 for the body of the loop at hand, 2 for a loop inside it.
What does not depend on a loop's axis (or on state that the loop moves) is placed before that loop.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from redfuser.index.expr import (
    Apply,
    Cast,
    Const,
    DType,
    Expr,
    Fn,
    Load,
    Part,
    Position,
    Ref,
    children,
    const,
    dtype_of,
    position,
    rebuild,
    ref,
    substitute,
    walk,
)
from redfuser.index.ints import Axis, Gather, Int, as_int, nonnegative
from redfuser.index.nodes import Map as Definition
from redfuser.index.nodes import Reduce as Reduction
from redfuser.index.nodes import Reducer
from redfuser.index.simplify import refolded
from redfuser.tile import dots
from redfuser.tile.identity import result_dtype
from redfuser.tile.lanes import share
from redfuser.tile.names import Names
from redfuser.tile.nodes import (
    Combine,
    Correct,
    Dot,
    Guard,
    Lanes,
    Map,
    Operation,
    Read,
    Reduce,
    Rename,
    Select,
    Statement,
    Tensor,
    Value,
    outputs_of,
)
from redfuser.tile.spans import index_axes, span_of
from redfuser.tile.strategy import Unsupported


@dataclass(frozen=True, slots=True)
class Placed:
    """An expression over Refs to values, the axes it spans and the level it lives at."""

    expr: Expr
    axes: frozenset[Axis]
    level: int


@dataclass(slots=True)
class Level:
    """A block being written, with what it already computes."""

    statements: list[Statement] = field(default_factory=list)
    known: dict[object, Value] = field(default_factory=dict)
    placed: dict[Expr, Placed] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stored:
    """A result of a stage, as a value of the kernel, with the axes of its index."""

    value: Value
    index: Value | None
    axes: tuple[Axis, ...]


class Lowering:
    """Writes the operations of one kernel."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        definitions: Mapping[str, Definition],
        producers: Mapping[str, Reduction],
        epilogues: Mapping[str, Reduction],
        frame: frozenset[Axis],
        taken: Iterable[str] = (),
    ) -> None:
        self.tensors, self.definitions, self.frame = tensors, definitions, frame
        self.producers, self.epilogues = producers, epilogues
        self.names = Names((*tensors, *taken))
        self.levels = [Level()]
        self.values: dict[str, Value] = {}
        self.level_of: dict[str, int] = {}
        self.stages: dict[str, Stored] = {}
        self.scratch: dict[tuple[str, Part], Tensor] = {}
        self.state: dict[tuple[str, bool, Part], Value] = {}
        self.inner: dict[Axis, None] = {}
        self._fresh: dict[str, tuple[Axis, ...]] = {}
        self._kinds: dict[str, tuple[DType, frozenset[Axis]]] = {}  # of all names that values have had
        self._pieces: dict[tuple[Axis, int], Axis] = {}
        self._uses: Counter[Expr] = Counter()
        self.loops: list[Axis] = []
        self.ends: dict[Axis, tuple[Axis, Axis]] = {}
        self.full: list[bool] = []
        self.lanes: Lanes | None = None
        self.tile = 0  # positions of a whole tile that is dealt to lanes

    # -- blocks ------------------------------------------------------------------------------------------------------
    def open(self, axis: Axis, full: bool = False) -> None:
        """A loop over tiles of an axis; ``full``: none of its tiles ends behind the axis."""
        self.levels.append(Level())
        self.loops.append(axis)
        self.full.append(full)

    def moving(self, states: Iterable[Value], level: int) -> None:
        """State that the loop at hand changes lives at its level."""
        for v in states:
            self.level_of[v.name] = level

    def close(self) -> tuple[Statement, ...]:
        """The body of the loop; its names are free again."""
        done = self.levels.pop()
        if self.loops:
            self.loops.pop()
            self.full.pop()
        self.names.release(done.names)
        for name in done.names:
            del self.values[name], self.level_of[name]
        return tuple(done.statements)

    def expect(self, exprs: Iterable[Expr]) -> None:
        """Says what will be lowered next, so that shared parts get a name of their own."""
        seen: set[Expr] = set()
        self._uses = Counter()
        for e in exprs:
            self._uses[e] += 1
            for x in walk(e):
                if x not in seen:
                    seen.add(x)
                    self._uses.update(children(x))

    def emit(self, op: Operation, level: int) -> Value:
        for v in outputs_of(op):
            self.values[v.name] = v
            self.level_of[v.name] = level
            self.levels[level].names.append(v.name)
        self.levels[level].statements.append(op)
        return op.out

    def add(self, statement: Statement, level: int | None = None) -> None:
        self.levels[-1 if level is None else level].statements.append(statement)

    def new(self, wish: str, dtype: DType, axes: frozenset[Axis]) -> Value:
        """A value under a name that no other value has now, and none of another dtype or other axes has anywhere."""
        refused = []
        name = self.names.new(wish)
        while self._kinds.setdefault(name, (dtype, axes)) != (dtype, axes):
            refused.append(name)
            name = self.names.new(wish)
        self.names.release(refused)
        return Value(name, dtype, axes)

    def declare(self, v: Value, level: int = 0) -> Value:
        self.values[v.name] = v
        self.level_of[v.name] = level
        return v

    def _known(self, key: object, level: int) -> Value | None:
        for lv in self.levels[: level + 1]:
            if key in lv.known:
                return lv.known[key]
        return None

    def level(self, axes: frozenset[Axis], at_least: int = 0) -> int:
        """The block for a value that spans ``axes``: that of the innermost loop over one of them."""
        return max([at_least, *(n for n, a in enumerate(self.loops, 1) if a in axes)])

    def met(self, axes: frozenset[Axis]) -> frozenset[Axis]:
        """The axes of a value made of values that span ``axes`` together."""
        return axes if self.lanes is None else self.lanes.met(axes)

    # -- spans -------------------------------------------------------------------------------------------------------
    def span(self, e: Expr) -> frozenset[Axis]:
        """The axes an expression depends on, before anything is emitted."""
        return span_of(e, lambda r: self.value_of(r).axes)

    def value_of(self, r: Ref) -> Value:
        v = self.state.get((r.name, r.old, r.part))
        if v is None:
            v = self.values.get(r.name)
        if v is None:
            raise Unsupported(f"{r.name} is read before it is computed")
        return v

    # -- expressions -------------------------------------------------------------------------------------------------
    def place(self, e: Expr) -> Placed:
        for lv in self.levels:
            if e in lv.placed:
                return lv.placed[e]
        p = self._place(e)
        if self._uses[e] > 1 and isinstance(p.expr, Apply | Cast):
            p = self._named(p)
        self.levels[p.level].placed[e] = p
        return p

    def _place(self, e: Expr) -> Placed:
        match e:
            case Const():
                return Placed(e, frozenset(), 0)
            case Position():
                i, level = self.index(e.index)
                axes = index_axes(i, self.values)
                inside = frozenset(a for a, ends in self.ends.items() if axes & frozenset(ends))
                axes = axes.difference(*self.ends.values())
                return Placed(position(i), axes, self.level(axes | inside, level))
            case Ref():
                return self._ref(self.value_of(e))
            case Load():
                return self._load(e)
            case _:
                args = [self.place(a) for a in children(e)]
                axes = self.met(frozenset[Axis]().union(*(a.axes for a in args)))
                level = max(a.level for a in args)
                kept = [self._named(a) if _own(a, axes, level) else a for a in args]
                return Placed(rebuild(e, tuple(a.expr for a in kept)), axes, level)

    def _ref(self, v: Value) -> Placed:
        return Placed(ref(v.name, v.dtype), v.axes, self.level_of[v.name])

    def _named(self, p: Placed, wish: str | None = None) -> Placed:
        return self._ref(self.name(p, wish))

    def name(self, p: Placed, wish: str | None = None) -> Value:
        """The value of a placed expression, under a name."""
        if isinstance(p.expr, Ref):
            return self.values[p.expr.name]
        known = self._known(p.expr, p.level)
        if known is None:
            known = self._map(p, wish)
        return known

    def _map(self, p: Placed, wish: str | None, base: bool = False) -> Value:
        v = self.emit(Map(self.new(wish or _word(p.expr), dtype_of(p.expr), p.axes), p.expr, base), p.level)
        self.levels[p.level].known[p.expr] = v
        return v

    def base(self, e: Expr, wish: str, dtype: DType) -> Value:
        """A base, as partial results agree on it."""
        p = self.place(e)
        if dtype_of(p.expr) is not dtype:
            p = Placed(Cast(p.expr, dtype), p.axes, p.level)
        return self.values[p.expr.name] if isinstance(p.expr, Ref) else self._map(p, wish, base=True)

    def value(self, e: Expr, wish: str | None = None, dtype: DType | None = None) -> Value:
        p = self.place(e)
        if dtype is not None and dtype_of(p.expr) is not dtype:
            p = Placed(Cast(p.expr, dtype), p.axes, p.level)
        return self.name(p, wish)

    def correct(self, e: Expr, state: str) -> Value:
        p = self.place(e)
        return self.emit(
            Correct(self.new(f"{state}_moved", dtype_of(e), p.axes), state, p.expr), self.level(p.axes, len(self.loops))
        )

    def index(self, i: Int) -> tuple[Int, int]:
        """An index with its gathers computed, and the level it lives at."""
        level = 0

        def gathered(g: Gather) -> Int:
            nonlocal level
            v = self.value(g.value, "at")
            level = max(level, self.level_of[v.name])
            return as_int(Gather(ref(v.name, v.dtype), g.bound))

        out = i.substitute({}, gathered) if any(True for _ in i.gathers()) else i
        return out, self.level(index_axes(out, self.values), level)

    # -- loads -------------------------------------------------------------------------------------------------------
    def _load(self, e: Load) -> Placed:
        if e.source in self.stages:
            return self._stage(e)
        if (e.source, e.part) in self.scratch:
            t = self.scratch[e.source, e.part]
            return self._read(Load(t.name, e.index, t.dtype, Part.VALUE))
        if e.source in self.producers:
            return self._ref(self.producer(self.producers[e.source], e.index))
        if e.source in self.epilogues:
            return self._ref(self.epilogue(self.epilogues[e.source]))
        if e.source in self.definitions:
            d = self.definitions[e.source]
            return self.place(substitute(d.body, dict(zip(d.axes, e.index, strict=True))))
        if e.source not in self.tensors:
            raise Unsupported(f"{e.source} is not available inside the loop")
        return self._read(e)

    def _read(self, e: Load) -> Placed:
        placed = [self.index(i) for i in e.index]
        index = tuple(i for i, _ in placed)
        axes = frozenset[Axis]().union(*(index_axes(i, self.values) for i in index))
        level = self.level(axes, max((lv for _, lv in placed), default=0))
        key = Load(e.source, index, e.dtype, e.part)
        known = self._known(key, level) or self._renamed(key, axes, level)
        if known is None:
            shape = self.tensors[e.source].shape
            clip = tuple(not (nonnegative(i) and nonnegative(n - 1 - i)) for i, n in zip(index, shape, strict=True))
            op = Read(self.new(_register(e.source), e.dtype, axes), e.source, index, clip)
            known = self.emit(op, level)
            self.levels[level].known[key] = known
            self.levels[level].reads.append(op)
        return self._ref(known)

    def _renamed(self, e: Load, axes: frozenset[Axis], level: int) -> Value | None:
        """An earlier read of the same elements along differently named whole axes (one tensor read as both operands)."""
        whole = axes - set(self.loops)
        for op in self.levels[level].reads:
            if op.tensor != e.source:
                continue
            pairs = [(a.axis, b.axis) for a, b in zip(op.index, e.index, strict=True) if a is not b]
            moved = [(a, b) for a, b in pairs if a is not None and b is not None and a.size is b.size]
            fits = all(a in self.inner and b in whole and b not in op.out.axes for a, b in moved)
            if pairs and len(moved) == len(pairs) and fits and len(op.out.axes) == len(axes):
                new = (op.out.axes - {a for a, _ in moved}) | {b for _, b in moved}
                if new != axes or not all(self.is_whole(b) for _, b in moved):
                    continue
                v = self.emit(Rename(self.new(_register(e.source), e.dtype, axes), op.out.name, tuple(moved)), level)
                self.levels[level].known[e] = v
                return v
        return None

    def is_whole(self, axis: Axis) -> bool:
        return axis in self.inner

    def _stage(self, e: Load) -> Placed:
        s = self.stages[e.source]
        v = s.value if e.part is Part.VALUE else s.index
        if v is None:
            raise Unsupported(f"{e.source} has no positions")
        moved = [(a, i) for a, i in zip(s.axes, e.index, strict=True) if i.axis is not a]
        for axis, i in moved:
            if axis not in self.inner:
                raise Unsupported(f"{e.source} is read at another position of {axis.name} than the row at hand")
            v = self._pick(v, axis, i)
        return self._ref(v)

    def _pick(self, v: Value, axis: Axis, i: Int) -> Value:
        """One slot of a list: the sum of it alone."""
        key = ("pick", v.name, axis, i)
        known = self._known(key, self.level_of[v.name])
        if known is None:
            here = Apply(Fn.EQ, (Position(as_int(axis)), position(i)), DType.BOOL)
            zero = const(0, v.dtype)
            body = Apply(Fn.WHERE, (here, ref(v.name, v.dtype), zero), v.dtype)
            known = self.reduction(body, Reducer.SUM, (axis,), v.dtype, f"{v.name}_at")
            self.levels[self.level_of[known.name]].known[key] = known
        return known

    # -- reductions --------------------------------------------------------------------------------------------------
    def producer(self, p: Reduction, index: tuple[Int, ...]) -> Value:
        """The tile of a producer at an index."""
        key = ("producer", p.name, index)
        known = self._known(key, len(self.levels) - 1)
        if known is None:
            if p.reducer.has_index:
                raise Unsupported(f"{p.name} is a {p.reducer} inside a tile")
            over = self._inner(p)
            mapping = dict(zip(p.axes, index, strict=True)) | {a: as_int(b) for a, b in zip(p.over, over, strict=True)}
            body = substitute(p.body, mapping)
            known = self.reduction(body, p.reducer, over, result_dtype(p.reducer, dtype_of(body)), _register(p.name))
            self.levels[self.level_of[known.name]].known[key] = known
        return known

    def epilogue(self, p: Reduction) -> Value:
        """A reduction of a list over its slots."""
        key = ("epilogue", p.name)
        known = self._known(key, len(self.levels) - 1)
        if known is None:
            known = self.reduction(p.body, p.reducer, p.over, p.dtype.compute, p.name)
            self.levels[self.level_of[known.name]].known[key] = known
        return known

    def _inner(self, p: Reduction) -> tuple[Axis, ...]:
        if p.name not in self._fresh:
            axes = tuple(Axis(a.name, a.size) if a in self.frame else a for a in p.over)
            self._fresh[p.name] = axes
        self.inner.update(dict.fromkeys(self._fresh[p.name]))
        return self._fresh[p.name]

    def operands(self, body: Expr, over: tuple[Axis, ...], dtype: DType) -> dots.Split | None:
        return dots.split(body, over, dtype, self.span)

    def reduction(
        self, body: Expr, reducer: Reducer, over: tuple[Axis, ...], dtype: DType, wish: str, add: Value | None = None
    ) -> Value:
        """reducer over ``over`` of body: a dot where the body is a product of two operands. ``add`` is added to it."""
        if reducer is Reducer.SUM:
            same = tuple(a for a in over if a not in self.span(body) and (a in self.inner or a in self.ends))
            if same:
                body, over = self._times(body, same, dtype), tuple(a for a in over if a not in same)
                if not over:
                    v = self.value(body, wish if add is None else None, dtype)
                    return v if add is None else self.combine(reducer, add, v, wish)
            pair = None if any(map(self._dealt, over)) else self.operands(body, over, dtype)
            if pair is not None and (cut := self._joint(body, over)) is not None:
                for part, axes in cut:
                    add = self.reduction(part, reducer, axes, dtype, wish, add)
                assert add is not None
                return add
            if pair is not None:
                return self._dot(pair, over, dtype, wish, add)
        v = self.value(body, f"{wish}_of")
        if reducer in (Reducer.ANY, Reducer.ALL) and v.dtype is not DType.BOOL:
            v = self.value(Apply(Fn.NE, (ref(v.name, v.dtype), const(0, v.dtype)), DType.BOOL))
        for i, axis in enumerate(over):
            v = self.guard(v, axis, reducer.identity(v.dtype))
            last = add is None and i + 1 == len(over)
            apart = frozenset((self.lanes.axis,)) if self.lanes is not None and self._dealt(axis) else frozenset[Axis]()
            out = self.new(wish if last else f"{wish}_part", dtype, (v.axes - {axis}) | apart)
            v = self.emit(Reduce(out, v.name, reducer, axis), self.level(out.axes, self.level_of[v.name]))
        if add is not None:
            v = self.combine(reducer, add, v, wish)
        return v

    def _joint(self, body: Expr, over: tuple[Axis, ...]) -> list[tuple[Expr, tuple[Axis, ...]]] | None:
        """The terms of a dot whose operand is joined along an axis it contracts: one for each piece, with its own axes.

        sum over f < 576 of q[f] * where(f < 512, a[f], b[f - 512])
            ->  sum over f < 512 of q[f] * a[f]  +  sum over f < 64 of q[512 + f] * b[f]
        """
        for axis in over:
            ends = joints(body, axis) if axis in self.inner else []
            if not ends:
                continue
            out = []
            for start, stop in itertools.pairwise((0, *ends)):
                key = (axis, start)
                piece = self._pieces.setdefault(key, Axis(axis.name, as_int(stop - start)))
                self.inner[piece] = None
                part = refolded(body, {axis: as_int(piece) + start})
                out.append((part, tuple(piece if a is axis else a for a in over)))
            del self.inner[axis]
            return out
        return None

    def _dealt(self, axis: Axis) -> bool:
        """True for an axis whose tiles are reduced within lanes."""
        return self.lanes is not None and axis is self.lanes.of

    def _times(self, body: Expr, axes: tuple[Axis, ...], dtype: DType) -> Expr:
        """The sum of equal terms along axes: one of them times the number of positions in the tile."""
        count = as_int(1)
        for a in axes:
            if not self._dealt(a):
                here = as_int(a.size) if a not in self.ends else as_int(self.ends[a][1]) - self.ends[a][0] + 1
                count = count * here
        number: Expr = position(count)
        if self.lanes is not None and self.lanes.of in axes:
            first, last = self.ends[self.lanes.of]
            whole = self.full[self.loops.index(self.lanes.of)]
            each = share(self.lanes, as_int(self.tile) if whole else as_int(last) - first + 1)
            number = each if count.value == 1 else Apply(Fn.MUL, (number, each), DType.INT64)
        if body is const(1, DType.INT64) and dtype is DType.INT64:
            return number
        wide = body if dtype_of(body) is dtype else Cast(body, dtype)
        return Apply(Fn.MUL, (wide, number if dtype is DType.INT64 else Cast(number, dtype)), dtype)

    def _dot(self, pair: dots.Split, over: tuple[Axis, ...], dtype: DType, wish: str, add: Value | None) -> Value:
        sides = []
        for e in (pair.left, pair.right):
            v = self.value(e)
            for axis in over:
                v = self.guard(v, axis, const(0, v.dtype))
            sides.append(v)
        left, right = sides
        level = max(self.level_of[v.name] for v in sides)
        axes = (left.axes | right.axes) - frozenset(over)
        if pair.outside is not None:
            out = self.emit(Dot(self.new(f"{wish}_sum", dtype, axes), left.name, right.name, over, None), level)
            product = Apply(Fn.MUL, (ref(out.name, dtype), pair.outside), dtype)
            scaled = self.value(product, wish if add is None else None)
            return scaled if add is None else self.combine(Reducer.SUM, add, scaled, wish)
        if add is not None and add.axes == axes:
            level = max(level, self.level_of[add.name])
            return self.emit(Dot(self.new(wish, dtype, axes), left.name, right.name, over, add.name), level)
        name = self.new(wish if add is None else f"{wish}_sum", dtype, axes)
        out = self.emit(Dot(name, left.name, right.name, over, None), level)
        return out if add is None else self.combine(Reducer.SUM, add, out, wish)

    def guard(self, v: Value, axis: Axis, fill: Const) -> Value:
        """v with its elements beyond the end of the axis set to fill; a plain read is 0 there already."""
        zero = not isinstance(fill.value, bool) and fill.value == 0
        inside = any(a is axis and full for a, full in zip(self.loops, self.full, strict=True))
        inside |= self.lanes is not None and axis is self.lanes.axis
        if axis in v.axes and (inside or (zero and self._is_read(v))):
            return v
        key = ("guard", v.name, axis, fill)
        axes = self.met(v.axes | {axis})
        level = self.level(axes, self.level_of[v.name])
        known = self._known(key, level)
        if known is None:
            known = self.emit(Guard(self.new(f"{v.name}_in", v.dtype, axes), v.name, axis, fill), level)
            self.levels[level].known[key] = known
        return known

    def _is_read(self, v: Value) -> bool:
        return any(op.out is v for lv in self.levels for op in lv.reads) or any(
            isinstance(s, Rename) and s.out is v for lv in self.levels for s in lv.statements
        )

    def combine(self, reducer: Reducer, left: Value, right: Value, wish: str) -> Value:
        level = max(self.level_of[left.name], self.level_of[right.name])
        out = self.new(wish, left.dtype, self.met(left.axes | right.axes))
        return self.emit(Combine(out, reducer, left.name, right.name), level)

    def select(
        self, body: Expr, reducer: Reducer, over: Axis, k: Axis | None, wish: str, dtype: DType
    ) -> tuple[Value, Value]:
        v = self.value(body, f"{wish}_of", dtype)
        v = self.guard(v, over, reducer.identity(v.dtype))
        axes = (v.axes - {over}) | ({k} if k is not None else frozenset())
        out = self.new(wish, v.dtype, axes)
        index = self.new(f"{wish}_index", DType.INT64, axes)
        self.emit(Select(out, index, v.name, reducer, over, k), self.level(axes, self.level_of[v.name]))
        return out, index


def joints(body: Expr, axis: Axis) -> list[int]:
    """The ends of the pieces of an axis of fixed length on which the branches of ``body`` are settled, if there are two."""
    size = axis.size.value
    found = set()
    for x in walk(body):
        match x:
            case Apply(fn=Fn.LT, args=(Position(index=i), Const(value=int(end)))) if size is not None:
                start = (i - axis).value
                if start is not None and 0 < end - start < size:
                    found.add(end - start)
            case _:
                pass
    return [*sorted(found), size] if found and size is not None else []


def _own(p: Placed, axes: frozenset[Axis], level: int) -> bool:
    """True for a part that spans fewer axes than what it is in, or need not be repeated by the loop."""
    return isinstance(p.expr, Apply | Cast) and (p.axes != axes or p.level < level)


def _word(e: Expr) -> str:
    match e:
        case Apply():
            return e.fn.value
        case Cast():
            return e.dtype.value
        case Position():
            return "position"
        case _:
            return "value"


def _register(source: str) -> str:
    return f"{source}_tile"
