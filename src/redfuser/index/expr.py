"""Scalar expressions: the one language for bodies in the index program, the algebra's results and the tile program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Union

from redfuser.index.intern import Interned, Node
from redfuser.index.ints import Axis, Gather, Int, Size, as_int


class DType(Enum):
    BOOL = "bool"
    UINT8 = "uint8"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT8_E4M3 = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @property
    def is_float(self) -> bool:
        return self.value.startswith(("float", "bfloat"))

    @property
    def bytes(self) -> int:
        return _BYTES[self.value]

    @property
    def lowest(self) -> float | int | bool:
        """The identity of max: -inf, the smallest integer, or False."""
        return self._ends[0]

    @property
    def highest(self) -> float | int | bool:
        """The identity of min: inf, the largest integer, or True."""
        return self._ends[1]

    @property
    def _ends(self) -> tuple[float | int | bool, float | int | bool]:
        if self.is_float:
            return -math.inf, math.inf
        if self is DType.BOOL:
            return False, True
        bits = 8 * self.bytes
        return (0, 2**bits - 1) if self is DType.UINT8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    @property
    def compute(self) -> DType:
        """The dtype in which arithmetic on it is done: float32 for narrower floats, itself otherwise."""
        return DType.FLOAT32 if self.is_float and self.bytes < 4 else self

    @property
    def accumulator(self) -> DType:
        """The dtype in which a sum of it is kept: float32 up to float32, float64, int64 for integers and bool."""
        return self.compute if self.is_float else DType.INT64


_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip


class Fn(Enum):
    """Scalar functions. Comparison and logic give BOOL; the rest the dtype that the Apply node says."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    FLOORDIV = "floordiv"
    REMAINDER = "remainder"
    POW = "pow"
    NEG = "neg"
    ABS = "abs"
    SIGN = "sign"
    EXP = "exp"
    EXP2 = "exp2"
    EXPM1 = "expm1"
    LOG = "log"
    LOG2 = "log2"
    LOG1P = "log1p"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    SIN = "sin"
    COS = "cos"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    ERF = "erf"
    FLOOR = "floor"
    CEIL = "ceil"
    ROUND = "round"
    TRUNC = "trunc"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    EQ = "eq"
    NE = "ne"
    AND = "and"
    OR = "or"
    XOR = "xor"
    NOT = "not"
    WHERE = "where"
    ISNAN = "isnan"


class Part(Enum):
    """Which component of a reduction's result: its value, or the position it came from (top-k, argmax, argmin)."""

    VALUE = "value"
    INDEX = "index"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Const(Node, metaclass=Interned):
    value: float | int | bool
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Position(Node, metaclass=Interned):
    """The value of an integer expression (int64): what ``arange`` becomes."""

    index: Int


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Load(Node, metaclass=Interned):
    """An element of an input or of an earlier definition. Only in a branch not taken may an index be out of range."""

    source: str
    index: tuple[Int, ...]
    dtype: DType
    part: Part


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Ref(Node, metaclass=Interned):
    """A named value of the running state: an accumulator or a base; ``old`` is its value before the update."""

    name: str
    dtype: DType
    old: bool
    part: Part


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Apply(Node, metaclass=Interned):
    fn: Fn
    args: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Cast(Node, metaclass=Interned):
    """A conversion that the program wrote: to a narrower float it rounds, to an integer it truncates."""

    arg: Expr
    dtype: DType


Expr = Union[Const, Position, Load, Ref, Apply, Cast]

COMPARISONS = frozenset({Fn.LT, Fn.LE, Fn.GT, Fn.GE, Fn.EQ, Fn.NE})
LOGIC = frozenset({Fn.AND, Fn.OR, Fn.XOR, Fn.NOT})


def dtype_of(e: Expr) -> DType:
    return DType.INT64 if isinstance(e, Position) else e.dtype


def const(value: float | int | bool, dtype: DType) -> Const:
    if dtype is DType.BOOL:
        return Const(bool(value), dtype)
    return Const(float(value) if dtype.is_float else int(value), dtype)


def position(index: Int) -> Expr:
    v = index.value
    return const(v, DType.INT64) if v is not None else Position(index)


def load(source: str, index: tuple[Int, ...], dtype: DType, part: Part = Part.VALUE) -> Load:
    return Load(source, index, dtype, part)


def ref(name: str, dtype: DType, old: bool = False, part: Part = Part.VALUE) -> Ref:
    return Ref(name, dtype, old, part)


def children(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Apply():
            return e.args
        case Cast():
            return (e.arg,)
        case _:
            return ()


def rebuild(e: Expr, args: tuple[Expr, ...]) -> Expr:
    match e:
        case Apply():
            return Apply(e.fn, args, e.dtype)
        case Cast():
            return Cast(args[0], e.dtype)
        case _:
            return e


def transform(e: Expr, leaf: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None) -> Expr:
    """Top-down rewrite: an expression that ``leaf`` returns stands in for the node, else its children are visited."""
    memo = {} if memo is None else memo
    done = memo.get(e)
    if done is None:
        done = leaf(e)
        if done is None:
            args = children(e)
            done = rebuild(e, tuple(transform(a, leaf, memo) for a in args)) if args else e
        memo[e] = done
    return done


def walk(e: Expr) -> Iterator[Expr]:
    """Every distinct node, parents before children; data-dependent indices included."""
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        x = stack.pop()
        if x in seen:
            continue
        seen.add(x)
        yield x
        stack.extend(children(x))
        indices = x.index if isinstance(x, Load) else (x.index,) if isinstance(x, Position) else ()
        for i in indices:
            stack.extend(g.value for g in i.gathers())


def loads(e: Expr) -> Iterator[Load]:
    return (x for x in walk(e) if isinstance(x, Load))


def free_axes(e: Expr) -> frozenset[Axis]:
    out: set[Axis] = set()
    for x in walk(e):
        for i in x.index if isinstance(x, Load) else (x.index,) if isinstance(x, Position) else ():
            out |= i.axes()
    return frozenset(out)


def free_sizes(e: Expr) -> frozenset[Size]:
    out: set[Size] = set()
    for x in walk(e):
        for i in x.index if isinstance(x, Load) else (x.index,) if isinstance(x, Position) else ():
            out |= i.sizes()
    return frozenset(out)


def substitute(e: Expr, mapping: Mapping[Axis, Int], source: Callable[[Load], Expr | None] | None = None) -> Expr:
    """Axes replaced by integer expressions; ``source`` may replace a load (already re-indexed) by an expression."""
    memo: dict[Expr, Expr] = {}

    def gathered(g: Gather) -> Int:
        return as_int(Gather(transform(g.value, leaf, memo), g.bound.substitute(mapping)))

    def leaf(x: Expr) -> Expr | None:
        match x:
            case Load():
                moved = Load(x.source, tuple(i.substitute(mapping, gathered) for i in x.index), x.dtype, x.part)
                new = source(moved) if source else None
                return moved if new is None else new
            case Position():
                return position(x.index.substitute(mapping, gathered))
            case _:
                return None

    return transform(e, leaf, memo)


def is_infinite(e: Expr) -> bool:
    return isinstance(e, Const) and isinstance(e.value, float) and math.isinf(e.value)
