"""What fusing a region saves, and the schedule that follows.

The model counts what PyTorch would write and read again: producers and maps of elements (exp of them) along rows
and the cascade axis. It decides only between fused and not, and sizes tiles so that what a tile computes stays in a
core's cache; a backend with measurements may choose otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from redfuser.algebra.nodes import Derivation, Stage
from redfuser.index.expr import Apply, Cast, Expr, dtype_of, free_axes, loads, walk
from redfuser.index.ints import Axis, Int, as_int
from redfuser.index.nodes import Reducer
from redfuser.regions.nodes import Region
from redfuser.tile import dots, roles
from redfuser.tile.identity import result_dtype
from redfuser.tile.nodes import Role, Strategy
from redfuser.tile.strategy import Schedule

THRESHOLD = 2**30
TILE_ELEMENTS = 2**19  # 2 MiB of float32
STATE_ELEMENTS = 2**22
LONGEST_WHOLE = 1024
LONGEST_TILE = 8192


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of intermediates that the fused form does not write, and bytes it must read and write."""

    saved: int
    read: int
    written: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The schedule, or None with UNFUSED; ``reason`` is a sentence. ``measured``: it was chosen by time."""

    strategy: Strategy
    schedule: Schedule | None
    cost: Cost
    reason: str
    measured: bool = False


class _Lengths:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def number(self, i: Int) -> int:
        return i.evaluate({s: self.sizes.get(s.name, s.hint) for s in i.sizes()})

    def count(self, axes: Iterable[Axis]) -> int:
        return math.prod(self.number(as_int(a.size)) for a in axes)


def cost(region: Region, sizes: Mapping[str, int]) -> Cost:
    """The cost of a region at the given lengths (hints where a length is not given).

    A map that a result of the same axes is made of saves nothing: PyTorch makes it in the memory of the result.
    """
    n = _Lengths(sizes)
    axis = region.problem.axis
    producers = {p.name: p for p in region.producers}
    saved = 0
    seen: set[Expr] = {x for r in region.results for x in walk(r.body) if free_axes(x) == frozenset(r.axes)}
    for s in region.problem.stages:
        for e in _operands(s, axis):
            axes = free_axes(e)
            if isinstance(e, Apply | Cast) and e not in seen and axis in axes:
                seen.add(e)
                saved += n.count(axes) * dtype_of(e).bytes
        for x in loads(s.body):
            if x.source in producers and x not in seen:
                seen.add(x)
                p = producers[x.source]
                saved += n.count(free_axes(x)) * p.dtype.bytes
    used = {x.source for s in region.problem.stages for x in loads(s.body)}
    used |= {x.source for p in region.producers for x in loads(p.body)} | {
        x.source for r in region.results for x in loads(r.body)
    }
    read = sum(n.count(i.axes) * i.dtype.bytes for i in region.program.inputs if i.name in used)
    written = sum(math.prod(map(n.number, r.shape)) * r.dtype.bytes for r in region.results)
    return Cost(saved, read, written)


def _operands(s: Stage, axis: Axis) -> tuple[Expr, ...]:
    """What PyTorch would hand to the reduction: the two operands of a dot, or the body."""
    if s.reducer is not Reducer.SUM:
        return (s.body,)
    pair = dots.split(s.body, (axis,), result_dtype(s.reducer, dtype_of(s.body)), free_axes)
    return (s.body,) if pair is None else (pair.left, pair.right)


def choose(
    region: Region,
    derivation: Derivation,
    *,
    sizes: Mapping[str, int] | None = None,
    strategy: Strategy = Strategy.AUTO,
    tile: int = 0,
    segments: int = 0,
    threshold: int = THRESHOLD,
) -> Decision:
    """How a region runs. A ``strategy`` forces; ``tile`` and ``segments`` of 0 are chosen here."""
    sizes = sizes or {}
    c = cost(region, sizes)
    forced = strategy is not Strategy.AUTO
    if not forced and c.saved < threshold:
        reason = f"fusing saves {_bytes(c.saved)} of intermediates, less than the threshold of {_bytes(threshold)}"
        return Decision(Strategy.UNFUSED, None, c, reason)
    if strategy is Strategy.UNFUSED:
        return Decision(Strategy.UNFUSED, None, c, "the option strategy says so")
    length = _Lengths(sizes).count([region.problem.axis])
    why = "the option strategy says so" if forced else f"fusing saves {_bytes(c.saved)} of intermediates"
    if not forced:
        strategy = (
            Strategy.MULTI
            if segments > 1
            else Strategy.WHOLE
            if length <= LONGEST_WHOLE and not tile
            else Strategy.SINGLE
        )
        why += f"; {region.problem.axis.name} has {length} positions"
    return Decision(strategy, schedule(region, derivation, strategy, sizes, tile, segments), c, why)


def schedule(
    region: Region,
    derivation: Derivation,
    strategy: Strategy,
    sizes: Mapping[str, int],
    tile: int = 0,
    segments: int = 0,
) -> Schedule:
    """Block sizes for a strategy: tiles of about TILE_ELEMENTS, states of at most STATE_ELEMENTS."""
    n = _Lengths(sizes)
    kept = roles.frame(region, derivation).kept
    length = n.count([region.problem.axis])
    rows = n.count(a for a, r in kept.items() if r is Role.ROW)
    columns = n.count(a for a, r in kept.items() if r is Role.COLUMN)
    if strategy is Strategy.WHOLE:
        width = length
    else:
        width = tile or min(LONGEST_TILE, _power(length), max(LONGEST_WHOLE, TILE_ELEMENTS // _power(rows)))
    row = max(1, min(rows, TILE_ELEMENTS // max(1, width), 8192))
    column = None if row * columns <= STATE_ELEMENTS else max(64, STATE_ELEMENTS // row)
    if strategy is not Strategy.MULTI:
        return Schedule(strategy, row, width, column)
    tiles = -(-length // width)
    return Schedule(strategy, row, width, column, segments or max(2, min(8, tiles)))


def _power(n: int) -> int:
    """The next power of two."""
    return 1 << max(0, n - 1).bit_length()


def _bytes(n: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} bytes"
