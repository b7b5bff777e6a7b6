"""A fused cascade as a file to read and run: what a backend prints it from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from redfuser.tile.nodes import Program
from redfuser.tile.strategy import Schedule

# names of the file itself, which no parameter may take
RESERVED = (
    "torch", "math", "os", "sys", "float", "range", "precision", "grid", "error", "check", "fused", "reference",
    "examples", "interpreted", "draw", "device",
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """What a file says and checks beside its kernels.

    ``summary``: what is computed, and where in the user's program; ``parameters``: names of the tensors and then of the
    lengths that are given as numbers; ``examples``: meta tensors of the shapes, strides and dtypes seen, then those
    numbers; ``order``: the order in which the user's function takes them; ``lengths``: each symbolic size as an
    expression of the parameters; ``hints``: its value when traced; ``reference``: statements that compute the results
    without fusing, in which ``precision`` stands before the dtype that floats are rounded to; ``results``: expressions for
    them; ``bound``: indices among the inputs are below it.
    """

    function: str
    summary: tuple[str, ...]
    parameters: tuple[str, ...]
    examples: tuple[Tensor | int, ...]
    order: tuple[str, ...]
    lengths: tuple[tuple[str, str], ...]
    hints: tuple[tuple[str, int], ...]
    reference: tuple[str, ...]
    results: tuple[str, ...]
    bound: int

    @property
    def inputs(self) -> list[Tensor]:
        return [x for x in self.examples if isinstance(x, Tensor)]


@dataclass(frozen=True)
class Listing:
    """One cascade and the schedule it is printed at; ``why`` says how that was chosen."""

    program: Program
    schedule: Schedule
    target: str
    why: str
    subject: Callable[[], Subject]
    write: Callable[[Sequence[Listing]], str]

    def together(self, listings: Sequence[Listing]) -> str:
        """One file for several cascades that the same backend prints."""
        return self.write(listings)
