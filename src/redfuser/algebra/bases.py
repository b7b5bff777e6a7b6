"""Bases of results, and expressions moved to them."""

from __future__ import annotations

from redfuser.algebra import build
from redfuser.algebra.groups import Refused
from redfuser.algebra.nodes import Stage
from redfuser.algebra.state import State
from redfuser.algebra.terms import D, Term, X
from redfuser.index.expr import (
    Apply,
    DType,
    Expr,
    Fn,
    Part,
    Ref,
    children,
    const,
    dtype_of,
    rebuild,
)
from redfuser.index.print import show
from redfuser.index.refusals import RefusalKind


def accumulator_dtype(stage: Stage) -> DType:
    d = dtype_of(stage.body)
    return (
        DType.FLOAT64 if DType.FLOAT64 in (d, stage.dtype) else (stage.dtype if stage.dtype.is_float else d).accumulator
    )


def parameter(s: State, t: Term) -> tuple[Term, Term]:
    """t as (number and parameters) * (results)."""
    fixed = [f for f in t.factors if not f.kind]
    return s.t.mul(*fixed), s.t.mul(*[f for f in t.factors if f.kind])


def exponent_base(s: State, stage: Stage, r: Term, endless: bool = False) -> tuple[Ref, Expr | None]:
    """The base of a result in an exponent, and the test that nothing was seen yet.

    ``endless``: where the program subtracts no maximum, exp(inf) must stay infinite, so the base is finite there too.
    """
    test = s.at_identity(r)
    value = s.inner(r)
    if endless:
        infinite = build.equal(build.unary(Fn.ABS, value), const(float("inf"), build.join(dtype_of(value))))
        value = build.where(infinite, s.zero(value), value)
    elif test is not None:
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


class NotAtBase(Refused):
    """A result in a core that no base stands for: the stage is refused."""

    def __init__(self, what: str) -> None:
        super().__init__(
            RefusalKind.NONLINEAR,
            f"{what} stands among the elements in a way that no running base can follow",
            "compute it before the loop",
        )


def at_base(s: State, e: Expr, table: dict[Term, Expr], exponents: dict[Term, Expr] | None = None) -> Expr:
    """e with what depends on results alone replaced by bases; ``exponents`` are the ones that count under
    an exponential.
    """
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
        for other, base in table.items():
            j, rest = s.t.split(other)
            if rest is r:
                return build.mul(const(float(k / j), dtype_of(base)), base)
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


def coordinate_text(s: State, c: Term) -> str:
    return s.separator.name(s.spelled(s.separator.coordinates[c]))


def advance(total: Expr, k: Expr, new: Expr, before: Expr) -> Expr:
    """total + k * (new - before), a minus sign turned into the order of the difference."""
    n, rest = build.leading_number(k)
    if n < 0:
        return build.add(total, build.mul(build.mul(const(-n, dtype_of(rest)), rest), build.sub(before, new)))
    return build.add(total, build.mul(k, build.sub(new, before)))
