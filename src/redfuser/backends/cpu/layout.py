"""Where the axes of a kernel lie: which of them runs along the lanes of a vector, and in what order the others do.

    rows in lanes        s[l][i]            many rows of a matrix product: what spans no row is broadcast
    columns in lanes     k[l][c], o[j]      few rows: features lie side by side, as they do in memory
    cascade in lanes     x[l]               rows of their own: a tile of a row, reduced to one vector and then to a number

A value's lanes are its first axis in ``Layout.preference``; its other axes are loops. An axis of one position has neither.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum

from redfuser.index.expr import DType
from redfuser.index.ints import Axis, as_int
from redfuser.tile.nodes import Kernel, Role, TileAxis

FEWEST = 16  # rows that fill vectors
NARROWEST = 8  # columns that fill vectors


class Kind(Enum):
    """The type in which a value is computed: the letter of its vector (vf, vd, …)."""

    FLOAT = "f"
    DOUBLE = "d"
    INT = "i"
    LONG = "l"
    MASK = "m"

    @property
    def vector(self) -> str:
        return f"v{self.value}"

    @property
    def scalar(self) -> str:
        return {"f": "float", "d": "double", "i": "i32", "l": "i64", "m": "bool"}[self.value]

    @property
    def element(self) -> str:
        """The type of an element in a tile's memory."""
        return "mask" if self is Kind.MASK else self.scalar

    @property
    def bytes(self) -> int:
        """Bytes of an element, at most."""
        return 4 if self in (Kind.FLOAT, Kind.INT) else 8


def kind_of(dtype: DType) -> Kind:
    if dtype is DType.BOOL:
        return Kind.MASK
    if dtype.is_float:
        return Kind.DOUBLE if dtype is DType.FLOAT64 else Kind.FLOAT
    return Kind.LONG if dtype is DType.INT64 else Kind.INT


STORED = {
    DType.BOOL: "b8", DType.UINT8: "u8", DType.INT8: "i8", DType.INT16: "i16", DType.INT32: "i32", DType.INT64: "i64",
    DType.FLOAT8_E4M3: "e4m3", DType.FLOAT8_E5M2: "e5m2", DType.FLOAT16: "f16", DType.BFLOAT16: "bf16",
    DType.FLOAT32: "float", DType.FLOAT64: "double",
}  # fmt: skip
"""The type of an element outside the kernel."""


class Layout:
    """The axes of one kernel: which are single positions, and which come first in the choice of lanes."""

    def __init__(self, k: Kernel, lanes: Role | None) -> None:
        self.tiles = {t.axis: t for t in k.axes}
        self.single = frozenset(t.axis for t in k.axes if self.capacity(t.axis) == 1)
        many = [t for t in k.axes if t.axis not in self.single]
        rows = [t for t in many if t.role in (Role.ROW, Role.BATCH)]
        rows.sort(key=lambda t: self.capacity(t.axis) or math.inf, reverse=True)
        if lanes is None:
            count = math.prod(self.capacity(t.axis) or FEWEST for t in rows)
            lanes = Role.ROW if count >= FEWEST else Role.COLUMN
        rest = sorted((t for t in many if t not in rows), key=lambda t: self._order(t, lanes))
        self.preference = [t.axis for t in ([*rows, *rest] if lanes is Role.ROW else [*rest, *rows])]
        self._place = {a: n for n, a in enumerate(self.preference)}

    def _order(self, t: TileAxis, lanes: Role | None) -> tuple[int, float]:
        n = self.capacity(t.axis)
        wide = n is None or n >= NARROWEST
        if t.role is Role.CASCADE:
            return (0 if lanes is Role.CASCADE else 2), 0
        if t.role in (Role.COLUMN, Role.INNER):
            return (1 if wide else 4), -(n or math.inf)
        return (3 if t.role is Role.SEGMENT else 5), -(n or math.inf)

    def capacity(self, axis: Axis) -> int | None:
        """The most positions of an axis in a tile; None where that is known at the call only."""
        t = self.tiles[axis]
        size = as_int(t.axis.size).value
        if t.block is None:
            return size
        return t.block if size is None else min(t.block, max(1, size))

    def many(self, axes: Iterable[Axis]) -> frozenset[Axis]:
        """The axes among these that have more than one position."""
        return frozenset(axes) - self.single

    def lane(self, axes: Iterable[Axis]) -> Axis | None:
        """The axis that runs along the lanes of a value with these axes."""
        return min(self.many(axes), key=self._place.__getitem__, default=None)

    def order(self, axes: Iterable[Axis]) -> list[Axis]:
        """The axes in memory, the lanes last."""
        return sorted(self.many(axes), key=lambda a: -self._place[a])
