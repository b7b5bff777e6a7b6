"""What a plan needs of whatever runs tile programs, and of the code that it replaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from redfuser.algebra.nodes import Derivation
from redfuser.backends.listing import Listing, Subject
from redfuser.regions.nodes import Region
from redfuser.runtime.tune import Timer
from redfuser.settings import Options
from redfuser.tile.cost import Decision
from redfuser.tile.nodes import Program
from redfuser.tile.strategy import Schedule

Sizes = Mapping[str, int]

Prepared = Callable[[Sequence[Tensor]], list[Tensor]]
"""A tile program at fixed lengths: the program's input tensors in their order in, its outputs in their order out.

Inputs come with any strides, on one device, which need not be the current one; a CPU scalar may stand among them. Nothing
that a later call changes may share memory with an output. It may be called from several threads, on any stream.
"""


class Engine(Protocol):
    """Runs tile programs."""

    def decide(self, region: Region, derivation: Derivation, sizes: Sizes, options: Options) -> Decision:
        """What runs at these lengths by the model alone."""
        ...

    def candidates(self, region: Region, derivation: Derivation, sizes: Sizes, options: Options) -> Sequence[Schedule]:
        """Schedules worth measuring, the likeliest first; none where nothing is measured."""
        ...

    def warm(self, programs: Sequence[tuple[Program, Schedule]], sizes: Sizes, inputs: Sequence[Tensor]) -> None:
        """Compiles what will be measured, side by side."""
        ...

    def prepare(self, program: Program, schedule: Schedule, sizes: Sizes) -> Prepared:
        """All that depends on the program and its symbolic lengths alone, done once; the rest is done at each call."""
        ...

    def listing(self, program: Program, schedule: Schedule, why: str, subject: Callable[[], Subject]) -> Listing | None:
        """What a file with the kernels is printed from; None where no kernel is printed."""
        ...

    @property
    def timer(self) -> Timer: ...

    @property
    def idle(self) -> bool:
        """False while nothing may be measured, as when launches are being captured into a graph."""
        ...

    @property
    def identity(self) -> str:
        """What a measured choice holds for: the device, the versions of what compiles for it, and the mode."""
        ...

    @property
    def mode(self) -> str:
        """Settings of PyTorch that a prepared program depends on and that may change from call to call."""
        ...


class Replaced(Protocol):
    """The sub-graph that a plan stands for."""

    def examples(self, sizes: Sizes) -> list[Tensor]:
        """Random inputs, as the graph will give them."""
        ...

    def unfused(self, inputs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        """The outputs, computed without fusing."""
        ...

    def lean(self, inputs: Sequence[Tensor]) -> bool:
        """True where it is known that this writes no intermediates, so that it can be measured at any length."""
        ...
