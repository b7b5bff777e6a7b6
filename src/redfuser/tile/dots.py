"""Which sums of products are dots.

sum over l of  p[i, l] * v[l, d]      left = p {i, l},  right = v {l, d}      a dot over l
sum over l of  x[i, l] * x[i, l]      both span {i, l}                        not a dot
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from redfuser.index.expr import Apply, DType, Expr, Fn, dtype_of
from redfuser.index.ints import Axis

Span = Callable[[Expr], frozenset[Axis]]


@dataclass(frozen=True, slots=True)
class Split:
    """A product as two operands, and the factors that are applied after the sum."""

    left: Expr
    right: Expr
    outside: Expr | None


def factors(e: Expr) -> tuple[Expr, ...]:
    if isinstance(e, Apply) and e.fn is Fn.MUL and e.dtype.is_float:
        return factors(e.args[0]) + factors(e.args[1])
    return (e,)


def multiply(items: Iterable[Expr]) -> Expr | None:
    """The product, in the widest dtype in which its factors are computed."""
    out: Expr | None = None
    for x in items:
        if out is None:
            out = x
        else:
            wide = max((dtype_of(out).compute, dtype_of(x).compute), key=lambda d: d.bytes)
            out = Apply(Fn.MUL, (out, x), wide)
    return out


def split(body: Expr, over: tuple[Axis, ...], accumulator: DType, span: Span) -> Split | None:
    """The operands of the dot that sums ``body`` over ``over``, or None when it is not one."""
    if not accumulator.is_float or not dtype_of(body).is_float:
        return None
    parts = factors(body)
    if any(not dtype_of(f).is_float for f in parts):
        return None
    contracted = frozenset(over)
    summed = sorted((f for f in parts if span(f) & contracted), key=lambda f: -len(span(f)))
    if len(summed) < 2:
        return None
    left: list[Expr] = [summed[0]]
    right: list[Expr] = []
    outside: list[Expr] = []
    left_span = span(summed[0])
    for f in summed[1:]:
        (left if span(f) <= left_span else right).append(f)
    if not right and len(left) == 2 and span(left[0]) != span(left[1]):
        right.append(left.pop())  # a matrix times a vector
    if not right:
        return None
    right_span = frozenset[Axis]().union(*(span(f) for f in right))
    for f in parts:
        if not span(f) & contracted:
            side = left if span(f) <= left_span else right if span(f) <= right_span else outside
            side.append(f)
    if left_span == right_span or not (contracted <= left_span and contracted <= right_span):
        return None
    a, b = multiply(left), multiply(right)
    assert a is not None and b is not None
    return Split(a, b, multiply(outside))
