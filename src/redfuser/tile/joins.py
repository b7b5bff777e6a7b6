"""Partial states side by side along an axis become one: each is brought to the joint bases, then they are reduced."""

from __future__ import annotations

from redfuser.algebra.nodes import Accumulator, Base, Pass
from redfuser.index.expr import Expr, Part, Ref, ref, transform
from redfuser.index.ints import Axis
from redfuser.tile.builder import Builder
from redfuser.tile.lower import Lowering


class Joins(Builder):
    def join(self, low: Lowering, p: Pass, axis: Axis) -> None:
        """The state of a pass from partial states along ``axis``, which are those of the other side."""
        low.expect(e for s in p.steps for e in _one_side(s))
        for s in p.steps:
            if isinstance(s, Base):
                v = low.base(s.value, s.name, s.dtype)
            else:
                part = low.state[other(s.name), True, Part.VALUE]
                if s.correction is not None:
                    part = low.correct(other_side(s.correction, True), part.name)
                v = low.reduction(ref(part.name, part.dtype), s.reducer, (axis,), s.dtype, s.name)
            self.bind(low, s.name, v, Part.VALUE)

    def join_lanes(self, low: Lowering, p: Pass, axis: Axis) -> None:
        """The state of a pass from that of its lanes."""
        for s in p.steps:
            del low.state[s.name, False, Part.VALUE]
            low.state[other(s.name), True, Part.VALUE] = low.state.pop((s.name, True, Part.VALUE))
        self.join(low, p, axis)


def other(name: str) -> str:
    return f"{name} of the other side"


def other_side(e: Expr, old_only: bool) -> Expr:
    """e about the partial state at hand: its old state, or (a base recomputed from it) all state."""

    def leaf(x: Expr) -> Expr | None:
        return ref(other(x.name), x.dtype, True, x.part) if isinstance(x, Ref) and (x.old or not old_only) else None

    return transform(e, leaf)


def _one_side(s: Accumulator | Base) -> tuple[Expr, ...]:
    if isinstance(s, Base):
        return (s.value,)
    return () if s.correction is None else (other_side(s.correction, True),)
