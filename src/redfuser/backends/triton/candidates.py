"""Schedules worth measuring for a region: lists in an order that was measured, less what the model rules out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from redfuser.algebra.nodes import Derivation
from redfuser.backends.shape import Shape
from redfuser.backends.triton.emit import emit
from redfuser.backends.triton.layout import power
from redfuser.backends.triton.printed import Form
from redfuser.backends.triton.resources import REGISTERS, Estimate, Machine, microseconds
from redfuser.regions.nodes import Region
from redfuser.tile import roles
from redfuser.tile.build import build
from redfuser.tile.lanes import refusal
from redfuser.tile.nodes import Program, Role, Strategy
from redfuser.tile.strategy import Schedule, Unsupported

LONGEST_WHOLE = 16384
LONGEST_WHOLE_DOT = 512
MOST_SEGMENTS = 1024
LOAD = 16  # bytes that a thread loads at once
ALIGNED = 16  # strides that are multiples of it are known to the compiler to be
MOST = 64  # schedules that fit
LOOKED_AT = 256  # by the model
WIDE = 256  # columns of an accumulator that fill the registers of a program
COARSE = 4.0  # times the shortest time by the model: what takes longer is not measured


class _Shape(Shape):
    """What a GPU's schedules depend on besides: the longest column axis, neighbours in a lane, and sweeps."""

    def __init__(self, region: Region, derivation: Derivation, sizes: Mapping[str, int], precision: str) -> None:
        super().__init__(region, derivation, sizes)
        self.column = max((self.count([a]) for a in self.axes(Role.COLUMN)), default=1)
        self.run = 0 if self.columns > 1 or refusal(region, derivation) else self._run(region)
        self.swept = any(region.problem.axis in r.axes for r in region.results)
        alone = set(self.frame.swept) - {region.problem.axis}
        self.beside = max((self.count([a for a in r.axes if a in alone]) for r in region.results), default=1)
        self.wide = any(d.bytes > 2 for _, dtypes in roles.operands(region, derivation) for d in dtypes)
        self.scalar = self.wide and precision == "ieee"  # dots that tensor cores do not compute

    def _run(self, region: Region) -> int:
        """Neighbours that a lane takes: what one load of a thread holds, where rows are as far apart as such loads need."""
        largest = max(region.program.inputs, key=lambda i: (len(i.axes), i.dtype.bytes))
        return max(1, LOAD // largest.dtype.bytes) if self.length % ALIGNED == 0 else 1


def candidates(
    region: Region, derivation: Derivation, sizes: Mapping[str, int], machine: Machine, *,
    strategy: Strategy = Strategy.AUTO, tile: int = 0, segments: int = 0, precision: str = "ieee",
    dropped: list[str] | None = None,
) -> Iterator[Schedule]:  # fmt: skip
    """Schedules that can be printed, fit the machine and are not ruled out by the model, in the order of the lists
    below; but first comes one that keeps to registers, since it is what runs where nothing is measured. A schedule is
    printed only when it is asked for. ``precision`` is that of float32 dots; ``dropped`` takes the reasons why schedules
    are left out."""
    shape = _Shape(region, derivation, sizes, precision)
    reasons = [] if dropped is None else dropped
    kinds = _dots(shape, machine) if shape.matrix else _rows(shape)
    timed: list[_Timed] = []
    programs: dict[Schedule, Program] = {}
    seen: set[Schedule] = set()
    for n, s in enumerate(itertools.islice(_forced(kinds, shape, machine, strategy, tile, segments), LOOKED_AT)):
        if s in seen or len(timed) >= MOST:
            continue
        seen.add(s)
        plain = _plain(s)
        try:
            if plain not in programs:
                programs[plain] = build(region, derivation, plain)
            time = _time(programs[plain], s, n, sizes, machine, shape.scalar)
        except Unsupported as x:
            reasons.append(str(x))
            continue
        if time is None:
            reasons.append(f"a tile of {s.row} by {s.tile} needs more shared memory or registers than there are")
        else:
            timed.append(time)
    best = min((x.microseconds for x in timed), default=0.0)
    # the model is coarse: it rules out; the order is that of the lists below, which were measured
    timed = sorted((x for x in timed if x.microseconds <= COARSE * best), key=lambda x: x.place)
    obstacles: dict[Schedule, str] = {}

    def printed(x: _Timed) -> bool:
        plain = _plain(x.schedule)
        if plain not in obstacles:
            obstacles[plain] = obstacle(programs[plain], machine)
            if obstacles[plain]:
                reasons.append(obstacles[plain])
        return not obstacles[plain]

    first = next((x for x in timed if x.registers <= REGISTERS and printed(x)), None)
    if first is not None:
        yield first.schedule
    yield from (x.schedule for x in timed if x is not first and printed(x))


@dataclass(frozen=True, slots=True)
class _Timed:
    """A schedule, its place in the lists, and what the model says of it."""

    schedule: Schedule
    place: int
    microseconds: float
    registers: int  # of the kernel that takes most


def obstacle(p: Program, machine: Machine) -> str:
    """What Triton has no form for on a machine; empty where it has one for all of the program."""
    try:
        emit(p, Form(e4m3=machine.e4m3))
    except Unsupported as x:
        return str(x)
    return ""


def _plain(s: Schedule) -> Schedule:
    """What the tile program depends on."""
    return replace(s, warps=0, stages=0, bulk=False)


def _time(
    p: Program, s: Schedule, place: int, sizes: Mapping[str, int], machine: Machine, scalar: bool
) -> _Timed | None:
    needs = [Estimate(k, sizes, s.warps, s.stages).need() for k in p.kernels]
    if scalar:  # products like any others
        needs = [replace(n, scalar=n.scalar + n.tensor, tensor=0.0) for n in needs]
    times = [t for n in needs if (t := microseconds(n, machine, s.warps)) is not None]
    return _Timed(s, place, sum(times), max(n.registers for n in needs)) if len(times) == len(needs) else None


def _forced(
    kinds: Iterator[Schedule], shape: _Shape, machine: Machine, strategy: Strategy, tile: int, segments: int
) -> Iterator[Schedule]:
    """The kinds under the strategies that may pay; numbers of segments beyond the likeliest two come last."""
    later: list[Schedule] = []
    for s in kinds:
        s = replace(s, search_lanes=True)
        if tile:
            s = replace(s, tile=max(16, power(tile)))
        programs = shape.batch * -(-shape.rows // s.row) * (1 if s.column is None else -(-shape.column // s.column))
        tiles = -(-shape.length // s.tile)
        wanted: list[Strategy] = []
        if strategy is not Strategy.AUTO:
            wanted = [strategy]
        else:
            longest = LONGEST_WHOLE_DOT if shape.matrix else LONGEST_WHOLE
            one_tile = not shape.matrix and s.tile >= shape.length
            if (
                shape.length <= longest
                and not tile
                and segments < 2
                and (one_tile or shape.matrix or shape.columns > 1)
            ):
                wanted.append(Strategy.WHOLE)
            if segments < 2 and not (wanted and one_tile):
                wanted.append(Strategy.SINGLE)
            if tiles > 1 and (segments > 1 or programs < 2 * machine.processors):
                wanted.append(Strategy.MULTI)
        for w in wanted:
            if w is Strategy.MULTI:
                times = (2, 1, 4, 8) if shape.columns > WIDE else (8, 4, 16, 2, 1)
                cut = [
                    replace(s, strategy=w, segments=n, merge_row=1, merge_column=_merge_column(shape))
                    for n in ([max(2, segments)] if segments else _segments(programs, tiles, machine, times))
                ]
                yield from cut[:2]
                later += cut[2:]
            elif w is Strategy.WHOLE:
                along = min(4096 // s.row, power(shape.beside))  # positions of results along axes of their own
                yield replace(s, strategy=w, tile=max(128, along), lanes=0, run=1)
            else:
                yield replace(s, strategy=w)
    yield from later


def _merge_column(shape: _Shape) -> int | None:
    return 128 if shape.columns > 128 else None


def _segments(programs: int, tiles: int, machine: Machine, times: Iterable[int]) -> list[int]:
    """Numbers of segments that give every processor so many programs."""
    found = []
    for per_processor in times:
        n = min(tiles, max(2, round(per_processor * machine.processors / programs)), MOST_SEGMENTS)
        if n > 1 and n not in found:
            found.append(n)
    return found or [2]


def _dots(shape: _Shape, machine: Machine) -> Iterator[Schedule]:
    """Tiles for cascades with matrix products."""
    row_sizes = [r for r in (128, 64, 256, 32, 16) if r <= max(16, power(shape.rows))]
    if shape.columns > 512:
        for row, tile, column, warps, stages in (
            (128, 64, 128, 8, 3), (128, 64, 128, 4, 3), (128, 64, 256, 8, 3), (64, 64, 128, 4, 3), (128, 32, 128, 8, 4),
            (64, 128, 128, 4, 3), (16, 128, 64, 4, 4), (16, 64, 128, 4, 4), (32, 128, 64, 4, 3), (128, 128, 128, 8, 2),
        ):  # fmt: skip
            if row in row_sizes:
                yield Schedule(Strategy.SINGLE, row, tile, column, warps=warps, stages=stages)
        return
    if shape.columns > WIDE:  # the accumulator takes the registers of all warps
        for row, tile, warps, stages in (
            (64, 64, 8, 2), (64, 32, 8, 3), (64, 32, 8, 2), (32, 64, 8, 2), (16, 64, 8, 2), (16, 64, 4, 2), (16, 32, 4, 3),
        ):  # fmt: skip
            if row in row_sizes:
                yield Schedule(Strategy.SINGLE, row, tile, None, warps=warps, stages=stages)
    if shape.scalar:  # each thread has its operands in registers: small tiles, or most of them are spilled
        small = (64, 32, 8, 2), (16, 64, 8, 2), (16, 64, 4, 2), (32, 32, 4, 2), (32, 32, 8, 2), (16, 128, 8, 2)
        for row, tile, warps, stages in small if shape.columns <= 64 else (*small[1:], small[0]):
            if row in row_sizes:
                yield Schedule(Strategy.SINGLE, row, tile, None, warps=warps, stages=stages)
    long = shape.length >= 1024 and machine.bulk and 128 in row_sizes
    bulk = (128, 64, 4, 2), (64, 64, 4, 3), (256, 64, 8, 3), (128, 64, 8, 3), (128, 128, 8, 2), (64, 128, 4, 2)
    if shape.wide:  # operands take twice the registers
        bulk = bulk[1], bulk[3], bulk[2], bulk[0], *bulk[4:]
    plain = (
        (64, 64, 4, 3), (128, 64, 8, 3), (64, 32, 4, 3), (256, 64, 8, 3), (128, 64, 4, 2), (128, 128, 8, 2), (128, 64, 4, 3),
        (128, 32, 4, 3), (64, 128, 4, 2), (64, 64, 8, 2), (128, 32, 8, 3), (64, 64, 4, 2), (64, 32, 4, 2), (16, 64, 4, 3),
        (16, 128, 4, 3), (16, 128, 8, 3), (16, 64, 2, 4), (32, 64, 4, 3), (32, 128, 4, 2), (16, 32, 4, 4), (16, 256, 8, 2),
    )  # fmt: skip
    lists = [(True, bulk[:4]), (False, plain), (True, bulk[4:])] if long else [(False, plain)]
    for copied, sizes in lists:
        for row, tile, warps, stages in sizes:
            if row in row_sizes:
                yield Schedule(Strategy.SINGLE, row, tile, None, warps=warps, stages=stages, bulk=copied)


def _rows(shape: _Shape) -> Iterator[Schedule]:
    """Tiles for reductions of rows: a few rows of many elements, or of a matrix each."""
    length = power(shape.length)
    column = min(64, power(shape.column)) if shape.columns > 1 else None
    room = max(1, 16384 // (column or 1))
    if column is not None and shape.products:
        yield from _matrices(shape, column)
    if shape.length <= 1024:
        for elements, warps in ((1024, 4), (4096, 8), (2048, 4), (2048, 8), (1024, 2), (4096, 4), (8192, 8)):
            row = max(1, min(elements // length, power(shape.rows)))
            yield Schedule(Strategy.SINGLE, row, max(16, min(length, room)), column, warps=warps, stages=2)
    elif length <= min(room, LONGEST_WHOLE):
        for row, warps in ((1, 8), (1, 4), (2, 8), (1, 16), (4, 8)):
            if row <= shape.rows and length * row <= 32768:
                yield Schedule(Strategy.SINGLE, row, length, column, warps=warps, stages=2)
    if shape.run and shape.length > 1024:
        lanes: tuple[tuple[int, int, int], ...] = (
            (8192, 8, 1), (4096, 4, 3), (8192, 4, 1), (4096, 4, 1), (8192, 8, 3), (16384, 8, 1), (2048, 2, 3), (16384, 16, 1),
        )  # fmt: skip
        if length <= LONGEST_WHOLE:
            lanes = (4096, 4, 1), (2048, 2, 1), (4096, 2, 1)
        elif shape.swept:  # fewer rows at a time: what is read once more may still be in a cache
            lanes = (32768, 32, 1), (16384, 16, 1), (16384, 32, 1), (8192, 16, 1), *lanes
        for tile, warps, stages in dict.fromkeys(lanes):
            if 32 * warps * shape.run <= tile <= length:
                yield Schedule(Strategy.SINGLE, 1, tile, lanes=32 * warps, run=shape.run, warps=warps, stages=stages)
    for tile, warps, stages in (
        (8192, 4, 2), (4096, 4, 2), (1024, 1, 2), (8192, 8, 2), (2048, 2, 2), (4096, 8, 2), (2048, 4, 3), (16384, 32, 1),
        (8192, 16, 2), (32768, 32, 1), (1024, 4, 3), (16384, 16, 1),
    ):  # fmt: skip
        if tile <= min(room, length):
            yield Schedule(Strategy.SINGLE, 1, tile, column, warps=warps, stages=stages)
    if column is not None and length > 1024 and not shape.products:
        yield from _matrices(shape, column)


def _matrices(shape: _Shape, column: int) -> Iterator[Schedule]:
    """Tiles where each row has a matrix of its own: its rows are read along its columns."""
    sizes = [(64, 4, 3), (128, 4, 2), (128, 8, 2), (256, 8, 2), (64, 4, 2), (32, 4, 3), (256, 4, 2)]
    if shape.columns > WIDE:
        sizes += [(16, 4, 3), (16, 8, 2), (8, 4, 3), (8, 8, 2)]
    for block, (tile, warps, stages) in itertools.product((None, column), sizes):
        if tile * (block or power(shape.columns)) <= 16384:
            yield Schedule(Strategy.SINGLE, 1, tile, block, warps=warps, stages=stages)
