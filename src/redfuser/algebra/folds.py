"""Products and logsumexp: one accumulator each, moved by a ratio or a difference."""

from __future__ import annotations

from redfuser.algebra import build, pieces
from redfuser.algebra.bases import (
    accumulator_dtype,
    at_base,
    exponent_base,
    parameter,
)
from redfuser.algebra.groups import Refused
from redfuser.algebra.nodes import Stage, Treatment
from redfuser.algebra.state import State, old
from redfuser.algebra.terms import D, Term
from redfuser.index.expr import (
    Apply,
    Expr,
    Fn,
    const,
    dtype_of,
    ref,
)
from redfuser.index.nodes import Reducer
from redfuser.index.refusals import RefusalKind


def product(s: State, stage: Stage) -> Term:
    """prod (scale * core) = scale^n * prod core: kept at the running scale, so that it overflows no
    earlier than the result.
    """
    g = s.separator.single(s.separator.groups(stage.body))
    if g is None or g.notes or g.base is not s.t.one or g.alone is not None:
        raise Refused(
            RefusalKind.NONLINEAR,
            f"a product is taken of {s.separator.name(stage.body)}, which is not an element times a scale",
            f"take the product of elements that {s.separator.which(stage.body)} only scales; for exponentials, sum the "
            "exponents",
        )
    dtype = accumulator_dtype(stage)
    name = s.notes[stage.name]
    if g.scale is s.t.one:
        name.treatments.add(Treatment.PLAIN)
        return s.reader.term(s.accumulate(stage, stage.name, Reducer.PROD, g.core, dtype, "result"))
    n = s.count(stage)
    value = s.inner(g.scale)
    zero = build.logic(
        Fn.OR,
        build.equal(value, s.zero(value)),
        build.equal(build.unary(Fn.ABS, value), const(float("inf"), dtype_of(value))),
    )
    base = s.set_base(stage, "pin", g.scale, f"{stage.name}_base", build.where(zero, const(1, dtype_of(value)), value))
    element = build.mul(g.core, base)
    step = Apply(Fn.POW, (build.div(base, old(base)), build.cast(old(n), dtype)), dtype)
    state = ref(stage.name, dtype, old=True)
    acc = s.accumulate(
        stage,
        stage.name,
        Reducer.PROD,
        element,
        dtype,
        "result at the running scale",
        correction=build.where(build.is_identity(state, 0.0), state, build.mul(state, step)),
    )
    name.treatments.add(Treatment.RESCALE)
    s.rule(stage, "rescale", s.separator.name(stage.body), "prod * (scale/scale')^n", "the scale is not zero")
    v = s.reader.term(acc)
    s.raw_values[v] = build.mul(acc, Apply(Fn.POW, (build.div(s.raw(g.scale), base), build.cast(n, dtype)), dtype))
    return v


def logsumexp(s: State, stage: Stage) -> Term:
    dtype = accumulator_dtype(stage)
    if not s.reader.kind(stage.body) & D:
        s.notes[stage.name].treatments.add(Treatment.PLAIN)
        acc = s.accumulate(stage, stage.name, Reducer.LOGSUMEXP, stage.body, dtype, "result")
        s.facts.learn(s.t.sub(s.reader.term(acc), s.reader.term(stage.body)))
        return s.reader.term(acc)
    _, moving = pieces.exponents(s.separator, stage.body)
    table: dict[Term, Expr] = {}
    shift: Expr = const(0.0, dtype)
    fix: Expr = const(0.0, dtype)
    for m in moving:
        k, r = parameter(s, m)
        base, _ = exponent_base(s, stage, r)
        table[r] = base
        shift = build.add(shift, build.mul(s.inner(k), build.sub(base, old(base))))
        fix = build.add(fix, build.mul(s.inner(k), build.sub(s.raw(r), base)))
    element = at_base(s, stage.body, table)
    state = ref(stage.name, dtype, old=True)
    role = "result at the running base"
    moved = build.add(state, shift)
    acc = s.accumulate(stage, stage.name, Reducer.LOGSUMEXP, element, dtype, role, correction=moved)
    s.notes[stage.name].treatments.add(Treatment.RESCALE)
    s.rule(stage, "rescale", f"logsumexp of {s.separator.name(stage.body)}", "logsumexp + (base' - base)")
    v = s.reader.term(acc)
    s.raw_values[v] = build.add(acc, fix)
    return v
