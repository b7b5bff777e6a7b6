"""From a region and its derivation to a tile program, under a schedule.

WHOLE    one kernel: the plain reductions over a whole axis in the tile
SINGLE   one kernel: a loop with the running update for each pass, then the results
MULTI    for each pass a kernel over segments that stores partial states, and a kernel that merges them in order;
         then a kernel for the results that keep the cascade axis
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from redfuser.algebra.nodes import Accumulator, Base, Derivation, Pass, Stage, Treatment
from redfuser.index.expr import (
    Apply,
    Cast,
    Const,
    DType,
    Expr,
    Fn,
    Load,
    Part,
    Ref,
    const,
    dtype_of,
    loads,
    position,
    ref,
    substitute,
    transform,
)
from redfuser.index.ints import ZERO, Axis, Int, as_int
from redfuser.index.nodes import Map as Definition
from redfuser.index.nodes import Reducer
from redfuser.regions.nodes import Region, Result
from redfuser.tile import masks, roles
from redfuser.tile.identity import NO_POSITION, constant, result_dtype
from redfuser.tile.lower import Lowering, Stored
from redfuser.tile.names import Names
from redfuser.tile.nodes import (
    Assign,
    At,
    Bound,
    Declare,
    Highest,
    Kernel,
    Kind,
    Loop,
    Lowest,
    Program,
    Read,
    Role,
    SelectMerge,
    Statement,
    Store,
    Strategy,
    Tensor,
    TileAxis,
    Value,
)
from redfuser.tile.strategy import Schedule
from redfuser.tile.verify import verify


def build(region: Region, derivation: Derivation, schedule: Schedule, name: str = "cascade") -> Program:
    """The tile program, verified. Raises Unsupported where there is none for this region."""
    builder = _Builder(region, derivation, schedule)
    match schedule.strategy:
        case Strategy.WHOLE:
            kernels = [builder.whole()]
        case Strategy.SINGLE:
            kernels = builder.single()
        case Strategy.MULTI:
            kernels = builder.multi()
        case _:
            raise ValueError(f"{schedule.strategy} has no tile program")
    return verify(Program(name, tuple(builder.tensors.values()), tuple(kernels)))


class _Builder:
    def __init__(self, region: Region, derivation: Derivation, schedule: Schedule) -> None:
        self.region, self.derivation, self.schedule = region, derivation, schedule
        self.frame = roles.frame(region, derivation)
        self.axis = self.frame.cascade
        self.grid, self.fixed = roles.blocks(self.frame, schedule)
        self.stages = {s.name: s for s in region.problem.stages}
        self.results = _named_apart([_own_ranks(r, self.stages) for r in region.results])
        self.inputs = {
            i.name: Tensor(i.name, Kind.INPUT, tuple(a.size for a in i.axes), i.dtype) for i in region.program.inputs
        }
        outputs = {r.name: Tensor(r.name, Kind.OUTPUT, r.shape, r.dtype) for r in self.results}
        if outputs.keys() & self.inputs.keys():
            raise ValueError(f"results are named as inputs: {sorted(outputs.keys() & self.inputs.keys())}")
        self.tensors = self.inputs | outputs
        self.scratch: dict[tuple[str, Part], Tensor] = {}
        self.scratch_of: dict[str, dict[Part, Tensor]] = {}
        self.reach_axes: dict[str, tuple[Axis, ...]] = {}
        self.definitions = {d.name: d for d in region.program.definitions if isinstance(d, Definition)}
        self.producers = {p.name: p for p in region.producers}
        self.epilogues = {p.name: p for p in region.epilogues}
        self.wanted = _read_stages(region, derivation)

    # -- pieces that the strategies share -----------------------------------------------------------------------------
    def lowering(self, fixed: tuple[TileAxis, ...] | None = None) -> Lowering:
        names = frozenset({self.axis, *self.frame.kept, *self.frame.ranks, *self.frame.swept})
        low = Lowering(
            self.inputs | {t.name: t for t in self.scratch.values()},
            self.definitions,
            self.producers,
            self.epilogues,
            names,
            self.tensors,
        )
        low.scratch.update(self.scratch)
        low.inner.update(dict.fromkeys(t.axis for t in (self.fixed if fixed is None else fixed)))
        return low

    def kernel(
        self,
        low: Lowering,
        name: str,
        note: str,
        grid: Iterable[TileAxis],
        inside: Iterable[TileAxis] = (),
        fixed: tuple[TileAxis, ...] | None = None,
    ) -> Kernel:
        body = low.close()
        fixed = self.fixed if fixed is None else fixed
        here = {t.axis for t in (*fixed, *inside)}
        inner = [roles.tile_axis(a, Role.INNER, None) for a in low.inner if a not in here]
        return Kernel(name, note, tuple(grid), (*fixed, *inside, *inner), body)

    def cascade(self, block: int | None) -> TileAxis:
        return roles.tile_axis(self.axis, Role.CASCADE, block)

    def declare(self, low: Lowering, p: Pass) -> list[Value]:
        """The running state of a pass, at its identity."""
        states = []
        start: dict[str, Expr] = {}
        for s in p.steps:
            if isinstance(s, Base):
                start[s.name] = constant(_at(s.value, start))
                v = low.declare(low.new(s.name, s.dtype, frozenset(s.axes)))
                low.add(Declare(v, self.first(low, start[s.name], f"{s.name}_start"), "base"))
            else:
                axes = frozenset((*s.axes, s.k) if s.k is not None else s.axes)
                start[s.name] = s.reducer.identity(s.dtype)
                v = low.declare(low.new(s.name, s.dtype, axes))
                low.add(Declare(v, s.reducer.identity(s.dtype), s.role))
                if s.reducer.has_index:
                    at = low.declare(Value(low.names.new(f"{s.name}_index"), NO_POSITION.dtype, axes))
                    low.add(Declare(at, NO_POSITION, f"positions of {s.name}"))
                    self.bind(low, s.name, at, Part.INDEX)
                    states.append(at)
            self.bind(low, s.name, v, Part.VALUE)
            states.append(v)
        return states

    @staticmethod
    def first(low: Lowering, e: Expr, wish: str) -> Const | str:
        return e if isinstance(e, Const) else low.value(e, wish).name

    @staticmethod
    def bind(low: Lowering, name: str, v: Value, part: Part) -> None:
        low.state[name, False, part] = low.state[name, True, part] = v

    def read(self, low: Lowering, p: Pass) -> None:
        """The results of the stages of a pass, from its final state."""
        reads = [r for r in p.reads if r.stage in self.wanted]
        low.expect(e for r in reads for e in (r.value, r.index) if e is not None)
        for r in reads:
            stage = self.stages[r.stage]
            value = low.value(r.value, r.stage)
            index = None if r.index is None else low.value(r.index, f"{r.stage}_index")
            axes = stage.axes if stage.k is None else (*stage.axes, stage.k)
            low.stages[r.stage] = Stored(value, index, axes)

    def write(self, low: Lowering, results: Iterable[Result]) -> None:
        results = list(results)
        low.expect(r.body for r in results)
        for r in results:
            index = tuple(low.index(i)[0] for i in r.index)
            v = low.value(r.body, r.name, r.dtype)
            low.add(Store(r.name, index, v.name, r.axes), low.level(frozenset(r.axes), low.level_of[v.name]))

    def swept(self, r: Result) -> tuple[Axis, ...]:
        return tuple(a for a in r.axes if a not in self.frame.kept and a not in self.frame.ranks)

    # -- whole --------------------------------------------------------------------------------------------------------
    def whole(self) -> Kernel:
        low = self.lowering()
        low.inner[self.axis] = None
        if any(Treatment.REBASE in r.treatments for r in self.derivation.reports):
            # a shift that was rounded when it was stored loses what the moments about a base keep
            for p in self.derivation.passes:
                self.at_once(low, p)
                self.read(low, p)
        else:
            low.expect(s.body for s in self.region.problem.stages)
            for s in self.region.problem.stages:
                low.stages[s.name] = self.plain(low, s)
        self.write(low, [r for r in self.results if not set(self.swept(r)) - {self.axis}])
        extra = self.sweeps(low, [r for r in self.results if set(self.swept(r)) - {self.axis}], {self.axis})
        note = f"every {self.axis.name} in one tile"
        return self.kernel(low, "whole", note, self.grid, [self.cascade(None), *extra])

    def at_once(self, low: Lowering, p: Pass) -> None:
        """The state of a pass after a single tile: nothing was there to be corrected."""
        low.expect(s.element if isinstance(s, Accumulator) else s.value for s in p.steps)
        for s in p.steps:
            if isinstance(s, Base):
                self.bind(low, s.name, low.value(s.value, s.name, s.dtype), Part.VALUE)
            elif s.reducer.has_index:
                value, index = low.select(s.element, s.reducer, self.axis, s.k, s.name, s.dtype)
                self.bind(low, s.name, value, Part.VALUE)
                self.bind(low, s.name, index, Part.INDEX)
            else:
                self.bind(low, s.name, low.reduction(s.element, s.reducer, (self.axis,), s.dtype, s.name), Part.VALUE)

    def plain(self, low: Lowering, s: Stage) -> Stored:
        dtype = result_dtype(s.reducer, dtype_of(s.body))
        if s.reducer.has_index:
            value, index = low.select(s.body, s.reducer, self.axis, s.k, s.name, dtype)
            return Stored(value, index, s.axes if s.k is None else (*s.axes, s.k))
        return Stored(low.reduction(s.body, s.reducer, (self.axis,), dtype, s.name), None, s.axes)

    # -- single -------------------------------------------------------------------------------------------------------
    def single(self) -> list[Kernel]:
        reaches = [self.reach(p, n) for n, p in enumerate(self.derivation.passes)]
        low = self.lowering()
        tile = self.cascade(self.schedule.tile)
        for n, p in enumerate(self.derivation.passes):
            found = reaches[n]
            self.stream(low, p, n, tile, None, None if found is None else self.reached(low, found[1]))
            self.read(low, p)
        self.write(low, [r for r in self.results if not self.swept(r)])
        extra = self.sweeps(low, [r for r in self.results if self.swept(r)], {self.axis})
        note = f"one program streams {self.axis.name}"
        main = self.kernel(low, "single", note, self.grid, [tile, *extra])
        return [*(found[0] for found in reaches if found is not None), main]

    def reach(self, p: Pass, number: int) -> tuple[Kernel, tuple[Tensor, Tensor]] | None:
        """A kernel that finds for every row the first position that counts and the one behind the last, where data say."""
        holds = masks.reaching(p, self.axis, frozenset(self.stages))
        if holds is None:
            return None
        low = self.lowering(())
        span = low.span(holds) - {self.axis}
        grid = [t for t in self.grid if t.axis in span]
        axes = tuple(t.axis for t in grid)
        if frozenset(axes) != span:
            return None
        tile = self.cascade(self.schedule.tile)
        length = position(as_int(self.axis.size))
        found = []
        for word, reducer, start in (("first", Reducer.MIN, length), ("end", Reducer.MAX, const(0, DType.INT64))):
            v = low.declare(low.new(f"{self.axis.name}_{word}", DType.INT64, span))
            low.add(Declare(v, self.first(low, start, "none"), word))
            found.append((v, reducer, start))
        low.open(self.axis)
        low.moving([v for v, _, _ in found], 1)
        news = []
        for v, reducer, start in found:
            at = position(as_int(self.axis) + (1 if reducer is Reducer.MAX else 0))
            element = Apply(Fn.WHERE, (holds, at, start), DType.INT64)
            part = low.reduction(element, reducer, (self.axis,), DType.INT64, f"{v.name}_tile")
            news.append((v.name, low.combine(reducer, v, part, f"{v.name}_new")))
        for name, new in news:
            low.add(Assign(name, new.name))
        body = low.close()
        low.moving([v for v, _, _ in found], 0)
        low.add(Loop(self.axis, self.schedule.tile, At(ZERO), At(as_int(self.axis.size)), body, ""))
        kept = []
        for v, _, _ in found:
            name = f"{v.name}_{number + 1}"
            t = Tensor(name, Kind.SCRATCH, tuple(a.size for a in axes), DType.INT64)
            self.tensors[name] = self.scratch[name, Part.VALUE] = t
            self.reach_axes[name] = axes
            low.add(Store(name, tuple(as_int(a) for a in axes), v.name, axes))
            kept.append(t)
        note = f"where {self.axis.name} counts, by data"
        return self.kernel(low, f"reach{number + 1}", note, grid, [tile], ()), (kept[0], kept[1])

    def reached(self, low: Lowering, found: tuple[Tensor, Tensor]) -> tuple[Bound, Bound]:
        """Bounds of a loop from what the kernel before has found."""
        first, end = (
            low.value(Load(t.name, tuple(as_int(a) for a in self.reach_axes[t.name]), DType.INT64, Part.VALUE))
            for t in found
        )
        return Lowest(first.name), Highest(end.name)

    def stream(
        self,
        low: Lowering,
        p: Pass,
        number: int,
        tile: TileAxis,
        within: tuple[Bound, Bound] | None,
        reach: tuple[Bound, Bound] | None = None,
    ) -> None:
        """The loops of a pass: its steps for every tile."""
        states = self.declare(low, p)
        assert tile.block is not None
        axes = {t.axis: t for t in (*self.grid, *self.fixed)}
        passes = len(self.derivation.passes)
        for piece in masks.pieces(p, self.axis, tile.block, axes, within, frozenset(self.stages), reach):
            low.open(self.axis, piece.full)
            low.ends[self.axis] = tile.first, tile.last
            low.moving(states, 1)
            elements = {s.name: masks.assume(s.element, piece.known) for s in p.steps if isinstance(s, Accumulator)}
            low.expect(e for s in p.steps for e in (_bodies(s, elements)) if e is not None)
            news = [v for s in p.steps for v in self.step(low, s, elements)]
            body = self.close(low, p, states, news)
            note = ", ".join(x for x in (f"pass {number + 1}" if passes > 1 else "", piece.note) if x)
            low.add(Loop(self.axis, tile.block, piece.start, piece.stop, body, note, piece.full))

    @staticmethod
    def close(low: Lowering, p: Pass, states: list[Value], news: list[tuple[str, Value]]) -> tuple[Statement, ...]:
        """The body of a loop over a pass, ended by what its states become; behind it they are read by their names."""
        for name, v in news:
            low.add(Assign(name, v.name))
        body = low.close()
        low.moving(states, 0)
        low.ends.clear()
        for s in p.steps:
            for part in Part:
                if (s.name, True, part) in low.state:
                    low.state[s.name, False, part] = low.state[s.name, True, part]
        return body

    def step(self, low: Lowering, s: Accumulator | Base, elements: dict[str, Expr]) -> list[tuple[str, Value]]:
        """One step of the running update; what its state becomes."""
        old = low.state[s.name, True, Part.VALUE]
        if isinstance(s, Base):
            return [(old.name, self.moved(low, s.name, low.value(s.value, f"{s.name}_new", s.dtype)))]
        element = elements[s.name]
        kept = old if s.correction is None else low.correct(s.correction, s.name)
        if s.reducer.has_index:
            at = low.state[s.name, True, Part.INDEX]
            found, where = low.select(element, s.reducer, self.axis, s.k, f"{s.name}_tile", s.dtype)
            new, index = self.merge_lists(low, s, kept, at, found, where)
            self.moved(low, s.name, index, Part.INDEX)
            return [(old.name, self.moved(low, s.name, new)), (at.name, index)]
        wish = f"{s.name}_new"
        if s.reducer is Reducer.SUM:
            return [
                (
                    old.name,
                    self.moved(low, s.name, low.reduction(element, s.reducer, (self.axis,), s.dtype, wish, kept)),
                )
            ]
        found = low.reduction(element, s.reducer, (self.axis,), s.dtype, f"{s.name}_tile")
        return [(old.name, self.moved(low, s.name, low.combine(s.reducer, kept, found, wish)))]

    @staticmethod
    def moved(low: Lowering, name: str, v: Value, part: Part = Part.VALUE) -> Value:
        low.state[name, False, part] = v
        return v

    @staticmethod
    def merge_lists(
        low: Lowering, s: Accumulator, left: Value, left_index: Value, right: Value, right_index: Value
    ) -> tuple[Value, Value]:
        axes = left.axes | right.axes
        new, index = low.new(f"{s.name}_new", s.dtype, axes), low.new(f"{s.name}_index_new", NO_POSITION.dtype, axes)
        level = len(low.loops)
        op = SelectMerge(new, index, s.reducer, left.name, left_index.name, right.name, right_index.name, s.k)
        low.emit(op, level)
        return new, index

    # -- results along streamed axes ----------------------------------------------------------------------------------
    def sweeps(self, low: Lowering, results: list[Result], done: set[Axis]) -> list[TileAxis]:
        """Loops for each set of results along the same axes; the axes that are new to the kernel."""
        extra: dict[Axis, TileAxis] = {}
        groups: dict[tuple[Axis, ...], list[Result]] = {}
        for r in results:
            groups.setdefault(tuple(a for a in self.swept(r) if a not in low.inner), []).append(r)
        for axes, members in groups.items():
            order = sorted(axes, key=lambda a: a is not self.axis)
            for a in order:
                low.open(a)
                if a not in done:
                    extra.setdefault(a, roles.tile_axis(a, Role.COLUMN, self.sweep_tile(a)))
            self.write(low, members)
            for a in reversed(order):
                body = low.close()
                note = f"results along {a.name}"
                low.add(Loop(a, self.sweep_tile(a), At(ZERO), At(as_int(a.size)), body, note))
        return list(extra.values())

    def sweep_tile(self, axis: Axis) -> int:
        """The tile of an axis that results run along: a few positions where they run along the cascade axis too."""
        together = any(axis in self.swept(r) and self.axis in self.swept(r) for r in self.results)
        return self.schedule.tile if axis is self.axis or not together else min(8, self.schedule.tile)

    # -- multi --------------------------------------------------------------------------------------------------------
    def multi(self) -> list[Kernel]:
        if self.schedule.segments < 1:
            raise ValueError("MULTI needs at least one segment")
        kernels = []
        segment = roles.tile_axis(Axis("segment", as_int(self.schedule.segments)), Role.SEGMENT, 1)
        last = len(self.derivation.passes) - 1
        for n, p in enumerate(self.derivation.passes):
            kernels.append(self.partial(p, n, segment))
            kernels.append(self.merge(p, n, segment, n == last))
        swept = [r for r in self.results if self.swept(r)]
        for n, axes in enumerate(dict.fromkeys(self.swept(r) for r in swept)):
            low = self.lowering()
            self.write(low, [r for r in swept if self.swept(r) == axes])
            kinds = {a: Role.CASCADE if a is self.axis else Role.COLUMN for a in axes}
            grid = (*self.grid, *(roles.tile_axis(a, r, self.sweep_tile(a)) for a, r in kinds.items()))
            note = f"results along {', '.join(a.name for a in axes)}"
            kernels.append(self.kernel(low, f"sweep{n + 1}", note, grid))
        return kernels

    def partial(self, p: Pass, n: int, segment: TileAxis) -> Kernel:
        low = self.lowering()
        tile = self.cascade(self.schedule.tile)
        tiles = (as_int(self.axis.size) + self.schedule.tile - 1) // as_int(self.schedule.tile)
        length = (tiles + self.schedule.segments - 1) // as_int(self.schedule.segments) * self.schedule.tile
        start = as_int(segment.first) * length
        self.stream(low, p, n, tile, (At(start), At(start + length)))
        for s in p.steps:
            if isinstance(s, Accumulator):
                for part, t in self.partials(s, segment).items():
                    axes = (segment.axis, *_state_axes(s))
                    low.add(Store(t.name, tuple(as_int(a) for a in axes), low.state[s.name, True, part].name, axes))
        note = f"one program for each segment of {self.axis.name}"
        return self.kernel(low, f"pass{n + 1}", note, (*self.grid, segment), [tile])

    def partials(self, s: Accumulator, segment: TileAxis) -> dict[Part, Tensor]:
        """Scratch for the partial states of an accumulator."""
        shape = (segment.axis.size, *(a.size for a in _state_axes(s)))
        out = {Part.VALUE: Tensor(f"{s.name}_partial", Kind.SCRATCH, shape, s.dtype)}
        if s.reducer.has_index:
            out[Part.INDEX] = Tensor(f"{s.name}_index_partial", Kind.SCRATCH, shape, NO_POSITION.dtype)
        self.tensors.update((t.name, t) for t in out.values())
        self.scratch_of[s.name] = out
        return out

    def merge(self, p: Pass, n: int, segment: TileAxis, last: bool) -> Kernel:
        """Joins the partial states of a pass, and writes the results that it gives."""
        s = self.schedule
        blocks = replace(s, row=s.merge_row or s.row, column=s.merge_column or s.column)
        grid, fixed = roles.blocks(self.frame, blocks)
        low = self.lowering(fixed)
        listed = any(isinstance(x, Accumulator) and x.reducer.has_index for x in p.steps)
        (self.join_in_order if listed else self.join_at_once)(low, p, segment)
        self.read(low, p)
        if not last or any(self.swept(r) for r in self.results):
            self.keep(low, p)
        if last:
            self.write(low, [r for r in self.results if not self.swept(r)])
        inside = TileAxis(segment.axis, Role.SEGMENT, 1 if listed else None, segment.first, segment.last)
        return self.kernel(low, f"merge{n + 1}", "joins the partial states", grid, [inside], fixed)

    def join_in_order(self, low: Lowering, p: Pass, segment: TileAxis) -> None:
        """One segment after the other, as lists with positions need it."""
        states = self.declare(low, p)
        low.open(segment.axis)
        low.moving(states, 1)
        for s in p.steps:
            self.other(low, s, as_int(segment.first), frozenset())
        low.expect(e for s in p.steps for e in _both_sides(s))
        news = [v for s in p.steps for v in self.joined(low, s)]
        body = self.close(low, p, states, news)
        low.add(Loop(segment.axis, 1, At(ZERO), At(as_int(segment.axis.size)), body, "segments, in order"))

    def join_at_once(self, low: Lowering, p: Pass, segment: TileAxis) -> None:
        """All segments in one tile: each is brought to the joint bases, then they are reduced over the segments."""
        low.inner[segment.axis] = None
        for s in p.steps:
            self.other(low, s, as_int(segment.axis), frozenset((segment.axis,)))
        low.expect(e for s in p.steps for e in _one_side(s))
        for s in p.steps:
            if isinstance(s, Base):
                v = low.value(s.value, s.name, s.dtype)
            else:
                part = low.state[_other(s.name), True, Part.VALUE]
                if s.correction is not None:
                    part = low.correct(_other_side(s.correction, True), part.name)
                v = low.reduction(ref(part.name, part.dtype), s.reducer, (segment.axis,), s.dtype, s.name)
            self.bind(low, s.name, v, Part.VALUE)

    def other(self, low: Lowering, s: Accumulator | Base, at: Int, along: frozenset[Axis]) -> None:
        """The state of segment ``at``, as the old state of the other side; ``along`` are the axes of ``at``."""
        if isinstance(s, Base):
            v = low.value(_other_side(s.value, False), f"{s.name}_part", s.dtype)
            low.state[_other(s.name), True, Part.VALUE] = v
            return
        for part, t in self.scratch_of[s.name].items():
            index = (at, *(as_int(a) for a in _state_axes(s)))
            wish = f"{s.name}_part" if part is Part.VALUE else f"{s.name}_index_part"
            v = low.new(wish, t.dtype, frozenset(_state_axes(s)) | along)
            read = Read(v, t.name, index, tuple(False for _ in index))
            low.emit(read, len(low.loops))
            low.levels[-1].reads.append(read)
            low.state[_other(s.name), True, part] = v

    def joined(self, low: Lowering, s: Accumulator | Base) -> list[tuple[str, Value]]:
        """One step of the merge: both sides brought to the joint bases, then combined."""
        old = low.state[s.name, True, Part.VALUE]
        if isinstance(s, Base):
            return [(old.name, self.moved(low, s.name, low.value(s.value, f"{s.name}_new", s.dtype)))]
        left, right = old, low.state[_other(s.name), True, Part.VALUE]
        if s.correction is not None:
            left = low.correct(s.correction, s.name)
            right = low.correct(_other_side(s.correction, True), s.name)
        if s.reducer.has_index:
            at, other = low.state[s.name, True, Part.INDEX], low.state[_other(s.name), True, Part.INDEX]
            new, index = self.merge_lists(low, s, left, at, right, other)
            self.moved(low, s.name, index, Part.INDEX)
            return [(old.name, self.moved(low, s.name, new)), (at.name, index)]
        return [(old.name, self.moved(low, s.name, low.combine(s.reducer, left, right, f"{s.name}_new")))]

    def keep(self, low: Lowering, p: Pass) -> None:
        """Stores the results of a pass for the kernels that follow."""
        for r in p.reads:
            if r.stage not in self.wanted:
                continue
            stored = low.stages[r.stage]
            for part, v in ((Part.VALUE, stored.value), (Part.INDEX, stored.index)):
                if v is None:
                    continue
                name = f"{r.stage}_result" if part is Part.VALUE else f"{r.stage}_index_result"
                t = Tensor(name, Kind.SCRATCH, tuple(a.size for a in stored.axes), v.dtype)
                self.tensors[name] = self.scratch[r.stage, part] = t
                low.add(Store(name, tuple(as_int(a) for a in stored.axes), v.name, stored.axes))


def _read_stages(region: Region, derivation: Derivation) -> frozenset[str]:
    """The stages whose results something reads: a result of the region, or a later pass."""
    exprs = [*(r.body for r in region.results), *(e.body for e in region.epilogues)]
    for p in derivation.passes:
        exprs += [e for r in p.reads for e in (r.value, r.index) if e is not None]
        exprs += [
            e for s in p.steps for e in _bodies(s, {s.name: s.element} if isinstance(s, Accumulator) else {}) if e
        ]
    return frozenset(x.source for e in exprs for x in loads(e))


def _state_axes(s: Accumulator) -> tuple[Axis, ...]:
    return s.axes if s.k is None else (*s.axes, s.k)


def _bodies(s: Accumulator | Base, elements: dict[str, Expr]) -> tuple[Expr | None, ...]:
    return (s.value,) if isinstance(s, Base) else (s.correction, elements[s.name])


def _both_sides(s: Accumulator | Base) -> tuple[Expr, ...]:
    if isinstance(s, Base):
        return (s.value,)
    return () if s.correction is None else (s.correction, _other_side(s.correction, True))


def _one_side(s: Accumulator | Base) -> tuple[Expr, ...]:
    if isinstance(s, Base):
        return (s.value,)
    return () if s.correction is None else (_other_side(s.correction, True),)


def _at(e: Expr, values: dict[str, Expr]) -> Expr:
    """e with Refs replaced by values: a base before the first tile."""

    def leaf(x: Expr) -> Expr | None:
        if isinstance(x, Ref) and x.name in values:
            v = values[x.name]
            return v if dtype_of(v) is x.dtype else Cast(v, x.dtype)
        return None

    return transform(e, leaf)


def _other(name: str) -> str:
    return f"{name} of the other side"


def _other_side(e: Expr, old_only: bool) -> Expr:
    """e about the state of the segment at hand: its old state, or (a base recomputed from it) all state."""

    def leaf(x: Expr) -> Expr | None:
        return ref(_other(x.name), x.dtype, True, x.part) if isinstance(x, Ref) and (x.old or not old_only) else None

    return transform(e, leaf)


def _named_apart(results: list[Result]) -> tuple[Result, ...]:
    """The results under different names: two may be components of one value, or the same value twice."""
    names = Names()
    return tuple(replace(r, name=names.new(r.name)) for r in results)


def _own_ranks(r: Result, stages: dict[str, Stage]) -> Result:
    """A result along a top-k list, with the axis of the list in place of its own."""
    mapping: dict[Axis, Int] = {}
    for x in loads(r.body):
        k = stages[x.source].k if x.source in stages else None
        at = x.index[-1].axis if x.index else None
        if k is not None and at is not None and at is not k and at in r.axes:
            mapping[at] = as_int(k)
    if not mapping:
        return r
    axes = tuple(dict.fromkeys(mapping[a].axis or a if a in mapping else a for a in r.axes))
    index = tuple(i.substitute(mapping) for i in r.index)
    return replace(r, index=index, axes=axes, body=substitute(r.body, mapping))
