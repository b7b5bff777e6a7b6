"""What printing gives: kernels as text, and what they are called with."""

from __future__ import annotations

from dataclasses import dataclass

from redfuser.backends.triton.layout import Block
from redfuser.index.ints import Axis, Int


@dataclass(frozen=True, slots=True)
class Pointer:
    tensor: str


@dataclass(frozen=True, slots=True)
class Stride:
    tensor: str
    dim: int


@dataclass(frozen=True, slots=True)
class Length:
    size: str


@dataclass(frozen=True, slots=True)
class Counters:
    """Numbers that are 0 before a launch and again behind it: how many programs have come so far."""


Argument = Pointer | Stride | Length | Counters


@dataclass(frozen=True, slots=True)
class Place:
    """What a program knows of its place along an axis of the grid (None: its rows): ``name`` is one of ``positions``,
    taken ``step`` at a time (a number or a constexpr; None: one by one)."""

    axis: Axis | None
    name: str
    positions: Int
    step: str | None


@dataclass(frozen=True, slots=True)
class Printed:
    """A kernel as text, what it is called with, and the number of its programs: a product over ``grid``.

    ``meeting`` are the places whose programs meet in a counter: one for each of their combinations.
    """

    name: str
    text: str
    arguments: tuple[tuple[str, Argument], ...]
    blocks: tuple[Block, ...]
    grid: tuple[Place, ...]
    bulk: tuple[tuple[str, int], ...]  # tensors that are read in bulk, and the dimension that must be contiguous
    meeting: tuple[Place, ...] | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """Choices that the printer makes beside the schedule.

    ``bulk``: tiles of loops are loaded by the bulk copy engine, which needs unit strides and 16-byte rows; ``wide``:
    64-bit offsets; ``group``: batches whose row blocks of uneven work run together, heaviest first; ``precision`` of
    float32 dots; ``coarse``: functions of sums of 16-bit products by NVIDIA's instructions that are right to 11 bits,
    where the sum itself, rounded by PyTorch to 8 or 11, is no better; ``stages``: tiles dealt to lanes are loaded so many
    ahead, into shared memory (where dots are, Triton does so by itself); ``e4m3``: the machine has that format.

    Triton's own split into loading and computing warps (``warp_specialize``) is not used: with 3.6 these kernels then
    compile on Hopper and give wrong results.
    """

    wide: bool = False
    group: int = 8
    precision: str = "ieee"
    coarse: bool = False
    bulk: bool = False
    stages: int = 1
    e4m3: bool = True


@dataclass(frozen=True, slots=True)
class Source:
    """A module as text, and what it consists of: device functions and kernels."""

    text: str
    helpers: str
    kernels: tuple[Printed, ...]
