"""Reads expressions: what each depends on, what it is as a term, and back from terms to expressions as written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from redfuser.algebra import build
from redfuser.algebra.nodes import Problem, Stage
from redfuser.algebra.terms import ANY, NONNEG, POS, Arena, D, Sign, Term, X, is_indicator, variables
from redfuser.index.expr import (
    COMPARISONS,
    Apply,
    Cast,
    Const,
    DType,
    Expr,
    Fn,
    Load,
    Part,
    Position,
    Ref,
    children,
    const,
    dtype_of,
    free_axes,
    loads,
    transform,
    walk,
)
from redfuser.index.ints import as_int, nonnegative

_PRECISION = {
    DType.FLOAT8_E4M3: 0, DType.FLOAT8_E5M2: 0, DType.BFLOAT16: 1, DType.FLOAT16: 1, DType.FLOAT32: 2, DType.FLOAT64: 3,
}  # fmt: skip


def narrows(source: DType, target: DType) -> bool:
    """True when a conversion between these can change a value."""
    if source is target or not source.is_float:
        return source is not target and not target.is_float and target.bytes < source.bytes
    return (
        not target.is_float
        or _PRECISION[target] < _PRECISION[source]
        or (_PRECISION[target] == _PRECISION[source] and source is not target)
    )


class Reader:
    """Kinds and terms of expressions for one pass. ``stages`` are the stages of this pass, placed or not yet."""

    def __init__(self, arena: Arena, problem: Problem, stages: Mapping[str, Stage]) -> None:
        self.t = arena
        self.axis = problem.axis
        self.stages = stages
        self.length = _written_length(problem)
        self.values: dict[tuple[str, Part], Term] = {}  # what a placed stage is, as a term over accumulators
        self.exprs: dict[Term, Expr] = {}  # variables that stand for expressions
        self.written: dict[Term, Expr] = {}  # how a term was written by the user, first spelling
        self._kinds: dict[Expr, int] = {}
        self._terms: dict[Expr, Term] = {}
        self._vars: dict[Expr, Term] = {}
        self._marks: dict[Expr, Term] = {}  # conditions as indicators

    # -- kinds ----------------------------------------------------------------------------------------------------
    def is_state(self, e: Load) -> bool:
        """A result of this pass, read at its own indices."""
        s = self.stages.get(e.source)
        return s is not None and s.k is None and e.index == tuple(as_int(a) for a in s.axes)

    def odd_load(self, e: Expr) -> bool:
        """A load that involves results of this pass in a way a running state cannot follow."""
        if not isinstance(e, Load):
            return False
        if e.source in self.stages and not self.is_state(e):
            return True
        return any(self.kind(g.value) & D for i in e.index for g in i.gathers())

    def kind(self, e: Expr) -> int:
        k = self._kinds.get(e)
        if k is None:
            match e:
                case Load():
                    if self.odd_load(e):
                        k = X | D
                    elif e.source in self.stages:
                        k = D
                    else:
                        k = X if self.axis in free_axes(e) else 0
                case Position():
                    k = X if self.axis in e.index.axes() else 0
                    if any(self.kind(g.value) & D for g in e.index.gathers()):
                        k = X | D
                case Ref():
                    k = D
                case _:
                    k = 0
                    for a in children(e):
                        k |= self.kind(a)
            self._kinds[e] = k
        return k

    # -- terms ----------------------------------------------------------------------------------------------------
    def term(self, e: Expr) -> Term:
        t = self._terms.get(e)
        if t is None:
            t = self._terms[e] = self._term(e)
            if not isinstance(e, Load | Const | Ref):
                self.written.setdefault(t, e)
        return t

    def opaque(self, e: Expr, kind: int, sign: Sign = ANY, name: str = "x") -> Term:
        """A variable that stands for the expression."""
        v = self._vars.get(e)
        if v is None:
            v = self._vars[e] = self.t.var(f"{name}#{len(self._vars)}", kind, sign)
            self.exprs[v] = e
        return v

    def _term(self, e: Expr) -> Term:
        t = self.t
        match e:
            case Const():
                return self._const(e)
            case Position():
                low = POS if nonnegative(e.index - 1) else NONNEG if nonnegative(e.index) else ANY
                return self.opaque(e, self.kind(e), low, "position")
            case Load():
                if self.kind(e) == D:
                    return self.values[(e.source, e.part)]
                return self.opaque(e, self.kind(e), ANY, e.source)
            case Ref():
                return self.opaque(e, D, ANY, e.name)
            case Cast():
                return self._cast(e)
        a = [self.term(x) for x in e.args]
        match e.fn:
            case Fn.ADD:
                return t.add(*a)
            case Fn.SUB:
                return t.sub(*a)
            case Fn.NEG:
                return t.neg(*a)
            case Fn.MUL if e.dtype is not DType.BOOL:
                return t.mul(*a)
            case Fn.DIV:
                return t.div(*a)
            case Fn.POW:
                return t.pow(a[0], a[1].value) if a[1].op == "const" else self._power(a[0], a[1])
            case Fn.SQRT:
                return t.pow(a[0], Fraction(1, 2))
            case Fn.RSQRT:
                return t.pow(a[0], Fraction(-1, 2))
            case Fn.EXP:
                return t.exp(*a)
            case Fn.EXP2:
                return t.exp(t.mul(t.ln2, *a))
            case Fn.EXPM1:
                return t.add(t.exp(*a), t.const(-1))
            case Fn.LOG:
                return t.log(*a)
            case Fn.LOG2:
                return t.div(t.log(*a), t.ln2)
            case Fn.LOG1P:
                return t.log(t.add(t.one, *a))
            case Fn.ABS:
                return t.abs(*a)
            case Fn.MAXIMUM if e.dtype is not DType.BOOL:
                return t.extremum("max", *a)
            case Fn.MINIMUM if e.dtype is not DType.BOOL:
                return t.extremum("min", *a)
            case Fn.WHERE:
                return self._where(e, a)
            case _:
                return t.fn(e.fn.value, *a, sign=NONNEG if e.fn in COMPARISONS or e.dtype is DType.BOOL else None)

    def indicator(self, c: Expr, taken: bool) -> Term:
        """1 where the condition holds (or does not), 0 elsewhere: for reasoning only, never multiplied in code."""
        mark = self._marks.get(c)
        if mark is None:
            mark = self._marks[c] = self.t.var(f"if#{len(self._marks)}", self.kind(c), NONNEG)
            self.exprs[mark] = c
        return mark if taken else self.t.fn("number", self.t.fn("not", mark))

    def _where(self, e: Apply, a: list[Term]) -> Term:
        if a[1] is a[2]:
            return a[1]
        if not self.kind(e.args[0]) & D and self.t.zero in a[1:]:
            taken = a[2] is self.t.zero
            return self.t.mul(self.indicator(e.args[0], taken), a[1] if taken else a[2])
        return self.t.fn("where", *a)

    def _masks(self, f: Term) -> tuple[Term, bool] | None:
        """The indicator that a factor is, and whether the condition is taken."""
        if not is_indicator(f):
            return None
        return (f, True) if f.op == "var" else (f.args[0].args[0], False)

    def _power(self, b: Term, q: Term) -> Term:
        return self.t.exp(self.t.mul(q, self.t.log(b))) if b.nonneg else self.t.fn("pow", b, q)

    def _const(self, e: Const) -> Term:
        v = e.value
        if isinstance(v, bool):
            return self.opaque(e, 0, NONNEG, str(v))
        if isinstance(v, float) and math.isinf(v):
            return self.t.inf if v > 0 else self.t.ninf
        if isinstance(v, float) and math.isnan(v):
            return self.opaque(e, 0, ANY, "nan")
        return self.t.const(Fraction(v))

    def _cast(self, e: Cast) -> Term:
        source = dtype_of(e.arg)
        a = self.term(e.arg)
        if source is DType.BOOL:
            return self.t.fn("number", a)
        if e.dtype is DType.BOOL or self.rounds(e):
            return self.t.fn(f"cast:{e.dtype.value}", a)
        return a

    def rounds(self, e: Cast) -> bool:
        """True when the conversion can change the value (a widening, or back to what it was before, cannot)."""
        source, arg = dtype_of(e.arg), e.arg
        while isinstance(arg, Cast) and not narrows(dtype_of(arg.arg), arg.dtype):
            arg = arg.arg
        if not narrows(dtype_of(arg), e.dtype):
            return False
        if isinstance(arg, Load) and (arg.source in self.stages) and self.stages[arg.source].dtype is e.dtype:
            return False
        return narrows(source, e.dtype)

    # -- back to expressions ------------------------------------------------------------------------------------------
    def emit(self, t: Term, leaf: Callable[[Expr], Expr | None], var: Callable[[Term], Expr | None]) -> Expr:
        """The term as an expression: as the user wrote it where there is a spelling, else by its structure.

        ``leaf`` rewrites loads of stages in spellings; ``var`` gives the expression of accumulators.
        """
        as_written = self.written.get(t) if t.args else None
        if as_written is not None and not self.kind(as_written) & ~t.kind:
            return transform(as_written, leaf)
        return self.structure(t, lambda x: self.emit(x, leaf, var), leaf, var)

    def structure(
        self,
        t: Term,
        go: Callable[[Term], Expr],
        leaf: Callable[[Expr], Expr | None] = lambda x: None,
        var: Callable[[Term], Expr | None] = lambda v: None,
    ) -> Expr:
        """The term's outermost operation, its parts by ``go``."""
        if self._masks(t) is not None:
            return self._emit_product(t, go)
        match t.op:
            case "const":
                return const(float(t.value), DType.FLOAT32)
            case "var":
                return self._variable(t, leaf, var)
            case "add":
                return self._emit_sum(t, go)
            case "mul":
                return self._emit_product(t, go)
            case "pow":
                return build.power(go(t.args[0]), float(t.value))
            case "exp":
                return build.exp(go(t.args[0]))
            case "log":
                return build.log(go(t.args[0]))
            case "abs":
                return build.unary(Fn.ABS, go(t.args[0]))
            case "max" | "min":
                out = go(t.args[0])
                for a in t.args[1:]:
                    out = build.binary(Fn.MAXIMUM if t.op == "max" else Fn.MINIMUM, out, go(a))
                return out
            case _:
                return _function(t.label, [go(a) for a in t.args])

    def _variable(self, t: Term, leaf: Callable[[Expr], Expr | None], var: Callable[[Term], Expr | None]) -> Expr:
        if t is self.t.ln2:
            return const(math.log(2), DType.FLOAT32)
        if t is self.t.inf or t is self.t.ninf:
            return const(math.inf if t is self.t.inf else -math.inf, DType.FLOAT32)
        done = var(t)
        return done if done is not None else transform(self.exprs[t], leaf)

    def _emit_sum(self, t: Term, go: Callable[[Term], Expr]) -> Expr:
        signed = [(self.t.split(a)[0] < 0, a) for a in t.args]
        signed.sort(key=lambda p: p[0])  # a positive one first
        out: Expr | None = None
        for minus, a in signed:
            if out is None:
                out = go(a)
                continue
            out = build.sub(out, go(self.t.neg(a))) if minus else build.add(out, go(a))
        assert out is not None
        return out

    def _emit_product(self, t: Term, go: Callable[[Term], Expr]) -> Expr:
        top: Expr | None = None
        bottom: Expr | None = None
        masks = [m for m in map(self._masks, t.factors) if m is not None]
        if masks:
            inner = go(self.t.mul(*[f for f in t.factors if self._masks(f) is None]))
            zero = const(0.0, build.join(DType.FLOAT32, dtype_of(inner)))
            for mark, taken in masks:
                c = self.exprs[mark]
                inner = build.where(c, inner, zero) if taken else build.where(c, zero, inner)
            return inner
        for a in t.args:
            if a.op == "pow" and a.value < 0 and a.value != Fraction(-1, 2):
                f = go(self.t.pow(a.args[0], -a.value))
                bottom = f if bottom is None else build.mul(bottom, f)
            else:
                f = go(a)
                top = f if top is None else build.mul(top, f)
        if bottom is None:
            assert top is not None
            return top
        return build.div(top if top is not None else const(1, build.join(dtype_of(bottom), DType.FLOAT32)), bottom)


def _written_length(p: Problem) -> int | None:
    """The length of the axis, where it is known and the program writes it (or its inverse) as a number."""
    n = p.axis.size.value
    if not n:
        return None
    numbers = {x.value for s in p.stages for x in walk(s.body) if isinstance(x, Const)}
    return n if n in numbers or 1 / n in numbers else None


def cancelled(p: Problem, s: Stage) -> list[Load]:
    """What the body reads and its value does not depend on, as in x - (x - m). As written it still shows NaN.

    Results count as values of their own here: what cancels only through what a result is, is what fusing lives on.
    """
    reader = Reader(Arena(), p, {})
    known = reader.term(s.body)
    left: set[Expr] = set()
    for v in variables(known):
        left |= set(walk(reader.exprs[v])) if v in reader.exprs else set()
    return sorted((x for x in loads(s.body) if x not in left and x.dtype.is_float), key=lambda x: x.source)


def _function(label: str, a: list[Expr]) -> Expr:
    if label.startswith("cast:"):
        return Cast(a[0], DType(label[5:]))
    if label == "number":
        return Cast(a[0], DType.FLOAT32)
    if label == "gate":
        return build.where(a[0], const(1.0, DType.FLOAT32), const(0.0, DType.FLOAT32))
    fn = Fn(label)
    if fn is Fn.WHERE:
        return build.where(a[0], a[1], a[2])
    bools = fn in COMPARISONS or fn in (Fn.ISNAN, Fn.NOT, Fn.AND, Fn.OR)
    return Apply(fn, tuple(a), DType.BOOL if bools else build.join(*[dtype_of(x) for x in a]))


def reads_of(e: Expr, names: Mapping[str, Stage]) -> set[str]:
    """Stages whose results occur in it."""
    return {x.source for x in walk(e) if isinstance(x, Load) and x.source in names}
