"""The tile program: HOW a cascade runs. Kernels over blocks of axes, loops over tiles of an axis, running state.

Every value is typed by its dtype and by the SET of tile axes it spans; two values meet by axis, never by position, and
a value that lacks an axis is the same all along it. Indices are index expressions over the axes: an axis stands for all
positions of the current tile. A program names no threads, no shared memory and no layout.

Beyond the end of an axis (the last tile may be ragged) a Read gives 0, a Guard its fill, and a Store writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Union

from redfuser.index.expr import Const, DType, Expr
from redfuser.index.ints import Axis, Int
from redfuser.index.nodes import Name, Reducer


class Strategy(Name):
    """How the cascade axis is walked."""

    AUTO = "auto"  # the cost decides; never in a schedule
    WHOLE = "whole"  # it fits one tile: the plain form of the reductions
    SINGLE = "single"  # one program streams it with the running update
    MULTI = "multi"  # cut in segments; a merge kernel joins their partial states in a fixed order
    UNFUSED = "unfused"  # not fused: the intermediates saved are not worth it


class Role(Name):
    """What an axis is for, found by how it is used."""

    BATCH = "batch"  # in every operand of every dot: one grid point each
    ROW = "row"  # kept, and missing from some operand: blocks of the grid
    COLUMN = "column"  # kept by some of the reductions only
    CASCADE = "cascade"  # the axis of the passes
    LANE = "lane"  # running states side by side, for positions of the cascade axis in turn
    SEGMENT = "segment"  # the pieces of the cascade axis
    INNER = "inner"  # contracted inside a tile
    RANK = "rank"  # the slots of a top-k list


class Kind(Enum):
    INPUT = "input"
    OUTPUT = "output"
    SCRATCH = "scratch"


@dataclass(frozen=True, slots=True)
class Tensor:
    """Memory outside the kernels. Outputs and scratch are contiguous; inputs have any strides."""

    name: str
    kind: Kind
    shape: tuple[Int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class TileAxis:
    """An axis in a kernel, ``block`` positions at a time (None: the whole axis in every tile).

    ``first`` and ``last`` stand for the first and the last position of the current block in the bounds of loops.
    """

    axis: Axis
    role: Role
    block: int | None
    first: Axis
    last: Axis


@dataclass(frozen=True, slots=True)
class Lanes:
    """The positions of each tile of ``of`` are dealt to the lanes of ``axis``, ``run`` neighbours at a time, in turn.

    With 3 lanes and runs of 2 the tile 0 1 2 3 4 5 6 7 gives lane 0 the positions 0 1 6 7, lane 1 2 3 and lane 2 4 5.
    A value that spans ``of`` is of one lane at each position: what spans ``axis`` meets it there, and the result spans
    ``of``.
    """

    axis: Axis
    of: Axis
    run: int

    def met(self, axes: frozenset[Axis]) -> frozenset[Axis]:
        """The axes of a value made of values that span ``axes`` together."""
        return axes - {self.axis} if self.of in axes else axes


@dataclass(frozen=True, slots=True)
class Value:
    """A named value of a tile: its dtype and the axes it spans."""

    name: str
    dtype: DType
    axes: frozenset[Axis]


# -- bounds of loops -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class At:
    """A position: an expression over sizes and the ``first`` and ``last`` of the grid's axes."""

    index: Int


@dataclass(frozen=True, slots=True)
class Down:
    """Rounded down to the start of a tile."""

    arg: Bound
    tile: int


@dataclass(frozen=True, slots=True)
class Up:
    """Rounded up to the start of a tile."""

    arg: Bound
    tile: int


@dataclass(frozen=True, slots=True)
class Least:
    args: tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class Greatest:
    args: tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class Lowest:
    """The lowest number in the tile of a value."""

    value: str


@dataclass(frozen=True, slots=True)
class Highest:
    """The highest number in the tile of a value."""

    value: str


Bound = Union[At, Down, Up, Least, Greatest, Lowest, Highest]


# -- operations ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Read:
    """out = tensor[index]. ``clip`` marks the dimensions whose index may leave the tensor: it is then held inside, and
    the value is used only in a branch not taken. Gathered indices in ``index`` are Refs to values."""

    out: Value
    tensor: str
    index: tuple[Int, ...]
    clip: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Map:
    """out = expr, a scalar expression over Refs to values, positions and constants.

    ``base``: partial results agree on it, wherever each is computed; no printer may give it more precision than its dtype.
    """

    out: Value
    expr: Expr
    base: bool = False


@dataclass(frozen=True, slots=True)
class Correct:
    """out = expr: the state ``state``, brought from the old bases to the new ones."""

    out: Value
    state: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Guard:
    """out = arg where ``axis`` is in range, fill beyond its end. It spans the axis even if arg does not."""

    out: Value
    arg: str
    axis: Axis
    fill: Const


@dataclass(frozen=True, slots=True)
class Dot:
    """out = add + sum over ``over`` of left * right, multiplied and summed in out's dtype."""

    out: Value
    left: str
    right: str
    over: tuple[Axis, ...]
    add: str | None


@dataclass(frozen=True, slots=True)
class Reduce:
    """out = reducer over ``over`` of arg, in out's dtype; for each lane apart when out spans the lanes of ``over``."""

    out: Value
    arg: str
    reducer: Reducer
    over: Axis


@dataclass(frozen=True, slots=True)
class Select:
    """out, index = the best of arg along ``over`` and its position; k of them, best first, when ``k`` is an axis.

    NaN is the best of all, or for BOTTOMK the last; among equals the lowest position comes first. Slots that are left over
    hold the identity and the highest position.
    """

    out: Value
    index: Value
    arg: str
    reducer: Reducer
    over: Axis
    k: Axis | None


@dataclass(frozen=True, slots=True)
class Combine:
    """out = left (reducer) right, element by element: two partial results become one."""

    out: Value
    reducer: Reducer
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class SelectMerge:
    """out, index = the best of two lists with positions, in the order that Select keeps."""

    out: Value
    index: Value
    reducer: Reducer
    left: str
    left_index: str
    right: str
    right_index: str
    k: Axis | None


@dataclass(frozen=True, slots=True)
class Rename:
    """out = arg with axes renamed: the same elements, used as another operand."""

    out: Value
    arg: str
    axes: tuple[tuple[Axis, Axis], ...]


@dataclass(frozen=True, slots=True)
class Declare:
    """A running value, before the first tile. ``role`` says what it is for."""

    state: Value
    init: Const | str
    role: str


@dataclass(frozen=True, slots=True)
class Assign:
    state: str
    value: str


@dataclass(frozen=True, slots=True)
class Store:
    """tensor[index] = value for every position of ``axes`` in the tile."""

    tensor: str
    index: tuple[Int, ...]
    value: str
    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """For tiles of ``tile`` positions of ``axis``, from ``start`` up to ``stop``; ``note`` says why it is there.

    ``full``: every tile lies within the axis, so that nothing in the body is guarded along it. ``backwards``: the order is
    free, and the last tiles come first: what was read last may still be in a cache, and is not wanted after that.
    """

    axis: Axis
    tile: int
    start: Bound
    stop: Bound
    body: tuple[Statement, ...]
    note: str
    full: bool = False
    backwards: bool = False


Operation = Union[Read, Map, Correct, Guard, Dot, Reduce, Select, Combine, SelectMerge, Rename]
Statement = Union[
    Read, Map, Correct, Guard, Dot, Reduce, Select, Combine, SelectMerge, Rename, Declare, Assign, Store, Loop
]


@dataclass(frozen=True, slots=True)
class Kernel:
    """``grid``: the axes that are cut in blocks, one program for each; ``inside``: the other axes of its tiles;
    ``lanes``: how the tiles of one of those are dealt; ``backwards``: the last programs come first, as in a loop;
    ``moderate``: values that an inverse may be taken of."""

    name: str
    note: str
    grid: tuple[TileAxis, ...]
    inside: tuple[TileAxis, ...]
    body: tuple[Statement, ...]
    lanes: Lanes | None = None
    backwards: bool = False
    moderate: frozenset[str] = frozenset()

    @property
    def axes(self) -> tuple[TileAxis, ...]:
        return (*self.grid, *self.inside)


@dataclass(frozen=True, slots=True)
class Program:
    """Kernels that run one after the other. Outputs are returned in the order of ``tensors``."""

    name: str
    tensors: tuple[Tensor, ...]
    kernels: tuple[Kernel, ...]

    def of(self, kind: Kind) -> Iterator[Tensor]:
        return (t for t in self.tensors if t.kind is kind)

    def tensor(self, name: str) -> Tensor:
        for t in self.tensors:
            if t.name == name:
                return t
        raise KeyError(name)


def outputs_of(s: Statement) -> tuple[Value, ...]:
    """The values a statement defines."""
    match s:
        case Select() | SelectMerge():
            return (s.out, s.index)
        case Declare():
            return (s.state,)
        case Assign() | Store() | Loop():
            return ()
        case _:
            return (s.out,)
