"""The lengths of a region that the schedules of every backend depend on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from redfuser.algebra.nodes import Derivation
from redfuser.index.ints import Axis, as_int
from redfuser.regions.nodes import Region
from redfuser.tile import roles
from redfuser.tile.nodes import Role


class Shape:
    """The lengths by the roles of the axes. Of a symbolic length it is the one in ``sizes``, else its hint.

    ``matrix``: a product has several rows on one side and columns on the other alone, so that tiles of it are worth
    while.
    """

    def __init__(self, region: Region, derivation: Derivation, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.frame = roles.frame(region, derivation)
        self.length = self.count([region.problem.axis])
        self.rows = self.count(self.axes(Role.ROW))
        self.batch = self.count(self.axes(Role.BATCH))
        self.columns = self.count(self.axes(Role.COLUMN))
        spans = list(roles.operand_spans(region, derivation))
        row_axes = frozenset(self.axes(Role.ROW))
        self.products = bool(spans)
        self.matrix = any((a & row_axes) ^ (b & row_axes) and a - b and b - a for a, b in spans) and self.rows > 1

    def axes(self, role: Role) -> list[Axis]:
        """The axes that the stages keep, of one role."""
        return [a for a, r in self.frame.kept.items() if r is role]

    def count(self, axes: Iterable[Axis]) -> int:
        """Positions of all these axes together."""
        total = 1
        for a in axes:
            n = as_int(a.size)
            total *= n.evaluate({s: self.sizes.get(s.name, s.hint) for s in n.sizes()})
        return total
