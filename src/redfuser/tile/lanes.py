"""Which cascades keep their running state in lanes: a tile is then reduced within each lane only, so that the threads of
a GPU, which have lanes of their own, need not wait for each other before the loop ends."""

from __future__ import annotations

from redfuser.algebra.nodes import Derivation
from redfuser.index.expr import Apply, DType, Expr, Fn, const, position
from redfuser.index.ints import Int, as_int, floordiv, mod
from redfuser.regions.nodes import Region
from redfuser.tile import roles
from redfuser.tile.nodes import Lanes


def refusal(region: Region, derivation: Derivation) -> str | None:
    """Why the running state of a region is not kept in lanes; None where it can be."""
    listed = next((a for a in roles.accumulators(derivation) if a.reducer.has_index), None)
    if listed is not None:
        return f"{listed.name} keeps positions, and lists of them are not kept in lanes"
    if any(True for _ in roles.operand_spans(region, derivation)):
        return "a dot sums over all positions of a tile at once"
    return None


def share(lanes: Lanes, count: Int) -> Expr:
    """How many of the first ``count`` positions of a tile each lane has."""
    turn = as_int(lanes.axis.size) * lanes.run
    whole, rest = floordiv(count, turn) * lanes.run, mod(count, turn)
    if rest.value == 0:
        return position(whole)
    part = position(rest - as_int(lanes.axis) * lanes.run)
    for fn, limit in ((Fn.MAXIMUM, 0), (Fn.MINIMUM, lanes.run)):
        part = Apply(fn, (part, const(limit, DType.INT64)), DType.INT64)
    return Apply(Fn.ADD, (position(whole), part), DType.INT64)
