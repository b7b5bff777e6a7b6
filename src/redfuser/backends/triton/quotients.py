"""Quotients along an axis of many tiles, by a value of fewer axes, become products: one division a row, not an element.

    y = bf16(x / s)     ->     s_scale = 1, or 2^64 where s is nearly 0, or 2^-64 where it is nearly infinite
                               s_inverse = 1 / (s * s_scale)
                               y = bf16(x * s_inverse * s_scale)

The scale keeps the inverse a normal number, so that what is 0, infinite or not a number is so after both; where that is
known (``Kernel.moderate``) it is left out. A product may
differ from the quotient by more than one rounding to float32; it is done only where the result is rounded to 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from redfuser.index.expr import Apply, Cast, DType, Expr, Fn, Ref, const, ref
from redfuser.index.ints import Axis
from redfuser.tile.names import Names
from redfuser.tile.nodes import Assign, Kernel, Loop, Map, Role, Statement, Value, outputs_of
from redfuser.tile.uses import every

SMALL, LARGE = 2.0**-125, 2.0**125  # between them a number has an inverse that is normal
SCALE = 2.0**64


def by_inverses(k: Kernel) -> Kernel:
    """The kernel without divisions of every element of a long row, where products may stand for them."""
    return replace(k, body=tuple(_Rewrite(k).block(k.body, {})))


@dataclass(frozen=True, slots=True)
class _Inverse:
    scale: Value | None
    inverse: Value


class _Rewrite:
    def __init__(self, k: Kernel) -> None:
        self.long = frozenset(t.axis for t in k.axes if t.role is Role.CASCADE and t.block is not None)
        self.moderate = k.moderate
        self.names = Names(v.name for s in every(k.body) for v in outputs_of(s))

    def block(self, body: Iterable[Statement], outside: Mapping[str, Value]) -> list[Statement]:
        """The statements of a block. What those of a loop need of values from before it stands before it."""
        known = dict(outside)
        made: dict[str, _Inverse] = {}
        done: list[Statement] = []
        for s in body:
            before = set(made)
            if isinstance(s, Loop):
                changed = set(_changed(s))
                fixed = {n: v for n, v in known.items() if n not in changed}
                inner = [self.map(x, fixed, made) for x in s.body]
                s = replace(s, body=tuple(self.block(inner, known)))
            else:
                s = self.map(s, known, made)
            done += [x for n in made if n not in before for x in _inverted(known[n], made[n])]
            done.append(s)
            for n in _changed(s):
                made.pop(n, None)
            known |= {v.name: v for v in outputs_of(s)}
        return done

    def map(self, s: Statement, known: Mapping[str, Value], made: dict[str, _Inverse]) -> Statement:
        if not isinstance(s, Map) or not s.out.axes & self.long or not isinstance(s.expr, Cast):
            return s
        if s.expr.dtype not in (DType.BFLOAT16, DType.FLOAT16):
            return s
        return replace(s, expr=Cast(self.product(s.expr.arg, s.out.axes, known, made), s.expr.dtype))

    def product(self, e: Expr, axes: frozenset[Axis], known: Mapping[str, Value], made: dict[str, _Inverse]) -> Expr:
        """A quotient, or a product with one in it."""
        match e:
            case Apply(fn=Fn.MUL, args=(a, b), dtype=DType.FLOAT32):
                return Apply(Fn.MUL, (self.product(a, axes, known, made), self.product(b, axes, known, made)), e.dtype)
            case Apply(fn=Fn.DIV, args=(a, Ref(name=n, dtype=DType.FLOAT32)), dtype=DType.FLOAT32) if n in known:
                own = known[n].axes
                if not own < axes or own & self.long:
                    return e
                if n not in made:
                    scale = None if n in self.moderate else Value(self.names.new(f"{n}_scale"), e.dtype, own)
                    made[n] = _Inverse(scale, Value(self.names.new(f"{n}_inverse"), e.dtype, own))
                factors = [v for v in (made[n].inverse, made[n].scale) if v is not None]
                for v in factors:
                    a = Apply(Fn.MUL, (a, ref(v.name, v.dtype)), e.dtype)
                return a
            case _:
                return e


def _changed(s: Statement) -> Iterator[str]:
    """The names that a statement gives a value to."""
    if isinstance(s, Loop):
        for x in s.body:
            yield from _changed(x)
    elif isinstance(s, Assign):
        yield s.state
    else:
        yield from (v.name for v in outputs_of(s))


def _inverted(s: Value, made: _Inverse) -> list[Statement]:
    r: Expr = ref(s.name, s.dtype)
    one = const(1.0, s.dtype)
    out: list[Statement] = []
    if made.scale is not None:
        size = Apply(Fn.ABS, (r,), s.dtype)
        low = Apply(Fn.LT, (size, const(SMALL, s.dtype)), DType.BOOL)
        high = Apply(Fn.GT, (size, const(LARGE, s.dtype)), DType.BOOL)
        else_one = Apply(Fn.WHERE, (high, const(1 / SCALE, s.dtype), one), s.dtype)
        out.append(Map(made.scale, Apply(Fn.WHERE, (low, const(SCALE, s.dtype), else_one), s.dtype)))
        r = Apply(Fn.MUL, (r, ref(made.scale.name, s.dtype)), s.dtype)
    return [*out, Map(made.inverse, Apply(Fn.DIV, (one, r), s.dtype))]
