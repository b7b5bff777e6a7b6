"""A sum in place: group by group, the core and its derivatives as accumulators, each with its correction."""

from __future__ import annotations

import itertools
from fractions import Fraction

from redfuser.algebra import build, coordinates, poly
from redfuser.algebra.bases import (
    accumulator_dtype,
    at_base,
    base_name,
    coordinate_text,
)
from redfuser.algebra.groups import Group, Refused
from redfuser.algebra.nodes import Stage, Treatment
from redfuser.algebra.poly import Terms
from redfuser.algebra.scales import Scaled
from redfuser.algebra.signs import adds_up
from redfuser.algebra.state import Entry, State, factorial_of, low_precision, old
from redfuser.algebra.terms import ANY, NONNEG, D, Sign, Term, base_power
from redfuser.index.expr import (
    Const,
    DType,
    Expr,
    Fn,
    Ref,
    const,
    dtype_of,
    ref,
    transform,
    walk,
)
from redfuser.index.nodes import Reducer
from redfuser.index.refusals import RefusalKind

Index = tuple[int, ...]
Part = tuple[Fraction, Expr]  # a number times a moment


class SumPlacer:
    """A sum: its groups one by one."""

    def __init__(self, s: State, stage: Stage) -> None:
        self.s, self.stage, self.t = s, stage, s.t
        self.dtype = accumulator_dtype(stage)
        self.note = s.notes[stage.name]

    def place(self) -> Term:
        s, stage = self.s, self.stage
        groups = [s.separator.recentred(g) for g in s.separator.groups(stage.body)]
        for x in walk(stage.body):
            if x in s.separator.settled:
                self._tell_branch(x, s.separator.settled[x])
        if not s.reader.kind(stage.body) & D and any(not g.terms for g in groups):
            return s.reader.term(s.accumulate(stage, stage.name, Reducer.SUM, stage.body, self.dtype, "result"))
        text = s.separator.name(stage.body)
        if not self.dtype.is_float and s.reader.kind(stage.body) & D:
            raise Refused(
                RefusalKind.ROUNDING,
                f"{text} is a sum of integers, which is exact; moving it with an earlier result would round it",
                "sum the elements apart from the earlier result, or in floating point",
            )
        if s.reader.kind(stage.body) & D:
            after = " + ".join(f"{s.separator.name(s.spelled(g.scale))} * [{s.separator.name(g.core)}]" for g in groups)
            s.rule(
                stage, "separate", text, after, *[f"{coordinate_text(s, c)} is a coordinate" for c in self._all(groups)]
            )
        parts = [self._group(g, len(groups) > 1, i) for i, g in enumerate(groups)]
        if not self.note.treatments:
            self.note.treatments.add(Treatment.PLAIN)
        return self.t.add(*parts)

    def _tell_branch(self, before: Expr, after: Expr) -> None:
        name = self.s.separator.name
        self.s.rule(
            self.stage, "branch", name(before), name(after),
            "the scale of what is tested has one sign, and where it is 0 or not finite an element is NaN",
            "an exponential is 0 where its exponent is -inf", "what is taken elsewhere goes to 0 with it",
        )  # fmt: skip

    def _all(self, groups: list[Group]) -> list[Term]:
        return [c for g in groups for c in poly.coordinates(g.terms)]

    def _group(self, g: Group, several: bool, i: int) -> Term:
        name = f"{self.stage.name}_{chr(ord('a') + i)}" if several and i else self.stage.name
        return GroupPlacer(self.s, self.stage, g, name).place()


class GroupPlacer(Scaled):
    """One group: its base, its accumulators (the core and its derivatives) and their corrections."""

    def place(self) -> Term:
        if not self.g.terms:  # what was written cancels
            return self.t.zero
        self._choose_pin()
        self._bound_exponent()
        self._exponent_bases()
        self._pin_base()
        cs = poly.coordinates(self.g.terms)
        placed = [self._coordinate(c) for c in cs]
        if self.defer is not self.t.one:
            self.note.treatments.add(Treatment.DEFER)
            name, spelled = self.s.separator.name, self.s.spelled
            after = f"{name(spelled(self.defer))} is applied when the result is read"
            self.s.rule(self.stage, "defer", name(spelled(self.g.scale)), after)
        for n in self.g.notes:
            if n not in self.note.conditions:
                self.note.conditions.append(n)
        return self.t.mul(self.defer, self._uncancelled(self._moments(cs, placed)))

    def _uncancelled(self, value: Term) -> Term:
        """An accumulator that is also divided by at the read-out stays: Z/Z is NaN where Z is 0, as written."""
        divisors = {base_power(f)[0] for f in self.defer.factors if base_power(f)[1] < 0}
        return self.t.mul(*[self.s.alias(f) if f in divisors else f for f in value.factors])

    # -- coordinates and moments -------------------------------------------------------------------------------------
    def _coordinate(self, c: Term) -> coordinates.Placed:
        s = self.s
        r = s.separator.coordinates[c]
        linear = all(poly.degree(p, c) <= 1 for p in self.g.terms.values())
        narrow = low_precision(self.core) and self.dtype is not DType.FLOAT64
        related = coordinates.related(s, r, self.g.terms)
        if linear and self.factor is None and (narrow or not related):
            why = (
                "elements this narrow are summed exactly as they are"
                if narrow
                else "the shift is not one of these elements"
            )
            placed = coordinates.Placed(const(0.0, self.dtype), s.raw(r), f"0: {why}")
            self.note.treatments.add(Treatment.DEFER)
        elif linear and adds_up(s, self.g.terms, c):
            why = "what it adds to an element has the element's sign"
            placed = coordinates.Placed(const(0.0, self.dtype), s.raw(r), f"0: {why}")
            self.note.treatments.add(Treatment.DEFER)
        elif not related:
            raise Refused(
                RefusalKind.ILL_CONDITIONED,
                f"elements are shifted by {coordinate_text(s, c)}, which is taken over other data; on a part of the "
                "data it may lie far from all of them, and correcting the sum for it could cancel every digit",
                "shift by a maximum, a minimum or a mean of the same elements, or keep the extra pass",
            )
        else:
            placed = coordinates.place(s, self.stage, r, base_name(s, self.stage, r), self.fix is None)
            self.note.treatments.add(Treatment.REBASE)
        named = (
            placed.base.name if isinstance(placed.base, Ref) else "zero" if linear and self.factor is not None else ""
        )
        mark = ref(f"{named}#{len(self.marks)}", dtype_of(placed.base)) if named else placed.base
        self.marks[mark] = placed.base
        self.table[r] = mark
        s.rule(
            self.stage,
            "rebase",
            coordinate_text(s, c),
            f"sits at {s.separator.name(placed.base)}",
            f"the base is {placed.why}",
        )
        return placed

    def _moments(self, cs: list[Term], placed: list[coordinates.Placed]) -> Term:
        s, t = self.s, self.t
        element = at_base(s, self.core, self.table, self.exponents)
        still = {r: base if isinstance(base := self.marks.get(e, e), Const) else e for r, e in self.table.items()}
        whole = at_base(s, self.core, still, self.exponents)
        degrees = [max((poly.degree(p, c) for p in self.g.terms.values()), default=0) for c in cs]
        order = sorted(itertools.product(*[range(d + 1) for d in degrees]), key=lambda a: (sum(a), a[::-1]))
        plan = [(a, *self._derived(a, cs, placed, element if any(a) else whole)) for a in order]
        plan = [p for p in plan if p[1]]
        jets: dict[Index, tuple[float, Ref]] = {}
        pending: list[tuple[Index, Terms, Expr, Sign]] = []
        for a, terms, e in plan:
            hit = self._reuse(terms) or self._pending(terms, pending, jets)
            if hit is not None:
                jets[a] = hit
                continue
            e = transform(e, lambda x: self.marks.get(x))
            k, unit = (1.0, e) if not any(a) else build.leading_number(e)
            name = self.name if not any(a) else f"{self.name}_{''.join(map(str, a))}"
            name = s.unique(name)
            jets[a] = (k, ref(name, self.dtype))
            sign = s.reader.term(self.core).sign if not any(a) and self.defer.kind >= 0 and not self.g.notes else ANY
            pending.append((a, terms, unit, NONNEG if sign in ((False, True, True), (False, False, True)) else ANY))
        for a, terms, e, sign in pending:
            self._emit_moment(a, terms, e, sign, placed, jets)
        k, main = jets[tuple(0 for _ in cs)]
        v = s.reader.term(main)
        self._raw_moment(v, main, cs, placed, jets)
        return t.scale(Fraction(k), v) if k != 1.0 else v

    def _derived(self, a: Index, cs: list[Term], placed: list[coordinates.Placed], element: Expr) -> tuple[Terms, Expr]:
        terms, e = self.g.terms, element
        for c, p, n in zip(cs, placed, a, strict=True):
            for _ in range(n):
                terms = poly.diff_terms(terms, c)
                e = self._diff(e, terms, p)
        return terms, e

    def _diff(self, e: Expr, terms: Terms, p: coordinates.Placed) -> Expr:
        if not terms:
            return self.s.zero(e)
        mark = next((m for m, base in self.marks.items() if base is p.base), None)
        if isinstance(mark, Ref):
            try:
                return build.derivative(e, mark)
            except build.NotPolynomial as x:
                raise Refused(RefusalKind.NONLINEAR, str(x), "write it as a polynomial in the earlier result") from None
        if self.moving is not self.t.zero or self.pin is not self.t.one:
            raise Refused(
                RefusalKind.UNSUPPORTED,
                f"{self.s.separator.name(self.core)} both shifts and rescales elements of 16 bits or less",
                "cast the inputs to float32 first, or keep the extra pass",
            )
        return at_base(self.s, self.s.spelled(self._whole(terms)), self.table)

    def _whole(self, terms: Terms) -> Term:
        return self.t.add(*[self.t.mul(g, self.s.separator.uncoordinated(p)) for g, p in terms.items()])

    def _key(self) -> tuple[Term, Term]:
        return (self.moving, self.pin)

    def _reuse(self, terms: Terms) -> tuple[float, Ref] | None:
        if self.g.notes:
            return None
        for e in self.s.sums:
            if e.key == self._key():
                k = poly.ratio(terms, e.terms)
                if k is not None:
                    return float(k), self.s.ref_of(e.state)
        return None

    def _pending(
        self, terms: Terms, pending: list[tuple[Index, Terms, Expr, Sign]], jets: dict[Index, tuple[float, Ref]]
    ) -> tuple[float, Ref] | None:
        """A moment of this group that is proportional to an earlier one."""
        for a, own, _, _ in pending if not self.g.notes else []:
            k = poly.ratio(terms, own)
            if k is not None:
                return float(k) * jets[a][0], jets[a][1]
        return None

    def _emit_moment(
        self, a: Index, terms: Terms, e: Expr, sign: Sign, placed: list[coordinates.Placed],
        jets: dict[Index, tuple[float, Ref]],
    ) -> None:  # fmt: skip
        s = self.s
        k, own = jets[a]
        steps = [build.sub(p.base, old(p.base)) if isinstance(p.base, Ref) else None for p in placed]
        value = self._shifted(a, steps, jets, Fraction(k), self.factor)
        state = ref(own.name, self.dtype, old=True)
        correction, kept = value, None if value is None else _infinite(state)
        if self.factor is not None:
            correction = build.mul(state, self.factor) if value is None else value
            idle = None if self.idle is None else old(self.idle)
            kept = build.logic(Fn.OR, idle, kept) if idle is not None and kept is not None else idle or kept
        if correction is not None and kept is not None:
            correction = build.where(kept, state, correction)
        s.taken.discard(own.name)
        role = "result" if not any(a) else "moment " + "".join(map(str, a))
        acc = s.accumulate(self.stage, own.name, Reducer.SUM, e, self.dtype, role, sign, correction)
        assert acc is own
        unit = Fraction(1) / Fraction(k)
        if not self.g.notes:
            scaled = {g: poly.scaled(p, unit) for g, p in terms.items()}
            s.sums.append(Entry(self._key(), scaled, s.reader.term(acc)))

    def _shifted(
        self, a: Index, deltas: list[Expr | None], jets: dict[Index, tuple[float, Ref]], unit: Fraction,
        factor: Expr | None = None, before: bool = True,
    ) -> Expr | None:  # fmt: skip
        """Taylor: sum over b of delta^b / b! * moment(a + b), over the moment's own unit; None where nothing moves.

        The moments are multiplied by ``factor`` before they are by a delta: that may overflow where the factor is 0.
        """
        parts: dict[Index, Part] = {}
        for b, (k, state) in jets.items():
            gap = tuple(x - y for x, y in zip(b, a, strict=True))
            if any(n < 0 for n in gap) or any(n and d is None for n, d in zip(gap, deltas, strict=True)):
                continue
            c = Fraction(k) / unit
            for n in gap:
                c /= factorial_of(n)
            moment = build.cast(old(state) if before else state, self.dtype)
            parts[gap] = c, moment if factor is None else build.mul(moment, factor)
        if not any(any(gap) for gap in parts):
            return None
        sign, out = _nested(parts, deltas)
        return out if sign > 0 else build.neg(out)

    def _raw_moment(
        self, v: Term, main: Ref, cs: list[Term], placed: list[coordinates.Placed], jets: dict[Index, tuple[float, Ref]]
    ) -> None:
        s = self.s
        zero = tuple(0 for _ in cs)
        if main.name not in self.note.names:
            return  # shared: its owner said what it is worth
        offsets = [self._polish(c, p) or p.offset for c, p in zip(cs, placed, strict=True)]
        value = self._shifted(zero, offsets, jets, Fraction(1), before=False)
        if value is not None:
            s.raw_values[v] = build.where(_infinite(main), main, value)
        if self.poison is not None:  # a shift that is not finite and cancels out must still show
            s.fixes[v] = s.own_factor(self.poison)
        elif self.fix is not None:
            s.fixes[v] = s.reader.opaque(self.fix, D, (False, False, True), "fix")

    def _polish(self, c: Term, p: coordinates.Placed) -> Expr | None:
        """How far the mean is from its base, from the first moment: sum w*(x - base) / sum w loses no digits."""
        s = self.s
        if p.mean is None or p.mean.factor is not self.t.one:
            return None
        if p.mean.bottom is None:
            n, weights = s.count(self.stage), {self.t.one: poly.UNIT}
        else:
            n, weights = s.ref_of(p.mean.bottom.state), dict(p.mean.bottom.terms)
        down: poly.Poly = {((c, 1),): Fraction(-1)}
        top = poly.scale_terms(s.t, p.mean.top.terms, s.t.inv(p.mean.inside))
        want = poly.sum_terms(top, {g: poly.times(q, down) for g, q in weights.items()})
        for e in s.sums:
            k = poly.ratio(want, e.terms) if e.key == p.mean.top.key else None
            if k is not None:
                return build.div(build.mul(const(float(k), self.dtype), s.ref_of(e.state)), build.cast(n, self.dtype))
        return None


def _infinite(moment: Expr) -> Expr:
    """A moment that overflowed stays as it is: no shift brings it back, and inf - inf would hide it."""
    return build.equal(build.unary(Fn.ABS, moment), const(float("inf"), dtype_of(moment)))


def _nested(parts: dict[Index, Part], deltas: list[Expr | None]) -> tuple[int, Expr]:
    """A sign, and what it stands before: sum of delta^n * c * moment over ``parts``, one multiplication at a time.

    A power of delta is never formed: it may overflow where the moment is 0 (nothing was accumulated), or where the
    product does not.
    """
    if not deltas:
        ((c, moment),) = parts.values()
        return (1 if c > 0 else -1), build.mul(const(float(abs(c)), dtype_of(moment)), moment)
    *others, d = deltas
    degree = max(gap[-1] for gap in parts)
    sign, out = 1, None
    for n in range(degree, -1, -1):
        if out is not None:
            assert d is not None
            out = build.mul(d, out)
        here = {gap[:-1]: part for gap, part in parts.items() if gap[-1] == n}
        if here:
            sign, out = _joined((sign, out), _nested(here, others))
    assert out is not None
    return sign, out


def _joined(higher: tuple[int, Expr | None], own: tuple[int, Expr]) -> tuple[int, Expr]:
    (s, a), (t, b) = higher, own
    if a is None:
        return own
    return t, build.add(b, a) if s == t else build.sub(b, a)
