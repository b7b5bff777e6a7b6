"""How a region is cut: the strategy and the sizes of its blocks."""

from __future__ import annotations

from dataclasses import dataclass

from redfuser.tile.nodes import Role, Strategy


class Unsupported(Exception):
    """There is no tile program for this region; the caller runs it unfused. The text is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """``row``: positions of all row axes together in a tile; ``tile``: of the cascade axis; ``column``: of each column
    axis (None: whole); ``segments``: pieces of the cascade axis, for MULTI; ``merge_row`` and ``merge_column``: the
    blocks in which their partial states are joined (None: as before); ``lanes``: running states side by side, each for
    ``run`` neighbouring positions of a tile in turn (0: one for the whole tile); ``warps`` and ``stages``: what a GPU's
    compiler is told, threads by 32 and loads in flight; ``bulk``: tiles come by its bulk copy engine; ``vector``: the
    role of the axes that a CPU's vectors run along (None: the printer's choice); ``search_lanes``: what data are searched
    for is kept in lanes too."""

    strategy: Strategy
    row: int = 64
    tile: int = 128
    column: int | None = None
    segments: int = 1
    merge_row: int | None = None
    merge_column: int | None = None
    lanes: int = 0
    run: int = 1
    warps: int = 4
    stages: int = 2
    bulk: bool = False
    vector: Role | None = None
    search_lanes: bool = False
