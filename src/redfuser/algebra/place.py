"""Places one stage into the state of a pass: accumulators, their corrections, and the read."""

from __future__ import annotations

from redfuser.algebra import build
from redfuser.algebra.bases import (
    accumulator_dtype,
)
from redfuser.algebra.extremes import extreme
from redfuser.algebra.folds import logsumexp, product
from redfuser.algebra.nodes import Read, Stage
from redfuser.algebra.reader import narrows
from redfuser.algebra.state import State
from redfuser.algebra.sums import SumPlacer
from redfuser.algebra.terms import Term
from redfuser.index.expr import (
    DType,
    Expr,
    Part,
)
from redfuser.index.nodes import Reducer


def place(s: State, stage: Stage) -> None:
    """Adds the stage to the pass, or raises Refused and may leave steps behind (the caller restores)."""
    match stage.reducer:
        case Reducer.SUM:
            value = SumPlacer(s, stage).place()
            body = s.reader.term(stage.body)
            if body.nonneg:  # a sum is at least each of its elements
                s.facts.learn(s.t.sub(value, body))
        case Reducer.PROD:
            value = product(s, stage)
        case Reducer.LOGSUMEXP:
            value = logsumexp(s, stage)
        case _:
            extreme(s, stage)
            return
    _finish(s, stage, value)


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
