"""Separation of the functions that are not sums or products: exponentials, logarithms, piecewise
functions, roundings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from redfuser.algebra import build, poly, zeros
from redfuser.algebra.groups import Group, Refused
from redfuser.algebra.poly import UNIT
from redfuser.algebra.reader import narrows
from redfuser.algebra.terms import Arena, D, Term, X, contains
from redfuser.index.expr import COMPARISONS, Apply, Cast, Const, DType, Expr, Fn, Load, const, dtype_of
from redfuser.index.refusals import RefusalKind

if TYPE_CHECKING:
    from redfuser.algebra.separate import Separator

WIDE = frozenset({DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})
LIMITS = {DType.FLOAT16: 65504, DType.FLOAT8_E4M3: 448, DType.FLOAT8_E5M2: 57344}  # the largest numbers of the others


def general_power(s: Separator, e: Apply, strict: bool) -> list[Group]:
    b, q = e.args
    power = s.r.term(q)
    if power.op == "const":
        return s.power_of(e, b, power.value, strict)
    if not power.kind and s.r.kind(b) == X | D:
        g = s.single(s.groups(b, strict))
        if g is not None and not g.notes and g.scale.nonneg and s.free_term(g).nonneg:
            terms = poly.collect(s.t, raised(s, s.free_term(g), power))
            core: Expr = Apply(Fn.POW, (g.core, q), e.dtype)
            if isinstance(g.core, Apply) and g.core.fn in (Fn.EXP, Fn.EXP2):
                core = Apply(g.core.fn, (build.mul(g.core.args[0], q),), e.dtype)
            return [Group(raised(s, g.scale, power), core, terms, raised(s, g.base, power))]
    raise Refused(
        RefusalKind.NONLINEAR,
        f"{s.name(e)} raises to a power, and elements meet {s.which(e)} in it",
        "use a constant exponent, or a positive base that is a product",
    )


def raised(s: Separator, x: Term, power: Term) -> Term:
    return s.t.exp(s.t.mul(power, s.t.log(x)))


# -- exponentials and logarithms
def exponential(s: Separator, e: Apply, strict: bool) -> list[Group]:
    arg = e.args[0]
    hoisted = hoist(s, e, strict)
    if hoisted is not None:
        return hoisted
    unit = s.t.ln2 if e.fn is Fn.EXP2 else s.t.one
    fixed, moving = exponents(s, arg)
    core_term = s.t.exp(s.t.mul(unit, s.t.add(*fixed)))
    scale = s.t.exp(s.t.add(*[s.t.mul(unit, m) for m in moving]))
    kept = s.t.add(*[s.t.mul(unit, m) for m in moving if not is_logarithm(s.t, m)])
    core = Apply(e.fn, (strip(s, arg, lambda m: is_logarithm(s.t, m)),), e.dtype)
    return [Group(scale, core, {core_term: UNIT}, s.t.exp(kept) if kept is not s.t.zero else s.t.one)]


def exponents(s: Separator, arg: Expr) -> tuple[list[Term], list[Term]]:
    """The exponent as element addends and result addends, or Refused."""
    fixed, moving = list[Term](), list[Term]()
    for g in s.groups(arg, strict=False):
        if g.notes:
            raise Refused(
                RefusalKind.ROUNDING,
                f"the exponent {s.name(arg)} is cast to a narrower type after {s.which(arg)} came into it",
                f"cast before {s.which(arg)} is subtracted, or after exp",
            )
        for x, p in g.terms.items():
            whole = s.t.mul(g.scale, x, s.uncoordinated(p))
            if g.alone is not None or (not x.kind & X):
                moving.extend(s.t.add(*[s.t.mul(g.scale, x, a) for a in s.uncoordinated(p).addends]).addends)
            elif whole.kind & D:
                raise Refused(
                    RefusalKind.PRODUCT_IN_EXP,
                    f"in the exponent {s.name(arg)} elements are multiplied by {s.which(arg)}, final only after the last "
                    "element; exponentials that are already summed cannot be corrected by a common factor",
                    "scale by a constant or an input, or keep the extra pass",
                )
            else:
                fixed.append(whole)
    return fixed, [m for m in s.t.add(*moving).addends if m is not s.t.zero]


def strip(s: Separator, e: Expr, drop: Callable[[Term], bool]) -> Expr:
    """e with the addends that depend on results alone and satisfy ``drop`` left out."""
    if s.r.kind(e) == D:
        t = s.r.term(e)
        left = [a for a in t.addends if not drop(a)]
        if len(left) == len(t.addends):
            return e
        return s.emit(s.t.add(*left)) if left else const(0.0, DType.FLOAT32)
    if not s.r.kind(e) & D or not isinstance(e, Apply):
        return e
    a = e.args
    match e.fn:
        case Fn.ADD:
            return build.add(strip(s, a[0], drop), strip(s, a[1], drop))
        case Fn.SUB:
            return build.sub(strip(s, a[0], drop), strip(s, a[1], drop))
        case Fn.NEG:
            return build.neg(strip(s, a[0], drop))
        case Fn.MUL | Fn.DIV:
            return Apply(e.fn, tuple(strip(s, x, drop) if s.r.kind(x) == X | D else x for x in a), e.dtype)
        case _:
            return e


def hoist(s: Separator, e: Apply, strict: bool) -> list[Group] | None:
    """f(where(c, a, b)) as where(c, f(a), f(b))."""
    arg = e.args[0]
    if not (isinstance(arg, Apply) and arg.fn is Fn.WHERE and s.r.kind(arg.args[0]) != X | D):
        return None
    c, a, b = arg.args
    inner = tuple(applied(e, x) for x in (a, b))
    return s.groups(Apply(Fn.WHERE, (c, *inner), e.dtype), strict)


def applied(e: Apply, x: Expr) -> Expr:
    if e.fn in (Fn.EXP, Fn.EXP2) and isinstance(x, Const) and x.value == float("-inf"):
        return const(0.0, e.dtype)
    return Apply(e.fn, (x,), e.dtype)


def logarithm(s: Separator, e: Apply, strict: bool) -> list[Group]:
    hoisted = hoist(s, e, strict)
    if hoisted is not None:
        return hoisted
    groups = s.groups(e.args[0], strict) if e.fn is not Fn.LOG1P else []
    g = s.single(groups)
    if g is None or g.notes or not g.scale.nonneg or not s.free_term(g).nonneg:
        raise Refused(
            RefusalKind.NONLINEAR,
            f"a logarithm is taken of {s.name(e.args[0])}, a sum of elements and {s.which(e)} (or something that may "
            "be negative)",
            "take the logarithm of a product of positive values: it becomes a sum of logarithms",
        )
    moved = s.t.log(g.scale)
    if s.t.exp(moved) is not g.scale or g.base is not s.t.one:
        t = s.r.term(e)
        if all(a.kind != X | D for a in t.addends):  # log(exp(a)) and the like came out linear
            return s.groups(linear(s, t), strict)
    x = s.t.log(s.free_term(g)) if e.fn is Fn.LOG else s.t.div(s.t.log(s.free_term(g)), s.t.ln2)
    if e.fn is Fn.LOG2:
        moved = s.t.div(moved, s.t.ln2)
    core: Expr = Apply(e.fn, (g.core,), e.dtype)
    if s.exp_factor(s.free_term(g)) is not s.t.one:
        core = s.emit(x)  # an exponential may underflow before its logarithm is taken
    left = [s.element(core, x)]
    d = s.emit(moved)
    right = [s.result(moved, d)]
    return s.sum_of(Apply(Fn.ADD, (e, d), e.dtype), left, right, strict)


def linear(s: Separator, t: Term) -> Expr:
    """A sum of terms that are each of one kind, elements first, as an expression."""
    ordered = sorted(t.addends, key=lambda a: (a.kind & D, s.t.split(a)[0] < 0))
    out = s.emit(ordered[0])
    for a in ordered[1:]:
        k, _ = s.t.split(a)
        out = build.sub(out, s.emit(s.t.neg(a))) if k < 0 else build.add(out, s.emit(a))
    return out


# -- piecewise
def absolute(s: Separator, e: Apply, strict: bool) -> list[Group]:
    arg, t = e.args[0], s.r.term(e.args[0])
    if s.facts.nonneg(t):
        return s.groups(arg, strict)
    if s.facts.nonneg(s.t.neg(t)):
        return [s.negated(g) for g in s.groups(arg, strict)]
    g = s.single(s.groups(arg, strict=False))
    if g is not None and not g.notes:
        terms = poly.collect(s.t, s.t.abs(s.free_term(g)))
        return [Group(s.t.abs(g.scale), Apply(Fn.ABS, (g.core,), e.dtype), terms, s.t.abs(g.base))]
    raise s.branch(e)


def extremum(s: Separator, e: Apply, strict: bool) -> list[Group]:
    a, b = e.args
    gap = s.t.sub(s.r.term(a), s.r.term(b))
    if e.fn is Fn.MINIMUM:
        gap = s.t.neg(gap)
    if s.facts.nonneg(gap):
        return s.groups(a, strict)
    if s.facts.nonneg(s.t.neg(gap)):
        return s.groups(b, strict)
    g, h = s.single(s.groups(a, strict=False)), s.single(s.groups(b, strict=False))
    if g and h and g.scale is h.scale and g.scale.nonneg and g.base is h.base and not g.notes and not h.notes:
        op = "max" if e.fn is Fn.MAXIMUM else "min"
        t = s.t.extremum(op, s.free_term(g), s.free_term(h))
        return [Group(g.scale, Apply(e.fn, (g.core, h.core), e.dtype), poly.collect(s.t, t), g.base)]
    raise s.branch(e)


def where(s: Separator, e: Apply, strict: bool) -> list[Group]:
    c, a, b = e.args
    kind = s.r.kind(c)
    if kind == X | D:
        known = decided(s, c)
        if known is not None:
            return s.groups(a if known else b, strict)
        settled = zeros.settled(s, e, strict)
        if settled is None:
            raise s.branch(c)
        s.settled[e] = settled
        return s.groups(settled, strict)
    if kind == D:
        return gate(s, c, a, strict) + gate(s, build.negate(c), b, strict)
    out: list[Group] = []
    for branch, taken in ((a, True), (b, False)):
        if build.is_number(branch, 0):
            continue
        ind = s.r.indicator(c, taken)
        for g in s.groups(branch, strict):
            out.append(masked(s, g, c, ind, taken, e.dtype))
    return out


def masked(s: Separator, g: Group, c: Expr, ind: Term, taken: bool, dtype: DType) -> Group:
    zero = const(0.0, build.join(dtype, DType.FLOAT32))

    def mask(x: Expr) -> Expr:
        return build.where(c, x, zero) if taken else build.where(c, zero, x)

    pin = None if g.pin is None else (g.pin[0], mask(g.pin[1]))
    terms, zero_there = g.terms, None if taken else s.vanishing.get(c)
    if zero_there is None or not all(zeros.divides(zero_there, x) for x in terms):
        terms = poly.scale_terms(s.t, terms, ind)
    return replace(g, core=mask(g.core), terms=terms, pin=pin, alone=None)


def gate(s: Separator, c: Expr, branch: Expr, strict: bool) -> list[Group]:
    if build.is_number(branch, 0):
        return []
    gate = s.t.fn("gate", s.r.term(c), sign=(False, True, True))
    if s.r.written.get(s.r.term(c)) is None and not isinstance(c, Load):
        s.r.written[s.r.term(c)] = c
    return [replace(g, scale=s.t.mul(gate, g.scale), pin=None, alone=None) for g in s.groups(branch, strict)]


def decided(s: Separator, c: Expr) -> bool | None:
    """The value of a comparison that the facts settle."""
    if not isinstance(c, Apply) or c.fn not in COMPARISONS:
        return None
    gap = s.t.sub(s.r.term(c.args[0]), s.r.term(c.args[1]))
    match c.fn:
        case Fn.GE | Fn.LT if s.facts.nonneg(gap):
            return c.fn is Fn.GE
        case Fn.LE | Fn.GT if s.facts.nonneg(s.t.neg(gap)):
            return c.fn is Fn.LE
        case _:
            return None


# -- roundings
def cast(s: Separator, e: Cast, strict: bool) -> list[Group]:
    source = dtype_of(e.arg)
    if source is DType.BOOL:
        raise s.branch(e.arg)
    if not narrows(source, e.dtype):
        return [
            g if g.alone is not None or not g.notes else replace(g, core=build.cast(g.core, e.dtype))
            for g in s.groups(e.arg, strict)
        ]
    if not e.dtype.is_float:
        return integer_rounding(s, e, e.arg, e.dtype.value, strict)
    groups = s.groups(e.arg, strict)
    free = all(is_power_of_two(s.t, g.scale) for g in groups) and len(groups) == 1 and s.single(groups) is not None
    if s.options.exact_casts and not free:
        raise Refused(
            RefusalKind.ROUNDING,
            f"{s.name(e.arg)} is cast to {e.dtype.value} after it was scaled by {s.which(e)}, and exact_casts asks "
            "that this cast stay where it is",
            "drop exact_casts, or scale by powers of two",
        )
    note = f"rounding to {e.dtype.value} commutes with the scale up to one rounding"
    if free:
        note = f"rounding to {e.dtype.value} commutes exactly with a power of two, subnormals aside"
    ranged = () if e.dtype in WIDE else _range_notes(s, e)
    if len(groups) > 1:
        return groups
    g = groups[0]
    if e.dtype in WIDE or bounded(s, g):
        return [replace(g, core=Cast(g.core, e.dtype), notes=(*g.notes, note), pin=None)]
    if poly.coordinates(g.terms) or s.gated(g):
        return [g]
    return [Group(g.scale, e, g.terms, g.scale, (*g.notes, note, *ranged))]


def _range_notes(s: Separator, e: Cast) -> tuple[str, ...]:
    """What must hold for a cast at a running scale not to cut off what the final scale would not: nothing where an
    earlier result bounds the element on every prefix. Eight bits are left too easily to take it for granted."""
    limit = LIMITS[e.dtype]
    if within(s, e.arg, limit):
        return ()
    if e.dtype is not DType.FLOAT16:
        raise Refused(
            RefusalKind.ROUNDING,
            f"{s.name(e.arg)} may be larger than {limit}, the largest number of {e.dtype.value}, before the last "
            f"element, where {s.which(e)} is not final; what is cut off there does not come back when the scale moves",
            "scale by the largest absolute value of the same elements, or keep the extra pass",
        )
    return (f"{s.name(e.arg)} stays within {limit}, the largest number of {e.dtype.value}, at every running scale",)


def within(s: Separator, e: Expr, limit: int) -> bool:
    """True when |e| <= limit for every element and on every prefix, by what the earlier results are."""
    t, room = s.t, s.t.const(limit)
    x = t.mul(*[_at_most(t, f) for f in s.r.term(e).factors])
    rest = [
        f for f in x.factors if f.op != "exp" or not s.facts.nonneg(t.neg(f.args[0]))
    ]  # what is left out is at most 1
    sides = t.sub(room, x), t.add(room, x)
    sizes = t.sub(room, t.abs(x)), t.sub(room, t.abs(t.mul(*rest)))
    return any(map(s.facts.nonneg, sizes)) or all(map(s.facts.nonneg, sides))


def _at_most(t: Arena, f: Term) -> Term:
    """A factor, powers of two rounded down taken as they were before the rounding, which is no less."""
    if f.op != "exp":
        return f
    up = [_unrounded(t, a) for a in f.args[0].addends]
    return t.exp(t.add(*up))


def _unrounded(t: Arena, a: Term) -> Term:
    """k * floor(z) with k > 0 and k * ceil(z) with k < 0 are at most k * z."""
    k, r = t.split(a)
    down = "floor" if k > 0 else "ceil"
    table = {f: f.args[0] for f in r.factors if f.op == "fn" and f.label == down}
    others = t.mul(*[f for f in r.factors if f not in table])
    return t.substitute(a, table) if len(table) == 1 and others.nonneg else a


def bounded(s: Separator, g: Group) -> bool:
    x = s.exponent(g.terms)
    if x is None or len(g.terms) != 1 or not all(f.op == "exp" for f in next(iter(g.terms)).factors):
        return False
    inside = s.exp_factor(g.base)
    moving = inside.args[0] if inside is not s.t.one else s.t.zero
    return s.facts.nonneg(s.t.neg(s.t.add(x, moving)))


def integer_rounding(s: Separator, e: Apply | Cast, arg: Expr, name: str, strict: bool) -> list[Group]:
    if not s.options.fuse_rounding or s.options.exact_casts:
        raise Refused(
            RefusalKind.ROUNDING,
            f"{s.name(arg)} is rounded to integers ({name}) after it was scaled by {s.which(arg)}; moving that rounding "
            "changes results by up to one step",
            "allow it with redfuser.fuse(fn, fuse_rounding=True), or with redfuser.options(fuse_rounding=True)",
        )
    g = s.single(s.groups(arg, strict=False))
    if g is None:
        raise Refused(
            RefusalKind.ROUNDING,
            f"{s.name(arg)} is rounded to integers ({name}), and is a sum with {s.which(arg)}, not a multiple of it",
            "round the scaled element and the scaled offset separately",
        )
    note = f"rounding to integers ({name}) stays inside the loop at the running scale: results may differ by one step"
    if g.alone is not None or (any("rounding" in n for n in g.notes) and isinstance(e, Cast)):
        return [replace(g, core=Cast(g.core, e.dtype) if isinstance(e, Cast) else Apply(e.fn, (g.core,), e.dtype))]
    return [Group(g.scale, e, g.terms, g.scale, (*g.notes, note))]


def is_logarithm(t: Arena, x: Term) -> bool:
    return any(f.op == "log" for f in t.split(x)[1].factors)


def is_power_of_two(t: Arena, scale: Term) -> bool:
    for f in scale.factors:
        if f.op == "const":
            v = abs(f.value)
            if v.numerator & (v.numerator - 1) or v.denominator & (v.denominator - 1):
                return False
        elif f.op == "exp":
            k, r = t.split(f.args[0])
            rest = [x for x in r.factors if x is not t.ln2]
            whole = (
                k.denominator == 1
                and len(rest) == 1
                and rest[0].op == "fn"
                and rest[0].label in ("ceil", "floor", "round", "trunc")
            )
            if t.ln2 not in r.factors or not whole:
                return False
        else:
            return False
    return not contains(scale, "gate")
