"""Sums from which a shift is left out because nothing can cancel: all their terms and the shift's are of one sign."""

from __future__ import annotations

from redfuser.algebra import poly
from redfuser.algebra.coordinates import plain, summed_log
from redfuser.algebra.nodes import Accumulator, Base
from redfuser.algebra.poly import Terms
from redfuser.algebra.state import State
from redfuser.algebra.terms import Term
from redfuser.index.expr import Apply, Fn, Ref, walk
from redfuser.index.nodes import Reducer


def adds_up(s: State, terms: Terms, c: Term) -> bool:
    """True when sum(a + b * r), with r >= 0 in place of the coordinate c, has a * b >= 0 for every element: then

        sum(a) + r * sum(b)

    is as well conditioned as the sum itself. So it is for p * (log p): a = e * (x - m), b = -e, r = log(sum e).
    """
    r = s.separator.coordinates[c]
    moved = poly.diff_terms(terms, c)
    if poly.coordinates(moved) or not _nonneg(s, r):
        return False
    still = {g: {m: k for m, k in p.items() if all(x is not c for x, _ in m)} for g, p in terms.items()}
    t = s.t
    a, b = (t.add(*[t.mul(g, s.separator.uncoordinated(p)) for g, p in x.items() if p]) for x in (still, moved))
    return len(b.addends) == 1 and s.facts.nonneg(t.add(*[t.mul(x, b) for x in a.addends]))


def _nonneg(s: State, r: Term) -> bool:
    """True for a number that is not negative once an element was seen."""
    z = summed_log(s, plain(s, r)) if len(r.addends) == 1 else None
    return s.facts.nonneg(r) or (z is not None and at_least_one(s, z))


def at_least_one(s: State, z: Term) -> bool:
    """True for a running sum of exp(x - max x), in which the maximum itself counts 1."""
    acc = s.accumulators.get(z)
    if acc is None or acc.reducer is not Reducer.SUM:
        return False
    match acc.element:
        case Apply(fn=Fn.EXP, args=(Apply(fn=Fn.SUB, args=(x, Ref() as base)),)):
            return any(m.reducer is Reducer.MAX and m.element == x for m in _behind(s, base))
        case _:
            return False


def _behind(s: State, base: Ref) -> list[Accumulator]:
    """The accumulators that a base is the value of."""
    steps = {x.name: x for x in s.steps}
    found = steps.get(base.name)
    if isinstance(found, Accumulator):
        return [found]
    names = {x.name for x in walk(found.value) if isinstance(x, Ref)} if isinstance(found, Base) else set()
    return [x for n in names if isinstance(x := steps.get(n), Accumulator)] if len(names) == 1 else []
