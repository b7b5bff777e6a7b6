"""Bounds of loops that data give, found by a kernel of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redfuser.algebra.nodes import Pass
from redfuser.index.expr import Apply, Cast, DType, Expr, Fn, Load, Part, const, position, ref
from redfuser.index.ints import ZERO, Axis, as_int
from redfuser.index.nodes import Reducer
from redfuser.tile import masks, roles
from redfuser.tile.builder import Builder
from redfuser.tile.lower import Lowering
from redfuser.tile.nodes import (
    Assign,
    At,
    Declare,
    Highest,
    Kernel,
    Kind,
    Lanes,
    Loop,
    Lowest,
    Role,
    Store,
    Tensor,
    Value,
)

ROWS, LANES, RUN = 16, 32, 8  # a tile of the search: it only compares
TILE = LANES * RUN
AT = DType.INT32


@dataclass(frozen=True, slots=True)
class Found:
    """The search, and what it ``kept`` for each row, along ``axes``: the first position that counts, the one behind the
    last, and the latter once more where all between them count, else the former."""

    kernel: Kernel
    axes: tuple[Axis, ...]
    kept: tuple[Tensor, ...]
    known: tuple[tuple[Expr, bool], ...]


class Reaches(Builder):
    def reach(self, p: Pass, number: int) -> Found | None:
        """The search for the positions that count in each row, where data say so."""
        known = masks.reaching(p, self.axis, frozenset(self.stages))
        if not known:
            return None
        holds = _all(known)
        low = self.lowering(())
        if self.schedule.search_lanes:
            low.lanes, low.tile = Lanes(Axis("lane", as_int(LANES)), self.axis, RUN), TILE
        lanes = frozenset[Axis]() if low.lanes is None else frozenset((low.lanes.axis,))
        span = low.span(holds) - {self.axis} - lanes
        grid = [t if t.role is not Role.ROW else roles.tile_axis(t.axis, t.role, ROWS) for t in self.grid]
        grid = [t for t in grid if t.axis in span]
        axes = tuple(t.axis for t in grid)
        if frozenset(axes) != span:
            return None
        zero, one = const(0, AT), const(1, AT)
        at = position(as_int(self.axis))
        kept_apart = span | lanes
        searched = [
            self.searched(low, "first", Reducer.MIN, Cast(position(as_int(self.axis.size)), AT), kept_apart),
            self.searched(low, "end", Reducer.MAX, zero, kept_apart),
            self.searched(low, "count", Reducer.SUM, zero, kept_apart),
        ]
        here = Cast(at, AT)
        elements: tuple[Expr, ...] = (here, Apply(Fn.ADD, (here, one), AT), one)
        low.open(self.axis)
        low.moving([v for v, _, _ in searched], 1)
        news = []
        for (v, reducer, start), element in zip(searched, elements, strict=True):
            counted = Apply(Fn.WHERE, (holds, element, start), AT)
            part = low.reduction(counted, reducer, (self.axis,), AT, f"{v.name}_tile")
            news.append((v.name, low.combine(reducer, v, part, f"{v.name}_new")))
        for name, new in news:
            low.add(Assign(name, new.name))
        body = low.close()
        low.moving([v for v, _, _ in searched], 0)
        low.add(Loop(self.axis, TILE, At(ZERO), At(as_int(self.axis.size)), body, ""))
        first, end, count = (
            low.reduction(ref(v.name, AT), reducer, tuple(lanes), AT, f"{self.axis.name}_{word}") if lanes else v
            for (v, reducer, _), word in zip(searched, ("first", "end", "count"), strict=True)
        )
        a, b, n = (ref(v.name, AT) for v in (first, end, count))
        gapless = Apply(Fn.EQ, (Apply(Fn.SUB, (b, a), AT), n), DType.BOOL)
        open_end = low.value(Apply(Fn.WHERE, (gapless, b, a), AT), f"{self.axis.name}_open_end")
        kept = tuple(self.kept(low, v, axes, number) for v in (first, end, open_end))
        note = f"where {self.axis.name} counts, by data"
        kernel = self.kernel(low, f"reach{number + 1}", note, grid, [self.cascade(TILE)], ())
        return Found(kernel, axes, kept, tuple(known))

    def searched(
        self, low: Lowering, word: str, reducer: Reducer, start: Expr, span: frozenset[Axis]
    ) -> tuple[Value, Reducer, Expr]:
        v = low.declare(low.new(f"{self.axis.name}_{word}{'_lanes' * (low.lanes is not None)}", AT, span))
        low.add(Declare(v, self.first(low, start, "none"), word))
        return v, reducer, start

    def kept(self, low: Lowering, v: Value, axes: tuple[Axis, ...], number: int) -> Tensor:
        name = f"{v.name}_{number + 1}"
        t = Tensor(name, Kind.SCRATCH, tuple(a.size for a in axes), AT)
        self.tensors[name] = self.scratch[name, Part.VALUE] = t
        low.add(Store(name, tuple(as_int(a) for a in axes), v.name, axes))
        return t

    def reached(self, low: Lowering, found: Found) -> masks.Reach:
        """Bounds of a loop from what the search has found."""
        first, end, open_end = (
            low.value(Load(t.name, tuple(as_int(a) for a in found.axes), AT, Part.VALUE)).name for t in found.kept
        )
        return masks.Reach(Lowest(first), Highest(end), Highest(first), Lowest(open_end), dict(found.known))


def _all(known: Sequence[tuple[Expr, bool]]) -> Expr:
    """All conditions together."""
    out: Expr | None = None
    for c, truth in known:
        needed = c if truth else Apply(Fn.NOT, (c,), DType.BOOL)
        out = needed if out is None else Apply(Fn.AND, (out, needed), DType.BOOL)
    assert out is not None
    return out
