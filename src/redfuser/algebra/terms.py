"""Canonical terms: what the derivation reasons with. Sums and products are flat and sorted, constants are rationals.

A term says what a value IS, never how it is evaluated: emitted code goes back to the expressions as written (reader.py).
Terms live in an arena, one per derivation, which makes equal terms one object and their order reproducible.
``kind`` says what a term depends on: elements (X), earlier results (D), both, or neither (constants and parameters).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction

X, D = 1, 2
Sign = tuple[bool, bool, bool]  # may be negative, may be zero, may be positive
POS: Sign = (False, False, True)
NONNEG: Sign = (False, True, True)
NEG: Sign = (True, False, False)
ANY: Sign = (True, True, True)
ZER: Sign = (False, True, False)
INCREASING = frozenset({"tanh", "sigmoid", "round", "floor", "ceil", "trunc", "erf", "sign", "cast"})


class Term:
    """A node: ``op`` is one of const var add mul pow exp log abs max min fn; ``label`` names variables and
    functions.
    """

    __slots__ = ("args", "id", "kind", "label", "op", "sign", "value")

    def __init__(
        self, id: int, op: str, args: tuple[Term, ...], value: Fraction, label: str, kind: int, sign: Sign
    ) -> None:
        self.id, self.op, self.args, self.value, self.label, self.kind, self.sign = (
            id,
            op,
            args,
            value,
            label,
            kind,
            sign,
        )

    @property
    def nonneg(self) -> bool:
        return not self.sign[0]

    @property
    def nonpos(self) -> bool:
        return not self.sign[2]

    @property
    def positive(self) -> bool:
        return self.sign == POS

    @property
    def may_vanish(self) -> bool:
        return self.sign[1]

    @property
    def mixed(self) -> bool:
        return self.kind == X | D

    @property
    def addends(self) -> tuple[Term, ...]:
        return self.args if self.op == "add" else (self,)

    @property
    def factors(self) -> tuple[Term, ...]:
        return self.args if self.op == "mul" else (self,)

    def __repr__(self) -> str:
        return show(self)


_ZERO, _ONE = Fraction(0), Fraction(1)


def base_power(t: Term) -> tuple[Term, Fraction]:
    return (t.args[0], t.value) if t.op == "pow" else (t, _ONE)


def is_indicator(t: Term) -> bool:
    """1 or 0: the mark of a condition (``if#n``), or of its opposite."""
    if t.op == "fn" and t.label == "number" and t.args[0].label == "not":
        t = t.args[0].args[0]
    return t.op == "var" and t.label.startswith("if#")


class Arena:
    """Makes terms. Every constructor simplifies; none changes the value over the reals where both sides are defined."""

    def __init__(self) -> None:
        self._table: dict[tuple[str, tuple[int, ...], Fraction, str], Term] = {}
        self.zero = self.const(0)
        self.one = self.const(1)
        self.ln2 = self.var("ln2", 0, POS)
        self.inf = self.var("inf", 0, POS)
        self.ninf = self.var("-inf", 0, NEG)

    def _make(self, op: str, args: Iterable[Term], value: Fraction = _ZERO, label: str = "", kind: int = 0) -> Term:
        a = tuple(args)
        key = (op, tuple(t.id for t in a), value, label)
        found = self._table.get(key)
        if found is None:
            for t in a:
                kind |= t.kind
            found = Term(len(self._table), op, a, value, label, kind, _sign(op, a, value, label))
            self._table[key] = found
        return found

    def const(self, v: int | Fraction) -> Term:
        return self._make("const", (), Fraction(v))

    def var(self, label: str, kind: int, sign: Sign = ANY) -> Term:
        t = self._make("var", (), _ZERO, label, kind)
        if sign != ANY:
            t.sign = sign
        return t

    # -- sums and products ----------------------------------------------------------------------------------------
    def split(self, t: Term) -> tuple[Fraction, Term]:
        """t as (rational coefficient, rest)."""
        if t.op == "const":
            return t.value, self.one
        if t.op == "mul" and t.args[0].op == "const":
            rest = t.args[1:]
            return t.args[0].value, rest[0] if len(rest) == 1 else self._make("mul", rest)
        return _ONE, t

    def add(self, *xs: Term) -> Term:
        c, parts, stack = _ZERO, dict[Term, Fraction](), list(xs)
        while stack:
            t = stack.pop()
            if t.op == "add":
                stack.extend(t.args)
            elif t.op == "const":
                c += t.value
            else:
                k, r = self.split(t)
                parts[r] = parts.get(r, _ZERO) + k
        out = [self._scaled(k, r) for r, k in parts.items() if k]
        out.sort(key=lambda t: t.id)
        if c:
            out.append(self.const(c))
        return self.zero if not out else out[0] if len(out) == 1 else self._make("add", out)

    def _scaled(self, k: Fraction, r: Term) -> Term:
        if k == 1:
            return r
        if r.op == "const":
            return self.const(k * r.value)
        k0, r0 = self.split(r)
        if k0 != 1:
            return self._scaled(k * k0, r0)
        return self._make("mul", (self.const(k), *(r.factors)))

    def neg(self, t: Term) -> Term:
        return self.mul(self.const(-1), t)

    def sub(self, a: Term, b: Term) -> Term:
        return self.add(a, self.neg(b))

    def scale(self, k: Fraction, t: Term) -> Term:
        return self.mul(self.const(k), t)

    def mul(self, *xs: Term) -> Term:
        c, powers, exponents, stack = _ONE, dict[Term, Fraction](), list[Term](), list(xs)
        while stack:
            t = stack.pop()
            if t.op == "mul":
                stack.extend(t.args)
            elif t.op == "const":
                c *= t.value
            elif t.op == "exp":
                exponents.append(t.args[0])
            else:
                b, q = base_power(t)
                powers[b] = powers.get(b, _ZERO) + q
        if not c:
            return self.zero
        out: list[Term] = []
        again: list[Term] = []
        if exponents:
            rest = []
            for t in self.add(*exponents).addends:
                k, r = self.split(t)
                if r.op == "log":
                    powers[r.args[0]] = powers.get(r.args[0], _ZERO) + k
                else:
                    rest.append(t)
            e = self.add(*rest)
            if e is not self.zero:
                out.append(self._make("exp", (e,)))
        for b, q in powers.items():
            if q:
                f = b if q == 1 else self.pow(b, q)
                (again if f.op in ("mul", "const", "exp") else out).append(f)
        if again:
            return self.mul(self.const(c), *out, *again)
        out.sort(key=lambda t: t.id)
        if not out:
            return self.const(c)
        if c != 1:
            if len(out) == 1 and out[0].op == "add":
                return self.add(*[self._scaled(c, t) for t in out[0].args])
            return self._make("mul", (self.const(c), *out))
        return out[0] if len(out) == 1 else self._make("mul", out)

    def inv(self, t: Term) -> Term:
        return self.pow(t, Fraction(-1))

    def div(self, a: Term, b: Term) -> Term:
        return self.mul(a, self.inv(b))

    def pow(self, b: Term, q: Fraction) -> Term:
        if q == 0:
            return self.one
        if q == 1 or (q > 0 and is_indicator(b)):
            return b
        if b.op == "const":
            if q.denominator == 1 and b.value != 0:
                return self.const(b.value ** int(q))
            root = _root(b.value, q)
            if root is not None:
                return self.const(root)
        if b.op == "exp":
            return self.exp(self.scale(q, b.args[0]))
        if b.op == "pow":
            if q.denominator == 1 or b.args[0].nonneg:
                return self.pow(b.args[0], b.value * q)
            if b.value.denominator == 1 and b.value % 2 == 0:
                return self.pow(self.abs(b.args[0]), b.value * q)
        if b.op == "abs" and q.denominator == 1 and q % 2 == 0:
            return self.pow(b.args[0], q)
        if b.op == "mul":
            if q.denominator == 1 or all(a.nonneg for a in b.args):
                return self.mul(*[self.pow(a, q) for a in b.args])
            good = [a for a in b.args if a.positive]
            if good:
                rest = self.mul(*[a for a in b.args if not a.positive])
                return self.mul(*[self.pow(a, q) for a in good], self._make("pow", (rest,), q))
        return self._make("pow", (b,), q)

    # -- functions ------------------------------------------------------------------------------------------------
    def exp(self, a: Term) -> Term:
        if a is self.zero:
            return self.one
        if a is self.ninf:
            return self.zero
        return self.mul(self._make("exp", (a,)))

    def log(self, a: Term) -> Term:
        if a is self.one:
            return self.zero
        if a.op == "exp":
            return a.args[0]
        if a.op == "pow" and a.args[0].nonneg:
            return self.scale(a.value, self.log(a.args[0]))
        if a.op == "mul" and all(t.nonneg for t in a.args):
            return self.add(*[self.log(t) for t in a.args])
        return self._make("log", (a,))

    def abs(self, a: Term) -> Term:
        if a.nonneg:
            return a
        if a.nonpos:
            return self.neg(a)
        if a.op == "mul":
            return self.mul(*[self.abs(t) for t in a.args])
        if a.op == "pow" and a.value.denominator == 1:
            return self.pow(self.abs(a.args[0]), a.value)
        return self._make("abs", (a,))

    def extremum(self, op: str, *xs: Term) -> Term:
        """op is "max" or "min"."""
        seen: dict[Term, None] = {}
        number: Fraction | None = None
        for x in xs:
            for a in x.args if x.op == op else (x,):
                if a.op == "const":
                    number = a.value if number is None else (max if op == "max" else min)(number, a.value)
                else:
                    seen[a] = None
        if number is not None:
            seen[self.const(number)] = None
        out = sorted(seen, key=lambda t: t.id)
        return out[0] if len(out) == 1 else self._make(op, out)

    def fn(self, label: str, *args: Term, sign: Sign | None = None) -> Term:
        t = self._make("fn", args, _ZERO, label)
        if sign is not None:
            t.sign = sign
        return t

    def rebuild(self, t: Term, args: tuple[Term, ...]) -> Term:
        match t.op:
            case "add":
                return self.add(*args)
            case "mul":
                return self.mul(*args)
            case "pow":
                return self.pow(args[0], t.value)
            case "exp":
                return self.exp(args[0])
            case "log":
                return self.log(args[0])
            case "abs":
                return self.abs(args[0])
            case "max" | "min":
                return self.extremum(t.op, *args)
            case "fn":
                return self.fn(t.label, *args, sign=t.sign)
            case _:
                return t

    def substitute(self, t: Term, table: Mapping[Term, Term], memo: dict[Term, Term] | None = None) -> Term:
        memo = {} if memo is None else memo
        if t in table:
            return table[t]
        if not t.args:
            return t
        done = memo.get(t)
        if done is None:
            done = memo[t] = self.rebuild(t, tuple(self.substitute(a, table, memo) for a in t.args))
        return done


def variables(t: Term) -> list[Term]:
    """Distinct variables, in the order of their creation."""
    seen: set[Term] = set()
    stack, out = [t], list[Term]()
    while stack:
        x = stack.pop()
        if x in seen:
            continue
        seen.add(x)
        if x.op == "var":
            out.append(x)
        stack.extend(x.args)
    return sorted(out, key=lambda v: v.id)


def contains(t: Term, op: str) -> bool:
    return t.op == op or any(contains(a, op) for a in t.args)


def _root(v: Fraction, q: Fraction) -> Fraction | None:
    if v <= 0 or q.denominator != 2:
        return None
    n, d = math.isqrt(v.numerator), math.isqrt(v.denominator)
    return Fraction(n, d) ** int(q * 2) if n * n == v.numerator and d * d == v.denominator else None


def _sign(op: str, a: tuple[Term, ...], value: Fraction, label: str) -> Sign:
    match op:
        case "const":
            return POS if value > 0 else ZER if value == 0 else NEG
        case "exp":
            return POS
        case "abs":
            return POS if not a[0].sign[1] else NONNEG
        case "add":
            neg, pos = any(t.sign[0] for t in a), any(t.sign[2] for t in a)
            return ANY if neg and pos else (neg, all(t.sign[1] for t in a), pos)
        case "mul":
            s = POS
            for t in a:
                u = t.sign
                s = ((s[0] and u[2]) or (s[2] and u[0]), s[1] or u[1], (s[0] and u[0]) or (s[2] and u[2]))
            return s
        case "pow":
            u = a[0].sign
            zero = u[1] and value > 0
            if value.denominator == 1 and value % 2:
                return (u[0], zero, u[2])
            return (False, zero, True)
        case "max" | "min":
            return _extremum_sign([t.sign for t in a], op == "max")
        case "fn" if label in INCREASING or label.startswith("cast"):
            u = a[0].sign
            return POS if label == "sigmoid" else (u[0], True, u[2])
        case "fn" if label == "number" or label == "ind":
            return NONNEG
        case "fn" if label == "where":
            u, w = a[1].sign, a[2].sign
            return (u[0] or w[0], u[1] or w[1], u[2] or w[2])
        case _:
            return ANY


def _extremum_sign(signs: list[Sign], largest: bool) -> Sign:
    if not largest:
        n, z, p = _extremum_sign([(s[2], s[1], s[0]) for s in signs], True)
        return (p, z, n)
    if any(s == POS for s in signs):
        return POS
    if any(not s[0] for s in signs):
        return NONNEG
    return (all(s[0] for s in signs), any(s[1] for s in signs), any(s[2] for s in signs))


def show(t: Term, tight: int = 0) -> str:
    match t.op:
        case "const":
            return str(t.value)
        case "var":
            return t.label
        case "add":
            text = " + ".join(show(a, 1) for a in t.args)
            return f"({text})" if tight else text
        case "mul":
            return "*".join(show(a, 2) for a in t.args)
        case "pow":
            return f"{show(t.args[0], 3)}^({t.value})"
        case _:
            return f"{t.label or t.op}({', '.join(show(a) for a in t.args)})"
