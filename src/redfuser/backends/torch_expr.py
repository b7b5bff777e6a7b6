"""Scalar expressions evaluated with torch, as eager PyTorch would: the one place that maps Fn to torch.

Arithmetic on floats narrower than float32 is done in float32 and rounded once to the dtype of the node. Integers wrap
around. A result may be written into an argument that nothing else will read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from redfuser.index.expr import COMPARISONS, Apply, Cast, Const, DType, Expr, Fn, Load, Position, Ref, children, walk
from redfuser.index.ints import Int

TORCH: dict[DType, torch.dtype] = {
    DType.BOOL: torch.bool,
    DType.UINT8: torch.uint8,
    DType.INT8: torch.int8,
    DType.INT16: torch.int16,
    DType.INT32: torch.int32,
    DType.INT64: torch.int64,
    DType.FLOAT8_E4M3: torch.float8_e4m3fn,
    DType.FLOAT8_E5M2: torch.float8_e5m2,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT32: torch.float32,
    DType.FLOAT64: torch.float64,
}
Owned = tuple[Tensor, bool]


class Scope(Protocol):
    """Where leaves come from. The flag says that the tensor may be overwritten."""

    device: torch.device

    def value(self, name: str) -> Owned: ...

    def position(self, index: Int) -> Tensor: ...


def _floor_divide(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.div(a, b, rounding_mode="floor", out=out)


# where sigmoid(x) equals exp(x) to the last bit, and where exp(x) begins to leave the normal numbers
_TAIL = {torch.float32: (-18.0, -80.0), torch.float64: (-38.0, -690.0)}


def _exp(a: Tensor, out: Tensor | None = None) -> Tensor:
    """exp, fast on CPUs also where it underflows: the vector library behind ``torch.exp`` is 10 times slower there.

    Masked scores are full of such elements. They go through the sigmoid, which has its own vector code.
    """
    limits = _TAIL.get(a.dtype)
    if a.device.type != "cpu" or limits is None or a.numel() < 4096 or not bool(a.amin() < limits[1]):
        return torch.exp(a, out=out)
    tail = torch.sigmoid(a)
    small = a < limits[0]
    head = a.clamp_min(limits[0]).exp_()
    return torch.where(small, tail, head, out=head if out is None else out)


_UNARY: dict[Fn, Callable[..., Tensor]] = {
    Fn.NEG: torch.neg, Fn.ABS: torch.abs, Fn.SIGN: torch.sign, Fn.EXP: _exp, Fn.EXP2: torch.exp2,
    Fn.EXPM1: torch.expm1, Fn.LOG: torch.log, Fn.LOG2: torch.log2, Fn.LOG1P: torch.log1p, Fn.SQRT: torch.sqrt,
    Fn.RSQRT: torch.rsqrt, Fn.SIN: torch.sin, Fn.COS: torch.cos, Fn.TANH: torch.tanh, Fn.SIGMOID: torch.sigmoid,
    Fn.ERF: torch.erf, Fn.FLOOR: torch.floor, Fn.CEIL: torch.ceil, Fn.ROUND: torch.round, Fn.TRUNC: torch.trunc,
}  # fmt: skip
_BINARY: dict[Fn, Callable[..., Tensor]] = {
    Fn.ADD: torch.add, Fn.SUB: torch.sub, Fn.MUL: torch.mul, Fn.DIV: torch.div, Fn.FLOORDIV: _floor_divide,
    Fn.REMAINDER: torch.remainder, Fn.POW: torch.pow, Fn.MAXIMUM: torch.maximum, Fn.MINIMUM: torch.minimum,
}  # fmt: skip
_COMPARE: dict[Fn, Callable[..., Tensor]] = {
    Fn.LT: torch.lt, Fn.LE: torch.le, Fn.GT: torch.gt, Fn.GE: torch.ge, Fn.EQ: torch.eq, Fn.NE: torch.ne,
}  # fmt: skip
_LOGIC: dict[Fn, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    Fn.AND: (torch.logical_and, torch.bitwise_and),
    Fn.OR: (torch.logical_or, torch.bitwise_or),
    Fn.XOR: (torch.logical_xor, torch.bitwise_xor),
    Fn.NOT: (torch.logical_not, torch.bitwise_not),
}


def evaluate(e: Expr, scope: Scope) -> Owned:
    """The tensor of an expression, and whether it may be overwritten."""
    return _Evaluation(scope, _shared(e)).of(e)


@lru_cache(maxsize=4096)
def _shared(e: Expr) -> frozenset[Expr]:
    """The operations that more than one other reads: they are computed once and never overwritten."""
    seen: set[Expr] = set()
    again: set[Expr] = set()
    for parent in walk(e):
        for x in children(parent):
            (again if x in seen else seen).add(x)
    return frozenset(x for x in again if isinstance(x, Apply | Cast))


class _Evaluation:
    def __init__(self, scope: Scope, shared: frozenset[Expr]) -> None:
        self.scope = scope
        self.shared = shared
        self.memo: dict[Expr, Tensor] = {}

    def of(self, e: Expr) -> Owned:
        if e not in self.shared:
            return self.fresh(e)
        done = self.memo.get(e)
        if done is None:
            done = self.memo[e] = self.fresh(e)[0]
        return done, False

    def fresh(self, e: Expr) -> Owned:
        match e:
            case Apply():
                return self.apply(e)
            case Ref():
                return self.scope.value(e.name)
            case Const():
                return torch.tensor(e.value, dtype=TORCH[e.dtype], device=self.scope.device), False
            case Cast():
                return _cast(self.of(e.arg), TORCH[e.dtype])
            case Position():
                return self.scope.position(e.index), False
            case Load():
                raise ValueError(f"a load of {e.source} inside an expression of a tile program")

    def apply(self, e: Apply) -> Owned:
        args = [self.of(a) for a in e.args]
        if len(set(map(id, (a for a, _ in args)))) < len(args):
            args = [(a, False) for a, _ in args]
        result = TORCH[e.dtype]
        if e.fn is Fn.WHERE:
            work = TORCH[e.dtype]
            a, b = _cast(args[1], work), _cast(args[2], work)
            return _where(_cast(args[0], torch.bool)[0], a, b)
        if e.fn in COMPARISONS:
            work = _common(args)
            return _COMPARE[e.fn](*(_cast(a, work)[0] for a in args)), True
        if e.fn is Fn.ISNAN:
            return torch.isnan(_cast(args[0], _wide(args[0][0].dtype))[0]), True
        if e.fn in _LOGIC:
            logical, bitwise = _LOGIC[e.fn]
            if e.dtype is DType.BOOL:
                return logical(*(a for a, _ in args)), True
            return bitwise(*(_cast(a, result)[0] for a in args)), True
        work = TORCH[e.dtype.compute]
        out = self.arithmetic(e, [_cast(a, work) for a in args])
        return _cast(out, result)

    def arithmetic(self, e: Apply, args: list[Owned]) -> Owned:
        if e.fn in _UNARY:
            a, own = args[0]
            if a.dtype is torch.bool:
                raise ValueError(f"{e.fn.value} of bool")
            return (_UNARY[e.fn](a, out=a) if own else _UNARY[e.fn](a)), True
        (a, a_own), (b, b_own) = args
        if e.fn is Fn.POW and isinstance(e.args[1], Const):
            exponent = e.args[1].value
            return (torch.pow(a, exponent, out=a) if a_own else torch.pow(a, exponent)), True
        fn = _BINARY[e.fn]
        target = a if a_own and _covers(a, b) else b if b_own and _covers(b, a) else None
        return (fn(a, b) if target is None else fn(a, b, out=target)), True


def _where(c: Tensor, a: Owned, b: Owned) -> Owned:
    for (x, own), (y, _) in ((a, b), (b, a)):
        if own and _covers(x, y) and _covers(x, c):
            return torch.where(c, a[0], b[0], out=x), True
    return torch.where(c, a[0], b[0]), True


def _covers(a: Tensor, b: Tensor) -> bool:
    """True when b broadcasts to the shape of a."""
    if b.dim() == 0 or a.shape == b.shape:
        return True
    return a.dim() == b.dim() and all(n == m or m == 1 for n, m in zip(a.shape, b.shape, strict=True))


def _cast(x: Owned, dtype: torch.dtype) -> Owned:
    a = x[0]
    return x if a.dtype is dtype else (a.to(dtype), True)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def _common(args: list[Owned]) -> torch.dtype:
    out = _wide(args[0][0].dtype)
    for a, _ in args[1:]:
        out = torch.promote_types(out, _wide(a.dtype))
    return out


def cast(x: Tensor, dtype: DType) -> Tensor:
    return x if x.dtype is TORCH[dtype] else x.to(TORCH[dtype])
