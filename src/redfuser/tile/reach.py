"""Bounds of loops that data give, found by a kernel of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from redfuser.algebra.nodes import Pass
from redfuser.index.expr import Apply, Cast, Const, DType, Expr, Fn, Load, Part, const, dtype_of, position, ref
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
from redfuser.tile.ranges import Comparison, comparison

AT = DType.INT32
NONE, ONE = const(0, AT), const(1, AT)
Known = tuple[Expr, bool]


@dataclass(frozen=True, slots=True)
class Cut:
    """A tile of the search, which only compares."""

    rows: int
    lanes: int
    run: int


RUNS, POSITIONS = Cut(32, 32, 16), Cut(16, 32, 8)


@dataclass(frozen=True, slots=True)
class Searched:
    """A number that is searched for: what it becomes is found by ``reducer`` from ``start``."""

    word: str
    reducer: Reducer
    start: Expr


@dataclass(frozen=True, slots=True)
class Found:
    """The search, and the numbers that it keeps for each row, along ``axes``: no position counts outside ``first`` to
    ``end``, and all of those from ``open_first`` to ``open_end`` do."""

    kernel: Kernel
    axes: tuple[Axis, ...]
    first: Tensor
    end: Tensor
    open_first: Tensor
    open_end: Tensor
    known: tuple[Known, ...]


class Reaches(Builder):
    def reach(self, p: Pass, number: int) -> Found | None:
        """The search for the positions that count in each row, where data say so: by the ranges of runs of positions
        where these tell, else position by position."""
        known = masks.reaching(p, self.axis, frozenset(self.stages))
        if not known:
            return None
        low = self.lowering(())
        compared = [c for e, truth in known if (c := comparison(e, truth, self.axis, low.span)) is not None]
        by_runs = len(compared) == len(known)
        cut = RUNS if by_runs else POSITIONS
        span = frozenset[Axis]().union(*(low.span(c) for c, _ in known)) - {self.axis}
        grid = [t if t.role is not Role.ROW else roles.tile_axis(t.axis, t.role, cut.rows) for t in self.grid]
        grid = [t for t in grid if t.axis in span]
        if frozenset(t.axis for t in grid) != span:
            return None
        far = Cast(position(as_int(self.axis.size)), AT)
        outer = [Searched("first", Reducer.MIN, far), Searched("end", Reducer.MAX, NONE)]
        inner = [Searched("open_first", Reducer.MIN, far), Searched("open_end", Reducer.MAX, NONE)] if by_runs else []
        searched = [*outer, *inner, Searched("open_count", Reducer.SUM, NONE)]

        def elements() -> list[Expr]:
            return self.of_run(low, compared) if by_runs else self.of_position(known)

        if self.schedule.search_lanes:
            low.lanes, low.tile = Lanes(Axis("lane", as_int(cut.lanes)), self.axis, cut.run), cut.lanes * cut.run
        found = dict(zip((s.word for s in searched), self.search(low, searched, elements, span, cut), strict=True))
        first, end, count = found["first"], found["end"], found["open_count"]
        open_first, open_end = found.get("open_first", first), found.get("open_end", end)
        gapless = Apply(Fn.EQ, (_sub(_ref(open_end), _ref(open_first)), _ref(count)), DType.BOOL)
        stop = low.value(_where(gapless, _ref(open_end), _ref(open_first)), f"{self.axis.name}_open_stop")
        axes = tuple(t.axis for t in grid)
        kept = {v.name: self.kept(low, v, axes, number) for v in (first, end, open_first, stop)}
        note = f"where {self.axis.name} counts, by data"
        tile = self.cascade(cut.run * (cut.lanes if low.lanes is not None else 1))
        kernel = self.kernel(low, f"reach{number + 1}", note, grid, [tile], ())
        return Found(
            kernel, axes, kept[first.name], kept[end.name], kept[open_first.name], kept[stop.name], tuple(known)
        )

    def search(
        self, low: Lowering, searched: Sequence[Searched], elements: Callable[[], list[Expr]],
        span: frozenset[Axis], cut: Cut,
    ) -> list[Value]:  # fmt: skip
        """The numbers after the last tile. ``elements`` are what the positions of a tile give to each."""
        lanes = frozenset[Axis]() if low.lanes is None else frozenset((low.lanes.axis,))
        states = []
        for s in searched:
            v = low.declare(low.new(f"{self.axis.name}_{s.word}{'_lanes' * bool(lanes)}", AT, span | lanes))
            low.add(Declare(v, self.first(low, s.start, "none"), s.word.replace("_", " ")))
            states.append(v)
        low.open(self.axis)
        low.moving(states, 1)
        news = []
        given = elements()
        low.expect(given)
        for v, s, e in zip(states, searched, given, strict=True):
            part = low.value(e, f"{v.name}_tile")
            if self.axis in part.axes:
                part = low.reduction(e, s.reducer, (self.axis,), AT, f"{v.name}_tile")
            news.append((v.name, low.combine(s.reducer, v, part, f"{v.name}_new")))
        for name, new in news:
            low.add(Assign(name, new.name))
        body = low.close()
        low.moving(states, 0)
        tile = cut.run * (cut.lanes if lanes else 1)
        low.add(Loop(self.axis, tile, At(ZERO), At(as_int(self.axis.size)), body, ""))
        if not lanes:
            return states
        return [
            low.reduction(_ref(v), s.reducer, tuple(lanes), AT, f"{self.axis.name}_{s.word}")
            for v, s in zip(states, searched, strict=True)
        ]

    def of_position(self, known: Sequence[Known]) -> list[Expr]:
        """What one position gives to the first one, the end and the count."""
        holds = _all([c if truth else Apply(Fn.NOT, (c,), DType.BOOL) for c, truth in known])
        here, far = self.here, Cast(position(as_int(self.axis.size)), AT)
        return [_where(holds, here, far), _where(holds, _add(here, ONE), NONE), _where(holds, ONE, NONE)]

    def of_run(self, low: Lowering, compared: Sequence[Comparison]) -> list[Expr]:
        """What a run gives to the first one that may count and the end of these, and to the first one, the end and the
        count of those that do."""

        def reduced(e: Expr, reducer: Reducer, word: str) -> Expr:
            return _ref(low.reduction(e, reducer, (self.axis,), dtype_of(e), f"{self.axis.name}_{word}"))

        here, far = self.here, Cast(position(as_int(self.axis.size)), AT)
        start, stop = reduced(here, Reducer.MIN, "start"), reduced(_add(here, ONE), Reducer.MAX, "stop")
        ranges = [(reduced(c.along, Reducer.MIN, "low"), reduced(c.along, Reducer.MAX, "high")) for c in compared]
        some = _all([c.some(*r) for c, r in zip(compared, ranges, strict=True)])
        filled = Apply(Fn.LT, (start, stop), DType.BOOL)  # behind the end of the axis it is not
        each = _all([filled, *(c.each(*r) for c, r in zip(compared, ranges, strict=True))])
        return [
            _where(some, start, far), _where(some, stop, NONE),
            _where(each, start, far), _where(each, stop, NONE), _where(each, _sub(stop, start), NONE),
        ]  # fmt: skip

    @property
    def here(self) -> Expr:
        return Cast(position(as_int(self.axis)), AT)

    def kept(self, low: Lowering, v: Value, axes: tuple[Axis, ...], number: int) -> Tensor:
        name = f"{v.name}_{number + 1}"
        t = Tensor(name, Kind.SCRATCH, tuple(a.size for a in axes), AT)
        self.tensors[name] = self.scratch[name, Part.VALUE] = t
        low.add(Store(name, tuple(as_int(a) for a in axes), v.name, axes))
        return t

    def reached(self, low: Lowering, found: Found) -> masks.Reach:
        """Bounds of a loop from what the search has found."""
        first, end, open_first, open_end = (
            low.value(Load(t.name, tuple(as_int(a) for a in found.axes), AT, Part.VALUE)).name
            for t in (found.first, found.end, found.open_first, found.open_end)
        )
        return masks.Reach(Lowest(first), Highest(end), Highest(open_first), Lowest(open_end), dict(found.known))


def _ref(v: Value) -> Expr:
    return ref(v.name, v.dtype)


def _add(a: Expr, b: Expr) -> Expr:
    return Apply(Fn.ADD, (a, b), AT)


def _sub(a: Expr, b: Expr) -> Expr:
    return Apply(Fn.SUB, (a, b), AT)


def _where(condition: Expr, yes: Expr, no: Const | Expr) -> Expr:
    return Apply(Fn.WHERE, (condition, yes, no), AT)


def _all(conditions: Sequence[Expr]) -> Expr:
    """All conditions together."""
    out = conditions[0]
    for c in conditions[1:]:
        out = Apply(Fn.AND, (out, c), DType.BOOL)
    return out
