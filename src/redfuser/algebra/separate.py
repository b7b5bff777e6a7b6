"""Separation: the body of a sum as finitely many groups  scale(D) * core(x, c).

Only the mixed spine of the body is visited: subtrees that depend on elements alone, or on earlier results alone, are
opaque. A core is kept as an expression as the user wrote it, with the factors that moved into the scale left out; its
polynomial in the coordinates c is kept beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from redfuser.algebra import build, pieces, poly
from redfuser.algebra.facts import Facts
from redfuser.algebra.groups import Group, Options, Refused
from redfuser.algebra.poly import UNIT, Terms
from redfuser.algebra.reader import Reader
from redfuser.algebra.say import results, say
from redfuser.algebra.terms import D, Term, X, base_power, variables
from redfuser.index.expr import COMPARISONS, Apply, Cast, DType, Expr, Fn, Load, const
from redfuser.index.print import show
from redfuser.index.refusals import RefusalKind

INTEGER_ROUNDERS = frozenset({Fn.ROUND, Fn.FLOOR, Fn.CEIL, Fn.TRUNC})


class Separator:
    """One per pass. ``conditioned`` says whether a result may serve as a shift (well conditioned on every prefix),
    ``tied`` whether a scale that is 0 or not finite makes some element NaN.
    """

    def __init__(
        self,
        reader: Reader,
        facts: Facts,
        options: Options,
        conditioned: Callable[[Term], bool],
        emit: Callable[[Term], Expr],
        tied: Callable[[Group], bool],
    ) -> None:
        self.r, self.t, self.facts, self.options = reader, reader.t, facts, options
        self.conditioned, self.emit, self.tied = conditioned, emit, tied
        self.coordinates: dict[Term, Term] = {}  # variable -> the result it stands for
        self.settled: dict[Expr, Expr] = {}  # a branch -> the same with tests of elements alone
        self.vanishing: dict[Expr, Term] = {}  # a test -> the element that is 0 where it holds
        self._by_value: dict[Term, Term] = {}
        self._memo: dict[tuple[Expr, bool], list[Group] | Refused] = {}

    def name(self, e: Expr) -> str:
        return say(e)

    def which(self, e: Expr) -> str:
        """The earlier results in e, by name."""
        return results(e, self.r.stages)

    # -- entry ----------------------------------------------------------------------------------------------------
    def groups(self, e: Expr, strict: bool = True) -> list[Group]:
        """The groups of e, or Refused. ``strict`` asks that every shift be well conditioned."""
        key = (e, strict)
        done = self._memo.get(key)
        if done is None:
            try:
                done = self._groups(e, strict)
            except Refused as x:
                done = x
            self._memo[key] = done
        if isinstance(done, Refused):
            raise done
        return done

    def element(self, core: Expr, t: Term) -> Group:
        return Group(self.t.one, core, poly.collect(self.t, t), self.t.one)

    def result(self, scale: Term, e: Expr) -> Group:
        return Group(scale, const(1.0, DType.FLOAT32), {self.t.one: UNIT}, self.t.one, alone=e)

    def _groups(self, e: Expr, strict: bool) -> list[Group]:
        k = self.r.kind(e)
        if k == X | D and self.r.odd_load(e):
            assert isinstance(e, Load)
            raise Refused(
                RefusalKind.UNSUPPORTED,
                f"{show(e)} reads a reduction of another row, or an element at a position that a reduction decides",
                "use the reduction of the same row, or keep the extra pass: it reads finished values",
            )
        t = self.r.term(e)
        if not t.kind & D:
            return [self.element(e if not k & D else self.emit(t), t)]
        if not t.kind & X:
            return [self.result(t, e if not k & X else self.emit(t))]
        if isinstance(e, Cast):
            return pieces.cast(self, e, strict)
        assert isinstance(e, Apply)
        return self._apply(e, strict)

    def _apply(self, e: Apply, strict: bool) -> list[Group]:
        a = e.args
        match e.fn:
            case Fn.ADD | Fn.SUB:
                return self.sum_of(e, self.groups(a[0], strict), self.groups(a[1], strict), strict)
            case Fn.NEG:
                return [self.negated(g) for g in self.groups(a[0], strict)]
            case Fn.MUL if a[0] is a[1]:
                return self.power_of(e, a[0], Fraction(2), strict)
            case Fn.MUL:
                left, right = self.groups(a[0], strict), self.groups(a[1], strict)
                if len(left) > 1 and len(right) > 1:
                    self._no_cancelling(left)
                    self._no_cancelling(right)
                return self.product_of(left, right)
            case Fn.DIV if self.r.kind(a[1]) == X | D and self.r.term(a[1]).mixed:
                return self.product_of(self.groups(a[0], strict), self.power_of(None, a[1], Fraction(-1), strict))
            case Fn.DIV:
                return self._quotient(self.groups(a[0], strict), a[1])
            case Fn.POW:
                return pieces.general_power(self, e, strict)
            case Fn.SQRT:
                return self.power_of(e, a[0], Fraction(1, 2), strict)
            case Fn.RSQRT:
                return self.power_of(e, a[0], Fraction(-1, 2), strict)
            case Fn.EXP | Fn.EXP2:
                return pieces.exponential(self, e, strict)
            case Fn.EXPM1:
                one = const(1.0, DType.FLOAT32)
                x = Apply(Fn.EXP, a, e.dtype)
                return self.groups(Apply(Fn.SUB, (x, one), e.dtype), strict)
            case Fn.LOG | Fn.LOG2 | Fn.LOG1P:
                return pieces.logarithm(self, e, strict)
            case Fn.ABS:
                return pieces.absolute(self, e, strict)
            case Fn.MAXIMUM | Fn.MINIMUM:
                return pieces.extremum(self, e, strict)
            case Fn.WHERE:
                return pieces.where(self, e, strict)
            case fn if fn in INTEGER_ROUNDERS:
                return pieces.integer_rounding(self, e, a[0], e.fn.value, strict)
            case fn if fn in COMPARISONS or fn is Fn.ISNAN or e.dtype is DType.BOOL:
                raise self.branch(e)
            case _:
                raise Refused(
                    RefusalKind.NONLINEAR,
                    f"{e.fn.value} is taken of {self.name(a[0])}, where elements meet {self.which(e)}; that is final "
                    f"only after the last element, and a sum of old {e.fn.value} values cannot be corrected",
                    f"take {e.fn.value} of the elements alone, or of {self.which(e)} alone",
                )

    def branch(self, e: Expr) -> Refused:
        return Refused(
            RefusalKind.DATA_BRANCH,
            f"{self.name(e)} compares every element with {self.which(e)}, which is final only after the last "
            "element, so elements already taken would have to be looked at again",
            "compare with a constant or an input, or keep the extra pass",
        )

    # -- sums -----------------------------------------------------------------------------------------------------
    def negated(self, g: Group) -> Group:
        if g.alone is not None:
            return self.result(self.t.neg(g.scale), build.neg(g.alone))
        terms = {k: poly.scaled(p, Fraction(-1)) for k, p in g.terms.items()}
        return replace(g, core=build.neg(g.core), terms=terms, pin=None)

    def sum_of(self, e: Apply, left: list[Group], right: list[Group], strict: bool) -> list[Group]:
        out = list(left)
        minus = e.fn is Fn.SUB
        for h in right:
            for i, g in enumerate(out):
                joined = self._join(g, h, minus, strict)
                if joined is not None:
                    out[i] = joined
                    break
            else:
                out.append(self.negated(h) if minus else h)
        return out

    def exponent(self, terms: Terms) -> Term | None:
        """The exponent that every element term shares, if each has one."""
        found: Term | None = None
        for g in terms:
            own = next((f.args[0] for f in g.factors if f.op == "exp"), None)
            if own is None or (found is not None and own is not found):
                return None
            found = own
        return found

    def exp_factor(self, t: Term) -> Term:
        return next((f for f in t.factors if f.op == "exp"), self.t.one)

    def _join(self, g: Group, h: Group, minus: bool, strict: bool) -> Group | None:
        fn = build.sub if minus else build.add
        if g.notes or h.notes or self.gated(g) or self.gated(h):
            return None
        if g.alone is not None and h.alone is not None:
            joined = fn(g.alone, h.alone)
            return self.result(self.r.term(joined), joined)
        same_exp = self.exp_factor(g.scale) is self.exp_factor(h.scale)
        if g.alone is not None or h.alone is not None:
            shift, main = (g, h) if g.alone is not None else (h, g)
            if not same_exp or main.base is not self.t.one or self.exponent(main.terms) is not None:
                return None
            return self._shifted(main, shift, fn, shift is g, minus, strict)
        if not same_exp or g.base is not h.base or self.exponent(g.terms) is not self.exponent(h.terms):
            return None
        if g.scale is h.scale:
            sign = Fraction(-1 if minus else 1)
            terms = poly.sum_terms(g.terms, {k: poly.scaled(p, sign) for k, p in h.terms.items()})
            return Group(g.scale, fn(g.core, h.core), terms, g.base)
        return self._rescaled(g, h, fn, minus)

    def _rescaled(self, g: Group, h: Group, fn: Callable[[Expr, Expr], Expr], minus: bool) -> Group | None:
        """g and h differ by a factor: join them where the factor is a number, a parameter or a good coordinate."""
        r = self.t.div(h.scale, g.scale)
        if g.base is not self.t.one:
            return None
        sign = self.t.const(-1 if minus else 1)
        if not r.kind:
            moved = poly.scale_terms(self.t, h.terms, self.t.mul(sign, r))
        else:
            found = self.monomial(r)
            if found is None:
                return None
            k, powers = found
            moved = poly.scale_terms(self.t, h.terms, self.t.one, {powers: k * sign.value})
        core = fn(g.core, build.mul(self.emit(r), h.core))
        return Group(g.scale, core, poly.sum_terms(g.terms, moved), g.base, expanded=True)

    def _shifted(
        self, main: Group, shift: Group, fn: Callable[[Expr, Expr], Expr], first: bool, minus: bool, strict: bool
    ) -> Group | None:
        """An earlier result added to a core: each of its addends is a coordinate of its own."""
        t = self.t
        assert shift.alone is not None
        plain = main.scale is t.one
        added = shift.scale if plain else t.add(*[t.div(a, main.scale) for a in shift.scale.addends])
        monomials: dict[Term, tuple[Fraction, poly.Powers]] = {}
        for a in added.addends:
            if not a.kind:
                continue
            k, r = t.split(a)
            found = self.monomial(a) if strict else (k, ((self.coordinate(r), 1),))
            if found is not None:
                monomials[a] = found
            else:
                if not plain:
                    return None
                raise Refused(
                    RefusalKind.ILL_CONDITIONED,
                    f"elements are shifted by {self.name(shift.alone)}, which on a part of the data may lie far from "
                    "all of them; correcting the sum for it afterwards could cancel every digit",
                    "shift by a maximum, a minimum, a mean or a logarithm of a positive sum, or keep the extra pass",
                )
        d = shift.alone if plain else self.emit(added)
        main_sign, sign = Fraction(1), Fraction(1)
        if minus:
            main_sign, sign = (Fraction(-1), Fraction(1)) if first else (Fraction(1), Fraction(-1))
        terms = {g: poly.scaled(p, main_sign) for g, p in main.terms.items()}
        for a in added.addends:
            if a.kind:
                k, powers = monomials[a]
                shifted: poly.Terms = {t.one: {powers: k * sign}}
            else:
                shifted = poly.collect(t, t.scale(sign, a))
            terms = poly.sum_terms(terms, shifted)
        core = fn(d, main.core) if first else fn(main.core, d)
        return Group(main.scale, core, terms, main.base, expanded=main.expanded or not plain)

    def monomial(self, a: Term) -> tuple[Fraction, poly.Powers] | None:
        """a as number * powers of well-conditioned coordinates."""
        k, r = self.t.split(a)
        for n in (1, 2, 3, 4):
            root = r if n == 1 else self._root(r, n)
            found = None if root is None else self._multiple(root)
            if found is not None:
                j, c = found
                return k * j**n, ((c, n),)
        positive = self.t.scale(abs(k), r)
        if self.conditioned(positive):
            return Fraction(1 if k > 0 else -1), ((self.coordinate(positive), 1),)
        for c, v in list(self.coordinates.items()):
            j, v = self.t.split(v)
            rest = self.t.div(r, v)
            found = self._multiple(rest) if rest.kind and len(rest.factors) < len(r.factors) else None
            if found is not None:
                i, other = found
                powers = sorted({c: 1, other: 1}.items() if c is not other else [(c, 2)], key=lambda p: p[0].id)
                return k * i / j, tuple(powers)
        return None

    def _multiple(self, r: Term) -> tuple[Fraction, Term] | None:
        """r as number * coordinate: where the program writes the length as a number, a sum is length * mean."""
        for c, v in self.coordinates.items():
            j, rest = self.t.split(v)
            if rest is r:
                return 1 / j, c
        if self.conditioned(r):
            return Fraction(1), self.coordinate(r)
        n = self.r.length
        if n and self.conditioned(mean := self.t.scale(Fraction(1, n), r)):
            return Fraction(n), self.coordinate(mean)
        return None

    def _root(self, r: Term, n: int) -> Term | None:
        powers = [base_power(f) for f in r.factors]
        if any((q / n).denominator != 1 for _, q in powers):
            return None
        return self.t.mul(*[self.t.pow(b, q / n) for b, q in powers])

    def coordinate(self, r: Term) -> Term:
        c = self._by_value.get(r)
        if c is None:
            c = self._by_value[r] = self.t.var(f"c{len(self._by_value)}", D, r.sign)
            self.coordinates[c] = r
        return c

    # -- products -------------------------------------------------------------------------------------------------
    def gated(self, g: Group) -> bool:
        return any(f.op == "fn" and f.label == "gate" for f in g.scale.factors)

    def product_of(self, left: list[Group], right: list[Group]) -> list[Group]:
        out = []
        for g in left:
            for h in right:
                if g.alone is not None and h.alone is not None:
                    joined = build.mul(g.alone, h.alone)
                    out.append(self.result(self.t.mul(g.scale, h.scale), joined))
                    continue
                terms = poly.product_terms(self.t, g.terms, h.terms)
                core = h.core if g.alone is not None else g.core if h.alone is not None else build.mul(g.core, h.core)
                pin = None
                if g.pin is not None and h.pin is None:
                    pin = (g.pin[0], g.pin[1] if h.alone is not None else build.mul(g.pin[1], h.core))
                elif h.pin is not None and g.pin is None:
                    pin = (h.pin[0], h.pin[1] if g.alone is not None else build.mul(g.core, h.pin[1]))
                scale, base = self.t.mul(g.scale, h.scale), self.t.mul(g.base, h.base)
                out.append(Group(scale, core, terms, base, g.notes + h.notes, pin, None, g.expanded or h.expanded))
        return out

    def _quotient(self, left: list[Group], b: Expr) -> list[Group]:
        t = self.r.term(b)
        if not t.kind & X:
            s = self.t.inv(t)
            if t.kind & D:
                return [
                    replace(g, scale=self.t.mul(g.scale, s), alone=None if g.alone is None else build.div(g.alone, b))
                    for g in left
                ]
        s = self.t.inv(t)
        out = []
        for g in left:
            if g.alone is not None:
                g = Group(g.scale, const(1.0, DType.FLOAT32), g.terms, g.base)
            pin = None if g.pin is None else (g.pin[0], build.div(g.pin[1], b))
            out.append(replace(g, core=build.div(g.core, b), terms=poly.scale_terms(self.t, g.terms, s), pin=pin))
        return out

    def recentred(self, g: Group) -> Group:
        """x^2 - 2*c*x + c^2 as (x - c)^2: where P(a + k*c, c) is free of c, the polynomial is written in a - k*c."""
        if not g.expanded:
            return g
        terms, moved = g.terms, False
        for c in poly.coordinates(g.terms):
            atoms = sorted({base_power(f)[0] for x in terms for f in x.factors if f.kind & X}, key=lambda a: a.id)
            for a in atoms:
                k = self._free_of(terms, c, a)
                if k is None:
                    continue
                shift = self.emit(self.t.scale(abs(k), self.coordinates[c]))
                spelled = build.sub(self.emit(a), shift) if k > 0 else build.add(self.emit(a), shift)
                u = self.r.opaque(spelled, X | D, name="shifted")
                rest = {x: {p: v for p, v in q.items() if c not in dict(p)} for x, q in terms.items()}
                terms = {self.t.substitute(x, {a: u}): q for x, q in rest.items() if q}
                moved = True
                break
        if not moved:
            return g
        core = self.emit(self.t.add(*[self.t.mul(x, self.uncoordinated(p)) for x, p in terms.items()]))
        return replace(g, core=core, expanded=False)

    def _free_of(self, terms: Terms, c: Term, a: Term) -> Fraction | None:
        """k with  dP/dc + k*dP/da == 0, or None."""
        by_c = poly.diff_terms(terms, c)
        by_a: dict[Term, poly.Poly] = {}
        for x, p in terms.items():
            powers = dict(map(base_power, x.factors))
            n = powers.get(a, Fraction(0))
            if any(a in variables(b) for b in powers if b is not a):
                return None
            if n:
                lowered = self.t.mul(x, self.t.inv(a))
                by_a = poly.sum_terms(by_a, {lowered: poly.scaled(p, n)})
        k = poly.ratio(by_c, by_a) if by_c else None
        return None if k is None else -k

    def _no_cancelling(self, groups: list[Group]) -> None:
        """A power of a difference must not be written out: its parts would cancel."""
        seen: list[tuple[Term, Term, Term | None]] = []
        for g in groups:
            key = (self.exp_factor(g.scale), g.base, self.exponent(g.terms))
            if key in seen:
                raise Refused(
                    RefusalKind.ILL_CONDITIONED,
                    f"{self.name(g.core)} is scaled by {self.name(self.emit(g.scale))} and added to other elements "
                    "before a power or product is taken; multiplied out, the parts would cancel each other's digits",
                    "scale by a maximum, a mean, a constant or an input, or keep the extra pass",
                )
            seen.append(key)

    def single(self, groups: list[Group]) -> Group | None:
        """The only group, when it is a plain product of an element and a scale."""
        if len(groups) == 1 and not poly.coordinates(groups[0].terms) and not self.gated(groups[0]):
            return groups[0]
        return None

    def free_term(self, g: Group) -> Term:
        return self.t.add(*[self.t.scale(p[()], k) for k, p in g.terms.items()])

    def power_of(self, e: Apply | None, arg: Expr, q: Fraction, strict: bool) -> list[Group]:
        groups = self.groups(arg, strict)
        if q.denominator == 1 and q > 0:
            return self._integer_power(e, groups, int(q))
        g = self.single(groups)
        if g is not None and not g.notes:
            x = self.free_term(g)
            if q.denominator == 1 or (x.nonneg and g.scale.nonneg):
                terms = poly.collect(self.t, self.t.pow(x, q))
                core = build.power(g.core, float(q)) if e is None or e.fn is Fn.POW else Apply(e.fn, (g.core,), e.dtype)
                return [Group(self.t.pow(g.scale, q), core, terms, self.t.pow(g.base, q))]
        raise Refused(
            RefusalKind.NONLINEAR,
            f"a power or quotient is taken of {self.name(arg)}, a sum of elements and {self.which(arg)} (or of "
            "something that may be negative)",
            f"divide by, or take the root of, a product of the elements and {self.which(arg)} instead of a sum",
        )

    def _integer_power(self, e: Apply | None, groups: list[Group], n: int) -> list[Group]:
        if len(groups) == 1 and not groups[0].notes and not self.gated(groups[0]):
            g = groups[0]
            terms: Terms = {self.t.one: UNIT}
            for _ in range(n):
                terms = poly.product_terms(self.t, terms, g.terms)
            scale, base = self.t.pow(g.scale, Fraction(n)), self.t.pow(g.base, Fraction(n))
            pin = None
            if e is not None and g.scale is not self.t.one and base is self.t.one:
                pin = (scale, e)
            core = (
                build.binary(Fn.MUL, g.core, g.core)
                if n == 2 and e is not None and e.fn is Fn.MUL
                else build.power(g.core, n)
            )
            return [Group(scale, core, terms, base, pin=pin)]
        self._no_cancelling(groups)
        out = groups
        for _ in range(n - 1):
            out = self.product_of(out, groups)
        return out

    def uncoordinated(self, p: poly.Poly) -> Term:
        return self.t.substitute(poly.as_term(self.t, p), self.coordinates)
