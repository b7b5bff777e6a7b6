"""Places one stage into the state of a pass: accumulators, their corrections, and the read."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction

from redfuser.algebra import build, coordinates, poly
from redfuser.algebra.nodes import Read, Stage, Treatment
from redfuser.algebra.order import Ordered, Shape, ordered, refused
from redfuser.algebra.poly import Terms
from redfuser.algebra.reader import narrows
from redfuser.algebra.separate import Group, Refused
from redfuser.algebra.state import Entry, State, factorial_of, low_precision, old
from redfuser.algebra.terms import ANY, NONNEG, D, Sign, Term, X, base_power
from redfuser.index.expr import (
    Apply,
    Cast,
    DType,
    Expr,
    Fn,
    Part,
    Ref,
    children,
    const,
    dtype_of,
    rebuild,
    ref,
    transform,
)
from redfuser.index.nodes import Reducer
from redfuser.index.print import show
from redfuser.index.refusals import RefusalKind

Index = tuple[int, ...]


def place(s: State, stage: Stage) -> None:
    """Adds the stage to the pass, or raises Refused and may leave steps behind (the caller restores)."""
    match stage.reducer:
        case Reducer.SUM:
            value = SumPlacer(s, stage).place()
        case Reducer.PROD:
            value = _product(s, stage)
        case Reducer.LOGSUMEXP:
            value = _logsumexp(s, stage)
        case _:
            _extreme(s, stage)
            return
    _finish(s, stage, value)


def accumulator_dtype(stage: Stage) -> DType:
    d = dtype_of(stage.body)
    return DType.FLOAT64 if DType.FLOAT64 in (d, stage.dtype) else (stage.dtype if stage.dtype.is_float else d).accumulator


def _finish(s: State, stage: Stage, value: Term) -> None:
    dtype = accumulator_dtype(stage)
    if narrows(dtype, stage.dtype):
        value = s.t.fn(f"cast:{stage.dtype.value}", value)
    key = (stage.name, Part.VALUE)
    s.inner_exprs[key] = build.cast(_gated(s, value, raw=False), stage.dtype)
    s.raw_exprs[key] = build.cast(_gated(s, value, raw=True), stage.dtype)
    s.reader.values[key] = value
    s.reads.append(Read(stage.name, s.raw_exprs[key], None))


def _gated(s: State, t: Term, raw: bool) -> Expr:
    """The term as an expression, factors ``gate(c)`` standing for ``where(c, rest, 0)``."""
    out: Expr | None = None
    emit = s.raw if raw else s.inner
    if t.op == "fn" and t.label.startswith("cast:"):
        return build.cast(_gated(s, t.args[0], raw), DType(t.label[5:]))
    for a in t.addends:
        gates = [f for f in a.factors if f.op == "fn" and f.label == "gate"]
        e = emit(s.t.mul(*[f for f in a.factors if f not in gates]))
        for g in gates:
            e = build.where(emit(g.args[0]), e, s.zero(e))
        minus = s.t.split(a)[0] < 0 and not gates
        out = e if out is None else build.sub(out, emit(s.t.neg(a))) if minus else build.add(out, e)
    assert out is not None
    return out


# -- order -------------------------------------------------------------------------------------------------------------
_OPPOSITE = {Reducer.MAX: Reducer.MIN, Reducer.MIN: Reducer.MAX, Reducer.ARGMAX: Reducer.ARGMIN, Reducer.ARGMIN: Reducer.ARGMAX}
_AS_ORDER = {Reducer.ANY: Reducer.MAX, Reducer.ALL: Reducer.MIN}


def _extreme(s: State, stage: Stage) -> None:
    body, reducer = stage.body, stage.reducer
    moving = bool(s.reader.kind(body) & D)
    if reducer in _AS_ORDER and not moving:
        body = body if dtype_of(body) is DType.BOOL else Apply(Fn.NE, (body, const(0, dtype_of(body))), DType.BOOL)
        _read_keys(s, stage, s.key(stage, stage.name, reducer, body, "result"))
        return
    if not moving:
        _read_keys(s, stage, s.key(stage, stage.name, reducer, body, "result", stage.k))
        _learn(s, stage)
        return
    m = _logic(s, stage) if reducer in _AS_ORDER else ordered(s.separator, body)
    largest = reducer in (Reducer.MAX, Reducer.ARGMAX, Reducer.TOPK, Reducer.ANY)
    if m.weak and reducer.has_index:
        raise Refused(
            RefusalKind.ORDER,
            f"different elements give equal values of {s.separator.name(body)}, and ties must go to the lowest position",
            "order the elements before they are rounded or clamped",
        )
    s.notes[stage.name].treatments.add(Treatment.ORDER)
    s.rule(stage, "order", f"{reducer} of {s.separator.name(body)}", f"h({reducer} of {s.separator.name(m.key)})",
           f"h is {m.shape.value} in the key")  # fmt: skip
    order = _AS_ORDER.get(reducer, reducer)
    if m.shape in (Shape.UP, Shape.DOWN):
        if m.shape is Shape.DOWN and reducer is Reducer.TOPK:
            raw = build.neg(m.key)
            m = Ordered(raw, m.apply(build.neg(ref("?", dtype_of(raw)))), Shape.UP, m.weak)
        chosen = order if m.shape is Shape.UP else _OPPOSITE[order]
        key = _nan_free(s, stage, m.key, chosen)
        _read_keys(s, stage, s.key(stage, stage.name, chosen, key, "extreme key", stage.k), m)
    else:
        if reducer.has_index or (m.shape is Shape.CONVEX and not largest) or (m.shape is Shape.CONCAVE and largest):
            raise refused(s.separator, body)
        high = s.key(stage, f"{stage.name}_hi", Reducer.MAX, _nan_free(s, stage, m.key, Reducer.MAX), "largest key")
        low = s.key(stage, f"{stage.name}_lo", Reducer.MIN, _nan_free(s, stage, m.key, Reducer.MIN), "smallest key")
        _read_both(s, stage, m, high, low, largest)
    _learn(s, stage)


def _logic(s: State, stage: Stage) -> Ordered:
    body = stage.body
    if isinstance(body, Apply) and body.fn is (Fn.AND if stage.reducer is Reducer.ANY else Fn.OR):
        mask, inner = body.args if not s.reader.kind(body.args[0]) & D else (body.args[1], body.args[0])
        if not s.reader.kind(mask) & D:
            m = ordered(s.separator, inner)
            if m.shape in (Shape.UP, Shape.DOWN) and dtype_of(m.key).is_float:
                up = (m.shape is Shape.UP) == (stage.reducer is Reducer.ANY)
                far = const(float("-inf") if up else float("inf"), dtype_of(m.key))
                key = build.where(mask, m.key, far) if stage.reducer is Reducer.ANY else build.where(mask, far, m.key)
                return Ordered(key, m.read, m.shape, True)
    return ordered(s.separator, body)


def _nan_free(s: State, stage: Stage, key: Expr, chosen: Reducer) -> Expr:
    """For any: a comparison with NaN is False, so a NaN key is the one that decides nothing. (all: NaN decides, as it should.)"""
    if stage.reducer is not Reducer.ANY or not dtype_of(key).is_float:
        return key
    far = const(float("-inf") if chosen is Reducer.MAX else float("inf"), dtype_of(key))
    return build.where(Apply(Fn.ISNAN, (key,), DType.BOOL), far, key)


def _read_keys(s: State, stage: Stage, acc: Ref, m: Ordered | None = None) -> None:
    key = (stage.name, Part.VALUE)
    source = acc if m is None else m.apply(acc)
    inner, raw = s.inner_expr(source), _raw_expr(s, source)
    s.inner_exprs[key] = build.cast(inner, stage.dtype)
    s.raw_exprs[key] = build.cast(raw, stage.dtype)
    s.reader.values[key] = s.reader.term(source)
    index: Expr | None = None
    if stage.reducer.has_index:
        index = ref(acc.name, DType.INT64, part=Part.INDEX)
        at = (stage.name, Part.INDEX)
        s.inner_exprs[at] = s.raw_exprs[at] = index
        s.reader.values[at] = s.reader.opaque(index, D, NONNEG, f"{acc.name}.index")
    s.reads.append(Read(stage.name, s.raw_exprs[key], index))


def _read_both(s: State, stage: Stage, m: Ordered, high: Ref, low: Ref, largest: bool) -> None:
    a, b = m.apply(high), m.apply(low)
    if dtype_of(a) is DType.BOOL:
        source = build.logic(Fn.OR if largest else Fn.AND, a, b)
    else:
        source = build.binary(Fn.MAXIMUM if largest else Fn.MINIMUM, a, b)
    key = (stage.name, Part.VALUE)
    s.inner_exprs[key] = build.cast(s.inner_expr(source), stage.dtype)
    s.raw_exprs[key] = build.cast(_raw_expr(s, source), stage.dtype)
    s.reader.values[key] = s.reader.term(source)
    s.reads.append(Read(stage.name, s.raw_exprs[key], None))


def _raw_expr(s: State, e: Expr) -> Expr:
    return transform(e, s._raw_leaf)


def _learn(s: State, stage: Stage) -> None:
    """A maximum is at least each element."""
    if stage.reducer not in (Reducer.MAX, Reducer.MIN, Reducer.ARGMAX, Reducer.ARGMIN, Reducer.LOGSUMEXP):
        return
    d, f = s.reader.values[(stage.name, Part.VALUE)], s.reader.term(stage.body)
    if stage.reducer in (Reducer.MIN, Reducer.ARGMIN):
        s.facts.learn(s.t.sub(f, d))
        return
    s.facts.learn(s.t.sub(d, f))
    if f.op == "abs":
        s.facts.learn(s.t.sub(d, f.args[0]))
        s.facts.learn(s.t.add(d, f.args[0]))


# -- products and logsumexp -----------------------------------------------------------------------------------------------
def _product(s: State, stage: Stage) -> Term:
    """prod (scale * core) = scale^n * prod core: kept at the running scale, so that it overflows no earlier than the result."""
    g = s.separator.single(s.separator.groups(stage.body))
    if g is None or g.notes:
        raise Refused(
            RefusalKind.NONLINEAR,
            f"a product is taken of {s.separator.name(stage.body)}, a sum of an element and an earlier result",
            "multiply elements that an earlier result only scales",
        )
    dtype = accumulator_dtype(stage)
    name = s.notes[stage.name]
    if g.scale is s.t.one:
        name.treatments.add(Treatment.PLAIN)
        return s.reader.term(s.accumulate(stage, stage.name, Reducer.PROD, g.core, dtype, "result"))
    n = s.count(stage)
    value = s.inner(g.scale)
    zero = build.logic(Fn.OR, build.equal(value, s.zero(value)), build.equal(build.unary(Fn.ABS, value), const(float("inf"), dtype_of(value))))
    base = s.set_base(stage, "pin", g.scale, f"{stage.name}_base", build.where(zero, const(1, dtype_of(value)), value))
    element = build.mul(g.core, base)
    step = Apply(Fn.POW, (build.div(base, old(base)), build.cast(old(n), dtype)), dtype)
    state = ref(stage.name, dtype, old=True)
    acc = s.accumulate(stage, stage.name, Reducer.PROD, element, dtype, "result at the running scale", correction=build.mul(state, step))
    name.treatments.add(Treatment.RESCALE)
    s.rule(stage, "rescale", s.separator.name(stage.body), "prod * (scale/scale')^n", "the scale is not zero")
    v = s.reader.term(acc)
    s.raw_values[v] = build.mul(acc, Apply(Fn.POW, (build.div(s.raw(g.scale), base), build.cast(n, dtype)), dtype))
    return v


def _logsumexp(s: State, stage: Stage) -> Term:
    dtype = accumulator_dtype(stage)
    if not s.reader.kind(stage.body) & D:
        s.notes[stage.name].treatments.add(Treatment.PLAIN)
        acc = s.accumulate(stage, stage.name, Reducer.LOGSUMEXP, stage.body, dtype, "result")
        s.facts.learn(s.t.sub(s.reader.term(acc), s.reader.term(stage.body)))
        return s.reader.term(acc)
    _, moving = s.separator.exponents(stage.body)
    table: dict[Term, Expr] = {}
    shift: Expr = const(0.0, dtype)
    fix: Expr = const(0.0, dtype)
    idle: Expr | None = None
    for m in moving:
        k, r = _parameter(s, m)
        base, test = _exponent_base(s, stage, r)
        table[r] = base
        shift = build.add(shift, build.mul(s.inner(k), build.sub(base, old(base))))
        fix = build.add(fix, build.mul(s.inner(k), build.sub(s.raw(r), base)))
        idle = test if idle is None or test is None else build.logic(Fn.OR, idle, test)
    element = at_base(s, stage.body, table)
    state = ref(stage.name, dtype, old=True)
    moved = build.add(state, shift)
    correction = moved if idle is None else build.where(old(idle), state, moved)
    acc = s.accumulate(stage, stage.name, Reducer.LOGSUMEXP, element, dtype, "result at the running base", correction=correction)
    s.notes[stage.name].treatments.add(Treatment.RESCALE)
    s.rule(stage, "rescale", f"logsumexp of {s.separator.name(stage.body)}", "logsumexp + (base' - base)")
    v = s.reader.term(acc)
    s.raw_values[v] = build.add(acc, fix)
    return v


def _parameter(s: State, t: Term) -> tuple[Term, Term]:
    """t as (number and parameters) * (results)."""
    fixed = [f for f in t.factors if not f.kind]
    return s.t.mul(*fixed), s.t.mul(*[f for f in t.factors if f.kind])


def _exponent_base(s: State, stage: Stage, r: Term) -> tuple[Ref, Expr | None]:
    test = s.at_identity(r)
    value = s.inner(r)
    if test is not None:
        value = build.where(test, s.zero(value), value)
    return s.set_base(stage, "exponent", r, base_name(s, stage, r), value), test


def base_name(s: State, stage: Stage, r: Term) -> str:
    acc = s.accumulators.get(r)
    if acc is not None:
        return f"{acc.name}_base"
    if r.op == "log" and r.args[0] in s.accumulators:
        return f"log_{s.accumulators[r.args[0]].name}_base"
    for (name, part), v in s.reader.values.items():
        if v is r and part is Part.VALUE:
            return f"{name}_base"
    return f"{stage.name}_base"


class NotAtBase(Exception):
    """A result in a core that no base stands for."""


def at_base(s: State, e: Expr, table: dict[Term, Expr], exponents: dict[Term, Expr] | None = None) -> Expr:
    """e with what depends on results alone replaced by bases; ``exponents`` are the ones that count under an exponential."""
    if exponents is not None and isinstance(e, Apply) and e.fn in (Fn.EXP, Fn.EXP2):
        return at_base(s, e, exponents)
    kind = s.reader.kind(e)
    if not kind & D:
        return e
    if not kind & X:
        t = s.reader.term(e)
        k, r = s.t.split(t)
        if t in table:
            return table[t]
        if r in table:
            return build.mul(const(float(k), dtype_of(table[r])), table[r])
        if s.t.neg(t) in table:
            return build.neg(table[s.t.neg(t)])
        if not t.kind:
            return s.inner(t)
        if not children(e):
            return _term_at_base(s, t, table, e)
    args = tuple(at_base(s, a, table, exponents) for a in children(e))
    if isinstance(e, Apply):
        match e.fn:
            case Fn.ADD:
                return build.add(*args)
            case Fn.SUB:
                return build.sub(*args)
            case Fn.NEG:
                return build.neg(args[0])
            case Fn.MUL:
                return build.mul(*args)
            case Fn.DIV:
                return build.div(*args)
    return rebuild(e, args)


def _term_at_base(s: State, t: Term, table: dict[Term, Expr], e: Expr) -> Expr:
    """A result that is itself put together from results with bases."""

    def go(x: Term) -> Expr:
        if x in table:
            return table[x]
        if not x.kind:
            return s.inner(x)
        if x.op not in ("add", "mul", "pow", "max", "min"):
            raise NotAtBase(show(e))
        return s.reader.structure(x, go)

    return go(t)


# -- sums ----------------------------------------------------------------------------------------------------------------
class SumPlacer:
    """A sum: its groups one by one."""

    def __init__(self, s: State, stage: Stage) -> None:
        self.s, self.stage, self.t = s, stage, s.t
        self.dtype = accumulator_dtype(stage)
        self.note = s.notes[stage.name]

    def place(self) -> Term:
        s, stage = self.s, self.stage
        groups = [s.separator.recentred(g) for g in s.separator.groups(stage.body)]
        text = s.separator.name(stage.body)
        if s.reader.kind(stage.body) & D:
            after = " + ".join(f"{s.separator.name(s.spelled(g.scale))} * [{s.separator.name(g.core)}]" for g in groups)
            s.rule(stage, "separate", text, after, *[f"{_coordinate_text(s, c)} is a coordinate" for c in self._all(groups)])
        parts = [self._group(g, len(groups) > 1, i) for i, g in enumerate(groups)]
        if not self.note.treatments:
            self.note.treatments.add(Treatment.PLAIN)
        return self.t.add(*parts)

    def _all(self, groups: list[Group]) -> list[Term]:
        return [c for g in groups for c in poly.coordinates(g.terms)]

    def _group(self, g: Group, several: bool, i: int) -> Term:
        return GroupPlacer(self, g, f"{self.stage.name}_{chr(ord('a') + i)}" if several and i else self.stage.name).place()


def _coordinate_text(s: State, c: Term) -> str:
    return s.separator.name(s.spelled(s.separator.coordinates[c]))


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


class GroupPlacer:
    """One group: its base, its accumulators (the core and its derivatives) and their corrections."""

    def __init__(self, parent: SumPlacer, g: Group, name: str) -> None:
        self.p, self.s, self.t, self.stage = parent, parent.s, parent.t, parent.stage
        self.g, self.name, self.dtype, self.note = g, name, parent.dtype, parent.note
        self.core = g.core
        self.defer = self.t.div(g.scale, g.base)
        exp = self.s.separator._exp_factor(g.base)
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

    def place(self) -> Term:
        self._choose_pin()
        self._bound_exponent()
        self._exponent_bases()
        self._pin_base()
        cs = poly.coordinates(self.g.terms)
        placed = [self._coordinate(c) for c in cs]
        if self.defer is not self.t.one:
            self.note.treatments.add(Treatment.DEFER)
            self.s.rule(self.stage, "defer", self.s.separator.name(self.s.spelled(self.g.scale)),
                        f"{self.s.separator.name(self.s.spelled(self.defer))} is applied when the result is read")  # fmt: skip
        for n in self.g.notes:
            if n not in self.note.conditions:
                self.note.conditions.append(n)
        return self.t.mul(self.defer, self._moments(cs, placed))

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
            bad = build.logic(Fn.OR, build.equal(value, s.zero(value)),
                              build.equal(build.unary(Fn.ABS, value), const(float("inf"), build.join(dtype_of(value)))))  # fmt: skip
            base = s.set_base(self.stage, "pin", r, base_name(s, self.stage, r), build.where(bad, const(1, dtype_of(value)), value))
            self.table[r] = base
            ratio = build.div(base, old(base)) if q > 0 else build.div(old(base), base)
            self._times(build.power(ratio, abs(float(q))))
            last = build.div(s.raw(r), base) if q > 0 else build.div(base, s.raw(r))
            self._fix_times(build.power(last, abs(float(q))))
        self.note.treatments.add(Treatment.RESCALE)
        s.rule(self.stage, "rescale", s.separator.name(self.core), "multiplied by the ratio of the scales when they move",
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
            f"the scale {self.s.separator.name(self.s.spelled(scale))} inside a rounding is not a product of values that can be followed",
            "compute the scale as one value and multiply the element by it",
        )

    def _times(self, factor: Expr) -> None:
        self.factor = factor if self.factor is None else build.mul(self.factor, factor)

    def _fix_times(self, factor: Expr) -> None:
        self.fix = factor if self.fix is None else build.mul(self.fix, factor)

    # -- exponents ------------------------------------------------------------------------------------------------------
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
        key = None if found is None else s.separator.strip(found.e.args[0], lambda m: True)
        if found is None or key is None or s.reader.kind(key) & D or t.mul(unit, s.reader.term(key)) is not x:
            if self.moving is t.zero:
                return  # as the program has it
            raise Refused(
                RefusalKind.ILL_CONDITIONED,
                f"the exponent in {s.separator.name(self.core)} has no upper bound that can be followed",
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
        self.note.conditions.append(f"{s.separator.name(bounded)} stays finite where {s.separator.name(found.e)} overflows")
        for m in self.moving.addends:
            if m is not t.zero:
                r = s.raw(_parameter(s, m)[1])
                self.poison = build.sub(r, r) if self.poison is None else build.add(self.poison, build.sub(r, r))
        self.defer = t.mul(self.defer, t.exp(t.add(self.moving, t.mul(unit, top_term))))
        self.moving = t.neg(t.mul(unit, top_term))
        s.rule(self.stage, "bound", s.separator.name(found.e), s.separator.name(bounded),
               f"the base is the running maximum of {s.separator.name(seen)}")  # fmt: skip

    def _by_sign(self, x: Term, unit: Term) -> tuple[Expr, Term] | None:
        """The exponent a*g with a parameter a of unknown sign, as a*(g - base): the base is the end that makes it largest."""
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
        total: Expr = const(0.0, self.dtype)
        last: Expr = const(0.0, self.dtype)
        for m in self.moving.addends:
            k, r = _parameter(s, m)
            base, test = _exponent_base(s, self.stage, r)
            self.table[r] = self.exponents[r] = base
            total = _advance(total, s.inner(k), base, old(base))
            if test is not None:
                self.idle = test if self.idle is None else build.logic(Fn.OR, self.idle, test)
                last = _advance(last, s.inner(k), s.raw(r), base)
        self._times(build.exp(total))
        if not self.bounded and not build.is_number(last, 0):
            self._fix_times(build.exp(last))
        self.note.treatments.add(Treatment.RESCALE)
        s.rule(self.stage, "rescale", s.separator.name(self.core), f"{s.separator.name(build.exp(total))} when the base moves",
               "a state still at its identity is not corrected", "the exponent is at most 0")  # fmt: skip

    # -- coordinates and moments ------------------------------------------------------------------------------------------
    def _coordinate(self, c: Term) -> coordinates.Placed:
        s = self.s
        r = s.separator.coordinates[c]
        linear = all(poly.degree(p, c) <= 1 for p in self.g.terms.values())
        if linear and self.factor is None and low_precision(self.core) and self.dtype is not DType.FLOAT64:
            placed = coordinates.Placed(const(0.0, self.dtype), s.raw(r), "0: elements this narrow are summed exactly as they are")
            self.note.treatments.add(Treatment.DEFER)
        else:
            placed = coordinates.place(s, self.stage, r, base_name(s, self.stage, r), self.fix is None)
            self.note.treatments.add(Treatment.REBASE)
        mark = placed.base if not isinstance(placed.base, Ref) else ref(f"{placed.base.name}#{len(self.marks)}", placed.base.dtype)
        self.marks[mark] = placed.base
        self.table[r] = mark
        s.rule(self.stage, "rebase", _coordinate_text(s, c), f"sits at {s.separator.name(placed.base)}", f"the base is {placed.why}")
        return placed

    def _moments(self, cs: list[Term], placed: list[coordinates.Placed]) -> Term:
        s, t = self.s, self.t
        try:
            element = at_base(s, self.core, self.table, self.exponents)
        except NotAtBase as x:
            raise Refused(
                RefusalKind.NONLINEAR,
                f"{s.separator.name(self.core)} contains {x}, which no running base stands for",
                "compute it before the loop",
            ) from None
        degrees = [max((poly.degree(p, c) for p in self.g.terms.values()), default=0) for c in cs]
        order = sorted(itertools.product(*[range(d + 1) for d in degrees]), key=lambda a: (sum(a), a[::-1]))
        plan = [(a, *self._derived(a, cs, placed, element)) for a in order]
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
            self._emit_moment(a, terms, e, sign, cs, placed, jets)
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
            raise Refused(RefusalKind.UNSUPPORTED, f"{self.s.separator.name(self.core)} shifts by 0 under a scale", "use float32 inputs")
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
        self, a: Index, terms: Terms, e: Expr, sign: Sign, cs: list[Term], placed: list[coordinates.Placed],
        jets: dict[Index, tuple[float, Ref]],
    ) -> None:  # fmt: skip
        s = self.s
        k, own = jets[a]
        steps = [build.sub(p.base, old(p.base)) if isinstance(p.base, Ref) else None for p in placed]
        value = self._shifted(a, steps, jets, Fraction(k), before=True)
        state = ref(own.name, self.dtype, old=True)
        correction = value
        if self.factor is not None:
            correction = build.mul(value if value is not None else state, self.factor)
            if self.idle is not None:
                correction = build.where(old(self.idle), state, correction)
        s.taken.discard(own.name)
        role = "result" if not any(a) else "moment " + "".join(map(str, a))
        acc = s.accumulate(self.stage, own.name, Reducer.SUM, e, self._own_dtype(e), role, sign, correction)
        assert acc is own
        unit = Fraction(1) / Fraction(k)
        if not self.g.notes:
            scaled = {g: poly.scaled(p, unit) for g, p in terms.items()}
            s.sums.append(Entry(self._key(), scaled, s.reader.term(acc)))

    def _own_dtype(self, e: Expr) -> DType:
        return self.dtype

    def _shifted(
        self, a: Index, deltas: list[Expr | None], jets: dict[Index, tuple[float, Ref]], unit: Fraction, before: bool
    ) -> Expr | None:
        """Taylor: sum over b of delta^b / b! * moment(a + b), over the moment's own unit; None where nothing moves."""
        out: Expr | None = None
        moved = False
        for b, (k, state) in jets.items():
            gap = tuple(x - y for x, y in zip(b, a, strict=True))
            if any(n < 0 for n in gap) or any(n and d is None for n, d in zip(gap, deltas, strict=True)):
                continue
            c, term = Fraction(k) / unit, (old(state) if before else state)
            factor: Expr | None = None
            for n, d in zip(gap, deltas, strict=True):
                if n and d is not None:
                    c /= factorial_of(n)
                    f = d if n == 1 else build.mul(d, d) if n == 2 else build.power(d, n)
                    factor = f if factor is None else build.mul(factor, f)
            moved = moved or factor is not None
            e = build.cast(term, self.dtype)
            e = e if factor is None else build.mul(factor, e)
            minus = c < 0 and out is not None
            e = build.mul(const(float(abs(c) if minus else c), self.dtype), e)
            out = e if out is None else build.sub(out, e) if minus else build.add(out, e)
        return out if moved else None

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
            s.raw_values[v] = value
        if self.poison is not None:  # a shift that is not finite and cancels out must still show
            s.fixes[v] = s.own_factor(build.exp(self.poison))
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
        want = poly.sum_terms(p.mean.top.terms, {g: poly.times(q, down) for g, q in weights.items()})
        for e in s.sums:
            k = poly.ratio(want, e.terms) if e.key == p.mean.top.key else None
            if k is not None:
                return build.div(build.mul(const(float(k), self.dtype), s.ref_of(e.state)), build.cast(n, self.dtype))
        return None


def _advance(total: Expr, k: Expr, new: Expr, before: Expr) -> Expr:
    """total + k * (new - before), a minus sign turned into the order of the difference."""
    n, rest = build.leading_number(k)
    if n < 0:
        return build.add(total, build.mul(build.mul(const(-n, dtype_of(rest)), rest), build.sub(before, new)))
    return build.add(total, build.mul(k, build.sub(new, before)))


def _along(e: Expr, what: Expr, by: Expr) -> Expr:
    """what replaced by by, where it stands as a factor."""
    if e is what:
        return by
    if not isinstance(e, Apply) or e.fn not in (Fn.MUL, Fn.NEG, Fn.DIV, Fn.WHERE):
        return rebuild(e, tuple(_along(a, what, by) for a in children(e))) if isinstance(e, Cast) else e
    fixed = {Fn.DIV: (1,), Fn.WHERE: (0,)}.get(e.fn, ())
    return Apply(e.fn, tuple(a if i in fixed else _along(a, what, by) for i, a in enumerate(e.args)), e.dtype)
