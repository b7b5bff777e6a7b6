"""The loops of a pass: the running update for every tile of the cascade axis."""

from __future__ import annotations

from redfuser.algebra.nodes import Accumulator, Base, Pass
from redfuser.index.expr import Expr, Part
from redfuser.index.nodes import Reducer
from redfuser.tile import masks
from redfuser.tile.builder import bodies
from redfuser.tile.identity import NO_POSITION
from redfuser.tile.joins import Joins
from redfuser.tile.lower import Lowering
from redfuser.tile.nodes import Assign, Bound, Loop, SelectMerge, Statement, TileAxis, Value


class Streams(Joins):
    def stream(
        self,
        low: Lowering,
        p: Pass,
        number: int,
        tile: TileAxis,
        within: tuple[Bound, Bound] | None,
        reach: masks.Reach | None = None,
    ) -> None:
        """The loops of a pass: its steps for every tile. Behind them lanes are joined."""
        states = self.declare(low, p)
        assert tile.block is not None
        axes = {t.axis: t for t in (*self.grid, *self.fixed)}
        passes = len(self.derivation.passes)
        for piece in masks.pieces(p, self.axis, tile.block, axes, within, frozenset(self.stages), reach):
            low.open(self.axis, piece.full)
            low.ends[self.axis] = tile.first, tile.last
            low.moving(states, 1)
            elements = {s.name: masks.assume(s.element, piece.known) for s in p.steps if isinstance(s, Accumulator)}
            low.expect(e for s in p.steps for e in (bodies(s, elements)) if e is not None)
            news = [v for s in p.steps for v in self.step(low, s, elements)]
            body = self.close(low, p, states, news)
            note = ", ".join(x for x in (f"pass {number + 1}" if passes > 1 else "", piece.note) if x)
            low.add(Loop(self.axis, tile.block, piece.start, piece.stop, body, note, piece.full))
        if low.lanes is not None:
            self.join_lanes(low, p, low.lanes.axis)

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
            return [(old.name, self.moved(low, s.name, low.base(s.value, f"{s.name}_new", s.dtype)))]
        element = elements[s.name]
        kept = old if s.correction is None else low.correct(s.correction, old.name)
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
