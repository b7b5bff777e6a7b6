"""Integer expressions: polynomials with integer coefficients over axes, symbolic sizes, floor divisions and remainders.

They say where an element is read (``q[b, h, i, 64*h + d]``), how long an axis is, and what a mask compares.
Every axis runs over ``0 .. size-1``; every symbolic size is at least 1 (an axis of length 0 has the number 0 as its
size). Those two facts are what the simplifier uses, so ``(64*h + d) // 64`` with ``d < 64`` is ``h``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, Union

from redfuser.index.intern import Interned, Node

if TYPE_CHECKING:
    from redfuser.index.expr import Expr

_serial = itertools.count()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Axis:
    """A named loop over ``0 .. size-1``. Two axes are the same only if they are the same object."""

    name: str
    size: Int
    serial: int = field(default_factory=lambda: next(_serial))

    @property
    def key(self) -> str:
        return f"a{self.serial:08d}"

    def __repr__(self) -> str:
        return self.name

    def __copy__(self) -> Axis:
        return self

    def __deepcopy__(self, memo: object) -> Axis:
        return self


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Size(Node, metaclass=Interned):
    """A length known at the call, at least 1. The hint is a length seen while compiling, for costs only."""

    name: str
    hint: int

    @property
    def key(self) -> str:
        return f"s{self.name}"

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FloorDiv(Node, metaclass=Interned):
    num: Int
    den: Int

    @property
    def key(self) -> str:
        return f"q({self.num.key},{self.den.key})"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Mod(Node, metaclass=Interned):
    num: Int
    den: Int

    @property
    def key(self) -> str:
        return f"r({self.num.key},{self.den.key})"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Gather(Node, metaclass=Interned):
    """An index that is read from data: ``table[ids[b]]``. ``bound`` is the length of the axis it points into."""

    value: Expr
    bound: Int
    serial: int = field(default_factory=lambda: next(_serial), init=False)

    @property
    def key(self) -> str:
        return f"g{self.serial:08d}"


Atom = Union[Axis, Size, FloorDiv, Mod, Gather]
Monomial = tuple[tuple[Atom, int], ...]
IntLike = Union["Int", int, Atom]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Int(Node, metaclass=Interned):
    """A sum of ``coefficient * monomial``; build it with arithmetic on axes, sizes and numbers."""

    terms: tuple[tuple[Monomial, int], ...]
    key: str = field(init=False)

    def __post_init__(self) -> None:
        text = "+".join(f"{c}*" + "*".join(f"{a.key}^{n}" for a, n in m) for m, c in self.terms)
        object.__setattr__(self, "key", text)

    # -- building -----------------------------------------------------------------------------------------------
    def __add__(self, other: IntLike) -> Int:
        acc = dict(self.terms)
        for m, c in as_int(other).terms:
            acc[m] = acc.get(m, 0) + c
        return _make(acc)

    __radd__ = __add__

    def __neg__(self) -> Int:
        return Int(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: IntLike) -> Int:
        return self + (-as_int(other))

    def __rsub__(self, other: IntLike) -> Int:
        return as_int(other) + (-self)

    def __mul__(self, other: IntLike) -> Int:
        acc: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in as_int(other).terms:
                m = _mono_mul(m1, m2)
                acc[m] = acc.get(m, 0) + c1 * c2
        return _make(acc)

    __rmul__ = __mul__

    def __floordiv__(self, other: IntLike) -> Int:
        return floordiv(self, as_int(other))

    def __mod__(self, other: IntLike) -> Int:
        return mod(self, as_int(other))

    # -- asking -------------------------------------------------------------------------------------------------
    @property
    def value(self) -> int | None:
        """The number it is, or None when it depends on an axis or a size."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def axis(self) -> Axis | None:
        """The axis, when the expression is exactly one axis."""
        if len(self.terms) == 1:
            m, c = self.terms[0]
            if c == 1 and len(m) == 1 and m[0][1] == 1 and isinstance(m[0][0], Axis):
                return m[0][0]
        return None

    def atoms(self) -> Iterator[Atom]:
        for m, _ in self.terms:
            for a, _n in m:
                yield a

    def axes(self) -> frozenset[Axis]:
        """All axes it depends on, through divisions and data-dependent indices too."""
        from redfuser.index.expr import free_axes

        out: set[Axis] = set()
        for a in self.atoms():
            match a:
                case Axis():
                    out.add(a)
                case FloorDiv() | Mod():
                    out |= a.num.axes() | a.den.axes()
                case Gather():
                    out |= free_axes(a.value)
                case Size():
                    pass
        return frozenset(out)

    def sizes(self) -> frozenset[Size]:
        from redfuser.index.expr import free_sizes

        out: set[Size] = set()
        for a in self.atoms():
            match a:
                case Size():
                    out.add(a)
                case FloorDiv() | Mod():
                    out |= a.num.sizes() | a.den.sizes()
                case Gather():
                    out |= free_sizes(a.value)
                case Axis():
                    pass
        return frozenset(out)

    def gathers(self) -> Iterator[Gather]:
        for a in self.atoms():
            if isinstance(a, Gather):
                yield a
            elif isinstance(a, FloorDiv | Mod):
                yield from a.num.gathers()
                yield from a.den.gathers()

    def coefficient(self, axis: Axis) -> Int | None:
        """c with ``self == c*axis + rest`` and c, rest free of the axis; None when it is not affine in the axis."""
        acc: dict[Monomial, int] = {}
        for m, c in self.terms:
            rest = tuple(p for p in m if p[0] is not axis)
            if len(rest) != len(m):
                if dict(m)[axis] != 1:
                    return None
                acc[rest] = acc.get(rest, 0) + c
        out = _make(acc)
        if any(axis in (a.num.axes() | a.den.axes()) for a in self.atoms() if isinstance(a, FloorDiv | Mod)):
            return None
        if any(axis in as_int(a).axes() for a in self.atoms() if isinstance(a, Gather)):
            return None
        return out

    def substitute(self, mapping: Mapping[Axis, Int], gather: Callable[[Gather], Int] | None = None) -> Int:
        """Axes replaced by expressions, simplified. ``gather`` rewrites data-dependent indices (default: in place)."""
        from redfuser.index.expr import substitute

        total = ZERO
        for m, c in self.terms:
            term = as_int(c)
            for a, n in m:
                match a:
                    case Axis():
                        new = mapping.get(a, as_int(a))
                    case FloorDiv():
                        new = floordiv(a.num.substitute(mapping, gather), a.den.substitute(mapping, gather))
                    case Mod():
                        new = mod(a.num.substitute(mapping, gather), a.den.substitute(mapping, gather))
                    case Gather():
                        new = gather(a) if gather else as_int(Gather(substitute(a.value, mapping), a.bound))
                    case Size():
                        new = as_int(a)
                for _ in range(n):
                    term = term * new
            total = total + term
        return total

    def evaluate(self, env: Mapping[Atom, int]) -> int:
        """The number, given one for every axis, size and gathered index."""
        total = 0
        for m, c in self.terms:
            for a, n in m:
                match a:
                    case FloorDiv():
                        v = a.num.evaluate(env) // a.den.evaluate(env)
                    case Mod():
                        v = a.num.evaluate(env) % a.den.evaluate(env)
                    case _:
                        v = env[a]
                c *= v**n
            total += c
        return total

    def __repr__(self) -> str:
        from redfuser.index.print import show_int

        return show_int(self)


def as_int(x: IntLike) -> Int:
    match x:
        case Int():
            return x
        case int():
            return Int((((), x),) if x else ())
        case _:
            return Int(((((x, 1),), 1),))


def _make(acc: Mapping[Monomial, int]) -> Int:
    items = [(m, c) for m, c in acc.items() if c]
    items.sort(key=lambda t: [(a.key, n) for a, n in t[0]])
    return _recombine(Int(tuple(items)))


def _recombine(e: Int) -> Int:
    """``k*(a // k) + a % k`` is ``a``."""
    for m, c in e.terms:
        for i, (a, n) in enumerate(m):
            if isinstance(a, Mod) and n == 1:
                rest = m[:i] + m[i + 1 :]
                scaled = Int(((rest, c),))
                partner = as_int(FloorDiv(a.num, a.den)) * a.den * scaled
                have = dict(e.terms)
                if partner.terms and all(have.get(pm) == pc for pm, pc in partner.terms):
                    return e - partner - Int(((m, c),)) + a.num * scaled
    return e


def _mono_mul(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    acc = dict(a)
    for atom, n in b:
        acc[atom] = acc.get(atom, 0) + n
    return tuple(sorted(acc.items(), key=lambda t: t[0].key))


def _mono_div(m: Monomial, by: Monomial) -> Monomial | None:
    acc = dict(m)
    for a, n in by:
        if acc.get(a, 0) < n:
            return None
        acc[a] -= n
    return (
        tuple((a, n) for a, n in m if acc[a])
        if all(acc[a] in (0, n) for a, n in m)
        else tuple((a, acc[a]) for a, _ in m if acc[a])
    )


def product(items: Iterable[IntLike]) -> Int:
    out = ONE
    for x in items:
        out = out * x
    return out


def divide_exact(a: Int, b: Int) -> Int | None:
    """a / b when the quotient is a polynomial with integer coefficients, else None."""
    if not b.terms:
        return None
    if not a.terms:
        return ZERO
    lead_m, lead_c = _leading(b)
    quotient, rest = ZERO, a
    for _ in range(64):
        if not rest.terms:
            return quotient
        m, c = _leading(rest)
        q = _mono_div(m, lead_m)
        if q is None or c % lead_c:
            return None
        step = Int(((q, c // lead_c),))
        quotient, rest = quotient + step, rest - step * b
    return None


def _leading(e: Int) -> tuple[Monomial, int]:
    return max(e.terms, key=lambda t: (sum(n for _, n in t[0]), [(a.key, n) for a, n in t[0]]))


def nonnegative(e: Int) -> bool:
    """True when provably >= 0 for all axes in range and all sizes >= 1. (False means not proved.)"""
    low = _extreme(e, lowest=True)
    return low is not None and all(c >= 0 for c in _shifted(low).values())


def _shifted(e: Int) -> dict[Monomial, int]:
    """Coefficients after every size s is written as 1 + s', s' >= 0."""
    out: dict[Monomial, int] = {}
    for m, c in e.terms:
        parts: dict[Monomial, int] = {(): c}
        for a, n in m:
            for _ in range(n):
                nxt: dict[Monomial, int] = {}
                for pm, pc in parts.items():
                    for extra in ((), ((a, 1),)) if isinstance(a, Size) else (((a, 1),),):
                        k = _mono_mul(pm, extra)
                        nxt[k] = nxt.get(k, 0) + pc
                parts = nxt
        for k, v in parts.items():
            out[k] = out.get(k, 0) + v
    return out


def _extreme(e: Int, lowest: bool) -> Int | None:
    """e with every axis at the end of its range that makes it smallest (largest); None when not monotone."""
    for _ in range(16):
        loose = next((a for a in e.atoms() if not isinstance(a, Size)), None)
        if loose is None:
            return e
        coeff: dict[Monomial, int] = {}
        for m, c in e.terms:
            powers = dict(m)
            if loose in powers:
                if powers[loose] != 1:
                    return None
                coeff[tuple(p for p in m if p[0] is not loose)] = c
        k = _make(coeff)
        lo, hi = _range(loose)
        rises, falls = nonnegative(k), nonnegative(-k)
        end = lo if rises is lowest else hi
        if not (rises or falls) or end is None:
            return None
        if falls and not rises:
            end = hi if lowest else lo
        if end is None:
            return None
        e = e + k * (end - as_int(loose))
    return None


def _range(a: Atom) -> tuple[Int | None, Int | None]:
    match a:
        case Axis():
            return ZERO, a.size - 1
        case Mod():
            return ZERO, a.den - 1
        case FloorDiv():
            top = _extreme(a.num, lowest=False)
            return (ZERO if nonnegative(a.num) else None), (floordiv(top, a.den) if top is not None else None)
        case Gather():
            return ZERO, a.bound - 1
        case Size():
            return ONE, None


def less(a: Int, b: Int) -> bool | None:
    """True or False when ``a < b`` is decided for all axes in range and all sizes, else None."""
    if nonnegative(b - a - 1):
        return True
    if nonnegative(a - b):
        return False
    return None


def _split(a: Int, k: Int) -> tuple[Int, Int]:
    """a = k*q + r, moving every term that k divides into q."""
    whole = divide_exact(a, k)
    if whole is not None:
        return whole, ZERO
    q = r = ZERO
    for m, c in a.terms:
        term = Int(((m, c),))
        d = divide_exact(term, k)
        if d is not None:
            q = q + d
        elif k.value is not None and k.value > 1 and not m and abs(c) >= k.value:
            q, r = q + c // k.value, r + c % k.value
        else:
            r = r + term
    return q, r


def _common(r: Int, k: Int) -> tuple[int, Int, Int] | None:
    """r = g*u + w with 0 <= w < g and g dividing the number k."""
    if k.value is None:
        return None
    candidates = sorted({gcd(c, k.value) for _, c in r.terms if gcd(c, k.value) > 1}, reverse=True)
    for g in candidates:
        u = Int(tuple((m, c // g) for m, c in r.terms if c % g == 0))
        w = Int(tuple((m, c) for m, c in r.terms if c % g))
        if nonnegative(w) and nonnegative(as_int(g) - 1 - w):
            return g, u, w
    return None


def floordiv(a: Int, k: Int) -> Int:
    """a // k (floor), simplified. k must be positive."""
    if k.value == 1:
        return a
    q, r = _split(a, k)
    if nonnegative(r) and nonnegative(k - 1 - r):
        return q
    if (h := _common(r, k)) is not None and k.value is not None:
        return q + floordiv(h[1], as_int(k.value // h[0]))
    if len(r.terms) == 1 and r.terms[0][1] == 1 and len(r.terms[0][0]) == 1:
        ((inner, n),) = r.terms[0][0]
        if isinstance(inner, FloorDiv) and n == 1:
            return q + floordiv(inner.num, inner.den * k)
    return q + as_int(FloorDiv(r, k))


def mod(a: Int, k: Int) -> Int:
    """a % k, in 0 .. k-1, simplified. k must be positive."""
    if k.value == 1:
        return ZERO
    _, r = _split(a, k)
    if nonnegative(r) and nonnegative(k - 1 - r):
        return r
    if (h := _common(r, k)) is not None and k.value is not None:
        return mod(h[1], as_int(k.value // h[0])) * h[0] + h[2]
    return as_int(Mod(r, k))


ZERO: Int = Int(())
ONE: Int = as_int(1)
