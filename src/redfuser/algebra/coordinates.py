"""Coordinates: results by which elements are shifted, and the bases at which the running state sits instead of them.

A base must be well conditioned on every prefix: an extremum, the logarithm of a positive sum, or a weighted mean. The
base of a mean is the mean of the prefix (its own count or weights below the line), whatever the result divides by.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from redfuser.algebra import build, poly
from redfuser.algebra.facts import unguarded
from redfuser.algebra.nodes import Stage
from redfuser.algebra.terms import D, Term, X, base_power, variables
from redfuser.index.expr import Cast, Const, DType, Expr, Fn, Position
from redfuser.index.nodes import Reducer

if TYPE_CHECKING:
    from redfuser.algebra.state import Entry, State


@dataclass(frozen=True, slots=True)
class Mean:
    """factor * top / bottom: ``bottom`` is None where the result divides by a parameter.

    Where the elements themselves are divided (sum of x/n), ``inside`` is that factor.
    """

    factor: Term
    top: Entry
    bottom: Entry | None
    divisor: Term
    inside: Term


@dataclass(frozen=True, slots=True)
class Placed:
    """A coordinate in place: its base, and how far the result is from the base at the end (None: nowhere)."""

    base: Expr
    offset: Expr | None
    why: str
    mean: Mean | None = None  # where the result is exactly this mean


def conditioned(s: State, r: Term) -> bool:
    return kind_of(s, r) is not None


def kind_of(s: State, r: Term) -> str | None:
    """ "extremum", "logarithm", "mean", or None."""
    if not r.kind & D:
        return "parameter"
    r = plain(s, r)
    if is_extremum(s, r):
        return "extremum"
    if summed_log(s, r) is not None:
        return "logarithm"
    return "mean" if mean_of(s, r) is not None else None


def plain(s: State, r: Term) -> Term:
    """Without guards, roundings and parameter factors."""
    r = unguarded(s.t, r)
    while True:
        if r.op == "fn" and r.label.startswith("cast:"):
            r = r.args[0]
        elif r.op == "mul" and any(not f.kind for f in r.args) and mean_of(s, r) is None:
            r = s.t.mul(*[f for f in r.args if f.kind])
        else:
            return r


def summed_log(s: State, r: Term) -> Term | None:
    """z where r is ``log(z)``, or ``m + log(z)`` with an extremum m: the logarithm of a positive sum."""
    logs = [a for a in r.addends if a.op == "log" and a.args[0].kind == D and a.args[0].nonneg]
    rest = [a for a in r.addends if a.kind and a not in logs]
    return logs[0].args[0] if len(logs) == 1 and all(is_extremum(s, a) for a in rest) else None


def is_extremum(s: State, r: Term) -> bool:
    from redfuser.algebra.state import EXTREMA

    if r.op in ("max", "min"):
        return all(not a.kind or is_extremum(s, a) for a in r.args)
    acc = s.accumulators.get(r)
    return acc is not None and acc.reducer in EXTREMA


def entry_of(s: State, v: Term) -> Entry | None:
    return next((e for e in s.sums if e.state is v), None)


def mean_of(s: State, r: Term) -> Mean | None:
    """r as a ratio of sums that run at the same base, each free of coordinates."""
    tops, bottoms, rest = list[Term](), list[Term](), list[Term]()
    for f in r.factors:
        b, q = base_power(f)
        while b.op == "fn" and b.label.startswith("cast:"):
            b = b.args[0]
        if f.kind & D:
            if q not in (1, -1):
                return None
            (tops if q == 1 else bottoms).append(b)
        else:
            rest.append(f)
    if len(tops) != 1 or len(bottoms) > 1:
        return None
    top = entry_of(s, tops[0])
    if top is None or poly.coordinates(top.terms):
        return None
    if not bottoms:
        inside = _common_divisor(s, top.terms)
        under = [f for f in (*rest, *inside.factors) if base_power(f)[1] < 0 or (f.op == "const" and f is not s.t.one)]
        if not under or top.key != (s.t.zero, s.t.one):
            return None
        return Mean(s.t.one, top, None, s.t.inv(s.t.mul(inside, *rest)), inside)
    bottom = entry_of(s, bottoms[0])
    if bottom is None or poly.coordinates(bottom.terms) or bottom.key != top.key or len(bottom.terms) != 1:
        return None
    return Mean(s.t.mul(*rest), top, bottom, bottoms[0], s.t.one)


def _common_divisor(s: State, terms: poly.Terms) -> Term:
    """The number below 1 and the parameters that divide every element term: 1/n of sum(x/n)."""
    numbers = {abs(p[()]) for p in terms.values()}
    number = numbers.pop() if len(numbers) == 1 else Fraction(1)
    shared = set.intersection(*[{f for f in g.factors if not f.kind and base_power(f)[1] < 0} for g in terms])
    return s.t.mul(s.t.const(min(number, Fraction(1))), *shared)


def place(s: State, stage: Stage, r: Term, name: str, raw_needed: bool) -> Placed:
    """The base of a coordinate as steps of the state."""
    kind = kind_of(s, r)
    if kind == "mean":
        return _place_mean(s, stage, r, name)
    tag = "shift"
    if kind == "logarithm":
        inside = summed_log(s, plain(s, r))
        assert inside is not None
        value = build.where(build.is_identity(s.inner(inside), 0.0), s.zero(), s.inner(r))
        base = s.set_base(stage, tag, r, name, value)
        return Placed(base, build.sub(s.raw(r), base) if raw_needed else None, "the logarithm of a positive sum")
    test = s.at_identity(r)
    value = s.inner(r)
    if test is not None:
        value = build.where(test, s.zero(value), value)
    base = s.set_base(stage, "exponent", r, name, value)
    offset = build.sub(s.raw(r), base) if raw_needed else None
    return Placed(base, offset, "an extremum, which stays among the data")


def _place_mean(s: State, stage: Stage, r: Term, name: str) -> Placed:
    inner = r
    while inner.op == "fn" and inner.label.startswith("cast:"):
        inner = inner.args[0]
    m = mean_of(s, inner) or mean_of(s, plain(s, r))
    assert m is not None
    top = s.ref_of(m.top.state)
    name = f"{top.name}_mean"
    if m.bottom is None:
        weight: Expr = build.cast(s.count(stage), top.dtype if top.dtype.is_float else DType.FLOAT32)
        n = s.count(stage)
        whole = build.mul(top, s.inner(s.t.inv(m.inside)))
        value = build.where(build.is_identity(n, 0), s.zero(top), build.div(whole, weight))
        base = s.set_base(stage, "mean", m.top.state, name, value)
        exact = not any(f.op == "fn" for f in r.factors) and is_length(s, m.divisor)
        return Placed(
            base, None if exact else build.sub(s.raw(r), base), "the mean of the prefix", m if exact else None
        )
    bottom = s.ref_of(m.bottom.state)
    weights = next(iter(m.bottom.terms))
    positive = weights.nonneg and m.bottom.terms[weights][()] > 0
    if positive:
        value = build.where(build.is_identity(bottom, 0), s.zero(top), s.inner(r))
        base = s.set_base(stage, "mean", r, name, value)
        pure = m if not any(f.op == "fn" for f in r.factors) else None
        return Placed(base, build.sub(s.raw(r), base), "a mean with weights >= 0", pure)
    return _place_signed_mean(s, stage, r, m, weights, name)


def _place_signed_mean(s: State, stage: Stage, r: Term, m: Mean, weights: Term, name: str) -> Placed:
    """Weights of unknown sign: sit at the mean under their absolute values, which never leaves the data."""
    assert m.bottom is not None
    w = s.accumulators[m.bottom.state]
    top = s.accumulators[m.top.state]
    if w.correction is not None:
        value = build.where(build.is_identity(s.ref_of(m.bottom.state), 0.0), s.zero(), s.inner(r))
        return Placed(b := s.set_base(stage, "mean", r, name, value), build.sub(s.raw(r), b), "a weighted mean")
    size = build.unary(Fn.ABS, w.element)
    signed = build.mul(build.unary(Fn.SIGN, w.element), top.element)
    total = s.accumulate(stage, f"{stage.name}_w", Reducer.SUM, size, w.dtype, "sum of absolute weights")
    moment = s.accumulate(stage, f"{stage.name}_s", Reducer.SUM, signed, top.dtype, "sum under absolute weights")
    ratio = s.t.scale(Fraction(1), m.factor)
    value = build.div(moment, total) if ratio is s.t.one else build.mul(s.inner(ratio), build.div(moment, total))
    value = build.where(build.is_identity(total, 0.0), s.zero(value), value)
    base = s.set_base(stage, "mean", r, name, value)
    return Placed(base, build.sub(s.raw(r), base), "the mean under the absolute weights")


def related(s: State, r: Term, terms: poly.Terms) -> bool:
    """True when the coordinate is taken over the elements that it shifts (the logarithm of a sum moves too
    little to matter).
    """
    kind, r = kind_of(s, r), plain(s, r)
    if kind in ("logarithm", "parameter"):
        return True
    atoms = {base_power(f)[0] for g in terms for f in g.factors if f.kind & X and not f.label.startswith("if#")}
    m = mean_of(s, r)
    if m is not None:
        return any(base_power(f)[0] in atoms or f in atoms for g in m.top.terms for f in g.factors)
    return any(_bounds(s, v, a) for v in variables(r) if v in s.accumulators for a in atoms)


def _bounds(s: State, v: Term, a: Term) -> bool:
    key = s.reader.term(s.accumulators[v].element)
    masked = key.op == "fn" and key.label == "where" and a in key.args
    multiple = s.t.mul(*[f for f in key.factors if f.kind & X]) is a
    return multiple or masked or s.facts.nonneg(s.t.sub(v, a)) or s.facts.nonneg(s.t.sub(a, v))


def is_length(s: State, divisor: Term) -> bool:
    """True when the divisor is the length of the axis."""
    e = s.reader.exprs.get(divisor)
    while isinstance(e, Cast):
        e = e.arg
    if isinstance(e, Position):
        return e.index is s.problem.axis.size
    if isinstance(e, Const):
        return False
    return divisor.op == "const" and s.problem.axis.size.value == divisor.value
