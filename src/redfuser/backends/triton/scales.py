"""Fewer operations an element: factors move out of tiles, and exponentials of sums become exp2.

    m_tile = max(s * c, over=l)            ->   m_tile = max(s, over=l) * c              rounding is monotone
    p = exp(s * c - b)                     ->   p = exp2(s * (c log2 e) - b log2 e)      one fused multiply-add an element
    o = where(first, o, o * a)             ->   o = o * where(first, 1, a)               the choice is made once a row

A value is *scaled* when it is another value times a positive constant; what only changes which positions count (a
guard with an infinite fill, a mask that puts an infinity) is done before the factor.

The second rule rounds the exponent relative to s and b, not to their difference. It holds only for what a dot has
made, which carries an error of that size already; values from memory are subtracted first. They may also be as large
as a float can be, as masks are that are filled with the lowest number: times log2 e that is an infinity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from redfuser.index.expr import Apply, Const, DType, Expr, Fn, Position, Ref, const, ref, transform, walk
from redfuser.index.ints import Axis
from redfuser.index.nodes import Reducer
from redfuser.tile.names import Names
from redfuser.tile.nodes import (
    Assign,
    Correct,
    Dot,
    Guard,
    Kernel,
    Loop,
    Map,
    Read,
    Reduce,
    Statement,
    Store,
    Value,
    outputs_of,
)
from redfuser.tile.uses import bound_values, every, names_in, uses_of

LOG2E = 1 / math.log(2)


@dataclass(frozen=True, slots=True)
class Scaled:
    """A value as ``factor`` times the value ``base``; factor > 0."""

    factor: float
    base: Value


def pull_scales(k: Kernel) -> Kernel:
    """The kernel with positive factors outside reductions and exponentials of base 2; same results up to rounding."""
    body = _Rewrite(k).block(k.body)
    return replace(k, body=_live(body))


class _Rewrite:
    def __init__(self, k: Kernel) -> None:
        self.values: dict[str, Value] = {}
        self.names = Names(v.name for s in every(k.body) for v in outputs_of(s))
        self.scaled: dict[str, Scaled] = {}
        self.twos: dict[str, Value] = {}
        self.chosen: dict[Expr, Value] = {}
        self.summed: set[str] = set()  # values that a dot has made, and what is made of them
        self.loose = _loose(k.body)
        self.new: list[Statement] = []

    def block(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        saved, self.new = self.new, []
        known, twos, chosen = dict(self.scaled), dict(self.twos), dict(self.chosen)
        for s in body:
            self.statement(s)
        done, self.new = tuple(self.new), saved
        self.scaled, self.twos, self.chosen = known, twos, chosen
        return done

    def define(self, v: Value) -> Value:
        self.values[v.name] = v
        self.forget(v.name)
        return v

    def forget(self, name: str) -> None:
        self.scaled.pop(name, None)
        self.twos.pop(name, None)
        self.chosen = {e: v for e, v in self.chosen.items() if name not in names_in(e)}

    def statement(self, s: Statement) -> None:
        if isinstance(s, Loop):
            self.new.append(replace(s, body=self.block(s.body)))
            return
        for v in outputs_of(s):
            self.define(v)
        if isinstance(s, Dot) or uses_of(s) & self.summed:
            self.summed |= {v.name for v in outputs_of(s)}
        if isinstance(s, Assign):
            self.forget(s.state)
        if isinstance(s, Map) and s.out.dtype.is_float and s.out.dtype.compute is DType.FLOAT32:
            s = replace(s, expr=self.products(transform(s.expr, self.exponential)))
            self.new.append(s)
            if s.out.dtype is DType.FLOAT32:
                self.scale(s)
        elif isinstance(s, Guard) and s.arg in self.scaled and _infinite(s.fill):
            x = self.scaled[s.arg]
            base = self.define(Value(self.names.new(f"{s.out.name}_raw"), s.out.dtype, x.base.axes | {s.axis}))
            self.new.append(Guard(base, x.base.name, s.axis, s.fill))
            self.new.append(s)
            self.scaled[s.out.name] = Scaled(x.factor, base)
        elif isinstance(s, Reduce) and s.arg in self.scaled and s.reducer in (Reducer.MAX, Reducer.MIN):
            x = self.scaled[s.arg]
            if s.over not in x.base.axes or x.base.axes != self.values[s.arg].axes:
                self.new.append(s)
                return
            raw = self.define(Value(self.names.new(f"{s.out.name}_raw"), s.out.dtype, s.out.axes))
            self.new.append(Reduce(raw, x.base.name, s.reducer, s.over))
            product = Apply(Fn.MUL, (ref(raw.name, raw.dtype), const(x.factor, DType.FLOAT32)), DType.FLOAT32)
            self.new.append(Map(s.out, product))
        elif isinstance(s, Correct):
            self.new.append(replace(s, expr=self.once_a_row(transform(s.expr, self.exponential), s.out)))
        else:
            self.new.append(s)

    # -- factors -----------------------------------------------------------------------------------------------------
    def scale(self, s: Map) -> None:
        """Notes that a map is a scaled value."""
        found = self.factor(s.expr)
        if found is not None and found[0] != 1:
            factor, e = found
            if not isinstance(e, Ref):
                base = self.define(Value(self.names.new(f"{s.out.name}_raw"), s.out.dtype, s.out.axes))
                self.new.append(Map(base, e))
                e = ref(base.name, base.dtype)
            base = self.values[e.name]
            if base.axes == s.out.axes and base.dtype is DType.FLOAT32:
                self.scaled[s.out.name] = Scaled(factor, base)

    def factor(self, e: Expr) -> tuple[float, Expr] | None:
        """e as a positive constant times another expression."""
        match e:
            case Ref(dtype=DType.FLOAT32) if e.name in self.scaled:
                x = self.scaled[e.name]
                return x.factor, ref(x.base.name, x.base.dtype)
            case Ref(dtype=DType.FLOAT32):
                return 1.0, e
            case Apply(fn=Fn.MUL, args=(a, Const(value=c))) | Apply(fn=Fn.MUL, args=(Const(value=c), a)) if _usable(c):
                inner = self.factor(a)
                return None if inner is None else (inner[0] * float(c), inner[1])
            case Apply(fn=Fn.DIV, args=(a, Const(value=c))) if _usable(c):
                inner = self.factor(a)
                return None if inner is None else (inner[0] / float(c), inner[1])
            case Apply(fn=Fn.WHERE, args=(c, a, b)) if isinstance(b, Const) and _infinite(b):
                inner = self.factor(a)
                return None if inner is None else (inner[0], Apply(Fn.WHERE, (c, inner[1], b), e.dtype))
            case Apply(fn=Fn.WHERE, args=(c, a, b)) if isinstance(a, Const) and _infinite(a):
                inner = self.factor(b)
                return None if inner is None else (inner[0], Apply(Fn.WHERE, (c, a, inner[1]), e.dtype))
            case Apply(dtype=DType.FLOAT32):
                return 1.0, e
            case _:
                return None

    def products(self, e: Expr) -> Expr:
        """Chains of constant factors and divisors as one product, where a dot's rounding is larger than theirs."""

        def one(x: Expr) -> Expr | None:
            if not (isinstance(x, Apply) and x.fn in (Fn.MUL, Fn.DIV) and names_in(x) & self.summed):
                return None
            found = self.factor(x)
            if found is None or found[1] is x or found[0] == 1:
                return None
            factor, inner = found
            return Apply(Fn.MUL, (transform(inner, one), const(factor, DType.FLOAT32)), DType.FLOAT32)

        return transform(e, one)

    # -- exponentials ------------------------------------------------------------------------------------------------
    def exponential(self, e: Expr) -> Expr | None:
        if not (isinstance(e, Apply) and e.fn is Fn.EXP and e.dtype is DType.FLOAT32):
            return None
        names = names_in(e)
        if not names & self.summed or names & self.loose or _large(e):
            return None
        return Apply(Fn.EXP2, (self.two(transform(e.args[0], self.exponential)),), DType.FLOAT32)

    def two(self, e: Expr) -> Expr:
        """e times log2 e, with the product taken into constants and into values of fewer axes."""
        match e:
            case Apply(fn=Fn.SUB | Fn.ADD, args=(a, b)):
                return Apply(e.fn, (self.two(a), self.two(b)), e.dtype)
            case Apply(fn=Fn.NEG, args=(a,)):
                return Apply(e.fn, (self.two(a),), e.dtype)
            case Const(value=v):
                return const(float(v) * LOG2E, DType.FLOAT32)
            case _:
                pass
        found = self.factor(e)
        if found is None:
            return Apply(Fn.MUL, (e, const(LOG2E, DType.FLOAT32)), DType.FLOAT32)
        factor, inner = found
        if isinstance(inner, Ref) and factor == 1.0:
            return self.named(inner)
        return Apply(Fn.MUL, (inner, const(factor * LOG2E, DType.FLOAT32)), DType.FLOAT32)

    # -- choices -----------------------------------------------------------------------------------------------------
    def once_a_row(self, e: Expr, out: Value) -> Expr:
        """A correction that leaves some rows alone, as a product by 1 there."""
        match e:
            case Apply(fn=Fn.WHERE, args=(c, a, Apply(fn=Fn.MUL, args=(b, f)))) if a is b and e.dtype is DType.FLOAT32:
                names = names_in(c) | names_in(f)
                axes = frozenset[Axis]().union(*(self.values[n].axes for n in names))
                plain = all(not isinstance(x, Position) for side in (c, f) for x in walk(side))
                if not plain or not axes < out.axes:
                    return e
                choice = Apply(Fn.WHERE, (c, const(1.0, DType.FLOAT32), f), DType.FLOAT32)
                if choice not in self.chosen:
                    self.chosen[choice] = v = self.define(Value(self.names.new("move"), DType.FLOAT32, axes))
                    self.new.append(Map(v, choice))
                v = self.chosen[choice]
                return Apply(Fn.MUL, (a, ref(v.name, v.dtype)), DType.FLOAT32)
            case _:
                return e

    def named(self, r: Ref) -> Expr:
        """A value times log2 e, computed once where several exponentials use it."""
        v = self.values[r.name]
        if r.name not in self.twos:
            out = self.define(Value(self.names.new(f"{r.name}_log2"), v.dtype, v.axes))
            self.new.append(Map(out, Apply(Fn.MUL, (r, const(LOG2E, DType.FLOAT32)), DType.FLOAT32)))
            self.twos[r.name] = out
        two = self.twos[r.name]
        return ref(two.name, two.dtype)


def _usable(c: float | int | bool) -> bool:
    return not isinstance(c, bool) and math.isfinite(c) and 1e-30 < c < 1e30


def _infinite(c: Const) -> bool:
    return isinstance(c.value, float) and math.isinf(c.value)


# -- what may be large ------------------------------------------------------------------------------------------------
def _loose(body: tuple[Statement, ...]) -> frozenset[str]:
    """The values that hold more than sums of products and moderate constants: what memory gives, and what is made of it."""
    found: set[str] = set()
    while True:
        before = len(found)
        for s in every(body):
            match s:
                case Read():
                    found |= _numbers(s)
                case Dot():
                    if s.add in found:
                        found.add(s.out.name)
                case Assign() if s.value in found:
                    found.add(s.state)
                case Map() | Correct() if _large(s.expr):
                    found.add(s.out.name)
                case Loop() | Store() | Assign():
                    pass
                case _ if uses_of(s) & found:
                    found |= _numbers(s)
        if len(found) == before:
            return frozenset(found)


def _numbers(s: Statement) -> set[str]:
    """The names that a statement gives to anything but truth values."""
    return {v.name for v in outputs_of(s) if v.dtype is not DType.BOOL}


def _large(e: Expr) -> bool:
    """True where a constant of an expression is finite and overflows times log2 e."""
    numbers = (x.value for x in walk(e) if isinstance(x, Const))
    return any(isinstance(v, float) and math.isfinite(v) and abs(v) > 1e38 for v in numbers)


# -- what is read ----------------------------------------------------------------------------------------------------
def _live(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The statements whose results something reads. Names may be reused from loop to loop, so a name is enough."""
    while True:
        read = {n for s in body for n in _used(s)}
        kept = _keep(body, read)
        if kept == body:
            return body
        body = kept


def _used(s: Statement) -> set[str]:
    """What a statement reads, beside a state that is assigned to itself."""
    if isinstance(s, Loop):
        bounds = {*bound_values(s.start), *bound_values(s.stop)}
        return bounds.union(*(_used(x) for x in s.body))
    return uses_of(s) - ({s.state} if isinstance(s, Assign) else set())


def _keep(body: tuple[Statement, ...], read: set[str]) -> tuple[Statement, ...]:
    out: list[Statement] = []
    for s in body:
        if isinstance(s, Loop):
            inner = _keep(s.body, read)
            if inner:
                out.append(replace(s, body=inner) if inner != s.body else s)
        elif isinstance(s, Assign):
            if s.state in read:
                out.append(s)
        elif isinstance(s, Store) or any(v.name in read for v in outputs_of(s)):
            out.append(s)
    return tuple(out)
