"""The running state of one pass while it is being built: accumulators, bases, and what they are worth."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from redfuser.algebra import build, poly
from redfuser.algebra.facts import Facts
from redfuser.algebra.groups import Options
from redfuser.algebra.nodes import Accumulator, Base, Problem, Read, Rule, Stage, Step, Treatment
from redfuser.algebra.poly import Terms
from redfuser.algebra.reader import Reader
from redfuser.algebra.separate import Separator
from redfuser.algebra.terms import ANY, NONNEG, Arena, D, Sign, Term, base_power, variables
from redfuser.algebra.zeros import tied
from redfuser.index.expr import (
    DType,
    Expr,
    Fn,
    Load,
    Part,
    Ref,
    const,
    dtype_of,
    free_axes,
    loads,
    ref,
    transform,
    walk,
)
from redfuser.index.ints import Axis
from redfuser.index.nodes import Reducer

EXTREMA = frozenset({Reducer.MAX, Reducer.MIN, Reducer.LOGSUMEXP, Reducer.ARGMAX, Reducer.ARGMIN})


@dataclass(slots=True)
class Notes:
    """What the report and the proof say about one stage."""

    treatments: set[Treatment] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Entry:
    """A sum that is already accumulated: over ``terms`` at the base ``key``."""

    key: tuple[Term, Term]
    terms: Terms
    state: Term


Key = tuple[Reducer, Expr, Axis | None, DType]


@dataclass(frozen=True, slots=True)
class Mark:
    """How much of a state was there."""

    steps: int
    reads: int
    sums: int
    facts: int
    accumulators: set[Term]
    bases: set[tuple[str, Term]]
    keys: set[Key]


class State:
    """``inner`` values are at the running bases; ``raw`` values are the results as the definition has them."""

    def __init__(self, problem: Problem, stages: dict[str, Stage], options: Options, taken: set[str]) -> None:
        self.problem, self.stages, self.options = problem, stages, options
        self.t = Arena()
        self.reader = Reader(self.t, problem, stages)
        self.facts = Facts(self.t)
        self.steps: list[Step] = []
        self.reads: list[Read] = []
        self.notes: dict[str, Notes] = {}
        self.sums: list[Entry] = []
        self.accumulators: dict[Term, Accumulator] = {}
        self.bases: dict[tuple[str, Term], Ref] = {}
        self.keys: dict[Key, Ref] = {}
        self.fixes: dict[Term, Term] = {}  # accumulator -> the factor from its base to the raw result
        self.raw_values: dict[
            Term, Expr
        ] = {}  # accumulator -> its value at the raw results, where that is more than a factor
        self.inner_exprs: dict[tuple[str, Part], Expr] = {}
        self.raw_exprs: dict[tuple[str, Part], Expr] = {}
        self._shadow: dict[Term, Term] = {}
        self.later = False  # not the first pass
        self.taken = taken
        from redfuser.algebra.coordinates import conditioned

        self.separator = Separator(
            self.reader, self.facts, options, lambda r: conditioned(self, r), self.spelled, lambda g: tied(self, g)
        )

    # -- names and axes ---------------------------------------------------------------------------------------------
    def unique(self, name: str) -> str:
        out, n = name, 2
        while out in self.taken:
            out, n = f"{name}_{n}", n + 1
        self.taken.add(out)
        return out

    def axes_of(self, *exprs: Expr, extra: tuple[Axis, ...] = ()) -> tuple[Axis, ...]:
        """Kept axes that the values depend on, in the order of the stages' axes."""
        found: set[Axis] = set(extra)
        known = {s.name: s.axes for s in self.steps}
        for e in exprs:
            found |= free_axes(e)
            for x in walk(e):
                if isinstance(x, Ref) and x.name in known:
                    found |= set(known[x.name])
        order: dict[Axis, None] = {}
        for s in self.problem.stages:
            order.update(dict.fromkeys(s.axes))
        out = [a for a in order if a in found]
        return tuple(
            out + sorted((a for a in found if a not in order and a is not self.problem.axis), key=lambda a: a.serial)
        )

    # -- building -----------------------------------------------------------------------------------------------------
    def snapshot(self) -> Mark:
        return Mark(
            len(self.steps),
            len(self.reads),
            len(self.sums),
            len(self.facts.known),
            set(self.accumulators),
            set(self.bases),
            set(self.keys),
        )

    def restore(self, mark: Mark) -> None:
        """Forget what a stage added before it was refused (its names stay taken)."""
        del self.steps[mark.steps :], self.reads[mark.reads :], self.sums[mark.sums :]
        self.accumulators = {a: x for a, x in self.accumulators.items() if a in mark.accumulators}
        self.bases = {b: x for b, x in self.bases.items() if b in mark.bases}
        self.keys = {k: x for k, x in self.keys.items() if k in mark.keys}
        self.facts.forget(mark.facts)

    def accumulate(
        self, stage: Stage, name: str, reducer: Reducer, element: Expr, dtype: DType, role: str, sign: Sign = ANY,
        correction: Expr | None = None, k: Axis | None = None,
    ) -> Ref:  # fmt: skip
        """A new accumulator as the next step."""
        extra = () if correction is None else tuple(self.axes_of(correction))
        axes = tuple(a for a in self.axes_of(element, extra=extra) if a is not self.problem.axis)
        acc = Accumulator(self.unique(name), reducer, element, correction, axes, dtype, k, stage.name, role)
        self.steps.append(acc)
        out = ref(acc.name, dtype)
        self.accumulators[self.reader.opaque(out, D, sign, acc.name)] = acc
        self.notes[stage.name].names.append(acc.name)
        return out

    def set_base(self, stage: Stage, tag: str, t: Term, name: str, value: Expr) -> Ref:
        """A base as the next step, shared by all who need the same value."""
        # differences from a base are taken in its dtype: no narrower than the sum that sits at it
        wide = DType.FLOAT64 in (stage.dtype, dtype_of(stage.body))
        tag = f"{tag}:{DType.FLOAT64}" if wide else tag
        found = self.bases.get((tag, t))
        if found is not None:
            return found
        value = build.cast(value, DType.FLOAT64) if wide else value
        dtype = build.join(dtype_of(value), DType.FLOAT32)
        base = Base(self.unique(name), value, self.axes_of(value), dtype, stage.name)
        self.steps.append(base)
        self.notes[stage.name].names.append(base.name)
        out = self.bases[(tag, t)] = ref(base.name, base.dtype)
        return out

    def key(self, stage: Stage, name: str, reducer: Reducer, key: Expr, role: str, k: Axis | None = None) -> Ref:
        """A running extreme key, shared by all who need the same one."""
        dtype = dtype_of(key).compute
        found = self.keys.get((reducer, key, k, dtype))
        if found is None:
            sign = self.reader.term(key).sign if dtype.is_float else ANY
            sign = NONNEG if sign == (False, True, True) or sign == (False, False, True) else ANY
            found = self.accumulate(stage, name, reducer, key, dtype, role, sign, k=k)
            self.keys[(reducer, key, k, dtype)] = found
            v, x = self.reader.term(found), self.reader.term(key)
            if reducer in (Reducer.MAX, Reducer.ARGMAX):
                self.facts.learn(self.t.sub(v, x))
            elif reducer in (Reducer.MIN, Reducer.ARGMIN):
                self.facts.learn(self.t.sub(x, v))
        return found

    def count(self, stage: Stage) -> Ref:
        """The number of elements so far, exact."""
        one = self.t.one
        for s in self.sums:
            if s.key == (self.t.zero, one) and set(s.terms) == {one} and s.terms[one] == poly.UNIT:
                return self.ref_of(s.state)
        n = self.accumulate(
            stage,
            f"{stage.name}_n",
            Reducer.SUM,
            const(1, DType.INT64),
            DType.INT64,
            "count of elements",
            (False, True, True),
        )
        self.sums.append(Entry((self.t.zero, one), {one: poly.UNIT}, self.reader.term(n)))
        return n

    def ref_of(self, state: Term) -> Ref:
        e = self.reader.exprs[state]
        assert isinstance(e, Ref)
        return e

    # -- values -------------------------------------------------------------------------------------------------------
    def spelled(self, t: Term) -> Expr:
        """The term with loads of stages left as the user wrote them (accumulators as running values)."""
        return self.reader.emit(t, lambda x: None, lambda v: None)

    def inner(self, t: Term) -> Expr:
        return self.reader.emit(t, self._inner_leaf, lambda v: None)

    def _inner_leaf(self, x: Expr) -> Expr | None:
        return self.inner_exprs[(x.source, x.part)] if isinstance(x, Load) and self.reader.is_state(x) else None

    def inner_expr(self, e: Expr) -> Expr:
        return transform(e, self._inner_leaf)

    def raw(self, t: Term) -> Expr:
        """At the raw results. Factors that undo a base cancel where the sums themselves do (O/Z)."""
        total = [self.t.mul(*[self._bare(f) for f in a.factors]) for a in t.addends] if self.fixes else [t]
        return self.reader.emit(self.t.add(*total), self._raw_leaf, self._raw_var)

    def _bare(self, f: Term) -> Term:
        """A sum as its value at the base times the factor to the raw result."""
        v, q = base_power(f)
        fix = self.fixes.get(v)
        if fix is None:
            return f
        bare = (
            self.reader.opaque(self.raw_values.get(v, self.ref_of(v)), D, NONNEG, "bare")
            if v in self.raw_values
            else None
        )
        if bare is None:
            bare = self._shadow.get(v)
            if bare is None:
                bare = self._shadow[v] = self.t.var(f"{v.label}°", D, v.sign)
                self.reader.exprs[bare] = self.reader.exprs[v]
        return self.t.mul(self.t.pow(bare, q), self.t.pow(fix, q))

    def alias(self, v: Term) -> Term:
        """The same accumulator as a variable of its own, which does not cancel against it."""
        a = self.t.var(f"{v.label}*", D, v.sign)
        self.reader.exprs[a] = self.reader.exprs[v]
        for table in (self.fixes, self.raw_values):
            if v in table:
                table[a] = table[v]  # type: ignore[assignment]
        return a

    def own_factor(self, e: Expr) -> Term:
        """A positive factor that nothing else shares, so that it never cancels."""
        v = self.t.var(f"own{len(self.fixes)}", D, (False, False, True))
        self.reader.exprs[v] = e
        return v

    def _raw_var(self, v: Term) -> Expr | None:
        value, fix = self.raw_values.get(v), self.fixes.get(v)
        if fix is None:
            return value
        return build.mul(self.ref_of(v) if value is None else value, self.reader.exprs[fix])

    def _raw_leaf(self, x: Expr) -> Expr | None:
        return self.raw_exprs[(x.source, x.part)] if isinstance(x, Load) and self.reader.is_state(x) else None

    def extrema_in(self, t: Term) -> list[Accumulator]:
        """Running extrema in the term: while one is at its identity nothing was seen yet."""
        out = []
        for v in variables(t):
            acc = self.accumulators.get(v)
            if acc is not None and acc.reducer in EXTREMA:
                out.append(acc)
        return out

    def at_identity(self, t: Term) -> Expr | None:
        """The test that some extremum in the term is still at its identity."""
        out: Expr | None = None
        for acc in self.extrema_in(t):
            test = build.is_identity(ref(acc.name, acc.dtype), acc.reducer.identity(acc.dtype).value)
            out = test if out is None else build.logic(Fn.OR, out, test)
        return out

    def zero(self, *like: Expr) -> Expr:
        return const(0, build.join(DType.FLOAT32, *[dtype_of(x) for x in like]))

    def rule(self, stage: Stage, rule: str, before: str, after: str, *conditions: str) -> None:
        self.notes[stage.name].rules.append(Rule(stage.name, rule, before, after, tuple(conditions)))


def old(e: Expr) -> Expr:
    """Every value of the state as it was before this tile."""
    return transform(e, lambda x: Ref(x.name, x.dtype, True, x.part) if isinstance(x, Ref) else None)


def low_precision(e: Expr) -> bool:
    """True when every number it reads is stored in at most two bytes."""
    found = [x.dtype for x in loads(e) if x.dtype.is_float]
    return bool(found) and all(d.bytes <= 2 for d in found)


def factorial_of(n: int) -> Fraction:
    out = Fraction(1)
    for i in range(2, n + 1):
        out *= i
    return out
