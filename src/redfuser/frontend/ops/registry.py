"""The registry of lowerings, and what a lowering may ask of the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, Union, cast

import torch
import torch.fx as fx

from redfuser.frontend.values import Arg, NotCovered, Scalar, Value, dimension, dtype_from_torch, int_from_torch
from redfuser.index.expr import DType, Expr
from redfuser.index.ints import Int
from redfuser.index.nodes import Reducer

Result = Union[Value, Scalar, None, list["Result"]]
Body = Callable[[tuple[Int, ...], tuple[Int, ...]], Expr]


class Lowering(Protocol):
    """The driver's services to a lowering."""

    def reduce(
        self, reducer: Reducer, kept: Sequence[Int], over: Sequence[Int], body: Body, dtype: DType, role: str = ""
    ) -> Value:
        """A reduction over new axes of the lengths ``over``, as a value of shape ``kept``.

        ``body`` maps kept and reduced indices to the element. Axes of length 1 are dropped; when none is left to
        reduce, the value is the element itself. ``role`` tells apart the reductions of one operation in their names.
        """

    def select(
        self, reducer: Reducer, kept: Sequence[Int], over: Int, body: Body, dtype: DType, k: Int | None, role: str = ""
    ) -> tuple[Value, Value]:
        """A reduction that also says where: (values, positions); with ``k`` both have a trailing dimension of it."""


@dataclass(frozen=True)
class Call:
    """One node with its arguments by name, lowered, and what torch says about its result."""

    node: fx.Node
    op: str
    args: dict[str, Arg]
    meta: Any

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.args.get(name, default)

    @property
    def shape(self) -> tuple[Int, ...]:
        return tuple(int_from_torch(n) for n in self.tensor.shape)

    @property
    def dtype(self) -> DType:
        return dtype_from_torch(self.tensor.dtype)

    @property
    def tensor(self) -> torch.Tensor:
        if not isinstance(self.meta, torch.Tensor):
            raise NotCovered(f"{self.op} does not give one tensor")
        return self.meta

    @property
    def first(self) -> str:
        """The name of the first argument; primitive operations call it otherwise than ATen's."""
        return next(iter(self.args))

    def value(self, name: str) -> Value:
        v = self.args[name]
        if not isinstance(v, Value):
            raise NotCovered(f"{self.op}: {name} is not a tensor")
        return v

    def length(self, name: str) -> Int:
        return as_length(self.args[name])

    def dim(self, name: str = "dim", rank: int | None = None) -> int:
        rank = self.value("self").rank if rank is None else rank
        d = self.args[name]
        if not isinstance(d, int):
            raise NotCovered(f"{self.op}: {name} is not a number")
        return dimension(d, rank)

    def dims(self, name: str = "dim") -> tuple[int, ...]:
        """The reduced dimensions, in order; all of them when none is named."""
        rank, d = self.value("self").rank, cast(Any, self.args.get(name))
        if isinstance(d, int):
            d = [d]
        if not d:
            return tuple(range(rank))
        return tuple(sorted({dimension(x, rank) for x in d})) if rank else ()


def as_length(x: object) -> Int:
    from redfuser.index.ints import as_int

    match x:
        case Int():
            return x
        case int():
            return as_int(x)
        case _:
            raise NotCovered("a length that is not an integer")


Handler = Callable[[Lowering, Call], Result]
OPS: dict[str, Handler] = {}
H = TypeVar("H", bound=Handler)


def lowers(*names: str) -> Callable[[H], H]:
    """Registers a lowering under ATen names: ``add`` for every overload, ``sum.dim_IntList`` for one."""

    def add(handler: H) -> H:
        for n in names:
            assert n not in OPS, n
            OPS[n] = handler
        return handler

    return add
