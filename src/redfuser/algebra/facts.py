"""Inequalities that hold because of what a result is: a maximum is at least each element, and what follows
from that.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from redfuser.algebra.terms import Arena, Term, base_power


def unguarded(t: Arena, x: Term) -> Term:
    """``where(m is infinite, number or m, m + y)`` as m + y. At m = -inf every element is -inf, at +inf the written
    program overflows too.
    """
    if x.op == "fn" and x.label == "where":
        c, a, b = x.args
        if _replaces(a, b, lambda m: _tests_infinity(t, c, m)):
            return unguarded(t, b)
        if _replaces(b, a, lambda m: _tests_finite(t, c, m)):
            return unguarded(t, a)
    if not x.args:
        return x
    return t.rebuild(x, tuple(unguarded(t, a) for a in x.args))


def _replaces(number: Term, x: Term, tested: Callable[[Term], bool]) -> bool:
    """True when x (or an addend of it that ``number`` repeats) is tested, and ``number`` stands in for it."""
    if not number.kind and tested(x):
        return True
    return any(tested(m) for m in x.addends if not number.kind or number is m)


def _tests_infinity(t: Arena, c: Term, x: Term) -> bool:
    if c.op == "fn" and c.label == "isnan":
        return c.args[0] is x
    if c.op == "fn" and c.label == "or":
        return all(_tests_infinity(t, a, x) for a in c.args)
    if c.op == "fn" and c.label == "not":
        return _tests_finite(t, c.args[0], x)
    return c.op == "fn" and c.label == "eq" and _is_infinite(t, c, x)


def _tests_finite(t: Arena, c: Term, x: Term) -> bool:
    if c.op == "fn" and c.label == "not":
        return _tests_infinity(t, c.args[0], x)
    return c.op == "fn" and c.label in ("ne", "lt", "gt") and _is_infinite(t, c, x)


def _is_infinite(t: Arena, c: Term, x: Term) -> bool:
    a, b = c.args
    if a in (t.inf, t.ninf):
        a, b = b, a
    return b in (t.inf, t.ninf) and (a is x or a is t.abs(x))


class Facts:
    """Terms known to be >= 0 for every element and every prefix of the axis."""

    def __init__(self, t: Arena) -> None:
        self.t = t
        self.known: list[Term] = []
        self._primitive: set[Term] = set()
        self._proved: dict[tuple[Term, int], bool] = {}

    def learn(self, x: Term) -> None:
        if x.kind and x not in self.known:
            self.known.append(x)
            self._primitive.add(self.primitive(x))
            self._proved.clear()

    def forget(self, n: int) -> None:
        """Back to the first n facts."""
        del self.known[n:]
        self._primitive = {self.primitive(f) for f in self.known}
        self._proved.clear()

    def nonneg(self, x: Term) -> bool:
        return self._prove(unguarded(self.t, x), 2)

    def _prove(self, x: Term, depth: int) -> bool:
        key = (x, depth)
        done = self._proved.get(key)
        if done is None:
            self._proved[key] = False  # while it is being tried
            done = self._proved[key] = self._try(x, depth)
        return done

    def _try(self, x: Term, depth: int) -> bool:
        if x.nonneg:
            return True
        x = self.primitive(x)
        if x.nonneg or x in self._primitive:
            return True
        return depth > 0 and (self._by_extremum(x, depth) or self._by_fact(x, depth))

    def _by_extremum(self, x: Term, depth: int) -> bool:
        t = self.t
        for a in x.addends:
            k, r = t.split(a)
            found = [f for f in r.factors if f.op in ("max", "min")]
            others = t.mul(*[f for f in r.factors if f not in found])
            if len(found) != 1 or not others.nonneg:
                continue
            rest, (m,) = t.sub(x, a), found
            enough_one = (m.op == "max") == (k > 0)
            choices = (*m.args, *self._known_parts(m)) if enough_one else m.args
            cases = (t.add(rest, t.scale(k, t.mul(others, q))) for q in choices)
            if (any if enough_one else all)(self._prove(c, depth - 1) for c in cases):
                return True
        return False

    def _known_parts(self, m: Term) -> list[Term]:
        """Extrema over some of the arguments of m that a fact is about."""
        found = {f for known in self.known for a in known.addends for f in a.factors if f.op == m.op}
        return [f for f in sorted(found, key=lambda f: f.id) if set(f.args) < set(m.args)]

    def _by_fact(self, x: Term, depth: int) -> bool:
        rests = {self.t.split(a)[1] for a in x.addends}
        for f in self.known:
            for k, r in (self.t.split(a) for a in f.addends):
                if r in rests and r.kind:
                    for a in x.addends:
                        j, s = self.t.split(a)
                        if s is r and j * k > 0 and self._prove(self.t.sub(x, self.t.scale(j / k, f)), depth - 1):
                            return True
        return False

    def primitive(self, x: Term) -> Term:
        """Divided by positive common factors, positive denominators cleared."""
        if x.op != "add":
            return x
        common: dict[Term, Fraction] | None = None
        for a in x.args:
            own = {b: q for b, q in map(base_power, self.t.split(a)[1].factors) if b.nonneg and b.op != "const"}
            if common is None:
                common = own
            else:
                for b in set(common) | set(own):
                    common[b] = min(common.get(b, Fraction(0)), own.get(b, Fraction(0)))
        powers = sorted(((b, q) for b, q in (common or {}).items() if q), key=lambda p: p[0].id)
        inverse = self.t.mul(*[self.t.pow(b, -q) for b, q in powers])
        x = self.t.add(*[self.t.mul(a, inverse) for a in x.args])
        if x.op != "add":
            return x
        k = abs(self.t.split(x.args[0])[0])
        return self.t.add(*[self.t.scale(1 / k, a) for a in x.args]) if k != 1 else x
