"""Branches on the sign of a product of an element and a result, as branches on the element alone.

    where(isnan(p), nan, where(p == 0, 0, p * log(p))),  p = exp(x - m) / Z     ->     where(x == -inf, 0, p * log(p))

A scale of one sign decides nothing about the sign of a product; an exponential is 0 exactly where its exponent is -inf.
Where it underflows the program takes it for 0 too: so the other branch must go to 0 with it. A branch that is NaN where
p is needs no test for that.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING

from redfuser.algebra import build, poly
from redfuser.algebra.groups import Group, Refused
from redfuser.algebra.terms import NEG, POS, D, Term, X, base_power, is_indicator
from redfuser.index.expr import COMPARISONS, Apply, Cast, Const, DType, Expr, Fn, children, const, dtype_of, walk
from redfuser.index.nodes import Reducer

if TYPE_CHECKING:
    from redfuser.algebra.separate import Separator
    from redfuser.algebra.state import State

_MIRRORED = {Fn.LT: Fn.GT, Fn.GT: Fn.LT, Fn.LE: Fn.GE, Fn.GE: Fn.LE}
_NAN_ENDS = frozenset({Fn.POW, Fn.SIGN, Fn.WHERE, Fn.AND, Fn.OR, Fn.XOR, Fn.NOT, Fn.ISNAN}) | COMPARISONS


class Side(Enum):
    """What a number is, seen from zero."""

    LOST = "NaN"
    BELOW = "negative"
    ZERO = "zero"
    ABOVE = "positive"


# -- branches by the sign of one value -------------------------------------------------------------------------------
def subject(c: Expr) -> Expr | None:
    """The value whose sign, or whose being NaN, is the first that the condition asks for."""
    match c:
        case Apply(fn=Fn.ISNAN, args=(p,)):
            return p
        case Apply(fn=fn, args=(p, q)) if fn in COMPARISONS:
            return p if build.is_number(q, 0) else q if build.is_number(p, 0) else None
        case Apply(fn=Fn.NOT | Fn.AND | Fn.OR, args=parts):
            return next((found for a in parts if (found := subject(a)) is not None), None)
        case _:
            return None


def answer(c: Expr, p: Expr, side: Side) -> bool | None:
    """The condition where p is on that side; None where p does not settle it."""
    match c:
        case Apply(fn=Fn.ISNAN, args=(q,)) if q is p:
            return side is Side.LOST
        case Apply(fn=fn, args=(a, b)) if fn in COMPARISONS and (a is p or b is p):
            if not build.is_number(b if a is p else a, 0):
                return None
            return _compared(fn if a is p else _MIRRORED.get(fn, fn), side)
        case Apply(fn=Fn.NOT, args=(a,)):
            inner = answer(a, p, side)
            return None if inner is None else not inner
        case Apply(fn=Fn.AND | Fn.OR as fn, args=(a, b)):
            found, stop = {answer(a, p, side), answer(b, p, side)}, fn is Fn.OR
            return stop if stop in found else None if None in found else not stop
        case _:
            return None


def _compared(fn: Fn, side: Side) -> bool:
    if side is Side.LOST:
        return fn is Fn.NE
    below, above = side is Side.BELOW, side is Side.ABOVE
    return {
        Fn.LT: below, Fn.LE: not above, Fn.GT: above, Fn.GE: not below, Fn.EQ: not (below or above),
        Fn.NE: below or above,
    }[fn]  # fmt: skip


def leaf(e: Expr, p: Expr, side: Side) -> Expr:
    """The branch that is taken where p is on that side."""
    while isinstance(e, Apply) and e.fn is Fn.WHERE:
        known = answer(e.args[0], p, side)
        if known is None:
            break
        e = e.args[1] if known else e.args[2]
    return e


def lost_with(e: Expr, p: Expr) -> bool:
    """True where e is NaN wherever p is."""
    if e is p:
        return True
    match e:
        case Const(value=v):
            return math.isnan(v)
        case Cast():
            return e.dtype.is_float and lost_with(e.arg, p)
        case Apply(fn=Fn.WHERE, args=(c, a, b)):
            known = answer(c, p, Side.LOST)
            return all(lost_with(x, p) for x, taken in ((a, True), (b, False)) if known is not (not taken))
        case Apply(fn=fn):
            return e.dtype.is_float and fn not in _NAN_ENDS and any(lost_with(x, p) for x in e.args)
        case _:
            return False


def settled(s: Separator, e: Apply, strict: bool) -> Expr | None:
    """``where(test of p, ...)`` with tests of elements alone in its place, or None."""
    p = subject(e.args[0])
    g = _scaled(s, p) if p is not None and s.r.kind(p) == X | D else None
    if p is None or g is None:
        return None
    x, value = s.free_term(g), s.r.term(p)
    if not (value.nonneg or value.nonpos):
        return None
    zero, out = leaf(e, p, Side.ZERO), leaf(e, p, Side.ABOVE if value.nonneg else Side.BELOW)
    if not _of(s, out, p, x):
        return None
    main, lost = out, leaf(e, p, Side.LOST)
    if zero is not main:
        if not build.is_number(zero, 0) or not _vanishes(s, main, x, strict):
            return None
        out = Apply(Fn.WHERE, (_is_zero(s, x), zero, main), e.dtype)
    if lost_with(lost, p):  # what is NaN passes no test for zero
        return out if lost_with(main, p) else None
    # a row is NaN as a whole: with the sum that it is divided by
    below = {b for b, q in map(base_power, g.scale.factors) if q < 0}
    sums = [d for d in walk(p) if s.r.kind(d) == D and s.r.term(d) in below]
    if not sums or s.r.kind(lost):
        return None
    return Apply(Fn.WHERE, (Apply(Fn.ISNAN, (sums[0],), DType.BOOL), lost, out), e.dtype)


def _vanishes(s: Separator, e: Expr, x: Term, strict: bool) -> bool:
    """True where e goes to 0 with x: where x is so small that the program takes it for 0, so is e."""
    return all(divides(x, y) for g in s.groups(e, strict) for y in g.terms)


def _scaled(s: Separator, p: Expr) -> Group | None:
    """p as an exponential, masked perhaps, times a scale of one sign, NaN somewhere in a row whose scale is 0 or not
    finite.
    """
    try:
        g = s.single(s.groups(p, strict=False))
    except Refused:
        return None
    fine = g is not None and not g.notes and g.alone is None and g.scale.sign in (POS, NEG) and s.tied(g)
    return g if fine else None


def _of(s: Separator, e: Expr, p: Expr, x: Term) -> bool:
    """True where e depends on elements through p alone, or through its exponent: it is finite then wherever p is.

    Another element might be infinite where p is so small that the program takes it for 0.
    """
    if e is p or not s.r.kind(e) & X:
        return True
    if s.r.kind(e) == X:
        return e is s.emit(s.exp_factor(x).args[0])
    return isinstance(e, Apply | Cast) and all(_of(s, a, p, x) for a in children(e))


def _is_zero(s: Separator, x: Term) -> Expr:
    """The test that the exponential x is 0: that its exponent is -inf, or that it is masked."""
    u = s.emit(s.exp_factor(x).args[0])
    far = const(float("-inf"), build.join(dtype_of(u), DType.FLOAT32))
    for f in filter(is_indicator, x.factors):
        mark, taken = (f, True) if f.op == "var" else (f.args[0].args[0], False)
        u = build.where(s.r.exprs[mark], *((u, far) if taken else (far, u)))
    c = build.equal(u, far)
    s.vanishing[c] = x
    return c


def divides(x: Term, y: Term) -> bool:
    """True where y is 0 wherever x is, as far as it is defined there: every factor of x stands in y."""
    powers = dict(map(base_power, y.factors))
    return all(b.op == "const" or powers.get(b, 0) > 0 for b, _ in map(base_power, x.factors))


# -- which scales may be left out of a test --------------------------------------------------------------------------
def tied(s: State, g: Group) -> bool:
    """True where the group is a scaled exponential, and a scale that is 0 or not finite makes some element of its row NaN.

    So it does when its exponent is the maximum of these exponents, and when it divides by the sum of these elements:
    what makes either infinite stands among the elements.
    """
    x = s.separator.free_term(g)
    e = s.separator.exp_factor(x)
    if e is s.t.one or not all(f is e or f.op == "const" or is_indicator(f) for f in x.factors):
        return False
    powers = [base_power(f) for f in g.scale.factors]
    below = [a for b, q in powers if q < 0 for a in b.addends]
    for b, q in powers:
        if b.op == "exp":
            if not _leads(s, e.args[0], b.args[0], below):
                return False
        elif b.op != "const" and (q > 0 or not any(_sums(s, g, a) for a in b.addends)):
            return False
    return True


def _leads(s: State, exponent: Term, moving: Term, below: list[Term]) -> bool:
    """True for minus the running maximum of the exponents, or of these and of others whose exponentials are added to
    what is divided by: where one of those is infinite, its exponential is NaN.
    """
    t = s.t
    found = [a for a in moving.addends if a.kind]
    if len(found) != 1:
        return False
    top = t.mul(*[f for f in found[0].factors if f.kind])
    own = [v for v in (top.args if top.op in ("max", "min") else (top,)) if _is_key(s, exponent, moving, top, v)]
    others = [v for v in top.args if v not in own] if top.op in ("max", "min") else []
    return bool(own) and all(t.exp(t.sub(moving, t.substitute(moving, {top: v}))) in below for v in others)


def _is_key(s: State, exponent: Term, moving: Term, top: Term, v: Term) -> bool:
    """True where v is the extremum of what ``moving`` subtracts from the exponent."""
    acc = s.accumulators.get(v)
    if acc is None or acc.reducer not in (Reducer.MAX, Reducer.MIN):
        return False
    key = s.reader.term(acc.element)
    keys = (key, *key.args[1:]) if key.op == "fn" and key.label == "where" else (key,)
    return any(s.t.add(exponent, s.t.substitute(moving, {top: k})) is s.t.zero for k in keys)


def _sums(s: State, g: Group, z: Term) -> bool:
    entry = next((e for e in s.sums if e.state is z), None)
    return entry is not None and poly.ratio(entry.terms, g.terms) is not None
