"""Which tiles a mask empties, and in which it need not be computed.

A condition is a comparison of positions, such as ``l <= i + off``, or says that one of several holds. It is *necessary*
when every element of a pass becomes its reducer's identity once the condition is false: then tiles where it is false
everywhere are skipped. In tiles where all necessary conditions hold everywhere, the elements are used with the conditions
replaced by true.

    max over l of where(l <= i, s, -inf)           with l <= i false:  -inf,  the identity of max
    sum over l of exp(where(l <= i, s, -inf) - b)  with l <= i false:  exp(-inf - b) = 0,  b finite
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from redfuser.algebra.nodes import Accumulator, Base, Pass
from redfuser.index.expr import Apply, Cast, Const, DType, Expr, Fn, Load, Position, Ref, const, transform, walk
from redfuser.index.ints import ONE, ZERO, Axis, FloorDiv, Int, Mod, as_int, floordiv, nonnegative
from redfuser.tile.nodes import At, Bound, Down, Greatest, Least, TileAxis, Up

_ORDER = {Fn.LT, Fn.LE, Fn.GT, Fn.GE, Fn.EQ}


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of tiles, with what is known about conditions there. ``full``: no tile ends behind the axis."""

    start: Bound
    stop: Bound
    known: Mapping[Expr, bool]
    note: str
    full: bool


@dataclass(frozen=True, slots=True)
class Reach:
    """Bounds that data give: outside ``start`` to ``stop`` no element counts, from ``open_start`` to ``open_stop`` the
    ``known`` conditions hold for all of them."""

    start: Bound
    stop: Bound
    open_start: Bound
    open_stop: Bound
    known: Mapping[Expr, bool]


@dataclass(frozen=True, slots=True)
class Limits:
    """A condition on the cascade axis: lowest <= l <= highest (None: no limit), over the rows of a block."""

    low: Int | None
    high: Int | None


# -- the conditions --------------------------------------------------------------------------------------------------
def conditions(p: Pass, axis: Axis, stages: frozenset[str]) -> list[tuple[Expr, bool]]:
    """The necessary conditions of a pass: (comparison or several joined, the truth it must have).

    ``stages`` are the results that the pass may load.
    """
    # the negation of a condition says the same
    return _necessary(p, stages, lambda c, truth: not _negates(c) and bool(alternatives(c, truth, axis)))


def _negates(e: Expr) -> bool:
    return isinstance(e, Apply) and e.fn is Fn.NOT


def alternatives(e: Expr, truth: bool, axis: Axis) -> list[tuple[Expr, bool]]:
    """The comparisons, and the truth of each, one of which gives e its truth; none where e says something else.

    (l <= i) | (l < 8)  true          l <= i true,  l < 8 true
    (l > i) & (l >= 8)  false         l > i false,  l >= 8 false
    """
    if _compares(e, axis):
        return [(e, truth)]
    match e:
        case Apply(fn=Fn.NOT, args=(a,)):
            return alternatives(a, not truth, axis)
        case Apply(fn=Fn.OR | Fn.AND, dtype=DType.BOOL) if truth is (e.fn is Fn.OR):
            parts = [alternatives(a, truth, axis) for a in e.args]
            return [x for p in parts for x in p] if all(parts) else []
        case _:
            return []


def reaching(p: Pass, axis: Axis, stages: frozenset[str]) -> list[tuple[Expr, bool]]:
    """The necessary conditions on data: comparisons of loads along the axis with loads along the rows.

        where(segment[i] == segment[l], s, -inf)        segment[i] == segment[l] must be true

    Each load runs along the axis or along other axes, so that the condition costs little beside what it saves.
    """
    return _necessary(p, stages, lambda c, truth: _meets(c, axis, stages))


def _necessary(p: Pass, stages: frozenset[str], eligible: Callable[[Expr, bool], bool]) -> list[tuple[Expr, bool]]:
    """The eligible conditions, with the truth that each must have: with the other, no element counts."""
    steps = [s for s in p.steps if isinstance(s, Accumulator)]
    facts = Facts(frozenset(s.name for s in p.steps if isinstance(s, Base)), stages)
    if any(a.reducer.has_index for a in steps):
        return []
    return [
        (c, not truth)
        for c in dict.fromkeys(c for a in steps for c in walk(a.element))
        for truth in (False, True)
        if eligible(c, not truth) and all(_is_identity(a, fold(a.element, {c: truth}, facts)) for a in steps)
    ]


def _meets(e: Expr, axis: Axis, stages: frozenset[str]) -> bool:
    """True for a comparison of loads along the axis with loads along other axes."""
    if not (isinstance(e, Apply) and e.fn in _ORDER):
        return False
    nodes = list(walk(e))
    if any(isinstance(x, Ref) or (isinstance(x, Load) and x.source in stages) for x in nodes):
        return False
    spans = [frozenset[Axis]().union(*(i.axes() for i in x.index)) for x in nodes if isinstance(x, Load)]
    along = [s for s in spans if axis in s]
    return len(along) == 1 and len(spans) == 2 and all(len(s - along[0]) > 0 for s in spans if axis not in s)


def _compares(e: Expr, axis: Axis) -> bool:
    if not (isinstance(e, Apply) and e.fn in _ORDER):
        return False
    ints = [_int(a) for a in e.args]
    return all(i is not None and not any(True for _ in i.gathers()) for i in ints) and any(
        i is not None and axis in i.axes() for i in ints
    )


def _int(e: Expr) -> Int | None:
    match e:
        case Position():
            return e.index
        case Const(value=int() as v, dtype=d) if d is DType.INT64 or not d.is_float:
            return as_int(v)
        case Cast(arg=a, dtype=DType.INT64):
            return _int(a)
        case _:
            return None


def _is_identity(a: Accumulator, e: Expr) -> bool:
    one = a.reducer.identity(e.dtype) if isinstance(e, Const) else None
    return one is not None and isinstance(e, Const) and e.value == one.value


# -- folding ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Facts:
    """``bases``: state that is finite. ``stages``: loads that may be infinite, results of earlier passes.

    Data may be taken as finite: a NaN or an infinity under a mask is a listed exception.
    """

    bases: frozenset[str]
    stages: frozenset[str]

    def absorbed(self, e: Expr, infinity: float) -> bool:
        """True when ``infinity + e`` is that infinity."""
        nodes = list(walk(e))
        turns = any(isinstance(x, Apply) and x.fn not in _KEEPS_SIGN for x in nodes)
        for x in nodes:
            match x:
                case Ref() if x.name not in self.bases:
                    return False
                case Load() if x.source in self.stages:
                    return False
                case Const(value=v) if not math.isfinite(v) and (turns or v != infinity):
                    return False
                case Apply(fn=Fn.LOG | Fn.LOG2 | Fn.LOG1P):
                    return False
                case _:
                    pass
        return True


_KEEPS_SIGN = {Fn.ADD, Fn.WHERE, Fn.MAXIMUM, Fn.MINIMUM, Fn.AND, Fn.OR, Fn.NOT} | _ORDER


def fold(e: Expr, known: Mapping[Expr, bool], facts: Facts) -> Expr:
    """e under known conditions. An infinity absorbs data and finite bases, a zero absorbs factors."""
    memo: dict[Expr, Expr] = {}

    def go(x: Expr) -> Expr:
        done = memo.get(x)
        if done is None:
            if x in known:
                done = const(known[x], DType.BOOL)
            elif isinstance(x, Apply):
                done = _fold_apply(x, tuple(go(a) for a in x.args), facts)
            elif isinstance(x, Cast):
                done = _fold_cast(Cast(go(x.arg), x.dtype))
            else:
                done = x
            memo[x] = done
        return done

    return go(e)


def _fold_cast(e: Cast) -> Expr:
    a = e.arg
    if isinstance(a, Const) and e.dtype.is_float and (a.value == 0 or isinstance(a.value, bool) or math.isinf(a.value)):
        narrow = e.dtype in (DType.FLOAT8_E4M3, DType.FLOAT8_E5M2)
        return e if narrow and a.value != 0 else const(float(a.value), e.dtype)
    return e


def _fold_apply(e: Apply, args: tuple[Expr, ...], facts: Facts) -> Expr:
    new = Apply(e.fn, args, e.dtype)
    values = [a.value if isinstance(a, Const) else None for a in args]
    match e.fn:
        case Fn.WHERE:
            if values[0] is not None:
                return args[1] if values[0] else args[2]
            return args[1] if args[1] is args[2] else new
        case Fn.AND | Fn.OR if e.dtype is DType.BOOL:
            stop = e.fn is Fn.OR
            if stop in (v for v in values if v is not None):
                return const(stop, DType.BOOL)
            rest = [a for a, v in zip(args, values, strict=True) if v is None]
            return rest[0] if len(rest) == 1 else const(not stop, DType.BOOL) if not rest else new
        case Fn.NOT if e.dtype is DType.BOOL and values[0] is not None:
            return const(not values[0], DType.BOOL)
        case _:
            folded = _absorb(e, args, values, facts) if e.dtype.is_float else None
            return new if folded is None else const(folded, e.dtype)


_AT_LOWEST = {Fn.EXP: 0.0, Fn.EXP2: 0.0, Fn.SIGMOID: 0.0, Fn.EXPM1: -1.0, Fn.TANH: -1.0}


def _absorb(e: Apply, args: tuple[Expr, ...], values: list[float | int | bool | None], facts: Facts) -> float | None:
    """The number that an infinity or a zero makes of e, whatever its other (finite) argument is."""
    if len(args) == 1:
        v = values[0]
        if e.fn is Fn.NEG and v is not None and math.isinf(v):
            return -v
        return _AT_LOWEST.get(e.fn) if v == -math.inf else None
    if len(args) != 2:
        return None
    a, b = values
    if e.fn in (Fn.ADD, Fn.SUB):
        if a is not None and math.isinf(a) and facts.absorbed(args[1], a if e.fn is Fn.ADD else -a):
            return a
        if b is not None and math.isinf(b):
            signed = b if e.fn is Fn.ADD else -b
            return signed if facts.absorbed(args[0], signed) else None
    if e.fn is Fn.MUL:
        for v, other in ((a, b), (b, a)):
            if v == 0 and (other is None or not math.isinf(other)):
                return 0.0
            if v is not None and math.isinf(v) and other is not None and other != 0 and not math.isnan(other):
                return math.copysign(math.inf, v * other)
    if e.fn is Fn.DIV and a is not None and b is not None and b != 0 and math.isfinite(b):
        return math.copysign(math.inf, a * b) if math.isinf(a) else 0.0 if a == 0 else None
    if e.fn in (Fn.MINIMUM, Fn.MAXIMUM):
        end = -math.inf if e.fn is Fn.MINIMUM else math.inf
        return end if end in (a, b) else None
    return None


# -- the tiles -------------------------------------------------------------------------------------------------------
def limits(e: Expr, truth: bool, axis: Axis) -> Iterator[Limits]:
    """The limits that make a comparison have the given truth, where they can be solved for the axis."""
    assert isinstance(e, Apply)
    a, b = (_int(x) for x in e.args)
    assert a is not None and b is not None
    match (e.fn, truth):
        case (Fn.LE, True) | (Fn.GT, False):
            yield from _solve(b - a, axis)
        case (Fn.LT, True) | (Fn.GE, False):
            yield from _solve(b - a - 1, axis)
        case (Fn.GE, True) | (Fn.LT, False):
            yield from _solve(a - b, axis)
        case (Fn.GT, True) | (Fn.LE, False):
            yield from _solve(a - b - 1, axis)
        case (Fn.EQ, True):
            yield from _solve(b - a, axis)
            yield from _solve(a - b, axis)


def _solve(d: Int, axis: Axis) -> Iterator[Limits]:
    """The limits on the axis of ``d >= 0``."""
    inside = [x for x in d.atoms() if isinstance(x, FloorDiv | Mod) and axis in x.num.axes() | x.den.axes()]
    if inside:
        yield from _solve_division(d, inside[0], axis)
        return
    k = d.coefficient(axis)
    if k is None or k.value is None or k.value == 0:
        return
    rest = d - k * as_int(axis)
    if k.value < 0:
        yield Limits(None, floordiv(rest, as_int(-k.value)))
    else:
        yield Limits(-floordiv(rest, as_int(k.value)), None)


def _solve_division(d: Int, atom: FloorDiv | Mod, axis: Axis) -> Iterator[Limits]:
    """``n // m <= e`` is ``n <= m*e + m - 1``;  ``n // m >= e`` is ``n >= m*e``."""
    if not isinstance(atom, FloorDiv) or axis in atom.den.axes():
        return
    k = next((c for m, c in d.terms if m == ((atom, 1),)), None)
    if k not in (1, -1):
        return
    e = d - k * Int(((((atom, 1),), 1),))
    if axis in e.axes():
        return
    yield from _solve(atom.num + atom.den * e if k == 1 else atom.den * e + atom.den - 1 - atom.num, axis)


def extreme(e: Int, axes: Mapping[Axis, TileAxis], highest: bool) -> Int | None:
    """A bound of e over the positions of a block, as an expression of its first and last positions."""
    total = ZERO
    for monomial, c in e.terms:
        moving = [(a, n) for a, n in monomial if not isinstance(a, Axis | FloorDiv | Mod) or _moves(a)]
        moving = [(a, n) for a, n in moving if isinstance(a, Axis | FloorDiv | Mod)]
        rest = Int(((tuple(x for x in monomial if x not in moving), c),))
        if not moving:
            total = total + rest
            continue
        rises = nonnegative(rest)
        if len(moving) > 1 or moving[0][1] != 1 or not (rises or nonnegative(-rest)):
            return None
        end = _end(moving[0][0], axes, highest is rises)
        if end is None:
            return None
        total = total + rest * end
    return total


def _moves(a: Axis | FloorDiv | Mod) -> bool:
    return bool(a.num.axes() | a.den.axes()) if isinstance(a, FloorDiv | Mod) else True


def _end(a: object, axes: Mapping[Axis, TileAxis], highest: bool) -> Int | None:
    match a:
        case Axis():
            t = axes.get(a)
            if t is None:
                return None
            if t.block is None:
                return as_int(a.size) - 1 if highest else ZERO
            return as_int(t.last if highest else t.first)
        case FloorDiv() if not a.den.axes():
            n = extreme(a.num, axes, highest)
            return None if n is None else floordiv(n, a.den)
        case Mod() if not a.den.axes():
            return a.den - 1 if highest else ZERO
        case _:
            return None


def pieces(
    p: Pass,
    axis: Axis,
    tile: int,
    axes: Mapping[Axis, TileAxis],
    within: tuple[Bound, Bound] | None,
    stages: frozenset[str],
    reach: Reach | None = None,
) -> list[Piece]:
    """The loops of a pass. ``within`` are the bounds of a segment; ``stages`` are results that the pass may load."""
    start: list[Bound] = [At(ZERO)]
    stop: list[Bound] = [At(as_int(axis.size))]
    inner_start: list[Bound] = []
    inner_stop: list[Bound] = []
    known: dict[Expr, bool] = {}
    if reach is not None:
        start.append(reach.start)
        stop.append(reach.stop)
        inner_start.append(reach.open_start)
        inner_stop.append(reach.open_stop)
        known |= reach.known
    if within is not None:
        start.append(within[0])
        stop.append(within[1])
    for c, truth in conditions(p, axis, stages):
        low, high, all_low, all_high, solved = _ends(c, truth, axis, axes)
        start += low
        stop += high
        if solved:
            known[c] = truth
            inner_start += all_low
            inner_stop += all_high
    lo = Down(_greatest(start), tile) if len(start) > 1 else start[0]
    hi = Up(_least(stop), tile)
    length = as_int(axis.size)
    divides = length.value is not None and length.value % tile == 0
    ragged = "" if divides else "the last tile, cut by the end"
    if not known:
        if divides:
            return [Piece(lo, _least(stop), {}, "", True)]
        full = Greatest((lo, Least((Down(At(length), tile), hi))))
        return [Piece(lo, full, {}, "whole tiles", True), Piece(full, _least(stop), {}, ragged, False)]
    cut = "tiles that the mask cuts" + (f", {ragged}" if ragged else "")
    out = []
    a: Bound = lo
    if inner_start:
        a = Least((Greatest((lo, Up(_greatest(inner_start), tile))), hi))
        out.append(Piece(lo, a, {}, cut, divides))
    ends = [Down(x, tile) for x in ([_least(inner_stop)] if inner_stop else [])]
    if not divides:
        ends.append(Down(At(length), tile))
    if not ends:
        return [*out, Piece(a, _least(stop), known, "tiles without a mask", True)]
    b = Greatest((a, Least((*ends, hi))))
    rest = Piece(b, hi, {}, cut if inner_stop else ragged, divides)
    return [*out, Piece(a, b, known, "tiles without a mask", True), rest]


def _ends(
    c: Expr, truth: bool, axis: Axis, axes: Mapping[Axis, TileAxis]
) -> tuple[list[Bound], list[Bound], list[Bound], list[Bound], bool]:
    """Bounds outside which the condition fails for the whole block, bounds inside which it holds for all of it."""
    parts = [_ends_of_comparison(x, t, axis, axes) for x, t in alternatives(c, truth, axis)]
    if len(parts) == 1:
        return parts[0]
    lows, highs, all_lows, all_highs, solved = zip(*parts, strict=True)
    # one of them suffices: the widest end holds, where all cut the same side
    upper, lower = all(len(x) == 1 for x in highs), all(len(x) == 1 for x in lows)
    if upper and not any(lows):
        every = [_greatest([x[0] for x in all_highs])] if all(all_highs) else []
        return [], [_greatest([x[0] for x in highs])], [], every, all(solved)
    if lower and not any(highs):
        every = [_least([x[0] for x in all_lows])] if all(all_lows) else []
        return [_least([x[0] for x in lows])], [], every, [], all(solved)
    return [], [], [], [], False


def _ends_of_comparison(
    c: Expr, truth: bool, axis: Axis, axes: Mapping[Axis, TileAxis]
) -> tuple[list[Bound], list[Bound], list[Bound], list[Bound], bool]:
    low: list[Bound] = []
    high: list[Bound] = []
    all_low: list[Bound] = []
    all_high: list[Bound] = []
    found = list(limits(c, truth, axis))
    solved = bool(found) and len(found) == (2 if isinstance(c, Apply) and c.fn is Fn.EQ else 1)
    for x in found:
        for value, is_high in ((x.low, False), (x.high, True)):
            if value is None:
                continue
            step = ONE if is_high else ZERO
            some, every = extreme(value, axes, is_high), extreme(value, axes, not is_high)
            if some is not None:
                (high if is_high else low).append(At(some + step))
            if every is None:
                solved = False
            else:
                (all_high if is_high else all_low).append(At(every + step))
    return low, high, all_low, all_high, solved


def _greatest(items: list[Bound]) -> Bound:
    return items[0] if len(items) == 1 else Greatest(tuple(items))


def _least(items: list[Bound]) -> Bound:
    return items[0] if len(items) == 1 else Least(tuple(items))


def assume(e: Expr, known: Mapping[Expr, bool]) -> Expr:
    """e with known conditions replaced, and the branches they decide taken; nothing is absorbed."""

    def leaf(x: Expr) -> Expr | None:
        if x in known:
            return const(known[x], DType.BOOL)
        return None

    replaced = transform(e, leaf)
    memo: dict[Expr, Expr] = {}

    def go(x: Expr) -> Expr:
        if x not in memo:
            match x:
                case Apply(fn=Fn.WHERE | Fn.AND | Fn.OR | Fn.NOT):
                    memo[x] = _fold_apply(x, tuple(go(a) for a in x.args), Facts(frozenset(), frozenset()))
                case Apply():
                    memo[x] = Apply(x.fn, tuple(go(a) for a in x.args), x.dtype)
                case Cast():
                    memo[x] = Cast(go(x.arg), x.dtype)
                case _:
                    memo[x] = x
        return memo[x]

    return go(replaced)
