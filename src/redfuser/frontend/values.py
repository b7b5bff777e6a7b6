"""Between torch and the index program: dtypes, sizes, and values as functions from indices to expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy.functions import FloorDiv as SymFloorDiv
from torch.utils._sympy.functions import Max as SymMax
from torch.utils._sympy.functions import Mod as SymMod
from torch.utils._sympy.functions import PythonMod as SymPythonMod

from redfuser.index.build import cast
from redfuser.index.expr import DType, Expr, const, position
from redfuser.index.ints import ZERO, Int, Size, as_int, divide_exact, floordiv, mod, nonnegative

_TORCH = {getattr(torch, d.value): d for d in DType}


class NotCovered(Exception):
    """This operation, or this use of it, has no lowering. Caught where it is lowered; the text is a reason."""


class NoValue(NotCovered):
    """The operation reads what another refusal is about already."""


class Mistaken(NotCovered):
    """PyTorch itself refuses this use of the operation. It stays as written and raises; a decomposition might not."""


def dimension(d: int, rank: int) -> int:
    """A dimension counted from the front. One out of range is left to the operation, which raises what eager raises."""
    if not -max(rank, 1) <= d < max(rank, 1):
        raise Mistaken(f"dimension {d} of a tensor with {rank}")
    return d % max(rank, 1)


def dtype_from_torch(d: torch.dtype) -> DType:
    found = _TORCH.get(d)
    if found is None:
        raise NotCovered(f"{d} is not supported")
    return found


def torch_dtype(d: DType) -> torch.dtype:
    found: torch.dtype = getattr(torch, d.value)
    return found


def int_from_torch(x: int | torch.SymInt) -> Int:
    """A length or index of torch as an integer expression."""
    if isinstance(x, torch.SymInt):
        node = x.node
        return int_from_sympy(node.expr, _hints(node.shape_env))
    return as_int(int(x))


def hint_of(x: int | torch.SymInt) -> int:
    """The value that a length or stride had when the function was traced."""
    return int(x.node.hint) if isinstance(x, torch.SymInt) else x


def _hints(shape_env: object) -> dict[sympy.Symbol, int]:
    for name in ("backed_var_to_val", "var_to_val"):
        table = getattr(shape_env, name, None)
        if table is not None:
            return dict(table)
    return {}


def int_from_sympy(e: sympy.Expr, hints: dict[sympy.Symbol, int]) -> Int:
    def go(x: sympy.Expr) -> Int:
        match x:
            case sympy.Integer():
                return as_int(int(x))
            case sympy.Symbol():
                if x not in hints:
                    raise NotCovered(f"the length {x} depends on data")
                return as_int(Size(str(x), int(hints[x])))
            case sympy.Add():
                return sum((go(a) for a in x.args), ZERO)
            case sympy.Mul():
                out = as_int(1)
                for a in x.args:
                    out = out * go(a)
                return out
            case sympy.Pow() if isinstance(x.exp, sympy.Integer) and x.exp > 0:
                out = as_int(1)
                for _ in range(int(x.exp)):
                    out = out * go(x.base)
                return out
            case SymFloorDiv():
                a, b = go(x.args[0]), go(x.args[1])
                exact = divide_exact(a, b)
                return exact if exact is not None else floordiv(a, b)
            case SymMod() | SymPythonMod():
                return mod(go(x.args[0]), go(x.args[1]))
            case SymMax():
                a, b = (go(y) for y in x.args)
                if nonnegative(a - b):
                    return a
                if nonnegative(b - a):
                    return b
        raise NotCovered(f"the length {x} is not an integer polynomial")

    return go(e)


Index = tuple[Int, ...]


class Value:
    """A tensor as a function from an index (one Int per dimension) to the expression of its element."""

    __slots__ = ("_at", "_memo", "dtype", "shape")

    def __init__(self, shape: Sequence[Int], dtype: DType, at: Callable[[Index], Expr]) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self._at = at
        self._memo: dict[Index, Expr] = {}

    def __call__(self, index: Sequence[Int]) -> Expr:
        key = tuple(index)
        done = self._memo.get(key)
        if done is None:
            assert len(key) == len(self.shape), (len(key), len(self.shape))
            done = self._memo[key] = self._at(key)
        return done

    @property
    def rank(self) -> int:
        return len(self.shape)

    def view(self, shape: Sequence[Int], index: Callable[[Index], Index]) -> Value:
        """The same elements under another shape."""
        return Value(shape, self.dtype, lambda ix: self(index(ix)))

    def broadcast(self, shape: Sequence[Int]) -> Value:
        target = tuple(shape)
        if target == self.shape:
            return self
        off = len(target) - self.rank

        def index(ix: Index) -> Index:
            return tuple(ZERO if n.value == 1 else i for n, i in zip(self.shape, ix[off:], strict=True))

        return self.view(target, index)

    def cast(self, dtype: DType) -> Value:
        return self if dtype is self.dtype else Value(self.shape, dtype, lambda ix: cast(self(ix), dtype))


Scalar = Union[bool, int, float, Int, Expr]
Arg = Union[Value, Scalar, str, torch.dtype, None, list["Arg"]]


def filled(shape: Sequence[Int], value: Expr, dtype: DType) -> Value:
    return Value(shape, dtype, lambda ix: value)


def scalar_expr(x: Scalar, dtype: DType) -> Expr:
    """A Python number, symbolic size or scalar expression as an expression of the given dtype."""
    match x:
        case bool() | int() | float():
            return const(x, dtype)
        case Int():
            return cast(position(x), dtype)
        case _:
            return cast(x, dtype)
