"""The rules a tile program keeps: every name is defined once in its scope before it is used, and the dtype and the axes
of every operation follow from its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from redfuser.index.expr import Const, DType, Expr, Load, Position, Ref, dtype_of, walk
from redfuser.index.ints import Axis, Int
from redfuser.tile.nodes import (
    Assign,
    At,
    Bound,
    Combine,
    Correct,
    Declare,
    Dot,
    Down,
    Greatest,
    Guard,
    Highest,
    Kernel,
    Kind,
    Lanes,
    Least,
    Loop,
    Lowest,
    Map,
    Program,
    Read,
    Reduce,
    Rename,
    Role,
    Select,
    SelectMerge,
    Statement,
    Store,
    Tensor,
    Up,
    Value,
    outputs_of,
)
from redfuser.tile.spans import index_axes
from redfuser.tile.uses import bound_values, every, operands


class InvalidTileProgram(Exception):
    """An internal error: a tile program breaks a rule. The text lists every break."""


@dataclass(slots=True)
class _Scope:
    """What is in scope at a place of a kernel."""

    tensors: Mapping[str, Tensor]
    axes: frozenset[Axis]
    scalars: frozenset[Axis]
    lanes: Lanes | None
    values: dict[str, Value] = field(default_factory=dict)
    states: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def inner(self, axis: Axis, scalars: frozenset[Axis]) -> _Scope:
        return replace(self, axes=self.axes | {axis}, scalars=self.scalars | scalars, values=dict(self.values))

    def met(self, axes: frozenset[Axis]) -> frozenset[Axis]:
        return axes if self.lanes is None else self.lanes.met(axes)

    def dealt(self, v: Value) -> bool:
        return self.lanes is not None and bool(v.axes & {self.lanes.axis, self.lanes.of})

    @property
    def lane(self) -> frozenset[Axis]:
        return frozenset() if self.lanes is None else frozenset((self.lanes.axis,))


def problems(p: Program) -> Iterator[str]:
    """Each rule broken, as a sentence."""
    names = [t.name for t in p.tensors]
    if len(set(names)) != len(names):
        yield "two tensors have the same name"
    tensors = {t.name: t for t in p.tensors}
    written: set[str] = set()
    for k in p.kernels:
        for text in _kernel(k, tensors, written):
            yield f"{k.name}: {text}"
    for t in p.tensors:
        if t.kind is Kind.OUTPUT and t.name not in written:
            yield f"output {t.name} is never stored"


def _kernel(k: Kernel, tensors: Mapping[str, Tensor], written: set[str]) -> Iterator[str]:
    axes = [t.axis for t in k.axes]
    if len(set(axes)) != len(axes):
        yield "an axis is listed twice"
    for t in k.grid:
        if t.block is None or t.block < 1:
            yield f"the grid axis {t.axis.name} needs a block"
    looped = {s.axis for s in every(k.body) if isinstance(s, Loop)}
    if looped & {t.axis for t in k.grid}:
        yield "an axis of the grid is looped over"
    tiled = {t.axis for t in k.inside if t.block is not None}
    if tiled - looped:
        yield f"the tiled axes {sorted(a.name for a in tiled - looped)} have no loop"
    fixed = frozenset(axes) - tiled
    scalars = frozenset(a for t in k.axes if t.axis in fixed for a in (t.first, t.last))
    available = {n: t for n, t in tensors.items() if t.kind is Kind.INPUT or n in written}
    yield from _lanes(k, looped)
    scope = _Scope(available, fixed, scalars, k.lanes)
    yield from _block(k.body, k, scope, tensors)
    written |= scope.written


def _lanes(k: Kernel, looped: set[Axis]) -> Iterator[str]:
    found = [t for t in k.axes if t.role is Role.LANE]
    if k.lanes is None:
        if found:
            yield f"{found[0].axis.name} has lanes of no axis"
        return
    if [t.axis for t in found] != [k.lanes.axis] or found[0] not in k.inside or found[0].block is not None:
        yield f"the lanes {k.lanes.axis.name} are not one whole axis of the tile"
    if k.lanes.of not in looped or k.lanes.run < 1:
        yield f"{k.lanes.of.name} cannot be dealt to lanes, {k.lanes.run} positions at a time"


def _block(body: tuple[Statement, ...], k: Kernel, scope: _Scope, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    for s in body:
        match s:
            case Loop():
                yield from _loop(s, k, scope, tensors)
            case Store():
                yield from _store(s, scope, tensors)
            case Assign():
                yield from _assign(s, scope)
            case _:
                yield from _operation(s, scope)
        for v in outputs_of(s):
            if v.name in scope.values:
                yield f"{v.name} is defined twice"
            loose = v.axes - scope.axes
            if loose:
                yield f"{v.name} spans {_names(loose)}, which are not in scope"
            scope.values[v.name] = v
            if isinstance(s, Declare):
                scope.states.add(v.name)


def _loop(s: Loop, k: Kernel, scope: _Scope, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    t = next((t for t in k.inside if t.axis is s.axis), None)
    if t is None:
        yield f"the loop's axis {s.axis.name} is not an axis of the kernel"
        return
    if t.block != s.tile:
        yield f"the loop over {s.axis.name} has tiles of {s.tile}, its axis of {t.block}"
    if s.axis in scope.axes:
        yield f"{s.axis.name} is looped over twice at once"
    for b in (s.start, s.stop):
        for i in _bound_ints(b):
            loose = i.axes() - scope.scalars
            if loose:
                yield f"a bound of the loop over {s.axis.name} depends on {_names(loose)}"
        for name in bound_values(b):
            v = scope.values.get(name)
            if v is None or v.dtype not in (DType.INT32, DType.INT64):
                yield f"a bound of the loop over {s.axis.name} reads {name}, which is no integer computed before it"
    yield from _block(s.body, k, scope.inner(s.axis, frozenset((t.first, t.last))), tensors)


def _bound_ints(b: Bound) -> Iterator[Int]:
    match b:
        case At():
            yield b.index
        case Down() | Up():
            yield from _bound_ints(b.arg)
        case Least() | Greatest():
            for x in b.args:
                yield from _bound_ints(x)
        case Lowest() | Highest():
            return


def _store(s: Store, scope: _Scope, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    t, v = tensors.get(s.tensor), scope.values.get(s.value)
    if t is None or t.kind is Kind.INPUT:
        yield f"{s.tensor} cannot be stored to"
        return
    scope.written.add(s.tensor)
    if v is None:
        yield f"{s.value} is stored before it is computed"
        return
    if v.dtype is not t.dtype:
        yield f"{s.value} is {v.dtype.value}, stored to {t.name} of {t.dtype.value}"
    if len(s.index) != len(t.shape):
        yield f"{t.name} has {len(t.shape)} axes, stored with {len(s.index)} indices"
    if scope.lane & (v.axes | frozenset(s.axes)):
        yield f"{s.value} is stored to {t.name} lane by lane; the lanes must be joined before"
        return
    if not v.axes <= frozenset(s.axes):
        yield f"{s.value} spans {_names(v.axes - frozenset(s.axes))}, which the store to {t.name} does not"
    if not frozenset(s.axes) <= scope.axes:
        yield f"the store to {t.name} runs over {_names(frozenset(s.axes) - scope.axes)}, which are not in scope"
    for i in s.index:
        if not index_axes(i, scope.values) <= frozenset(s.axes) | scope.scalars:
            yield f"the index of the store to {t.name} has axes that it does not run over"


def _assign(s: Assign, scope: _Scope) -> Iterator[str]:
    state, v = scope.values.get(s.state), scope.values.get(s.value)
    if state is None or s.state not in scope.states:
        yield f"{s.state} is assigned, but is not running state"
    elif v is None:
        yield f"{s.value} is assigned to {s.state} before it is computed"
    elif v.dtype is not state.dtype:
        yield f"{s.value} is {v.dtype.value}, assigned to {s.state} of {state.dtype.value}"
    elif not v.axes <= state.axes:
        yield f"{s.value} spans {_names(v.axes - state.axes)}, which the state {s.state} does not"


def _operation(s: Statement, scope: _Scope) -> Iterator[str]:
    names = operands(s)
    missing = [n for n in (*names, *([s.state] if isinstance(s, Correct) else [])) if n not in scope.values]
    if missing:
        yield f"{', '.join(missing)} is used before it is computed"
        return
    yield from _typed(s, [scope.values[n] for n in names], scope)


def _typed(s: Statement, args: list[Value], scope: _Scope) -> Iterator[str]:
    if isinstance(s, Dot | Select | SelectMerge) and any(scope.dealt(v) for v in args):
        yield f"{s.out.name} has no form in lanes"
    match s:
        case Read():
            yield from _read(s, scope)
        case Map() | Correct():
            yield from _same(s.out, dtype_of(s.expr), scope.met(expr_axes(s.expr, scope.values, scope.scalars)))
            for x in walk(s.expr):
                if isinstance(x, Load):
                    yield f"{s.out.name} loads {x.source}; a read must be of its own"
                if isinstance(x, Ref) and x.dtype is not scope.values[x.name].dtype:
                    yield f"{s.out.name} uses {x.name} as {x.dtype.value}, which it is not"
        case Guard():
            yield from _same(s.out, args[0].dtype, scope.met(args[0].axes | {s.axis}))
            if s.fill.dtype is not s.out.dtype:
                yield f"{s.out.name} is filled with a {s.fill.dtype.value}"
        case Dot():
            left, right = args[0], args[1]
            over = frozenset(s.over)
            if not over or not (over <= left.axes and over <= right.axes):
                yield f"{s.out.name} contracts axes that an operand lacks"
            yield from _same(s.out, s.out.dtype, (left.axes | right.axes) - over)
            if s.add is not None:
                yield from _same(s.out, args[2].dtype, args[2].axes)
        case Reduce() | Select():
            if s.over not in args[0].axes:
                yield f"{s.out.name} reduces {s.over.name}, which {s.arg} lacks"
            rest = args[0].axes - {s.over}
            if isinstance(s, Reduce):
                apart = scope.lane & s.out.axes if scope.lanes is not None and s.over is scope.lanes.of else frozenset()
                yield from _same(s.out, s.out.dtype, rest | apart)
            else:
                yield from _same(s.out, args[0].dtype, rest if s.k is None else rest | {s.k})
            if s.reducer.has_index is isinstance(s, Reduce):
                yield f"{s.out.name}: {s.reducer} in the wrong operation"
        case Combine():
            yield from _same(s.out, args[0].dtype, scope.met(args[0].axes | args[1].axes))
            if args[0].dtype is not args[1].dtype or s.reducer.has_index:
                yield f"{s.out.name} combines {args[0].dtype.value} and {args[1].dtype.value} by {s.reducer}"
        case SelectMerge():
            yield from _same(s.out, args[0].dtype, args[0].axes | args[2].axes)
            if not s.reducer.takes(s.k):
                yield f"{s.out.name}: exactly lists have k"
        case Rename():
            mapping = dict(s.axes)
            yield from _same(s.out, args[0].dtype, frozenset(mapping.get(a, a) for a in args[0].axes))
        case Declare():
            dtype = args[0].dtype if args else s.init.dtype if isinstance(s.init, Const) else s.state.dtype
            if dtype is not s.state.dtype:
                yield f"{s.state.name} starts as {dtype.value}"
            if args and not args[0].axes <= s.state.axes:
                yield f"{s.state.name} starts with more axes than it has"
        case _:
            return


def _read(s: Read, scope: _Scope) -> Iterator[str]:
    t = scope.tensors.get(s.tensor)
    if t is None:
        yield f"{s.tensor} is read before a kernel has stored it"
        return
    if len(s.index) != len(t.shape) or len(s.clip) != len(t.shape):
        yield f"{s.tensor} has {len(t.shape)} axes, read with {len(s.index)} indices"
    axes = frozenset[Axis]().union(*(index_axes(i, scope.values) for i in s.index)) - scope.scalars
    yield from _same(s.out, t.dtype, scope.met(axes))


def _same(v: Value, dtype: DType, axes: frozenset[Axis]) -> Iterator[str]:
    if v.dtype is not dtype:
        yield f"{v.name} is {dtype.value}, declared {v.dtype.value}"
    if v.axes != axes:
        yield f"{v.name} spans {_names(axes)}, declared {_names(v.axes)}"


def expr_axes(e: Expr, values: Mapping[str, Value], scalars: frozenset[Axis]) -> frozenset[Axis]:
    out: set[Axis] = set()
    for x in walk(e):
        match x:
            case Position():
                out |= index_axes(x.index, values)
            case Ref():
                out |= values[x.name].axes
            case _:
                pass
    return frozenset(out) - scalars


def _names(axes: frozenset[Axis]) -> str:
    return "{" + ", ".join(sorted(a.name for a in axes)) + "}"


def verify(p: Program) -> Program:
    """The program itself, or InvalidTileProgram with every broken rule."""
    found = list(problems(p))
    if found:
        raise InvalidTileProgram("; ".join(found))
    return p
