"""ORDER: a body h(key(x), D) with h monotone needs only the extreme keys; h is applied when the result is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from redfuser.algebra import build, poly
from redfuser.algebra.groups import Refused
from redfuser.algebra.separate import Separator
from redfuser.algebra.terms import D, X, contains
from redfuser.index.expr import (
    COMPARISONS,
    Apply,
    Cast,
    DType,
    Expr,
    Fn,
    Ref,
    children,
    const,
    dtype_of,
    ref,
    transform,
    walk,
)
from redfuser.index.refusals import RefusalKind


class Shape(Enum):
    """How the body moves with the key, and so where its largest and smallest values are."""

    UP = "increasing"
    DOWN = "decreasing"
    EITHER = "increasing or decreasing"  # both ends are extreme
    CONVEX = "largest at an end"
    CONCAVE = "smallest at an end"


_FLIP = {
    Shape.UP: Shape.DOWN, Shape.DOWN: Shape.UP, Shape.EITHER: Shape.EITHER, Shape.CONVEX: Shape.CONCAVE,
    Shape.CONCAVE: Shape.CONVEX,
}  # fmt: skip
_UP = frozenset({Fn.EXP, Fn.EXP2, Fn.EXPM1, Fn.LOG, Fn.LOG2, Fn.LOG1P, Fn.SQRT, Fn.TANH, Fn.SIGMOID, Fn.ERF})
_UP_WEAKLY = frozenset({Fn.ROUND, Fn.FLOOR, Fn.CEIL, Fn.TRUNC, Fn.SIGN})


def hole(dtype: DType) -> Ref:
    """Where the extreme key goes."""
    return ref("?", dtype)


MASKED = ref("?masked", DType.BOOL)  # in a read: the extreme key is that of a masked element


@dataclass(frozen=True, slots=True)
class Mask:
    """Elements where ``keep`` is false have the key ``far``; an element that is kept may have it too."""

    keep: Expr
    far: Expr


@dataclass(frozen=True, slots=True)
class Ordered:
    """body == read[hole := key]. ``weak`` where different keys may give equal values (ties).

    ``lost`` is the key in a row where a result in the read is NaN: NaN too for every element that is kept.
    """

    key: Expr
    read: Expr
    shape: Shape
    weak: bool = False
    mask: Mask | None = None  # whose key the read must tell from an equal key of an element that is kept
    lost: Expr | None = None  # None: NaN for every element

    def branch(self, kept: bool) -> Expr:
        """The read of an element that is kept, or of a masked one, whatever its key."""

        def leaf(x: Expr) -> Expr | None:
            parts = guarded(x)
            return None if parts is None else parts[0] if kept else parts[1]

        out, done = self.read, None
        while done is not out:
            out, done = transform(out, leaf), out
        return out

    def settled(self, masked: Expr) -> Ordered:
        return replace(self, read=transform(self.read, lambda x: masked if x is MASKED else None), mask=None)

    def apply(self, key: Expr) -> Expr:
        mark = hole(dtype_of(self.key))
        return transform(self.read, lambda x: key if x is mark else None)


def guarded(e: Expr) -> tuple[Expr, Expr] | None:
    """The values of kept and of masked elements in ``where(whether the key is a masked one, ...)`` of a read."""
    if not isinstance(e, Apply) or e.fn is not Fn.WHERE:
        return None
    kept = [a for a in e.args[1:] if any(isinstance(x, Ref) and x.name == "?" for x in walk(a))]
    return (kept[0], e.args[2] if kept[0] is e.args[1] else e.args[1]) if len(kept) == 1 else None


def refused(s: Separator, e: Expr) -> Refused:
    return Refused(
        RefusalKind.ORDER,
        f"which element is the extreme one of {s.name(e)} depends on {s.which(e)}, which is final only after the last "
        "element",
        f"rank the elements by something that {s.which(e)} only shifts, or scales by a positive factor",
    )


def ordered(s: Separator, e: Expr) -> Ordered:
    """The factorisation of e, or Refused."""
    t = s.r.term(e)
    if not t.kind & D:
        key = e if not s.r.kind(e) & D else s.emit(t)
        return Ordered(key, hole(dtype_of(key)), Shape.UP)
    if s.r.odd_load(e):
        s.groups(e)
    if isinstance(e, Cast) and s.r.kind(e) == X | D:
        m = ordered(s, e.arg)
        return replace(m, read=Cast(m.read, e.dtype), weak=m.weak or s.r.rounds(e))
    if not isinstance(e, Apply) or s.r.kind(e) != X | D or _wraps(e):
        raise refused(s, e)
    m2 = _apply(s, e)
    return m2 if m2 is not None else _canonical(s, e)


def _wraps(e: Apply) -> bool:
    """True for arithmetic of integers, whose order is lost where a result leaves their range."""
    return not e.dtype.is_float and e.fn in (Fn.ADD, Fn.SUB, Fn.MUL, Fn.NEG, Fn.ABS, Fn.POW)


def _apply(s: Separator, e: Apply) -> Ordered | None:
    a = e.args
    if e.fn in _UP | _UP_WEAKLY:
        m = ordered(s, a[0])
        return replace(m, read=Apply(e.fn, (m.read,), e.dtype), weak=m.weak or e.fn in _UP_WEAKLY)
    if e.fn is Fn.NEG or e.fn is Fn.RSQRT:
        m = ordered(s, a[0])
        return replace(m, read=Apply(e.fn, (m.read,), e.dtype), shape=_FLIP[m.shape])
    if e.fn is Fn.ABS or (e.fn is Fn.MUL and a[0] is a[1]):
        return _even(s, a[0], lambda x: Apply(e.fn, (x,) if e.fn is Fn.ABS else (x, x), e.dtype))
    if e.fn is Fn.POW:
        return _power(s, e)
    if e.fn is Fn.WHERE:
        return _where(s, e)
    if len(a) == 2 and (s.r.kind(a[0]) & X) and (s.r.kind(a[1]) & X):
        return None
    if len(a) == 2:
        return _with_result(s, e)
    raise refused(s, e)


def _with_result(s: Separator, e: Apply) -> Ordered | None:
    """A two-argument function of something ordered and of a value that is fixed along the axis."""
    left = bool(s.r.kind(e.args[0]) & X)
    inner, other = (e.args[0], e.args[1]) if left else (e.args[1], e.args[0])
    m = ordered(s, inner)
    read = Apply(e.fn, (m.read, other) if left else (other, m.read), e.dtype)
    shape, weak = m.shape, m.weak
    match e.fn:
        case Fn.ADD:
            pass
        case Fn.SUB:
            shape = shape if left else _FLIP[shape]
        case Fn.MAXIMUM | Fn.MINIMUM:
            weak = True
        case Fn.MUL | Fn.DIV:
            if e.fn is Fn.DIV and not left:
                return None
            sign = s.r.term(other)
            weak |= e.fn is Fn.MUL and sign.may_vanish
            if sign.nonpos:
                shape = _FLIP[shape]
            elif not sign.nonneg:
                if shape in (Shape.CONVEX, Shape.CONCAVE):
                    raise refused(s, e)
                shape = Shape.EITHER
        case Fn.GT | Fn.GE | Fn.LT | Fn.LE:
            weak = True
            if (e.fn in (Fn.LT, Fn.LE)) == left:
                shape = _FLIP[shape]
        case _:
            raise refused(s, e)
    return replace(m, read=read, shape=shape, weak=weak)


def _even(s: Separator, arg: Expr, rebuild: object) -> Ordered:
    assert callable(rebuild)
    m = ordered(s, arg)
    t = s.r.term(arg)
    if s.facts.nonneg(t):
        return replace(m, read=rebuild(m.read))
    if s.facts.nonneg(s.t.neg(t)):
        return replace(m, read=rebuild(m.read), shape=_FLIP[m.shape])
    if m.shape in (Shape.CONVEX, Shape.CONCAVE):
        raise refused(s, arg)
    return replace(m, read=rebuild(m.read), shape=Shape.CONVEX, weak=True)


def _power(s: Separator, e: Apply) -> Ordered:
    q = s.r.term(e.args[1])
    if q.op != "const":
        raise refused(s, e)
    n = q.value
    if n.denominator == 1 and n > 0 and n % 2 == 0:
        return _even(s, e.args[0], lambda x: Apply(e.fn, (x, e.args[1]), e.dtype))
    m = ordered(s, e.args[0])
    read = Apply(e.fn, (m.read, e.args[1]), e.dtype)
    if n > 0 and (n.denominator == 1 or s.r.term(e.args[0]).nonneg):
        return replace(m, read=read)
    if n < 0 and s.r.term(e.args[0]).nonneg:
        return replace(m, read=read, shape=_FLIP[m.shape])
    raise refused(s, e)


def _where(s: Separator, e: Apply) -> Ordered | None:
    """A masked element: where(mask, ordered, -inf or +inf), the number being the value of the body at that key."""
    c, a, b = e.args
    if s.r.kind(c) & D or not (s.t.ninf in (s.r.term(a), s.r.term(b)) or s.t.inf in (s.r.term(a), s.r.term(b))):
        raise refused(s, e)
    swap = s.r.term(a) in (s.t.ninf, s.t.inf)
    inner, end = (b, a) if swap else (a, b)
    m = ordered(s, inner)
    if m.shape not in (Shape.UP, Shape.DOWN) or m.mask is not None:
        raise refused(s, e)
    far = build.neg(end) if m.shape is Shape.DOWN else end
    far = build.cast(far, dtype_of(m.key)) if dtype_of(m.key) is not dtype_of(far) else far
    key = build.where(c, far, m.key) if swap else build.where(c, m.key, far)
    nan = const(float("nan"), dtype_of(m.key)) if m.lost is None else m.lost
    lost = build.where(c, far, nan) if swap else build.where(c, nan, far)
    mark = hole(dtype_of(m.key))
    if _keeps_ends(m.read, mark):
        return replace(m, key=key, read=build.where(build.equal(mark, far), end, m.read), lost=lost)
    keep = build.negate(c) if swap else c
    return replace(m, key=key, read=build.where(MASKED, end, m.read), mask=Mask(keep, far), lost=lost)


def _keeps_ends(read: Expr, mark: Ref) -> bool:
    """True when the read is infinite at an infinite key, so that it need not be told from a masked one."""
    if read is mark:
        return True
    if isinstance(read, Cast):
        return _keeps_ends(read.arg, mark)
    if (parts := guarded(read)) is not None:
        return _keeps_ends(parts[0], mark)
    straight = isinstance(read, Apply) and read.fn in (Fn.ADD, Fn.SUB, Fn.MUL, Fn.DIV, Fn.NEG, *_UP_WEAKLY - {Fn.SIGN})
    return straight and all(_keeps_ends(a, mark) for a in children(read) if any(x is mark for x in walk(a)))


def _canonical(s: Separator, e: Apply) -> Ordered:
    """Elements and results joined more than once: through the groups, as scale * (key + rest)."""
    if e.fn in COMPARISONS:
        zero = const(0, build.join(*[dtype_of(x) for x in e.args]))
        gap = ordered(s, build.sub(e.args[0], e.args[1]))
        if e.fn not in (Fn.GT, Fn.GE, Fn.LT, Fn.LE):
            raise refused(s, e)
        shape = gap.shape if e.fn in (Fn.GT, Fn.GE) else _FLIP[gap.shape]
        return replace(gap, read=Apply(e.fn, (gap.read, zero), DType.BOOL), shape=shape, weak=True)
    try:
        groups = s.groups(e, strict=False)
    except Refused as x:
        raise (x if x.kind is RefusalKind.UNSUPPORTED else refused(s, e)) from None
    if len(groups) != 1 or groups[0].notes or s.gated(groups[0]) or contains(groups[0].scale, "exp"):
        raise refused(s, e)
    g = groups[0]
    moving = [(k, p) for k, p in g.terms.items() if k.kind & X]
    if not moving or any(not poly.is_constant(p) for _, p in moving):
        raise refused(s, e)
    fixed = [k for k, p in g.terms.items() if not k.kind & X and (k.kind & D or not poly.is_constant(p))]
    if len(moving) > 1 and fixed:
        raise Refused(
            RefusalKind.ORDER,
            f"{s.name(e)} adds elements after {s.which(e)} is taken off one of them: added before, where that one is "
            "large, they would lose the digits that they keep so",
            "add the elements first, and take the result off their sum",
        )
    key = s.t.add(*[s.t.scale(p[()], k) for k, p in moving])
    rest = s.t.add(*[s.t.mul(k, s.uncoordinated(p)) for k, p in g.terms.items() if not k.kind & X])
    key_expr = s.emit(key)
    read = build.mul(build.add(hole(dtype_of(key_expr)), s.emit(rest)), s.emit(g.scale))
    shape = Shape.UP if g.scale.nonneg else Shape.DOWN if g.scale.nonpos else Shape.EITHER
    return Ordered(key_expr, read, shape, g.scale.may_vanish)
