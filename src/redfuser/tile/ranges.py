"""Comparisons with numbers that run along an axis, answered for a run of neighbours at once by the range they have.

    r == x[l] for some l of a run    needs    low <= r and r <= high            low, high: the range of x along the run
    r == x[l] for each l of a run    means    low == r and r == high

A range keeps no gaps: "some" may be said of a run that has none, "each" never of a run that has one without. A run
without any position has the range from the largest number to the smallest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from redfuser.index.build import OPPOSITE
from redfuser.index.expr import Apply, DType, Expr, Fn, dtype_of
from redfuser.index.ints import Axis

_MIRRORED = {Fn.LT: Fn.GT, Fn.LE: Fn.GE, Fn.GT: Fn.LT, Fn.GE: Fn.LE, Fn.EQ: Fn.EQ, Fn.NE: Fn.NE}


@dataclass(frozen=True, slots=True)
class Comparison:
    """``fn(fixed, along)``: what is the same all along an axis, with what runs along it."""

    fn: Fn
    fixed: Expr
    along: Expr

    def some(self, low: Expr, high: Expr) -> Expr:
        """True where it may hold within a run whose numbers lie from ``low`` to ``high``."""
        r = self.fixed
        match self.fn:
            case Fn.EQ:
                return _and(_compare(Fn.LE, low, r), _compare(Fn.LE, r, high))
            case Fn.NE:
                return _or(_compare(Fn.NE, r, low), _compare(Fn.NE, r, high))
            case Fn.LT | Fn.LE:
                return _compare(self.fn, r, high)
            case _:
                return _compare(self.fn, r, low)

    def each(self, low: Expr, high: Expr) -> Expr:
        """True where it holds all along such a run."""
        r = self.fixed
        match self.fn:
            case Fn.EQ:
                return _and(_compare(Fn.EQ, r, low), _compare(Fn.EQ, r, high))
            case Fn.NE:
                return _or(_compare(Fn.LT, r, low), _compare(Fn.GT, r, high))
            case Fn.LT | Fn.LE:
                return _compare(self.fn, r, low)
            case _:
                return _compare(self.fn, r, high)


def comparison(e: Expr, truth: bool, axis: Axis, span: Callable[[Expr], frozenset[Axis]]) -> Comparison | None:
    """The comparison that holds where ``e`` is ``truth``; None unless one side alone runs along the axis.

    The numbers are integers: a NaN lies in no range, and its opposite comparisons are both false.
    """
    if not (isinstance(e, Apply) and e.fn in _MIRRORED):
        return None
    fn, (a, b) = e.fn if truth else OPPOSITE[e.fn], e.args
    if any(dtype_of(x).is_float or dtype_of(x) is DType.BOOL for x in (a, b)):
        return None
    match axis in span(a), axis in span(b):
        case False, True:
            return Comparison(fn, a, b)
        case True, False:
            return Comparison(_MIRRORED[fn], b, a)
        case _:
            return None


def _compare(fn: Fn, a: Expr, b: Expr) -> Expr:
    return Apply(fn, (a, b), DType.BOOL)


def _and(a: Expr, b: Expr) -> Expr:
    return Apply(Fn.AND, (a, b), DType.BOOL)


def _or(a: Expr, b: Expr) -> Expr:
    return Apply(Fn.OR, (a, b), DType.BOOL)
