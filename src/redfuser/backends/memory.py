"""Where a tile lies in memory, and when its values are no longer needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redfuser.index.expr import Expr, Ref, children, walk
from redfuser.index.ints import Axis, FloorDiv, Int, Mod, as_int
from redfuser.tile.nodes import (
    Assign,
    Combine,
    Correct,
    Declare,
    Dot,
    Guard,
    Loop,
    Map,
    Read,
    Reduce,
    Rename,
    Select,
    SelectMerge,
    Statement,
    Store,
    outputs_of,
)


@dataclass(frozen=True, slots=True)
class Place:
    """An affine index: for each dimension of the tensor its offset and its coefficients; for each axis its stride."""

    offsets: tuple[int, ...]
    coefficients: tuple[tuple[tuple[Axis, int], ...], ...]
    checked: tuple[int, ...]
    strides: tuple[tuple[int, Axis, int], ...]  # dimension of the value, axis, stride in elements
    moves: tuple[tuple[Axis, int], ...]
    base: int

    @staticmethod
    def of(
        index: Sequence[Int],
        clip: Sequence[bool],
        t: Tensor,
        axes: Sequence[Axis],
        dims: Mapping[Axis, int],
        number: Callable[[Int], int],
    ) -> Place | None:
        """The place of an index, or None when it is not affine with strides that a view can have."""
        offsets, rows = [], []
        for i in index:
            if any(True for _ in i.gathers()):
                return None
            rest, row = i, []
            for a in sorted(i.axes(), key=lambda x: x.key):
                k = i.coefficient(a)
                if k is None or k.axes():
                    return None
                row.append((a, number(k)))
                rest = rest - k * as_int(a)
            if any(isinstance(x, FloorDiv | Mod) and (x.num.axes() | x.den.axes()) for x in rest.atoms()):
                return None
            offsets.append(number(rest))
            rows.append(tuple(row))
        stride: dict[Axis, int] = {}
        for row, step in zip(rows, t.stride(), strict=True):
            for a, k in row:
                stride[a] = stride.get(a, 0) + k * step
        if any(stride.get(a, 0) < 0 for a in axes):
            return None
        checked = tuple(n for n, c in enumerate(clip) if c)
        base = t.storage_offset() + sum(o * s for o, s in zip(offsets, t.stride(), strict=True))
        views = tuple((dims[a], a, stride.get(a, 0)) for a in axes)
        return Place(tuple(offsets), tuple(rows), checked, views, tuple(stride.items()), base)

    def view(self, t: Tensor, ranges: Mapping[Axis, tuple[int, int]], rank: int) -> Tensor | None:
        """The elements of the tile, or None when some lie outside the tensor."""
        for n in self.checked:
            low = high = self.offsets[n]
            for a, k in self.coefficients[n]:
                start, stop = ranges[a]
                low += k * (start if k > 0 else stop - 1)
                high += k * (stop - 1 if k > 0 else start)
            if low < 0 or high >= t.shape[n]:
                return None
        shape, strides = [1] * rank, [0] * rank
        for d, a, step in self.strides:
            start, stop = ranges[a]
            shape[d], strides[d] = stop - start, step
        offset = self.base + sum(ranges[a][0] * step for a, step in self.moves)
        return torch.as_strided(t, shape, strides, offset)


def uses_of(s: Statement) -> set[str]:
    """The names a statement reads, those inside a loop included."""
    match s:
        case Read() | Store():
            own = {s.value} if isinstance(s, Store) else set()
            return own | {g.value.name for i in s.index for g in i.gathers() if isinstance(g.value, Ref)}
        case Map() | Correct():
            return {g.name for x in walk(s.expr) for g in [x] if isinstance(g, Ref)}
        case Guard() | Reduce() | Select() | Rename():
            return {s.arg}
        case Dot():
            return {s.left, s.right} | ({s.add} if s.add is not None else set())
        case Combine():
            return {s.left, s.right}
        case SelectMerge():
            return {s.left, s.left_index, s.right, s.right_index}
        case Declare():
            return {s.init} if isinstance(s.init, str) else set()
        case Assign():
            return {s.value}
        case Loop():
            return set().union(*(uses_of(x) for x in s.body))


def read_once(e: Expr) -> frozenset[str]:
    """The values that an expression reads at one place only: the place may overwrite them."""
    count = Counter(c for x in walk(e) for c in children(x))
    return frozenset(x.name for x in walk(e) if isinstance(x, Ref) and count[x] <= 1)


def last_uses(body: tuple[Statement, ...]) -> dict[int, frozenset[str]]:
    """For each statement (by identity) the values that nothing reads after it."""
    out: dict[int, frozenset[str]] = {}

    def block(statements: tuple[Statement, ...]) -> None:
        made = {v.name for s in statements if not isinstance(s, Declare) for v in outputs_of(s)}
        later: set[str] = set()
        for s in reversed(statements):
            used = (uses_of(s) | {v.name for v in outputs_of(s)}) & made
            out[id(s)] = frozenset(used - later)
            later |= used
            if isinstance(s, Loop):
                block(s.body)

    block(body)
    return out
