"""Bounds of loops that data give, found by a kernel of their own."""

from __future__ import annotations

from redfuser.algebra.nodes import Pass
from redfuser.index.expr import Apply, DType, Fn, Load, Part, const, position
from redfuser.index.ints import ZERO, as_int
from redfuser.index.nodes import Reducer
from redfuser.tile import masks
from redfuser.tile.builder import Builder
from redfuser.tile.lower import Lowering
from redfuser.tile.nodes import Assign, At, Bound, Declare, Highest, Kernel, Kind, Loop, Lowest, Store, Tensor


class Reaches(Builder):
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
