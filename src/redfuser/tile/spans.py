"""The axes that expressions and indices of a kernel depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from redfuser.index.expr import Expr, Load, Position, Ref, walk
from redfuser.index.ints import Axis, FloorDiv, Gather, Int, Mod
from redfuser.tile.nodes import Value


def index_axes(i: Int, values: Mapping[str, Value]) -> frozenset[Axis]:
    """The axes of an index whose gathers are Refs to values."""
    out: set[Axis] = set()
    for a in i.atoms():
        match a:
            case Axis():
                out.add(a)
            case FloorDiv() | Mod():
                out |= index_axes(a.num, values) | index_axes(a.den, values)
            case Gather() if isinstance(a.value, Ref) and a.value.name in values:
                out |= values[a.value.name].axes
            case _:
                pass
    return frozenset(out)


def span_of(e: Expr, axes_of: Callable[[Ref], frozenset[Axis]]) -> frozenset[Axis]:
    """The axes an expression depends on; ``axes_of`` says which a value of the kernel spans."""
    out: set[Axis] = set()
    for x in walk(e):
        match x:
            case Load():
                out = out.union(*(i.axes() for i in x.index))
            case Position():
                out |= x.index.axes()
            case Ref():
                out |= axes_of(x)
    return frozenset(out)
