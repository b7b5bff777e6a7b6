"""Schedules worth measuring on a CPU, the likeliest first. A kernel takes a second to compile, so they are few.

matrix products over many rows     rows in lanes, blocks of 64 rows by tiles that stay in the second-level cache
weights wider than a block         columns in lanes, as they lie in memory
few rows                           features and the cascade axis in lanes, the axis cut so that every thread has work
rows of their own                  the cascade axis in lanes; many short rows side by side instead
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from redfuser.algebra.nodes import Derivation
from redfuser.backends.shape import Shape
from redfuser.index.ints import as_int
from redfuser.regions.nodes import Region
from redfuser.tile.nodes import Role, Strategy
from redfuser.tile.strategy import Schedule

LONGEST_WHOLE = 32768  # elements of a row that are kept in the cache between the reductions over them
LONGEST_LANES = 1024  # of a row that many rows side by side leave room for
WIDE = 512  # columns of a matrix of weights
ROWS = 16  # that fill vectors
MOST_SEGMENTS = 64


class _Shape(Shape):
    """What a CPU's schedules depend on besides. Blocks of a length that is known at the call only are as for a long one,
    so that one compilation serves all lengths."""

    def __init__(self, region: Region, derivation: Derivation, sizes: Mapping[str, int]) -> None:
        super().__init__(region, derivation, sizes)
        self.column_axes = bool(self.axes(Role.COLUMN))
        self.lists = bool(self.frame.ranks)
        self._open_rows = any(as_int(a.size).value is None for a in self.axes(Role.ROW))
        self._open_length = as_int(region.problem.axis.size).value is None

    def row(self, most: int) -> int:
        """Rows of a block of at most so many."""
        return most if self._open_rows and self.rows > 1 else min(most, self.rows)

    def tile(self, most: int) -> int:
        """Positions of a tile of at most so many."""
        return most if self._open_length else min(most, self.length)


def candidates(
    region: Region, derivation: Derivation, sizes: Mapping[str, int], threads: int, *,
    strategy: Strategy = Strategy.AUTO, tile: int = 0, segments: int = 0,
) -> list[Schedule]:  # fmt: skip
    shape = _Shape(region, derivation, sizes)
    found: list[Schedule] = []
    for s in _all(shape, threads, segments):
        if strategy not in (Strategy.AUTO, s.strategy):
            continue
        s = replace(s, tile=tile) if tile else s
        if segments > 1 and s.strategy is not Strategy.MULTI and strategy is Strategy.AUTO:
            continue
        if tile and s.strategy is Strategy.WHOLE and strategy is Strategy.AUTO:
            continue
        if s not in found:
            found.append(s)
    if not found:  # a strategy that is not among the likely ones, but asked for
        row = shape.row(64) if shape.matrix else 1
        wanted = strategy if strategy is not Strategy.AUTO else Strategy.MULTI if segments > 1 else Strategy.SINGLE
        found.append(Schedule(wanted, row, tile or 256, None, segments or (2 if wanted is Strategy.MULTI else 1)))
    return found


def _all(shape: _Shape, threads: int, segments: int) -> Iterator[Schedule]:
    if shape.matrix and shape.rows >= ROWS:
        yield from _matrix(shape, threads)
    elif shape.products:
        yield from _few_rows(shape, threads, segments)
    else:
        yield from _rows(shape, threads, segments)


def _matrix(shape: _Shape, threads: int) -> Iterator[Schedule]:
    points, tiles = shape.batch * -(-shape.rows // 64), -(-shape.length // 128)
    if points < 2 * threads and tiles > 1:
        for n in _segments(points, tiles, threads):
            yield Schedule(Strategy.MULTI, shape.row(64), 128, None, n, vector=Role.ROW)
    if shape.columns >= WIDE:
        for row in (256, 128):
            yield Schedule(Strategy.SINGLE, shape.row(row), 256, None, vector=Role.COLUMN)
        yield Schedule(Strategy.SINGLE, 64, 256, 256)
        return
    for row, tile in ((64, 128), (64, 64), (128, 64)):
        if row == 64 or shape.rows >= row:
            yield Schedule(Strategy.SINGLE, shape.row(row), max(16, shape.tile(tile)), None, vector=Role.ROW)


def _few_rows(shape: _Shape, threads: int, segments: int) -> Iterator[Schedule]:
    tile = 256
    row = shape.row(8)
    points = shape.batch * -(-shape.rows // row)
    tiles = -(-shape.length // tile)
    if tiles > 1 and (points < 4 * threads or segments > 1):
        for n in [segments] if segments > 1 else _segments(points, tiles, threads):
            yield Schedule(Strategy.MULTI, row, tile, None, n, vector=Role.COLUMN)
    if points * 4 >= threads or tiles == 1:
        yield Schedule(Strategy.SINGLE, row, tile, None, vector=Role.COLUMN)


def _segments(points: int, tiles: int, threads: int) -> list[int]:
    """Numbers of segments that give every thread one piece of work, or several."""
    found = []
    for times in (4, 1):
        n = min(tiles, MOST_SEGMENTS, max(1, -(-times * threads // points)))
        if n > 1 and n not in found:
            found.append(n)
    return found


def _rows(shape: _Shape, threads: int, segments: int) -> Iterator[Schedule]:
    points = shape.batch * shape.rows
    tile = 8192
    tiles = -(-shape.length // tile)
    if shape.length <= LONGEST_LANES and shape.rows >= 4 * ROWS and not shape.column_axes:
        across = Schedule(Strategy.WHOLE, 64, 128, None, vector=Role.ROW)
        own = Schedule(Strategy.WHOLE, 1, 128, None, vector=Role.CASCADE)
        yield from (across, own) if shape.lists or shape.length < 64 else (own, across)
        return
    if tiles > 1 and (points < 4 * threads or segments > 1):
        for n in [segments] if segments > 1 else _segments(points, tiles, threads):
            yield Schedule(Strategy.MULTI, 1, tile, None, n, vector=Role.CASCADE)
    if shape.length <= LONGEST_WHOLE:
        yield Schedule(Strategy.WHOLE, 1, 128, None, vector=Role.CASCADE)
    if shape.length > 1024:
        yield Schedule(Strategy.SINGLE, 1, shape.tile(tile), None, vector=Role.CASCADE)
        if shape.length > 4096:
            yield Schedule(Strategy.SINGLE, 1, 4096, None, vector=Role.CASCADE)
