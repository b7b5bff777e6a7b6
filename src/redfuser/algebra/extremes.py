"""Maxima, minima, top-k, any, all and positions: ORDER in place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from redfuser.algebra import build
from redfuser.algebra.groups import Refused
from redfuser.algebra.nodes import Read, Stage, Treatment
from redfuser.algebra.order import Mask, Ordered, Shape, guarded, hole, ordered, refused
from redfuser.algebra.state import State
from redfuser.algebra.terms import NONNEG, D
from redfuser.index.expr import (
    Apply,
    Const,
    DType,
    Expr,
    Fn,
    Load,
    Part,
    Ref,
    children,
    const,
    dtype_of,
    position,
    ref,
    transform,
)
from redfuser.index.ints import as_int
from redfuser.index.nodes import Reducer
from redfuser.index.refusals import RefusalKind

_OPPOSITE = {
    Reducer.MAX: Reducer.MIN,
    Reducer.MIN: Reducer.MAX,
    Reducer.ARGMAX: Reducer.ARGMIN,
    Reducer.ARGMIN: Reducer.ARGMAX,
}
_AS_ORDER = {Reducer.ANY: Reducer.MAX, Reducer.ALL: Reducer.MIN}


def extreme(s: State, stage: Stage) -> None:
    body, reducer = stage.body, stage.reducer
    moving = bool(s.reader.kind(body) & D)
    if reducer in _AS_ORDER and not moving:
        body = body if dtype_of(body) is DType.BOOL else Apply(Fn.NE, (body, const(0, dtype_of(body))), DType.BOOL)
        _read_keys(s, stage, s.key(stage, stage.name, reducer, body, "result"))
        return
    if not moving:
        _read_keys(s, stage, s.key(stage, stage.name, reducer, body, "result", stage.k))
        _learn(s, stage)
        return
    m = _logic(s, stage) if reducer in _AS_ORDER else ordered(s.separator, body)
    largest = reducer in (Reducer.MAX, Reducer.ARGMAX, Reducer.TOPK, Reducer.ANY)
    if m.weak and reducer.has_index:
        raise Refused(
            RefusalKind.ORDER,
            f"different elements give equal values of {s.separator.name(body)}, and ties must go to the "
            "lowest position",
            "rank the elements before they are rounded or clamped",
        )
    if m.mask is not None:
        m = _settled(s, stage, m, m.mask, largest)
    s.notes[stage.name].treatments.add(Treatment.ORDER)
    s.rule(stage, "order", f"{reducer} of {s.separator.name(body)}", f"h({reducer} of {s.separator.name(m.key)})",
           f"h is {m.shape.value} in the key")  # fmt: skip
    order = _AS_ORDER.get(reducer, reducer)
    if m.shape in (Shape.UP, Shape.DOWN):
        if m.shape is Shape.DOWN and reducer.is_list:
            raw = build.neg(m.key)
            lost = None if m.lost is None else build.neg(m.lost)
            m = Ordered(raw, m.apply(build.neg(ref("?", dtype_of(raw)))), Shape.UP, m.weak, lost=lost)
        chosen = order if m.shape is Shape.UP else _OPPOSITE[order]
        key = _nan_free(stage, m.key, chosen)
        acc = s.key(stage, stage.name, chosen, key, "extreme key", stage.k)
        first = None
        if stage.reducer.has_index and m.lost is not None and _results(s, m.read):
            role = "what is kept, where a result is NaN"
            first = s.key(stage, f"{stage.name}_first", chosen, m.lost, role, stage.k)
        _read_keys(s, stage, acc, m, first)
    else:
        if reducer.has_index or (m.shape is Shape.CONVEX and not largest) or (m.shape is Shape.CONCAVE and largest):
            raise refused(s.separator, body)
        high = s.key(stage, f"{stage.name}_hi", Reducer.MAX, _nan_free(stage, m.key, Reducer.MAX), "largest key")
        low = s.key(stage, f"{stage.name}_lo", Reducer.MIN, _nan_free(stage, m.key, Reducer.MIN), "smallest key")
        _read_both(s, stage, m, high, low, largest)
    _learn(s, stage)


def _settled(s: State, stage: Stage, m: Ordered, mask: Mask, largest: bool) -> Ordered:
    """Whether the extreme key is a masked one's: by its value, or exactly, by whether any element is kept (or masked)."""
    if stage.reducer.has_index:  # what is kept goes before what is masked, so its keys stop short of theirs
        m = replace(m, key=_within_reach(m.key, mask.far))
    if stage.reducer.has_index or m.shape not in (Shape.UP, Shape.DOWN):
        return m.settled(build.equal(hole(dtype_of(m.key)), mask.far))
    high = largest == (m.shape is Shape.UP)  # the largest key is the extreme one
    last = isinstance(mask.far, Const) and (mask.far.value == float("-inf")) == high
    if last:
        kept = s.key(stage, f"{stage.name}_kept", Reducer.ANY, mask.keep, "whether any element is kept")
        return m.settled(build.negate(kept))
    return m.settled(
        s.key(stage, f"{stage.name}_masked", Reducer.ANY, build.negate(mask.keep), "whether any element is masked")
    )


def _within_reach(key: Expr, far: Expr) -> Expr:
    """``where(keep, key, far)`` with an infinite key of a kept element as the number next to it."""
    assert isinstance(key, Apply) and isinstance(far, Const)
    c, a, b = key.args
    low = far.value == float("-inf")
    fn = Fn.MAXIMUM if low else Fn.MINIMUM
    limit = _limit(dtype_of(key), low)
    return build.where(c, *(build.binary(fn, x, limit) if x is not far else x for x in (a, b)))


def _limit(dtype: DType, low: bool) -> Const:
    """The number next to an infinity."""
    end = np.finfo(np.float64 if dtype is DType.FLOAT64 else np.float32)
    return const(float(end.min if low else end.max), dtype.compute)


def _logic(s: State, stage: Stage) -> Ordered:
    body = stage.body
    if isinstance(body, Apply) and body.fn is (Fn.AND if stage.reducer is Reducer.ANY else Fn.OR):
        mask, inner = body.args if not s.reader.kind(body.args[0]) & D else (body.args[1], body.args[0])
        if not s.reader.kind(mask) & D:
            m = ordered(s.separator, inner)
            if m.shape in (Shape.UP, Shape.DOWN) and dtype_of(m.key).is_float:
                up = (m.shape is Shape.UP) == (stage.reducer is Reducer.ANY)
                far = const(float("-inf") if up else float("inf"), dtype_of(m.key))
                key = build.where(mask, m.key, far) if stage.reducer is Reducer.ANY else build.where(mask, far, m.key)
                return Ordered(key, m.read, m.shape, True)
    return ordered(s.separator, body)


def _nan_free(stage: Stage, key: Expr, chosen: Reducer) -> Expr:
    """For any: a comparison with NaN is False, so a NaN key is the one that decides nothing. (all: NaN
    decides, as it should.)
    """
    if stage.reducer is not Reducer.ANY or not dtype_of(key).is_float:
        return key
    far = const(float("-inf") if chosen is Reducer.MAX else float("inf"), dtype_of(key))
    return build.where(Apply(Fn.ISNAN, (key,), DType.BOOL), far, key)


def _read_keys(s: State, stage: Stage, acc: Ref, m: Ordered | None = None, first: Ref | None = None) -> None:
    """``first`` takes the place of the keys in a row whose kept elements are NaN."""
    key = (stage.name, Part.VALUE)
    source = acc if m is None else m.apply(acc)
    lost = None if m is None or not stage.reducer.has_index else _all_nan(s, m, acc, first)
    last = source if m is None or first is None or lost is None else m.apply(build.where(lost, first, acc))
    inner, raw = s.inner_expr(source), _raw_expr(s, last)
    s.inner_exprs[key] = build.cast(inner, stage.dtype)
    s.raw_exprs[key] = build.cast(raw, stage.dtype)
    s.reader.values[key] = s.reader.term(source)
    index: Expr | None = None
    if stage.reducer.has_index:
        index = ref(acc.name, DType.INT64, part=Part.INDEX)
        if lost is not None:
            instead = _lowest(stage) if first is None else ref(first.name, DType.INT64, part=Part.INDEX)
            index = build.where(lost, instead, index)
        at = (stage.name, Part.INDEX)
        s.inner_exprs[at] = s.raw_exprs[at] = index
        s.reader.values[at] = s.reader.opaque(index, D, NONNEG, f"{acc.name}.index")
    s.reads.append(Read(stage.name, s.raw_exprs[key], index))


def _all_nan(s: State, m: Ordered, acc: Ref, first: Ref | None) -> Expr | None:
    """The test that a result in the map is NaN: then so is every element that is kept, though the keys differ.

    So it is too where every key is infinite (or the number next to it, see ``_within_reach``) and is NaN in the map, as
    -inf less a maximum of -inf.
    """
    tests: list[Expr] = [_nan(x) for x in dict.fromkeys(_raw_expr(s, x) for x in _results(s, m.read))]
    if first is not None and tests:
        smallest = s.accumulators[s.reader.term(acc)].reducer in (Reducer.ARGMIN, Reducer.BOTTOMK)
        worst = Apply(Fn.GE if smallest else Fn.LE, (acc, _limit(dtype_of(acc), not smallest)), DType.BOOL)
        end = const(float("inf") if smallest else float("-inf"), dtype_of(acc))
        value = _raw_expr(s, replace(m, read=m.branch(True)).apply(end))
        tests.append(build.logic(Fn.AND, worst, _nan(value)))
    out: Expr | None = None
    for t in tests:
        out = t if out is None else build.logic(Fn.OR, out, t)
    return out


def _results(s: State, e: Expr) -> list[Expr]:
    """The earlier results whose NaN makes e NaN, wherever it is not the value of a masked element."""
    if isinstance(e, Load):
        return [e] if s.reader.is_state(e) and e.dtype.is_float else []
    if (parts := guarded(e)) is not None:
        return _results(s, parts[0])
    if isinstance(e, Apply) and (e.fn is Fn.WHERE or e.dtype is DType.BOOL):
        return []
    return [x for a in children(e) for x in _results(s, a)]


def _nan(x: Expr) -> Expr:
    return Apply(Fn.ISNAN, (x,), DType.BOOL)


def _lowest(stage: Stage) -> Expr:
    """The positions of equal elements: the first ones, in order."""
    return const(0, DType.INT64) if stage.k is None else position(as_int(stage.k))


def _read_both(s: State, stage: Stage, m: Ordered, high: Ref, low: Ref, largest: bool) -> None:
    a, b = m.apply(high), m.apply(low)
    if dtype_of(a) is DType.BOOL:
        source = build.logic(Fn.OR if largest else Fn.AND, a, b)
    else:
        source = build.binary(Fn.MAXIMUM if largest else Fn.MINIMUM, a, b)
    key = (stage.name, Part.VALUE)
    s.inner_exprs[key] = build.cast(s.inner_expr(source), stage.dtype)
    s.raw_exprs[key] = build.cast(_raw_expr(s, source), stage.dtype)
    s.reader.values[key] = s.reader.term(source)
    s.reads.append(Read(stage.name, s.raw_exprs[key], None))


def _raw_expr(s: State, e: Expr) -> Expr:
    return transform(e, s._raw_leaf)


def _learn(s: State, stage: Stage) -> None:
    """A maximum is at least each element."""
    if stage.reducer not in (Reducer.MAX, Reducer.MIN, Reducer.ARGMAX, Reducer.ARGMIN, Reducer.LOGSUMEXP):
        return
    d, f = s.reader.values[(stage.name, Part.VALUE)], s.reader.term(stage.body)
    if stage.reducer in (Reducer.MIN, Reducer.ARGMIN):
        s.facts.learn(s.t.sub(f, d))
        return
    s.facts.learn(s.t.sub(d, f))
    if f.op == "abs":
        s.facts.learn(s.t.sub(d, f.args[0]))
        s.facts.learn(s.t.add(d, f.args[0]))
