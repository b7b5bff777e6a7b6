"""A few lines to write cascades by hand: values with operators over index expressions, stages in order."""

# One line per step reads best here.
# ruff: noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass, field

from redfuser.algebra.nodes import Problem, Stage
from redfuser.index.expr import (
    COMPARISONS,
    Apply,
    Cast,
    DType,
    Expr,
    Fn,
    Load,
    Part,
    const,
    dtype_of,
    free_axes,
    load,
    position,
)
from redfuser.index.ints import Axis, Size, as_int
from redfuser.index.nodes import Reducer

F32, BF16, E4M3 = DType.FLOAT32, DType.BFLOAT16, DType.FLOAT8_E4M3


def wrap(x: V | float | int | bool) -> Expr:
    if isinstance(x, V):
        return x.e
    return const(x, DType.BOOL if isinstance(x, bool) else F32)


def apply(fn: Fn, *a: V | float | int | bool) -> V:
    e = tuple(wrap(x) for x in a)
    bools = fn in COMPARISONS or fn in (Fn.AND, Fn.OR, Fn.NOT, Fn.ISNAN)
    floats = [dtype_of(x) for x in e if dtype_of(x).is_float]
    wide = DType.FLOAT64 if DType.FLOAT64 in floats else F32
    return V(Apply(fn, e, DType.BOOL if bools else wide))


@dataclass(frozen=True, eq=False)
class V:
    e: Expr

    def __add__(self, o): return apply(Fn.ADD, self, o)
    def __radd__(self, o): return apply(Fn.ADD, o, self)
    def __sub__(self, o): return apply(Fn.SUB, self, o)
    def __rsub__(self, o): return apply(Fn.SUB, o, self)
    def __mul__(self, o): return apply(Fn.MUL, self, o)
    def __rmul__(self, o): return apply(Fn.MUL, o, self)
    def __truediv__(self, o): return apply(Fn.DIV, self, o)
    def __rtruediv__(self, o): return apply(Fn.DIV, o, self)
    def __pow__(self, o): return apply(Fn.POW, self, o)
    def __neg__(self): return apply(Fn.NEG, self)
    def __lt__(self, o): return apply(Fn.LT, self, o)
    def __le__(self, o): return apply(Fn.LE, self, o)
    def __gt__(self, o): return apply(Fn.GT, self, o)
    def __ge__(self, o): return apply(Fn.GE, self, o)
    def __and__(self, o): return apply(Fn.AND, self, o)
    def __or__(self, o): return apply(Fn.OR, self, o)
    def __invert__(self): return apply(Fn.NOT, self)
    def eq(self, o): return apply(Fn.EQ, self, o)
    def to(self, d): return V(Cast(self.e, d))


def _one(fn):
    return lambda x: apply(fn, x)


exp, log, absv, tanh, sigmoid, sqrt, rsqrt, rnd, exp2, log2, expm1, log1p, ceil, floor, sign, isnan, erf = (
    _one(f) for f in (Fn.EXP, Fn.LOG, Fn.ABS, Fn.TANH, Fn.SIGMOID, Fn.SQRT, Fn.RSQRT, Fn.ROUND, Fn.EXP2, Fn.LOG2, Fn.EXPM1, Fn.LOG1P, Fn.CEIL, Fn.FLOOR,
                      Fn.SIGN, Fn.ISNAN, Fn.ERF)
)  # fmt: skip


def maxv(a, b): return apply(Fn.MAXIMUM, a, b)
def minv(a, b): return apply(Fn.MINIMUM, a, b)
def where(c, a, b): return apply(Fn.WHERE, c, a, b)
def xlogy(x, y): return where(isnan(y), math.nan, where(x.eq(0.0), 0.0, x * log(y)))
def clip(x, lo, hi): return maxv(minv(x, hi), lo)


NINF = -math.inf


@dataclass
class Cascade:
    """Axes b (rows), l (the cascade), d (columns); inputs by name; stages in order."""

    name: str
    length: int | None = None
    dtype: DType = F32
    stages: list[Stage] = field(default_factory=list)

    def __post_init__(self):
        self.b, self.d = Axis("b", as_int(3)), Axis("d", as_int(2))
        self.l = Axis("l", as_int(self.length) if self.length else as_int(Size("L", 128)))

    def load(self, name, *axes, dtype=None):
        return V(load(name, tuple(as_int(a) for a in axes), dtype or self.dtype))

    def x(self, name="x", dtype=None): return self.load(name, self.b, self.l, dtype=dtype)
    def col(self, name="v", dtype=None): return self.load(name, self.l, self.d, dtype=dtype)
    def vec(self, name="w", dtype=None): return self.load(name, self.l, dtype=dtype)
    def par(self, name): return self.load(name)
    def at(self, axis): return V(position(as_int(axis)))
    @property
    def n(self): return V(Cast(position(self.l.size), F32))

    def st(self, name, reducer, body, k=0, dtype=None):
        body = wrap(body)
        reducer = Reducer[reducer.upper()]
        axes = tuple(sorted((a for a in free_axes(body) if a is not self.l), key=lambda a: a.serial))
        kept = Axis("k", as_int(k)) if k else None
        dtype = dtype or (DType.BOOL if reducer in (Reducer.ANY, Reducer.ALL) else dtype_of(body))
        self.stages.append(Stage(name, reducer, axes, body, dtype, kept))
        index = tuple(as_int(a) for a in axes) + ((as_int(kept),) if kept else ())
        return V(Load(name, index, dtype, Part.VALUE))

    def sum(self, name, body, **kw): return self.st(name, "sum", body, **kw)
    def max(self, name, body, **kw): return self.st(name, "max", body, **kw)
    def min(self, name, body, **kw): return self.st(name, "min", body, **kw)

    def softmax(self, s, m="m", Z="Z"):
        top = self.max(m, s)
        return top, self.sum(Z, exp(s - top))

    def mean(self, x, name="s"):
        return self.sum(name, x) / self.n

    @property
    def problem(self):
        return Problem(self.l, tuple(self.stages))
