"""Where a tile lies in memory, and when its values are no longer needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redfuser.index.expr import Expr, Ref, children, walk
from redfuser.index.ints import Axis, Int, as_int
from redfuser.tile.nodes import (
    Declare,
    Dot,
    Guard,
    Loop,
    Reduce,
    Select,
    Statement,
    outputs_of,
)
from redfuser.tile.uses import uses_of


@dataclass(frozen=True, slots=True)
class Linear:
    """offset + sum of coefficient * axis."""

    offset: int
    terms: tuple[tuple[Axis, int], ...]

    @staticmethod
    def of(i: Int) -> Linear | None:
        """An expression without sizes as a linear one, or None when it is not linear."""
        offset, terms = 0, []
        for monomial, c in i.terms:
            match monomial:
                case ():
                    offset = c
                case ((Axis() as a, 1),):
                    terms.append((a, c))
                case _:
                    return None
        return Linear(offset, tuple(terms))

    def range(self, ranges: Mapping[Axis, tuple[int, int]]) -> tuple[int, int]:
        """Its lowest and its highest value."""
        low = high = self.offset
        for a, k in self.terms:
            start, stop = ranges[a]
            low += k * (start if k > 0 else stop - 1)
            high += k * (stop - 1 if k > 0 else start)
        return low, high


@dataclass(frozen=True, slots=True)
class Place:
    """Where the elements of an index lie: their address, linear in the axes, and the dimensions to be checked."""

    address: Linear
    checked: tuple[tuple[Linear, int], ...]
    strides: tuple[tuple[int, Axis, int], ...]  # dimension of the value, axis, stride in elements

    @staticmethod
    def of(
        index: Sequence[Int],
        clip: Sequence[bool],
        t: Tensor,
        axes: Sequence[Axis],
        dims: Mapping[Axis, int],
        sized: Callable[[Int], Int],
    ) -> Place | None:
        """The place of an index, or None when no strided view has these elements. ``sized`` puts numbers for sizes.

        The address is taken as a whole: ``stride * k * (l // k) + stride * (l % k)`` is ``stride * l``.
        """
        if any(True for i in index for _ in i.gathers()):
            return None
        plain = [sized(i) for i in index]
        place = as_int(int(t.storage_offset()))
        for i, step in zip(plain, t.stride(), strict=True):
            place = place + i * step
        address = Linear.of(place)
        if address is None:
            return None
        checked = []
        for i, c, n in zip(plain, clip, t.shape, strict=True):
            line = Linear.of(i) if c else None
            if c and line is None:
                return None
            if line is not None:
                checked.append((line, n))
        stride = dict(address.terms)
        if any(stride.get(a, 0) < 0 for a in axes):
            return None
        return Place(address, tuple(checked), tuple((dims[a], a, stride.get(a, 0)) for a in axes))

    def view(self, t: Tensor, ranges: Mapping[Axis, tuple[int, int]], rank: int) -> Tensor | None:
        """The elements of the tile, or None when some lie outside the tensor."""
        for line, n in self.checked:
            low, high = line.range(ranges)
            if low < 0 or high >= n:
                return None
        shape, strides = [1] * rank, [0] * rank
        for d, a, step in self.strides:
            start, stop = ranges[a]
            shape[d], strides[d] = stop - start, step
        offset = self.address.offset
        for a, k in self.address.terms:
            offset += k * ranges[a][0]
        return torch.as_strided(t, shape, strides, offset)


def read_once(e: Expr) -> frozenset[str]:
    """The values that an expression reads at one place only: the place may overwrite them."""
    count = Counter(c for x in walk(e) for c in children(x))
    return frozenset(x.name for x in walk(e) if isinstance(x, Ref) and count[x] <= 1)


def passing_guards(body: tuple[Statement, ...]) -> frozenset[int]:
    """The guards (by identity) whose result is only reduced, and no more when their argument is used for the last time.

    A guard shares the memory of its argument; after such a guard the argument may still be overwritten at its end.
    """
    out: set[int] = set()
    last = {name: n for n, s in enumerate(body) for name in uses_of(s)}
    made = {v.name for s in body if not isinstance(s, Declare) for v in outputs_of(s)}
    for s in body:
        if isinstance(s, Loop):
            out |= passing_guards(s.body)
        elif isinstance(s, Guard) and s.arg in made:
            readers = [x for x in body if s.out.name in uses_of(x)]
            reduced = all(isinstance(x, Reduce | Dot | Select) for x in readers)
            if reduced and last.get(s.out.name, -1) < last[s.arg]:
                out.add(id(s))
    return frozenset(out)


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
