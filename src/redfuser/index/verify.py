"""The rules an index program keeps. ``verify`` runs after every stage that makes or changes one."""

from __future__ import annotations

from collections.abc import Iterator

from redfuser.index.expr import COMPARISONS, Apply, DType, Expr, Fn, Load, Part, Ref, dtype_of, free_axes, walk
from redfuser.index.ints import Axis
from redfuser.index.nodes import Definition, Input, Map, Program, Reduce

_BINARY = (
    Fn.ADD, Fn.SUB, Fn.MUL, Fn.DIV, Fn.FLOORDIV, Fn.REMAINDER, Fn.POW, Fn.MAXIMUM, Fn.MINIMUM, Fn.AND, Fn.OR, Fn.XOR,
)  # fmt: skip
_ARITY = {Fn.WHERE: 3, **dict.fromkeys((*_BINARY, *COMPARISONS), 2)}


class InvalidProgram(Exception):
    """An internal error: a stage produced a program that breaks a rule. The text lists every break."""


def problems(p: Program) -> Iterator[str]:
    """Each rule broken, as a sentence."""
    known: dict[str, Input | Definition] = {}
    for i in p.inputs:
        if i.name in known:
            yield f"{i.name} is defined twice"
        known[i.name] = i
    for d in p.definitions:
        if d.name in known:
            yield f"{d.name} is defined twice"
        yield from _definition(d, known)
        known[d.name] = d
    for o in p.outputs:
        source = known.get(o.value)
        if source is None:
            yield f"output {o.value} is not defined"
        elif o.part is Part.INDEX and not (isinstance(source, Reduce) and source.reducer.has_index):
            yield f"output {o.value} has no index component"


def _definition(d: Definition, known: dict[str, Input | Definition]) -> Iterator[str]:
    scope: set[Axis] = set(d.axes)
    if len(scope) != len(d.axes):
        yield f"{d.name}: an axis is listed twice"
    if isinstance(d, Reduce):
        if not d.over:
            yield f"{d.name}: a reduction needs an axis to reduce"
        if scope & set(d.over):
            yield f"{d.name}: an axis is both kept and reduced"
        scope |= set(d.over)
        if not d.reducer.takes(d.k):
            yield f"{d.name}: exactly lists have k"
        if d.reducer.has_index and len(d.over) != 1:
            yield f"{d.name}: {d.reducer} reduces one axis"
    loose = free_axes(d.body) - scope
    if loose:
        yield f"{d.name}: axes {sorted(a.name for a in loose)} are not in scope"
    for e in walk(d.body):
        yield from _node(d.name, e, known)
    if isinstance(d, Map) and dtype_of(d.body) is not d.dtype:
        yield f"{d.name}: body is {dtype_of(d.body).value}, declared {d.dtype.value}"


def _node(name: str, e: Expr, known: dict[str, Input | Definition]) -> Iterator[str]:
    match e:
        case Ref():
            yield f"{name}: {e.name} is running state, which an index program does not have"
        case Load():
            source = known.get(e.source)
            if source is None:
                yield f"{name}: {e.source} is read before it is defined"
                return
            rank = len(source.result_axes) if isinstance(source, Reduce) else len(source.axes)
            if rank != len(e.index):
                yield f"{name}: {e.source} has {rank} axes, read with {len(e.index)} indices"
            want = DType.INT64 if e.part is Part.INDEX else source.dtype
            if e.dtype is not want:
                yield f"{name}: {e.source} is {want.value}, read as {e.dtype.value}"
        case Apply():
            if len(e.args) != _ARITY.get(e.fn, 1):
                yield f"{name}: {e.fn.value} has {len(e.args)} arguments"
            if (e.fn in COMPARISONS or e.fn is Fn.ISNAN) and e.dtype is not DType.BOOL:
                yield f"{name}: {e.fn.value} gives bool, not {e.dtype.value}"
            if e.fn is Fn.WHERE and dtype_of(e.args[0]) is not DType.BOOL:
                yield f"{name}: where needs a bool condition"
        case _:
            return


def verify(p: Program) -> Program:
    """The program itself, or InvalidProgram with every broken rule."""
    found = list(problems(p))
    if found:
        raise InvalidProgram("; ".join(found))
    return p
