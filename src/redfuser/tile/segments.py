"""Partial states of segments, and the kernel that joins them."""

from __future__ import annotations

from dataclasses import replace

from redfuser.algebra.nodes import Accumulator, Base, Pass
from redfuser.index.expr import Expr, Part
from redfuser.index.ints import ZERO, Axis, Int, as_int
from redfuser.tile import roles
from redfuser.tile.identity import NO_POSITION
from redfuser.tile.joins import other, other_side
from redfuser.tile.lower import Lowering
from redfuser.tile.nodes import At, Kernel, Kind, Loop, Read, Role, Store, Tensor, TileAxis, Value
from redfuser.tile.stream import Streams


class Segments(Streams):
    def partial(self, p: Pass, n: int, segment: TileAxis) -> Kernel:
        low = self.streaming()
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
            self.part(low, s, as_int(segment.first), frozenset())
        low.expect(e for s in p.steps for e in _both_sides(s))
        news = [v for s in p.steps for v in self.joined(low, s)]
        body = self.close(low, p, states, news)
        low.add(Loop(segment.axis, 1, At(ZERO), At(as_int(segment.axis.size)), body, "segments, in order"))

    def join_at_once(self, low: Lowering, p: Pass, segment: TileAxis) -> None:
        """All segments in one tile."""
        low.inner[segment.axis] = None
        for s in p.steps:
            self.part(low, s, as_int(segment.axis), frozenset((segment.axis,)))
        self.join(low, p, segment.axis)

    def part(self, low: Lowering, s: Accumulator | Base, at: Int, along: frozenset[Axis]) -> None:
        """The state of segment ``at``, as that of the other side; ``along`` are the axes of ``at``."""
        if isinstance(s, Base):
            v = low.base(other_side(s.value, False), f"{s.name}_part", s.dtype)
            low.state[other(s.name), True, Part.VALUE] = v
            return
        for part, t in self.scratch_of[s.name].items():
            index = (at, *(as_int(a) for a in _state_axes(s)))
            wish = f"{s.name}_part" if part is Part.VALUE else f"{s.name}_index_part"
            v = low.new(wish, t.dtype, frozenset(_state_axes(s)) | along)
            read = Read(v, t.name, index, tuple(False for _ in index))
            low.emit(read, len(low.loops))
            low.levels[-1].reads.append(read)
            low.state[other(s.name), True, part] = v

    def joined(self, low: Lowering, s: Accumulator | Base) -> list[tuple[str, Value]]:
        """One step of the merge: both sides brought to the joint bases, then combined."""
        old = low.state[s.name, True, Part.VALUE]
        if isinstance(s, Base):
            return [(old.name, self.moved(low, s.name, low.base(s.value, f"{s.name}_new", s.dtype)))]
        left, right = old, low.state[other(s.name), True, Part.VALUE]
        if s.correction is not None:
            left = low.correct(s.correction, s.name)
            right = low.correct(other_side(s.correction, True), s.name)
        if s.reducer.has_index:
            at, there = low.state[s.name, True, Part.INDEX], low.state[other(s.name), True, Part.INDEX]
            new, index = self.merge_lists(low, s, left, at, right, there)
            self.moved(low, s.name, index, Part.INDEX)
            return [(old.name, self.moved(low, s.name, new)), (at.name, index)]
        return [(old.name, self.moved(low, s.name, low.combine(s.reducer, left, right, f"{s.name}_new")))]


def _state_axes(s: Accumulator) -> tuple[Axis, ...]:
    return s.axes if s.k is None else (*s.axes, s.k)


def _both_sides(s: Accumulator | Base) -> tuple[Expr, ...]:
    if isinstance(s, Base):
        return (s.value,)
    return () if s.correction is None else (s.correction, other_side(s.correction, True))
