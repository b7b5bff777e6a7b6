"""Axes of a tile as dimensions of Triton blocks.

Row axes are flattened into one dimension, and so are axes that are contracted together: a dot has two dimensions an
operand. A block's length is a power of two; an axis that is whole in a tile is cut in pieces that are:

    80 = 64 + 16      96 = 64 + 32      576 = 512 + 64      60 = 64, masked beyond 60

An axis that is dealt to lanes has a dimension for the lane and one within a run, in a piece for each turn; without runs
the other one is the turn. Triton gives a thread neighbours, and neighbouring lanes to neighbouring threads: what is
reduced within a lane stays in a thread. (Of three dimensions it takes the second in an order that versions differ in.)
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Mapping
from dataclasses import dataclass

from redfuser.backends.triton import functions
from redfuser.index.ints import Axis, Int, as_int, product
from redfuser.tile.names import Names
from redfuser.tile.nodes import Dot, Kernel, Lanes, Role, Select, SelectMerge, TileAxis, Value, outputs_of
from redfuser.tile.strategy import Unsupported
from redfuser.tile.uses import every

RESERVED = ("tl", "triton", "torch", "range", "float", "pid", *keyword.kwlist, *functions.NAMES)
SMALLEST = 16  # the shortest side of a dot
MOST_TURNS = 16  # pieces of a tile that is dealt to lanes
LONGEST_WHOLE = 2**17  # elements of an axis that is whole in a tile


@dataclass(frozen=True, slots=True)
class Piece:
    """Positions ``start`` to ``start + valid`` of a dimension, in a block of ``length`` (a number or a constexpr)."""

    start: int
    length: int | str
    valid: int | None


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of blocks: ``axes`` flattened, the last one fastest."""

    name: str
    role: Role
    axes: tuple[Axis, ...]
    pieces: tuple[Piece, ...]
    rank: int  # its place among the dimensions of a value

    @property
    def extent(self) -> Int:
        return product(as_int(a.size) for a in self.axes)

    @property
    def whole(self) -> bool:
        """True when every position of the axis is in the tile."""
        return self.role in (Role.INNER, Role.RANK) or self.pieces[0].valid is not None or len(self.pieces) > 1


def power(n: int) -> int:
    """The next power of two."""
    return 1 << max(0, n - 1).bit_length()


def pieces(n: int, smallest: int, cut: bool) -> tuple[Piece, ...]:
    """Blocks for ``n`` positions; ``cut``: several of them where one would be mostly padding."""
    if not cut or power(n) <= max(smallest, n + n // 8):
        return (Piece(0, max(smallest, power(n)), n),)
    out: list[Piece] = []
    start = 0
    while n:
        length = power(n) if len(out) == 2 or power(n) <= n + n // 8 or n < smallest else power(n) // 2
        out.append(Piece(start, max(smallest, length), min(n, length)))
        start, n = start + length, max(0, n - length)
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Block:
    """A constexpr of a kernel: a number, or the power of two that holds ``size``."""

    name: str
    value: int | None
    size: Int | None


class Layout:
    """The dimensions of one kernel. Axes that are one position at a time have none."""

    def __init__(self, k: Kernel) -> None:
        self.kernel = k
        names = Names(RESERVED)
        self.names = {t.axis: names.new(t.axis.name) for t in k.axes}
        self.names |= {
            a: f"{self.names[t.axis]}_{end}" for t in k.axes for a, end in ((t.first, "first"), (t.last, "last"))
        }
        self.dims: dict[Axis, Dim] = {}
        self.beside: dict[Axis, tuple[Dim, ...]] = {}  # the other dimensions of an axis that is dealt to lanes
        self.blocks: list[Block] = []
        self.row: Dim | None = None
        self.dots = [s for s in every(k.body) if isinstance(s, Dot)]
        values = [v for s in every(k.body) for v in outputs_of(s)]
        self.matrices = self._matrices(k, {v.name: v.axes for v in values})
        self._rows(k)
        groups = _together(k, self.dots, values)
        for t in sorted(k.axes, key=lambda t: t.role is not Role.LANE):
            if t.axis in self.dims or t.role in (Role.BATCH, Role.ROW):
                continue
            if t.block == 1 or (
                t.block is None and as_int(t.axis.size).value == 1 and t.role not in (Role.RANK, Role.LANE)
            ):
                continue
            if k.lanes is not None and t.axis is k.lanes.of:
                self._dealt(t, k.lanes)
            else:
                self._axis(t, groups.get(t.axis, (t.axis,)))

    def _rows(self, k: Kernel) -> None:
        axes = tuple(t.axis for t in k.grid if t.role is Role.ROW)
        rows = power(math.prod(t.block or 1 for t in k.grid if t.role is Role.ROW))
        total = product(as_int(a.size) for a in axes)
        matrix = any(s.out.axes & frozenset(axes) for s in self.matrices)
        if total.value is not None:
            rows = min(rows, power(total.value))
        if not axes or total.value == 1 or (rows == 1 and not matrix):
            return
        if matrix:
            rows = max(SMALLEST, rows)
        self.blocks.append(Block("ROWS", power(rows), None))
        exact = total.value is not None and total.value % power(rows) == 0
        name = self.names[axes[0]] if len(axes) == 1 else "row"
        self.row = Dim(name, Role.ROW, axes, (Piece(0, "ROWS", None if not exact else power(rows)),), 0)
        self.dims |= dict.fromkeys(axes, self.row)

    def _matrices(self, k: Kernel, axes: Mapping[str, frozenset[Axis]]) -> list[Dot]:
        """Dots of which either side has axes of its own, and no axis is kept on both: what remains are sums of products."""
        single = {
            t.axis for t in k.axes
            if t.role is Role.BATCH or as_int(t.axis.size).value == 1 or (t.block == 1 and t.role is not Role.ROW)
        }  # fmt: skip
        found = []
        for s in self.dots:
            left, right = ((axes[n] - single).difference(s.over) for n in (s.left, s.right))
            if left - right and right - left and not left & right:
                found.append(s)
        return found

    def _axis(self, t: TileAxis, axes: tuple[Axis, ...]) -> None:
        size = product(as_int(a.size) for a in axes).value
        inside = any(t.axis in s.over or t.axis in s.out.axes for s in self.dots)
        smallest = SMALLEST if any(t.axis in s.over or t.axis in s.out.axes for s in self.matrices) else 1
        if t.block is not None:
            name = "TILE" if t.role is Role.CASCADE else f"{self.names[t.axis]}_BLOCK".upper()
            block = max(power(t.block), smallest)
            self.blocks.append(Block(name, block, None))
            exact = size is not None and size % block == 0
            made: tuple[Piece, ...] = (Piece(0, name, block if exact else None),)
        elif size is None:
            name = f"{self.names[t.axis]}_BLOCK".upper()
            self.blocks.append(Block(name, None, product(as_int(a.size) for a in axes)))
            made = (Piece(0, name, None),)
        else:
            if size > LONGEST_WHOLE:
                raise Unsupported(f"{t.axis.name} has {size} positions, too many for one tile")
            made = pieces(size, smallest, inside and t.role in (Role.INNER, Role.COLUMN))
        name = "_".join(self.names[a] for a in axes)
        d = Dim(name, t.role, axes, made, self._rank(t.role))
        self.dims |= dict.fromkeys(axes, d)

    def _dealt(self, t: TileAxis, lanes: Lanes) -> None:
        count, size, block = as_int(lanes.axis.size).value, as_int(t.axis.size).value, t.block or 0
        turns = block // (lanes.run * (count or 1))
        if (
            count is None
            or not 1 <= turns <= (LONGEST_WHOLE if lanes.run == 1 else MOST_TURNS)
            or any(power(n) != n for n in (count, lanes.run, block))
        ):
            raise Unsupported(f"tiles of {block} positions of {t.axis.name} are not dealt evenly to lanes")
        exact = size is not None and size % block == 0
        length, times = (turns, 1) if lanes.run == 1 else (lanes.run, turns)
        made = tuple(Piece(n * count * lanes.run, length, length if exact else None) for n in range(times))
        self.dims[t.axis] = Dim(self.names[t.axis], t.role, (t.axis,), made, self._rank(t.role))
        self.beside[t.axis] = (self.dims[lanes.axis],)

    def _rank(self, role: Role) -> int:
        order = (Role.ROW, Role.SEGMENT, Role.LANE, Role.CASCADE, Role.INNER, Role.COLUMN, Role.RANK)
        return order.index(role) * 16 + len(self.dims)

    def of(self, axes: frozenset[Axis]) -> tuple[Dim, ...]:
        """The dimensions of a value that spans ``axes``, in order."""
        found = {d.rank: d for a in axes if (own := self.dims.get(a)) for d in (*self.beside.get(a, ()), own)}
        return tuple(sorted(found.values(), key=lambda d: d.rank))


def _together(k: Kernel, dots: list[Dot], values: list[Value]) -> dict[Axis, tuple[Axis, ...]]:
    """Whole axes that are flattened: contracted by one dot, or columns that every value has all or none of."""
    out: dict[Axis, tuple[Axis, ...]] = {}
    whole = {t.axis: t for t in k.inside if t.block is None}
    sets = [s.over for s in dots if len(s.over) > 1]
    columns = tuple(a for a, t in whole.items() if t.role is Role.COLUMN)
    if len(columns) > 1:
        sets.append(columns)
    selected = {s.k for s in every(k.body) if isinstance(s, Select | SelectMerge)}
    for axes in sets:
        group = tuple(a for a in whole if a in axes)
        apart = any(0 < len(v.axes & frozenset(group)) < len(group) for v in values)
        if len(group) == len(axes) and not apart and not selected & set(group) and not any(a in out for a in group):
            out |= dict.fromkeys(group, group)
    return out
