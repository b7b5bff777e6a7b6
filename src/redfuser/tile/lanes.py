"""Which cascades keep their running state in lanes: a tile is then reduced within each lane only, so that the threads of
a GPU, which have lanes of their own, need not wait for each other before the loop ends."""

from __future__ import annotations

from redfuser.algebra.nodes import Derivation
from redfuser.regions.nodes import Region
from redfuser.tile import roles


def refusal(region: Region, derivation: Derivation) -> str | None:
    """Why the running state of a region is not kept in lanes; None where it can be."""
    listed = next((a for a in roles.accumulators(derivation) if a.reducer.has_index), None)
    if listed is not None:
        return f"{listed.name} keeps positions, and lists of them are not kept in lanes"
    if any(True for _ in roles.operand_spans(region, derivation)):
        return "a dot sums over all positions of a tile at once"
    return None
