"""Rewrites of index programs that keep their meaning and bring different spellings to one form.

Each takes a program and returns one, with a map from the names of definitions that went away to those that took their
place (``simplify`` joins the maps).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from redfuser.index.build import apply, cast, index_of, refold
from redfuser.index.expr import (
    Apply,
    Expr,
    Fn,
    Load,
    Position,
    children,
    dtype_of,
    is_infinite,
    load,
    loads,
    substitute,
    walk,
)
from redfuser.index.ints import ONE, ZERO, Axis, FloorDiv, Int, Mod, as_int, divide_exact, less
from redfuser.index.nodes import Definition, Program, Reduce, Reducer

Renamed = dict[str, str]


def simplify(p: Program) -> tuple[Program, Renamed]:
    """All of the rewrites below, in the order in which each helps the next."""
    renamed: Renamed = {}
    shifts = drop_second_shift, open_logsumexp
    for rewrite in (merge_equal, *shifts, split_off_single_elements, merge_equal, split_grouped_axes):
        p, new = rewrite(p)
        renamed = {old: new.get(name, name) for old, name in renamed.items()} | new
    return needed(p), renamed


def needed(p: Program) -> Program:
    """Without the definitions and inputs that no output reads."""
    names = {o.value for o in p.outputs}
    kept: list[Definition] = []
    for d in reversed(p.definitions):
        if d.name in names:
            kept.append(d)
            names |= {x.source for x in loads(d.body)}
    return Program(tuple(i for i in p.inputs if i.name in names), tuple(reversed(kept)), p.outputs)


def refolded(e: Expr, mapping: Mapping[Axis, Int], source: Callable[[Load], Expr | None] | None = None) -> Expr:
    """``substitute``, then every node simplified again: a predicate may have become constant."""
    moved = substitute(e, mapping, source)
    memo: dict[Expr, Expr] = {}

    def go(x: Expr) -> Expr:
        done = memo.get(x)
        if done is None:
            args = children(x)
            done = memo[x] = refold(x, tuple(go(a) for a in args)) if args else x
        return done

    return go(moved)


# -- one definition for equal ones -----------------------------------------------------------------------------------
def merge_equal(p: Program) -> tuple[Program, Renamed]:
    """a[i] = sum over l of x[i, l];  b[j] = sum over m of x[j, m]   ->   a, and b's readers read a."""
    renamed: Renamed = {}
    groups: dict[object, list[Reduce]] = {}
    outputs = {o.value for o in p.outputs}
    kept: list[Definition] = []

    def source(x: Load) -> Expr | None:
        return load(renamed[x.source], x.index, x.dtype, x.part) if x.source in renamed else None

    for d in p.definitions:
        if renamed:
            d = replace(d, body=substitute(d.body, {}, source))
        if isinstance(d, Reduce) and d.name not in outputs:
            group = groups.setdefault(_shape_key(d), [])
            twin = next((o for o in group if _same_body(o, d)), None)
            if twin is not None:
                renamed[d.name] = twin.name
                continue
            group.append(d)
        kept.append(d)
    return Program(p.inputs, tuple(kept), p.outputs), renamed


def _shape_key(d: Reduce) -> object:
    k = None if d.k is None else d.k.size
    return d.reducer, d.dtype, tuple(a.size for a in d.axes), tuple(a.size for a in d.over), k


def _same_body(a: Reduce, b: Reduce) -> bool:
    mapping = {old: as_int(new) for old, new in zip((*b.axes, *b.over), (*a.axes, *a.over), strict=True)}
    return substitute(b.body, mapping) is a.body


# -- a maximum subtracted twice --------------------------------------------------------------------------------------
def drop_second_shift(p: Program) -> tuple[Program, Renamed]:
    """m = max of x;  n = max of (x - m);  ... (x - m) - n   ->   m = max of x;  ... x - m.

    n is m - m: 0 for every finite m. In a row whose maximum is infinite, x - m is NaN at the maximum itself, so that a
    sum over the row is NaN with and without n.
    """
    maxima = {d.name: d for d in p.definitions if isinstance(d, Reduce) and d.reducer is Reducer.MAX}
    shifts = {d.name: m for d in maxima.values() if (m := _own_maximum(d, maxima)) is not None}
    if not shifts:
        return p, {}
    out: list[Definition] = []
    for d in p.definitions:
        out.append(replace(d, body=_without_second(d.body, shifts)))
    return needed(Program(p.inputs, tuple(out), p.outputs)), {}


def _own_maximum(d: Reduce, maxima: Mapping[str, Reduce]) -> str | None:
    """The name of m when d is the maximum of x - m over the axes over which m is the maximum of x."""
    match d.body:
        case Apply(fn=Fn.SUB, args=(x, Load(source=name) as m)) if name in maxima:
            first = maxima[name]
            if len(first.over) != len(d.over) or len(first.axes) != len(d.axes):
                return None
            if m.index != tuple(as_int(a) for a in d.axes):
                return None
            mapping = {a: as_int(b) for a, b in zip((*first.axes, *first.over), (*d.axes, *d.over), strict=True)}
            return name if substitute(first.body, mapping) is x else None
    return None


def _without_second(e: Expr, shifts: Mapping[str, str]) -> Expr:
    memo: dict[Expr, Expr] = {}

    def go(x: Expr) -> Expr:
        done = memo.get(x)
        if done is None:
            args = children(x)
            done = x
            if args:
                done = refold(x, tuple(go(a) for a in args))
            match done:
                case Apply(fn=Fn.SUB, args=(Apply(fn=Fn.SUB, args=(_, Load() as m)) as inner, Load() as n)):
                    if shifts.get(n.source) == m.source and n.index == m.index:
                        done = inner
            memo[x] = done
        return done

    return go(e)


# -- x - logsumexp(x) inside a sum over the same row ------------------------------------------------------------------
def open_logsumexp(p: Program) -> tuple[Program, Renamed]:
    """sum over l of f(x - (m if |m| is inf else m + log z))   ->   sum over l of f((x - m) - log z), m the max of x.

    Only inside a sum over the row of x: where m is infinite, an element of the row is NaN in both forms.
    """
    maxima = {d.name: d for d in p.definitions if isinstance(d, Reduce) and d.reducer is Reducer.MAX}
    out: list[Definition] = []
    for d in p.definitions:
        if isinstance(d, Reduce) and d.reducer is Reducer.SUM and len(d.over) == 1:
            d = replace(d, body=_opened(d.body, d.over[0], maxima))
        out.append(d)
    return Program(p.inputs, tuple(out), p.outputs), {}


def _opened(e: Expr, axis: Axis, maxima: Mapping[str, Reduce]) -> Expr:
    memo: dict[Expr, Expr] = {}

    def go(x: Expr) -> Expr:
        done = memo.get(x)
        if done is None:
            args = children(x)
            done = refold(x, tuple(go(a) for a in args)) if args else x
            match done:
                case Apply(fn=Fn.SUB, args=(y, Apply(fn=Fn.WHERE, args=(_, a, b)))):
                    for m, total in ((a, b), (b, a)):
                        if isinstance(m, Load) and _adds_log(m, total) and _is_row_maximum(m, y, axis, maxima):
                            log = children(total)[1]
                            wide = dtype_of(x)
                            done = Apply(Fn.SUB, (Apply(Fn.SUB, (y, m), wide), log), wide)
            memo[x] = done
        return done

    return go(e)


def _adds_log(m: Expr, total: Expr) -> bool:
    match total:
        case Apply(fn=Fn.ADD, args=(n, Apply(fn=Fn.LOG))):
            return n is m
        case _:
            return False


def _is_row_maximum(m: Load, y: Expr, axis: Axis, maxima: Mapping[str, Reduce]) -> bool:
    first = maxima.get(m.source)
    if first is None or len(first.over) != 1 or first.over[0].size is not axis.size:
        return False
    mapping = dict(zip(first.axes, m.index, strict=True)) | {first.over[0]: as_int(axis)}
    return substitute(first.body, mapping) is y


# -- a single element at the end of a reduced axis -------------------------------------------------------------------
_JOIN = {
    Reducer.SUM: Fn.ADD, Reducer.PROD: Fn.MUL, Reducer.MAX: Fn.MAXIMUM, Reducer.MIN: Fn.MINIMUM,
    Reducer.ANY: Fn.OR, Reducer.ALL: Fn.AND,
}  # fmt: skip


def split_off_single_elements(p: Program) -> tuple[Program, Renamed]:
    """m[i] = max over l<n+1 of (x[i, l] if l < n else y[i])   ->   n[i] = max over l<n of x[i, l]; m is max(n, y).

    That is a value appended to a reduced axis. Longer pieces stay together: they are one axis for one loop.
    """
    joined: dict[str, tuple[Reduce, tuple[Axis, ...], Expr]] = {}
    outputs = {o.value for o in p.outputs}

    def source(x: Load) -> Expr | None:
        if x.source not in joined:
            return None
        _, axes, value = joined[x.source]
        return refolded(value, dict(zip(axes, x.index, strict=True)))

    out: list[Definition] = []
    for d in p.definitions:
        d = replace(d, body=refolded(d.body, {}, source if joined else None))
        pieces = _pieces(d) if isinstance(d, Reduce) and d.name not in outputs else None
        if pieces is None or not isinstance(d, Reduce):
            out.append(d)
            continue
        body, single = pieces
        out.append(body)
        joined[d.name] = (body, d.axes, _joined(d, body, single))
    return Program(p.inputs, tuple(out), p.outputs), {}


def _joined(d: Reduce, body: Reduce, single: Expr) -> Expr:
    wide = d.dtype.accumulator if d.reducer in (Reducer.SUM, Reducer.PROD) else d.dtype.compute
    rest = load(body.name, tuple(as_int(a) for a in body.axes), body.dtype)
    return cast(apply(_JOIN[d.reducer], (rest, cast(single, wide)), wide), d.dtype)


def _pieces(d: Reduce) -> tuple[Reduce, Expr] | None:
    """The reduction without its first or last element, and that element, when a predicate sets it apart."""
    if d.reducer not in _JOIN or len(d.over) != 1:
        return None
    (axis,) = d.over
    for point in _breakpoints(d.body, axis):
        rest = None
        if axis.size - point is ONE and less(ZERO, point):
            rest, begin, alone = Axis(axis.name, point), ZERO, point
        elif point is ONE and less(ONE, axis.size):
            rest, begin, alone = Axis(axis.name, axis.size - 1), ONE, ZERO
        if rest is not None:
            body = refolded(d.body, {axis: as_int(rest) + begin})
            wide = d.dtype.accumulator if d.reducer in (Reducer.SUM, Reducer.PROD) else d.dtype
            return replace(d, over=(rest,), body=body, dtype=wide), refolded(d.body, {axis: alone})
    return None


def _breakpoints(e: Expr, axis: Axis) -> Iterator[Int]:
    """Positions p with a choice by ``axis < p`` that no other axis enters. A mask is none: it chooses an infinity."""
    for x in walk(e):
        match x:
            case Apply(fn=Fn.WHERE, args=(Apply(fn=Fn.LT | Fn.LE as fn, args=(a, b)), yes, no)):
                i, j = index_of(a), index_of(b)
                if i is None or j is None or is_infinite(yes) or is_infinite(no):
                    continue
                # j - i > 0 (or >= 0) is  axis < point
                point = j - i + as_int(axis) + (1 if fn is Fn.LE else 0)
                if (i - j).coefficient(axis) is not ONE:
                    continue
                if not point.axes() and not any(True for _ in point.gathers()):
                    yield point


# -- an axis that is really two --------------------------------------------------------------------------------------
def split_grouped_axes(p: Program) -> tuple[Program, Renamed]:
    """s[h, i] = sum of q[h, i, l] * k[h // 4, l]   ->   s[u, g, i] = sum of q[4*u + g, i, l] * k[u, l]

    so that what several rows share, and dimensions flattened into one, are axes of their own.
    """
    split: dict[str, list[tuple[int, Int]]] = {}
    outputs = {o.value for o in p.outputs}

    def source(x: Load) -> Expr | None:
        index = list(x.index)
        for place, by in split[x.source]:
            index[place : place + 1] = [index[place] // by, index[place] % by]
        return load(x.source, tuple(index), x.dtype, x.part)

    out: list[Definition] = []
    for d in p.definitions:
        if any(x.source in split for x in loads(d.body)):
            d = replace(d, body=substitute(d.body, {}, lambda x: source(x) if x.source in split else None))
        if isinstance(d, Reduce) and d.name not in outputs:
            d, cuts = _split_axes(d)
            if cuts:
                split[d.name] = cuts
        out.append(d)
    return Program(p.inputs, tuple(out), p.outputs), {}


def _split_axes(d: Reduce) -> tuple[Reduce, list[tuple[int, Int]]]:
    cuts: list[tuple[int, Int]] = []
    for _ in range(8):
        found = next(((n, by) for n, a in enumerate(d.axes) if (by := _group_size(d.body, a)) is not None), None)
        if found is None:
            break
        place, by = found
        axis = d.axes[place]
        outer_size = divide_exact(axis.size, by)
        assert outer_size is not None
        outer, inner = Axis(axis.name, outer_size), Axis(f"{axis.name}g", by)
        body = refolded(d.body, {axis: as_int(outer) * by + as_int(inner)})
        d = replace(d, axes=(*d.axes[:place], outer, inner, *d.axes[place + 1 :]), body=body)
        cuts.append((place, by))
    return d, cuts


def _group_size(e: Expr, axis: Axis) -> Int | None:
    """The smallest g with ``axis // g`` or ``axis % g`` in an index of a load, where g divides the axis's length."""
    found = {
        a.den
        for i in _indices(e)
        for a in _divisions(i)
        if a.num.axis is axis and a.den is not axis.size and divide_exact(axis.size, a.den) is not None
    }
    return min(found, key=lambda g: (g.value is None, g.value or 0, g.key)) if found else None


def _indices(e: Expr) -> Iterator[Int]:
    for x in walk(e):
        if isinstance(x, Load):
            yield from x.index
        elif isinstance(x, Position):
            yield x.index


def _divisions(i: Int) -> Iterator[FloorDiv | Mod]:
    for a in i.atoms():
        if isinstance(a, FloorDiv | Mod):
            yield a
            yield from _divisions(a.num)
