"""Evaluation for the checker: expressions, reducers, and a derived loop over arbitrary segments. Float64 as a rule.

It shares nothing with the derivation. Arrays have one dimension for the regimes, one per kept axis, and the problem's
axis last; a top-k list takes the last dimension's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from redfuser.algebra.nodes import Accumulator, Pass
from redfuser.index.eval import BINARY, COMPARE, LOGICAL, UNARY, logsumexp
from redfuser.index.expr import Apply, Cast, Const, DType, Expr, Fn, Load, Part, Position, Ref, dtype_of
from redfuser.index.ints import Atom, Axis, FloorDiv, Int, Mod, Size
from redfuser.index.nodes import Reducer

Array = npt.NDArray[Any]  # of the grid's real type, or of bool
Indexed = tuple[Array, Array | None]  # values, and positions where the reducer has them
Values = Mapping[tuple[str, Part], Array]


@dataclass(slots=True)
class Grid:
    """Where evaluation takes place: coordinates of every axis, lengths of every symbol, the data of every load."""

    axis: Axis
    length: int
    dims: dict[Axis, int]  # kept axis -> dimension (1, 2, ...)
    coordinates: dict[Axis, Array]
    symbol: int
    data: dict[Load, Array]
    lax: bool  # roundings count as the identity
    real: type[np.float64] | type[np.float32] = np.float64  # what to compute in
    rank: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.rank = len(self.dims) + 2

    def along(self, axis: Axis, span: slice) -> Array:
        if axis is self.axis:
            return np.arange(self.length, dtype=np.float64)[span].reshape((1,) * (self.rank - 1) + (-1,))
        if axis not in self.dims:  # the slots of a list
            return np.arange(self.slots(axis), dtype=np.float64).reshape((1,) * (self.rank - 1) + (-1,))
        shape = [1] * self.rank
        shape[self.dims[axis]] = -1
        return self.coordinates[axis].reshape(shape)

    def slots(self, k: Axis) -> int:
        """The length of a list."""
        return min(k.size.value or 2, self.length)

    def integer(self, e: Int, span: slice) -> Array:
        total: Array = np.zeros((1,) * self.rank)
        for monomial, c in e.terms:
            term: Array = np.full((1,) * self.rank, float(c))
            for atom, n in monomial:
                term = term * self._atom(atom, span) ** n
            total = total + term
        return total

    def _atom(self, a: Atom, span: slice) -> Array:
        match a:
            case Axis():
                return self.along(a, span)
            case Size():
                return np.full((1,) * self.rank, float(self.symbol))
            case FloorDiv():
                return np.asarray(np.floor_divide(self.integer(a.num, span), self.integer(a.den, span)))
            case Mod():
                return np.asarray(np.mod(self.integer(a.num, span), self.integer(a.den, span)))
            case _:
                return np.zeros((1,) * self.rank)


def _truth(a: Array) -> Array:
    return a if a.dtype == np.bool_ else np.asarray(a != 0)


_ROUND = (Fn.FLOOR, Fn.CEIL, Fn.ROUND, Fn.TRUNC)


@dataclass(slots=True)
class Evaluator:
    """Evaluates expressions on a span of the axis. ``overflow`` collects where finite values made a non-finite one."""

    grid: Grid
    span: slice
    results: Values
    new: Values = field(default_factory=dict)
    old: Values = field(default_factory=dict)
    overflow: list[Array] | None = None
    memo: dict[Expr, Array] = field(default_factory=dict)

    def __call__(self, e: Expr) -> Array:
        out = self.memo.get(e)
        if out is None:
            out = self.memo[e] = self._value(e)
        return out

    def _value(self, e: Expr) -> Array:
        match e:
            case Const():
                return np.full(
                    (1,) * self.grid.rank, e.value, dtype=np.bool_ if e.dtype is DType.BOOL else self.grid.real
                )
            case Position():
                return self.grid.integer(e.index, self.span).astype(self.grid.real)
            case Ref():
                return (self.old if e.old else self.new)[(e.name, e.part)]
            case Load():
                if (e.source, e.part) in self.results and e not in self.grid.data:
                    return self.results[(e.source, e.part)]
                data = self.grid.data[e]
                return data[..., self.span] if data.shape[-1] > 1 else data
            case Cast():
                return self._cast(e)
            case Apply():
                args = [self(a) for a in e.args]
                out = self._apply(e, args)
                if self.overflow is not None:
                    self._watch(e, args, out)
                return out

    def _cast(self, e: Cast) -> Array:
        a = self(e.arg)
        if e.dtype is DType.BOOL:
            return np.asarray(_truth(a))
        if a.dtype == np.bool_:
            return a.astype(self.grid.real)
        if not e.dtype.is_float and dtype_of(e.arg).is_float and not self.grid.lax:
            return np.asarray(np.trunc(a))
        return a

    def _apply(self, e: Apply, a: list[Array]) -> Array:
        if e.fn is Fn.WHERE:
            return np.where(_truth(a[0]), a[1], a[2])
        if e.fn in LOGICAL:
            return np.asarray(LOGICAL[e.fn](*map(_truth, a)))
        if e.fn in _ROUND and self.grid.lax:
            return a[0]
        a = [x.astype(self.grid.real) if x.dtype == np.bool_ else x for x in a]
        if e.fn in COMPARE:
            return np.asarray(COMPARE[e.fn](*a))
        out = np.asarray(UNARY[e.fn](a[0]) if len(a) == 1 else BINARY[e.fn](*a))
        return out if out.dtype == np.bool_ else out.astype(self.grid.real, copy=False)

    def _watch(self, e: Apply, args: list[Array], out: Array) -> None:
        """Overflow of finite values, and a zero weight times a non-finite value: the two exceptions of the contract."""
        if e.fn not in (Fn.EXP, Fn.EXP2, Fn.EXPM1, Fn.MUL, Fn.ADD, Fn.SUB, Fn.POW, Fn.DIV) or out.dtype == np.bool_:
            return
        if e.fn in (
            Fn.EXP,
            Fn.EXP2,
        ):  # every exponential of a row underflowed: an exponential without a max, from below
            lost = np.all(out == 0, axis=-1, keepdims=True) & np.any(np.isfinite(args[0]), axis=-1, keepdims=True)
            if lost.any() and self.overflow is not None:
                self.overflow.append(lost)
        bad = ~np.isfinite(out)
        if not bad.any() or self.overflow is None:
            return
        fine = np.ones((1,) * self.grid.rank, dtype=np.bool_)
        for a in args:
            fine = fine & np.isfinite(a)
        if e.fn is Fn.MUL:
            fine = fine | (args[0] == 0) | (args[1] == 0)
        if e.fn is Fn.DIV:
            fine = np.isinf(args[0]) & np.isinf(args[1])
        self.overflow.append(np.any(bad & fine, axis=-1, keepdims=True))


# -- reducers --------------------------------------------------------------------------------------------------------
def identity(r: Reducer, k: int, dtype: DType, grid: Grid) -> Indexed:
    shape = (1,) * (grid.rank - 1) + (k if r.is_list else 1,)
    kind = np.bool_ if r in (Reducer.ANY, Reducer.ALL) else grid.real
    return np.full(shape, r.identity(dtype).value, kind), (np.full(shape, np.inf) if r.has_index else None)


def _ranked(v: Array, i: Array, k: int, r: Reducer) -> Indexed:
    """The first k by value (NaN before all, or for BOTTOMK after all), ties by position."""
    key = v if r in (Reducer.ARGMIN, Reducer.BOTTOMK) else -v
    lost = np.isnan(key)
    late = lost if r is Reducer.BOTTOMK else ~lost
    order = np.lexsort((i, np.where(lost, 0.0, key), late), axis=-1)[..., :k]
    return np.take_along_axis(v, order, -1), np.take_along_axis(i, order, -1)


def reduce(r: Reducer, parts: list[Indexed], k: int) -> Indexed:
    """All parts, each with the axis last, as one value."""
    shape = np.broadcast_shapes(*[p[0].shape[:-1] for p in parts])
    v = np.concatenate([np.broadcast_to(p[0], (*shape, p[0].shape[-1])) for p in parts], -1)
    if v.dtype == np.bool_ and r not in (Reducer.ANY, Reducer.ALL):
        v = v.astype(np.float64)
    match r:
        case Reducer.SUM:
            return np.asarray(np.sum(v, -1, keepdims=True)), None
        case Reducer.PROD:
            return np.asarray(np.prod(v, -1, keepdims=True)), None
        case Reducer.MAX:
            return np.asarray(np.max(v, -1, keepdims=True)), None
        case Reducer.MIN:
            return np.asarray(np.min(v, -1, keepdims=True)), None
        case Reducer.ANY:
            return np.asarray(np.any(_truth(v), -1, keepdims=True)), None
        case Reducer.ALL:
            return np.asarray(np.all(_truth(v), -1, keepdims=True)), None
        case Reducer.LOGSUMEXP:
            return np.asarray(logsumexp(v)[..., None], dtype=v.dtype), None
    at = [np.broadcast_to(p[1], (*shape, p[1].shape[-1])) for p in parts if p[1] is not None]
    return _ranked(v, np.concatenate(at, -1), k if r.is_list else 1, r)


# -- the derived loop ------------------------------------------------------------------------------------------------
State = dict[tuple[str, Part], Array]


@dataclass(slots=True)
class Loop:
    """One pass, run on segments of the axis."""

    grid: Grid
    done: Pass
    results: Values
    sizes: Mapping[str, int]  # top-k accumulator -> k

    def start(self) -> State:
        state: State = {}
        for s in self.done.steps:
            if isinstance(s, Accumulator):
                self._put(state, s.name, identity(s.reducer, self.sizes.get(s.name, 1), s.dtype, self.grid))
            else:
                state[(s.name, Part.VALUE)] = self._state_value(s.value, state, {})
        return state

    def update(self, before: State, span: slice) -> State:
        after: State = {}
        tile = Evaluator(self.grid, span, self.results, after, before)
        for s in self.done.steps:
            if not isinstance(s, Accumulator):
                after[(s.name, Part.VALUE)] = self._state_value(s.value, after, before)
                tile.memo.clear()
                continue
            parts = [self._corrected(s, after, before)]
            if span.stop > span.start:
                e = tile(s.element)
                width = span.stop - span.start
                e = np.broadcast_to(e, (*e.shape[:-1], width))
                at = None
                if s.reducer.has_index:
                    at = np.broadcast_to(np.arange(span.start, span.stop, dtype=np.float64), e.shape)
                parts.append((e, at))
            self._put(after, s.name, reduce(s.reducer, parts, self.sizes.get(s.name, 1)))
            tile.memo.clear()
        return after

    def merge(self, a: State, b: State) -> State:
        after: State = {}
        for s in self.done.steps:
            if isinstance(s, Accumulator):
                parts = [self._corrected(s, after, x) for x in (a, b)]
                self._put(after, s.name, reduce(s.reducer, parts, self.sizes.get(s.name, 1)))
            else:
                after[(s.name, Part.VALUE)] = self._state_value(s.value, after, a)
        return after

    def read(self, state: State) -> State:
        out: State = {}
        for r in self.done.reads:
            out[(r.stage, Part.VALUE)] = self._state_value(r.value, state, {})
            if r.index is not None:
                out[(r.stage, Part.INDEX)] = self._state_value(r.index, state, {})
        return out

    def _corrected(self, s: Accumulator, after: State, before: State) -> Indexed:
        at = before.get((s.name, Part.INDEX))
        if s.correction is None:
            return before[(s.name, Part.VALUE)], at
        return self._state_value(s.correction, after, before), at

    def _state_value(self, e: Expr, new: State, old: State) -> Array:
        return Evaluator(self.grid, slice(0, 0), self.results, new, old)(e)

    def _put(self, state: State, name: str, x: Indexed) -> None:
        state[(name, Part.VALUE)] = x[0]
        if x[1] is not None:
            state[(name, Part.INDEX)] = x[1]
