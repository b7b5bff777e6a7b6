"""The scale of a group: what is deferred, what the running state is rescaled by, and at which bases it sits."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction

from redfuser.algebra import build, pieces, poly
from redfuser.algebra.bases import (
    accumulator_dtype,
    advance,
    base_name,
    exponent_base,
    parameter,
)
from redfuser.algebra.facts import Facts
from redfuser.algebra.groups import Group, Refused
from redfuser.algebra.nodes import Stage, Treatment
from redfuser.algebra.state import State, old
from redfuser.algebra.terms import D, Term, X, base_power
from redfuser.index.expr import (
    Apply,
    Cast,
    DType,
    Expr,
    Fn,
    children,
    const,
    dtype_of,
    rebuild,
)
from redfuser.index.nodes import Reducer
from redfuser.index.refusals import RefusalKind


@dataclass(frozen=True, slots=True)
class Exponential:
    """An exponential among the factors of a core, and the conditions under which it is taken."""

    e: Apply
    masks: tuple[tuple[Expr, bool], ...]

    def masked(self, key: Expr) -> Expr:
        """The exponent where it is taken, -inf elsewhere."""
        far = const(float("-inf"), dtype_of(key))
        for c, taken in reversed(self.masks):
            key = build.where(c, key, far) if taken else build.where(c, far, key)
        return key


class Scaled:
    """A group with its scale in place. ``factor`` moves old state to a new base, ``fix`` the final state
    to the raw results.
    """

    def __init__(self, s: State, stage: Stage, g: Group, name: str) -> None:
        self.s, self.t, self.stage, self.note = s, s.t, stage, s.notes[stage.name]
        self.g, self.name, self.dtype = g, name, accumulator_dtype(stage)
        self.core = g.core
        self.defer = self.t.div(g.scale, g.base)
        exp = self.s.separator.exp_factor(g.base)
        self.moving = exp.args[0] if exp is not self.t.one else self.t.zero
        self.pin = self.t.div(g.base, exp)
        self.table: dict[Term, Expr] = {}  # results in the core -> their bases
        self.exponents: dict[Term, Expr] = {}  # the same under an exponential
        self.marks: dict[Expr, Expr] = {}  # stand-ins for the bases of coordinates while derivatives are taken
        self.factor: Expr | None = None
        self.idle: Expr | None = None
        self.fix: Expr | None = None
        self.bounded = False
        self.poison: Expr | None = None

    # -- scales -------------------------------------------------------------------------------------------------------
    def _choose_pin(self) -> None:
        """Keep a quotient by an extremum inside a power: (x/a)^2 stays in range where x^2 does not."""
        if self.g.pin is None or self.pin is not self.t.one or self.moving is not self.t.zero:
            return
        scale, core = self.g.pin
        extreme = all(base_power(f)[1] < 0 and self.s.extrema_in(f) for f in scale.factors if f.kind)
        if extreme and not poly.coordinates(self.g.terms):
            self.pin, self.core = scale, core
            self.defer = self.t.div(self.defer, scale)

    def _pin_base(self) -> None:
        if self.pin is self.t.one:
            return
        s = self.s
        subtrees = self._result_subtrees(self.core)
        powers = self._as_powers(self.pin, [x for x in subtrees if s.reader.term(x) not in self.table])
        for e, q in powers:
            r = s.reader.term(e)
            value = s.inner_expr(e)
            endless = build.equal(build.unary(Fn.ABS, value), const(float("inf"), build.join(dtype_of(value))))
            bad = build.logic(Fn.OR, build.equal(value, s.zero(value)), endless)
            base = s.set_base(
                self.stage, "pin", r, base_name(s, self.stage, r), build.where(bad, const(1, dtype_of(value)), value)
            )
            self.table[r] = base
            ratio = build.div(base, old(base)) if q > 0 else build.div(old(base), base)
            self._times(build.power(ratio, abs(float(q))))
            last = build.div(s.raw(r), base) if q > 0 else build.div(base, s.raw(r))
            self._fix_times(build.power(last, abs(float(q))))
        self.note.treatments.add(Treatment.RESCALE)
        after = "multiplied by the ratio of the scales when they move"
        s.rule(self.stage, "rescale", s.separator.name(self.core), after,
               "the base of a scale is 1 while the scale is 0 or infinite")  # fmt: skip

    def _result_subtrees(self, e: Expr) -> list[Expr]:
        kind = self.s.reader.kind(e)
        if not kind & D:
            return []
        if not kind & X:
            return [e]
        out: list[Expr] = []
        for a in children(e):
            out += [x for x in self._result_subtrees(a) if x not in out]
        return out

    def _as_powers(self, scale: Term, subtrees: list[Expr]) -> list[tuple[Expr, Fraction]]:
        """The scale as a product of powers of the results that occur in the core."""
        tries = [Fraction(n) for n in (1, -1, 2, -2, 3, -3, 4, -4)] + [Fraction(1, 2), Fraction(-1, 2)]
        for powers in itertools.islice(itertools.product(tries, repeat=len(subtrees)), 2000):
            guess = self.t.mul(*[self.t.pow(self.s.reader.term(e), q) for e, q in zip(subtrees, powers, strict=True)])
            if not self.t.div(guess, scale).kind & D:
                return list(zip(subtrees, powers, strict=True))
        raise Refused(
            RefusalKind.ROUNDING,
            f"the scale {self.s.separator.name(self.s.spelled(scale))} inside a cast is not a product of values that a "
            "running sum can follow",
            "compute the scale as one value and multiply the elements by it before the cast",
        )

    def _times(self, factor: Expr) -> None:
        self.factor = factor if self.factor is None else build.mul(self.factor, factor)

    def _fix_times(self, factor: Expr) -> None:
        self.fix = factor if self.fix is None else build.mul(self.fix, factor)

    # -- exponents ---------------------------------------------------------------------------------------------------
    def _bound_exponent(self) -> None:
        """An exponent that is not provably <= 0 gets a running maximum of its own as base."""
        s, t = self.s, self.t
        x = s.separator.exponent(self.g.terms)
        as_written = s.later or self.stage.name in s.options.apart
        if x is not None and not s.reader.kind(self.stage.body) & D and as_written:
            return  # in a later pass the body is run as it is written
        if x is None or s.facts.nonneg(t.neg(t.add(x, self.moving))):
            return
        found = self._exponential(self.core)
        unit = t.ln2 if found is not None and found.e.fn is Fn.EXP2 else t.one
        if found is not None and s.facts.nonneg(t.neg(t.mul(unit, s.reader.term(found.e.args[0])))):
            return  # at most 0 as it is written, with a logarithm in it that counts as a factor outside
        key = None if found is None else pieces.strip(s.separator, found.e.args[0], lambda m: True)
        if found is None or key is None or s.reader.kind(key) & D or t.mul(unit, s.reader.term(key)) is not x:
            if self.moving is t.zero:
                return  # as the program has it
            raise Refused(
                RefusalKind.ILL_CONDITIONED,
                f"the exponent in {s.separator.name(self.core)} has no upper bound that a running maximum could follow",
                "subtract the maximum of the exponent before the exponential",
            )
        seen = found.masked(key)
        if s.facts.nonneg(t.neg(t.add(t.mul(unit, s.reader.term(seen)), self.moving))):
            return  # at most 0 wherever it is taken
        inner = self._by_sign(x, unit)
        if inner is None:
            top: Expr = s.key(self.stage, f"{self.name}_max", Reducer.MAX, seen, "largest exponent, as a base")
            bound = build.sub(key, top)
            top_term = s.reader.term(top)
        else:
            bound, top_term = inner
        bounded = Apply(found.e.fn, (bound,), found.e.dtype)
        self.core = _along(self.core, found.e, bounded)
        self.bounded = True
        self.note.conditions.append(
            f"{s.separator.name(bounded)} stays finite where {s.separator.name(found.e)} overflows"
        )
        self._guard_shift(t.add(self.moving, t.mul(unit, top_term)))
        self.defer = t.mul(self.defer, t.exp(t.add(self.moving, t.mul(unit, top_term))))
        self.moving = t.neg(t.mul(unit, top_term))
        s.rule(self.stage, "bound", s.separator.name(found.e), s.separator.name(bounded),
               f"the base is the running maximum of {s.separator.name(seen)}")  # fmt: skip

    def _guard_shift(self, left_out: Term) -> None:
        """The scale exp(left_out) may cancel against another; where the shift in it is not finite it must
        still show.
        """
        s = self.s
        fine: Expr | None = None
        for m in self.moving.addends:
            if m is not self.t.zero:
                r = build.unary(Fn.ABS, s.raw(parameter(s, m)[1]))
                test = Apply(Fn.LT, (r, const(float("inf"), dtype_of(r))), DType.BOOL)
                fine = test if fine is None else build.logic(Fn.AND, fine, test)
        if fine is not None:
            self.poison = build.where(fine, const(1.0, self.dtype), build.exp(s.raw(left_out)))

    def _by_sign(self, x: Term, unit: Term) -> tuple[Expr, Term] | None:
        """The exponent a*g with a parameter a of unknown sign, as a*(g - base): the base is the end that
        makes it largest.
        """
        s, t = self.s, self.t
        fixed = [f for f in x.factors if not f.kind and f.op != "const" and f is not t.ln2]
        if not fixed or x.op != "mul":
            return None
        a = t.mul(*fixed)
        g = t.mul(*[f for f in x.factors if f not in fixed], t.inv(unit))
        if a.nonneg or a.nonpos:
            return None
        slope, key = s.spelled(a), s.spelled(g)
        high = s.key(self.stage, f"{self.name}_hi", Reducer.MAX, key, "largest exponent, as a base")
        low = s.key(self.stage, f"{self.name}_lo", Reducer.MIN, key, "smallest exponent, as a base")
        end = build.where(Apply(Fn.GE, (slope, s.zero(slope)), DType.BOOL), high, low)
        return build.mul(build.sub(key, end), slope), t.mul(a, s.reader.term(end))

    def _exponential(self, e: Expr) -> Exponential | None:
        """The only exponential among the factors of e."""
        found: list[Exponential] = []
        stack: list[tuple[Expr, tuple[tuple[Expr, bool], ...]]] = [(e, ())]
        while stack:
            x, masks = stack.pop()
            if isinstance(x, Cast):
                stack.append((x.arg, masks))
            if not isinstance(x, Apply):
                continue
            if x.fn in (Fn.EXP, Fn.EXP2):
                found.append(Exponential(x, masks))
            elif x.fn in (Fn.MUL, Fn.NEG):
                stack.extend((a, masks) for a in x.args)
            elif x.fn is Fn.DIV:
                stack.append((x.args[0], masks))
            elif x.fn is Fn.WHERE:
                stack.append((x.args[1], (*masks, (x.args[0], True))))
                stack.append((x.args[2], (*masks, (x.args[0], False))))
        return found[0] if len(found) == 1 else None

    def _exponent_bases(self) -> None:
        s, t = self.s, self.t
        if self.moving is t.zero:
            return
        x = s.separator.exponent(self.g.terms)
        anyway = x is not None and Facts(t).nonneg(
            t.neg(t.add(x, self.moving))
        )  # then no extremum needs to be seen first
        total: Expr = const(0.0, self.dtype)
        last: Expr = const(0.0, self.dtype)
        for m in self.moving.addends:
            k, r = parameter(s, m)
            base, test = exponent_base(s, self.stage, r, self.bounded)
            self.table[r] = self.exponents[r] = base
            vanishes = x is not None and not self.bounded and self._sinks(k, r)
            total = advance(total, s.inner(k), base, old(build.cast(s.inner(r), base.dtype) if vanishes else base))
            if vanishes:
                last = advance(last, s.inner(k), s.raw(r), base)
            elif test is not None:
                if not anyway:
                    self.idle = test if self.idle is None else build.logic(Fn.OR, self.idle, test)
                last = advance(last, s.inner(k), s.raw(r), base)
        self._times(build.exp(total))
        if not self.bounded and not build.is_number(last, 0):
            self._fix_times(build.exp(last))
        self.note.treatments.add(Treatment.RESCALE)
        after = f"{s.separator.name(build.exp(total))} when the base moves"
        s.rule(self.stage, "rescale", s.separator.name(self.core), after,
               "a state still at its identity stays there", "the exponent is at most 0")  # fmt: skip

    def _sinks(self, k: Term, r: Term) -> bool:
        """True where the scale exp(k * r) takes all from a state to which nothing was added: r is an extremum, and k * r
        is +inf as long as every exponent is -inf. The state is 0 then, and so is what moves it, whatever the new base.

        k is a number: a parameter may be 0, and 0 * inf is NaN.
        """
        acc = self.s.accumulators.get(r)
        if acc is None or k.op != "const" or len(self.moving.addends) != 1:
            return False
        return (acc.reducer is Reducer.MAX and k.nonpos) or (acc.reducer is Reducer.MIN and k.nonneg)


def _along(e: Expr, what: Expr, by: Expr) -> Expr:
    """what replaced by by, where it stands as a factor."""
    if e is what:
        return by
    if not isinstance(e, Apply) or e.fn not in (Fn.MUL, Fn.NEG, Fn.DIV, Fn.WHERE):
        return rebuild(e, tuple(_along(a, what, by) for a in children(e))) if isinstance(e, Cast) else e
    fixed = {Fn.DIV: (1,), Fn.WHERE: (0,)}.get(e.fn, ())
    return Apply(e.fn, tuple(a if i in fixed else _along(a, what, by) for i, a in enumerate(e.args)), e.dtype)
