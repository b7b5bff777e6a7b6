"""Polynomials in coordinates with rational coefficients, and sums of element term times polynomial."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from redfuser.algebra.terms import Arena, Term

Powers = tuple[tuple[Term, int], ...]  # coordinates and their exponents, sorted
Poly = Mapping[Powers, Fraction]
Terms = Mapping[Term, Poly]  # element term -> its coefficient
UNIT: Poly = {(): Fraction(1)}


def times(a: Poly, b: Poly) -> Poly:
    out: dict[Powers, Fraction] = {}
    for p, x in a.items():
        for q, y in b.items():
            d = dict(p)
            for c, n in q:
                d[c] = d.get(c, 0) + n
            k = tuple(sorted(d.items(), key=lambda t: t[0].id))
            out[k] = out.get(k, Fraction(0)) + x * y
    return {k: v for k, v in out.items() if v}


def plus(a: Poly, b: Poly) -> Poly:
    out = dict(a)
    for k, v in b.items():
        out[k] = out.get(k, Fraction(0)) + v
    return {k: v for k, v in out.items() if v}


def scaled(a: Poly, k: Fraction) -> Poly:
    return {p: v * k for p, v in a.items()} if k else {}


def derivative(a: Poly, c: Term) -> Poly:
    out: dict[Powers, Fraction] = {}
    for p, v in a.items():
        d = dict(p)
        n = d.get(c, 0)
        if n:
            d[c] = n - 1
            k = tuple((x, m) for x, m in d.items() if m)
            out[k] = out.get(k, Fraction(0)) + v * n
    return {k: v for k, v in out.items() if v}


def is_constant(a: Poly) -> bool:
    return set(a) == {()}


def degree(a: Poly, c: Term) -> int:
    return max((dict(p).get(c, 0) for p in a), default=0)


def as_term(t: Arena, a: Poly) -> Term:
    return t.add(*[t.mul(t.const(v), *[t.pow(c, Fraction(n)) for c, n in p]) for p, v in a.items()])


def collect(t: Arena, e: Term, poly: Poly = UNIT, into: dict[Term, Poly] | None = None) -> dict[Term, Poly]:
    """e * poly as element terms without rational coefficients; sums are split."""
    out = {} if into is None else into
    for a in e.addends:
        k, r = t.split(a)
        p = plus(out.get(r, {}), scaled(poly, k))
        if p:
            out[r] = p
        else:
            out.pop(r, None)
    return out


def sum_terms(a: Terms, b: Terms) -> dict[Term, Poly]:
    out = dict(a)
    for g, p in b.items():
        q = plus(out.get(g, {}), p)
        if q:
            out[g] = q
        else:
            out.pop(g, None)
    return out


def product_terms(t: Arena, a: Terms, b: Terms) -> dict[Term, Poly]:
    out: dict[Term, Poly] = {}
    for g, p in a.items():
        for h, q in b.items():
            collect(t, t.mul(g, h), times(p, q), out)
    return out


def scale_terms(t: Arena, a: Terms, g: Term, p: Poly = UNIT) -> dict[Term, Poly]:
    return product_terms(t, a, {g: p})


def diff_terms(a: Terms, c: Term) -> dict[Term, Poly]:
    out = {g: derivative(p, c) for g, p in a.items()}
    return {g: p for g, p in out.items() if p}


def coordinates(a: Terms) -> list[Term]:
    return sorted({c for p in a.values() for k in p for c, _ in k}, key=lambda c: c.id)


def ratio(a: Terms, b: Terms) -> Fraction | None:
    """k with a == k*b, or None."""
    if set(a) != set(b):
        return None
    k: Fraction | None = None
    for g in a:
        if set(a[g]) != set(b[g]):
            return None
        for p in a[g]:
            q = a[g][p] / b[g][p]
            if k is None:
                k = q
            elif k != q:
                return None
    return k
