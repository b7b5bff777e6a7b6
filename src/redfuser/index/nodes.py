"""The index program: WHAT is computed. Every value is a map or a reduction over named axes; views are indices.

    max1[b, i]      = max   over l of  s[b, i, l]
    sum2[b, i]      = sum   over l of  exp(s[b, i, l] - max1[b, i])
    out[b, i, d]    = ...

An index program reads inputs, defines values in order (a definition reads only inputs and earlier definitions) and
names its outputs. It is pure: no strides, no memory, no schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Union

from redfuser.index.expr import Const, DType, Expr, Part, const
from redfuser.index.ints import Axis, Int, Size


class Name(Enum):
    """Base of public enums: a member equals its lower-case name, so users may write strings."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self.name.lower() == other.lower()
        return self is other

    def __hash__(self) -> int:
        return hash(self.name.lower())

    def __str__(self) -> str:
        return self.name.lower()


class Reducer(Name):
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PROD = "prod"
    ANY = "any"
    ALL = "all"
    TOPK = "topk"
    BOTTOMK = "bottomk"
    ARGMAX = "argmax"
    ARGMIN = "argmin"
    LOGSUMEXP = "logsumexp"

    @property
    def has_index(self) -> bool:
        return self.is_list or self in (Reducer.ARGMAX, Reducer.ARGMIN)

    @property
    def is_list(self) -> bool:
        """The k largest or smallest, in order."""
        return self in (Reducer.TOPK, Reducer.BOTTOMK)

    def takes(self, k: Axis | None) -> bool:
        """Lists have k. Without it BOTTOMK is a list of one: the smallest, NaN being the largest."""
        return self.is_list if k is not None else self is not Reducer.TOPK

    def identity(self, dtype: DType) -> Const:
        """e with ``e (reducer) x == x``: the value that changes nothing, and what a reduction starts from."""
        match self:
            case Reducer.SUM:
                return const(0, dtype)
            case Reducer.PROD:
                return const(1, dtype)
            case Reducer.ANY:
                return const(False, dtype)
            case Reducer.ALL:
                return const(True, dtype)
            case Reducer.MIN | Reducer.ARGMIN:
                return const(dtype.highest, dtype)
            case Reducer.BOTTOMK:  # NaN counts as the largest of all
                return const(math.nan if dtype.is_float else dtype.highest, dtype)
            case _:
                return const(dtype.lowest, dtype)


@dataclass(frozen=True, slots=True)
class Where:
    """A place in the user's program."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: the traced node, the user's variable name (or the operation's), and the place."""

    node: str
    name: str
    where: Where | None


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor given by the caller (or computed by an operation that is not covered). Scalars have no axes.

    ``axes`` give its shape; ``positive`` etc. are never assumed of data.
    """

    name: str
    axes: tuple[Axis, ...]
    dtype: DType
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Map:
    """name[axes] = body"""

    name: str
    axes: tuple[Axis, ...]
    body: Expr
    dtype: DType
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Reduce:
    """name[axes] = reducer over ``over`` of body.

    ``dtype`` is the dtype of the result when it is stored; the running value is kept in ``accumulator``.
    TOPK, and BOTTOMK with ``k``, have one more, trailing axis in their result (length ``k``), and their loads carry one
    more index; they, ARGMAX and ARGMIN have a second component, the position along ``over`` (Part.INDEX, int64). Ties: the
    lowest position wins.
    Empty reductions give the identity: 0, -inf, +inf, 1, False, True, -inf for LOGSUMEXP.
    NaN: MAX, MIN, ARGMAX, ARGMIN and TOPK treat NaN as the winner, BOTTOMK as the last, as PyTorch does.
    """

    name: str
    axes: tuple[Axis, ...]
    over: tuple[Axis, ...]
    reducer: Reducer
    body: Expr
    dtype: DType
    origin: Origin | None = None
    k: Axis | None = None

    @property
    def result_axes(self) -> tuple[Axis, ...]:
        return (*self.axes, self.k) if self.k is not None else self.axes


Definition = Union[Map, Reduce]


@dataclass(frozen=True, slots=True)
class Output:
    """A value the caller receives: ``name[axes] = body`` where a body is a Load for a plain definition."""

    value: str
    part: Part = Part.VALUE


@dataclass(frozen=True, slots=True)
class Program:
    inputs: tuple[Input, ...]
    definitions: tuple[Definition, ...]
    outputs: tuple[Output, ...]

    def __getitem__(self, name: str) -> Input | Definition:
        for x in (*self.inputs, *self.definitions):
            if x.name == name:
                return x
        raise KeyError(name)

    @property
    def reductions(self) -> Iterator[Reduce]:
        return (d for d in self.definitions if isinstance(d, Reduce))

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Symbolic sizes that occur anywhere, by name."""
        from redfuser.index.expr import free_sizes

        found: set[Size] = set()
        for x in (*self.inputs, *self.definitions):
            axes = x.axes if not isinstance(x, Reduce) else (*x.result_axes, *x.over)
            for a in axes:
                found |= a.size.sizes()
            if not isinstance(x, Input):
                found |= free_sizes(x.body)
        return tuple(sorted(found, key=lambda s: s.name))


def shape(axes: tuple[Axis, ...]) -> tuple[Int, ...]:
    return tuple(a.size for a in axes)
