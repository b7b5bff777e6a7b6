"""Wrong derivations made from right ones: one correction, base, element or read changed."""

from __future__ import annotations

from dataclasses import replace

from redfuser.algebra.nodes import Accumulator, Derivation
from redfuser.index.expr import Apply, Const, Expr, Fn, Ref, children, const, dtype_of, rebuild, walk


def _swap(e: Expr, what: Expr, by: Expr) -> Expr:
    if e is what:
        return by
    return rebuild(e, tuple(_swap(a, what, by) for a in children(e))) if children(e) else e


def _variants(e: Expr):
    """Expressions that differ from e in one place that matters."""
    for x in walk(e):
        if isinstance(x, Apply) and x.fn is Fn.SUB:
            yield _swap(e, x, Apply(Fn.SUB, (x.args[1], x.args[0]), x.dtype))
        elif isinstance(x, Apply) and x.fn is Fn.ADD:
            yield _swap(e, x, Apply(Fn.SUB, x.args, x.dtype))
        elif isinstance(x, Apply) and x.fn is Fn.MUL:
            yield _swap(e, x, x.args[0])
            yield _swap(e, x, x.args[1])
        elif isinstance(x, Apply) and x.fn is Fn.DIV:
            yield _swap(e, x, Apply(Fn.MUL, x.args, x.dtype))
        elif isinstance(x, Apply) and x.fn in (Fn.EXP, Fn.EXP2, Fn.LOG, Fn.SQRT, Fn.RSQRT) and dtype_of(x).is_float:
            yield _swap(e, x, Apply(Fn.MUL, (const(0.9, x.dtype), x), x.dtype))
        elif isinstance(x, Ref) and x.old:
            yield _swap(e, x, Ref(x.name, x.dtype, False, x.part))
        elif isinstance(x, Const) and isinstance(x.value, float) and abs(x.value) in (2.0, 3.0, 6.0, 4.0):
            yield _swap(e, x, const(x.value * 1.5, x.dtype))


def mutants(d: Derivation):
    """(what, derivation) for every single change."""
    for i, p in enumerate(d.passes):
        for j, s in enumerate(p.steps):
            if isinstance(s, Accumulator):
                if s.correction is not None:
                    for c in (*_variants(s.correction), None):
                        yield f"correction of {s.name}", with_step(d, i, j, replace(s, correction=c))
                for e in _variants(s.element):
                    yield f"element of {s.name}", with_step(d, i, j, replace(s, element=e))
            else:
                for v in _variants(s.value):
                    yield f"base {s.name}", with_step(d, i, j, replace(s, value=v))
        for j, r in enumerate(p.reads):
            for v in _variants(r.value):
                reads = (*p.reads[:j], replace(r, value=v), *p.reads[j + 1 :])
                yield (
                    f"read of {r.stage}",
                    replace(d, passes=(*d.passes[:i], replace(p, reads=reads), *d.passes[i + 1 :])),
                )


def with_step(d: Derivation, i: int, j: int, step) -> Derivation:
    p = d.passes[i]
    steps = (*p.steps[:j], step, *p.steps[j + 1 :])
    return replace(d, passes=(*d.passes[:i], replace(p, steps=steps), *d.passes[i + 1 :]))
