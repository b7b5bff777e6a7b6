"""From a region and its derivation to a tile program, under a schedule.

WHOLE    one kernel: the plain reductions over a whole axis in the tile
SINGLE   one kernel: a loop with the running update for each pass, then the results
MULTI    for each pass a kernel over segments that stores partial states, and a kernel that merges them in order;
         then a kernel for the results that keep the cascade axis
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from redfuser.algebra.nodes import Accumulator, Base, Derivation, Pass, Stage, Treatment
from redfuser.index.expr import Part, dtype_of
from redfuser.index.ints import ZERO, Axis, as_int
from redfuser.regions.nodes import Region, Result
from redfuser.tile import roles
from redfuser.tile.identity import result_dtype
from redfuser.tile.lower import Lowering, Stored
from redfuser.tile.nodes import At, Kernel, Loop, Program, Role, Strategy, TileAxis
from redfuser.tile.reach import Reaches
from redfuser.tile.segments import Segments
from redfuser.tile.strategy import Schedule
from redfuser.tile.verify import verify


def build(region: Region, derivation: Derivation, schedule: Schedule, name: str = "cascade") -> Program:
    """The tile program, verified. Raises Unsupported where there is none for this region."""
    builder = _Strategies(region, derivation, schedule)
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


class _Strategies(Reaches, Segments):
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
                self.bind(low, s.name, low.base(s.value, s.name, s.dtype), Part.VALUE)
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
        low = self.streaming()
        tile = self.cascade(self.schedule.tile)
        for n, p in enumerate(self.derivation.passes):
            found = reaches[n]
            self.stream(low, p, n, tile, None, None if found is None else self.reached(low, found))
            self.read(low, p)
        self.write(low, [r for r in self.results if not self.swept(r)])
        extra = self.sweeps(low, [r for r in self.results if self.swept(r)], {self.axis})
        note = f"one program streams {self.axis.name}"
        main = self.kernel(low, "single", note, self.grid, [tile, *extra])
        return [*(found.kernel for found in reaches if found is not None), main]

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
            kernels.append(replace(self.kernel(low, f"sweep{n + 1}", note, grid), backwards=self.axis in axes))
        return kernels

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
                again = a is self.axis
                low.add(Loop(a, self.sweep_tile(a), At(ZERO), At(as_int(a.size)), body, note, backwards=again))
        return list(extra.values())

    def sweep_tile(self, axis: Axis) -> int:
        return self.schedule.tile if axis is self.axis else self.sweep_tiles[axis]

    @cached_property
    def sweep_tiles(self) -> dict[Axis, int]:
        """Tiles of the axes that results alone run along: together as many positions as one of the cascade axis has, or
        a few where they run along the cascade axis too. The axis whose neighbours are closest in memory comes first."""
        tiles: dict[Axis, int] = {}
        for r in self.results:
            along = [a for a in self.swept(r) if a is not self.axis]
            left = min(8, self.schedule.tile) if self.axis in r.axes else self.schedule.tile
            for a in sorted(along, key=lambda a: max(n for n, i in enumerate(r.index) if a in i.axes()), reverse=True):
                length = as_int(a.size).value
                found = left if length is None else min(left, 1 << max(0, length - 1).bit_length())
                tiles[a] = min(found, tiles.get(a, found))
                left = max(1, left // found)
        return tiles
