"""What each axis of a region is for, and the blocks of the grid.

q[b, h, i, c] k[b, h, l, c] v[b, h, l, d]     cascade l:   b, h BATCH    i ROW    d COLUMN    c INNER
x[m, k] w[k, n]                               cascade k:   m ROW    n COLUMN
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from redfuser.algebra.nodes import Accumulator, Derivation, Step
from redfuser.index.expr import DType, Expr, Load, Ref, dtype_of, loads, substitute, walk
from redfuser.index.ints import Axis, as_int
from redfuser.index.nodes import Reducer
from redfuser.regions.nodes import Region
from redfuser.tile import dots
from redfuser.tile.identity import result_dtype
from redfuser.tile.nodes import Role, TileAxis
from redfuser.tile.spans import span_of
from redfuser.tile.strategy import Schedule

Spans = tuple[frozenset[Axis], frozenset[Axis]]
Dot = tuple[Spans, tuple[DType, DType]]


@dataclass(frozen=True, slots=True)
class Frame:
    """The axes of a region: ``kept`` by its stages, ``ranks`` of top-k lists, ``swept`` ones in results only."""

    cascade: Axis
    kept: dict[Axis, Role]
    ranks: tuple[Axis, ...]
    swept: tuple[Axis, ...]


def accumulators(d: Derivation) -> Iterator[Accumulator]:
    return (s for p in d.passes for s in p.steps if isinstance(s, Accumulator))


def state_axes(d: Derivation) -> dict[str, frozenset[Axis]]:
    return {s.name: frozenset(s.axes) for p in d.passes for s in p.steps}


def operand_spans(region: Region, d: Derivation) -> Iterator[Spans]:
    """The axes of the two operands of every dot, those of producers included."""
    return (spans for spans, _ in operands(region, d))


def operands(region: Region, d: Derivation) -> Iterator[Dot]:
    """The axes and the dtypes of the two operands of every dot, those of producers included."""
    state = state_axes(d)
    producers = {p.name: p for p in region.producers}
    seen: set[Load] = set()

    def span(e: Expr) -> frozenset[Axis]:
        return span_of(e, lambda r: state.get(r.name, frozenset()))

    def inside(e: Expr) -> Iterator[Dot]:
        for x in loads(e):
            p = producers.get(x.source)
            if p is None or x in seen:
                continue
            seen.add(x)
            body = substitute(p.body, dict(zip(p.axes, x.index, strict=True)))
            yield from one(body, p.reducer, p.over)

    def one(body: Expr, reducer: Reducer, over: tuple[Axis, ...]) -> Iterator[Dot]:
        if reducer is Reducer.SUM:
            dtype = result_dtype(reducer, dtype_of(body))
            pair = dots.split(body, over, dtype, span)
            if pair is not None:
                yield (span(pair.left), span(pair.right)), (dtype_of(pair.left), dtype_of(pair.right))
        yield from inside(body)

    for a in accumulators(d):
        yield from one(a.element, a.reducer, (d.problem.axis,))


def frame(region: Region, d: Derivation) -> Frame:
    axis = region.problem.axis
    kept = list(dict.fromkeys(a for s in region.problem.stages for a in s.axes))
    ranks = tuple(dict.fromkeys(s.k for s in region.problem.stages if s.k is not None))
    columns = _columns(kept, d) | _beside_products(region, d)
    pairs = list(operand_spans(region, d))
    rest = [a for a in kept if a not in columns]
    if not rest and columns:
        rest = [next(a for a in kept if a in columns)]
        columns -= set(rest)
    roles: dict[Axis, Role] = {}
    for a in kept:
        if a in columns:
            roles[a] = Role.COLUMN
        elif pairs:
            roles[a] = Role.BATCH if all(a in x and a in y for x, y in pairs) else Role.ROW
        else:
            roles[a] = Role.ROW if a is rest[-1] else Role.BATCH
    swept = dict.fromkeys(a for r in region.results for a in r.axes if a not in roles and a not in ranks)
    return Frame(axis, roles, ranks, tuple(swept))


def _columns(kept: list[Axis], d: Derivation) -> set[Axis]:
    """Kept axes that some accumulator lacks, where no step that lacks them reads a step that has them."""
    steps = [s for p in d.passes for s in p.steps if s.axes]
    reads = {s.name: _reads(s, steps) for s in steps}
    out = set()
    for a in kept:
        owners = {s.name for s in steps if a in s.axes}
        without = [s for s in steps if a not in s.axes]
        if any(isinstance(s, Accumulator) for s in without) and not any(reads[s.name] & owners for s in without):
            out.add(a)
    return out


def _beside_products(region: Region, d: Derivation) -> set[Axis]:
    """Kept axes of accumulators that lack in a producer which they read: it is computed once for all of them."""
    producers = {p.name for p in region.producers}
    out: set[Axis] = set()
    for s in accumulators(d):
        for x in loads(s.element):
            if x.source in producers:
                out |= set(s.axes).difference(*(i.axes() for i in x.index))
    return out


def _reads(s: Step, steps: list[Step]) -> set[str]:
    exprs = (s.element, s.correction) if isinstance(s, Accumulator) else (s.value,)
    found = [x for e in exprs if e is not None for x in walk(e)]
    stages = {x.source for x in found if isinstance(x, Load)}
    return {x.name for x in found if isinstance(x, Ref)} | {t.name for t in steps if t.stage in stages}


def tile_axis(axis: Axis, role: Role, block: int | None) -> TileAxis:
    return TileAxis(axis, role, block, Axis(f"{axis.name}.first", axis.size), Axis(f"{axis.name}.last", axis.size))


def _fixed(axis: Axis) -> int | None:
    return as_int(axis.size).value


def blocks(f: Frame, schedule: Schedule) -> tuple[tuple[TileAxis, ...], tuple[TileAxis, ...]]:
    """The grid, and the kept axes that stay whole inside a tile.

    Small row axes fill the row block first; one whose length is known only at the call takes what is left.
    """
    size: dict[Axis, int | None] = {}
    left = max(1, schedule.row)
    for a in sorted((a for a, r in f.kept.items() if r is Role.ROW), key=lambda a: (_fixed(a) is None, _fixed(a) or 0)):
        length = _fixed(a)
        taken = left if length is None else max(1, min(left, length))
        size[a] = taken
        left = max(1, left // taken)
    for a, r in f.kept.items():
        if r is Role.BATCH:
            size[a] = 1
        elif r is Role.COLUMN:
            size[a] = schedule.column
    grid = tuple(tile_axis(a, r, size[a]) for a, r in f.kept.items() if size[a] is not None)
    whole = tuple(tile_axis(a, r, None) for a, r in f.kept.items() if size[a] is None)
    return grid, (*whole, *(tile_axis(a, Role.RANK, None) for a in f.ranks))
