"""A plan: what one cascade compiles to. It picks a tile program for the lengths of each call, so one plan serves all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from redfuser.algebra.nodes import Derivation
from redfuser.regions.nodes import Region
from redfuser.tile.cost import Decision, choose
from redfuser.tile.nodes import Program
from redfuser.tile.strategy import Schedule

Tensors = Sequence[Tensor]
Sizes = Mapping[str, int]


class Runner(Protocol):
    """What runs tile programs: given inputs by name and sizes by name, the results in order."""

    def __call__(self, program: Program, inputs: Mapping[str, Tensor], sizes: Sizes) -> list[Tensor]: ...
