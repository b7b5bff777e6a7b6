"""What a printed program is made of, as a set of names: to say that every kind of it has been compiled."""

from __future__ import annotations

from collections.abc import Iterator

from redfuser.backends.triton.printed import Source
from redfuser.index.nodes import Reducer
from redfuser.tile.nodes import (
    At,
    Bound,
    Dot,
    Down,
    Greatest,
    Highest,
    Kernel,
    Least,
    Loop,
    Lowest,
    Map,
    Program,
    Read,
    Reduce,
    Role,
    Select,
    Store,
    Up,
)
from redfuser.tile.strategy import Schedule
from redfuser.tile.uses import every

COARSE = ("coarse_tanh", "coarse_sigmoid")


def kinds(program: Program, schedule: Schedule, source: Source) -> set[str]:
    """Statements under each strategy, and what else makes a kernel different from others."""
    found = {f"{type(s).__name__} {schedule.strategy}" for k in program.kernels for s in every(k.body)}
    found |= {name for k in program.kernels for name in _of(k)}
    found |= {"bulk copies" for k in source.kernels if k.bulk}
    found |= {f"{s.reducer} over a tile" for k in program.kernels for s in every(k.body) if isinstance(s, Reduce)}
    if "tl.program_id(0).to(tl.int64)" in source.text:
        found.add("64-bit offsets")
    found |= {f"{f.partition('_')[2]} in one instruction" for f in COARSE if f"def {f}" in source.helpers}
    return found


def _of(k: Kernel) -> Iterator[str]:
    if k.lanes is not None:
        yield "lanes in runs" if k.lanes.run > 1 else "lanes one by one"
    if any(t.role is Role.COLUMN and t.block is not None for t in k.grid):
        yield "columns tiled"
    ranks = {t.axis for t in k.axes if t.role is Role.RANK}
    dots = {s.out.name for s in every(k.body) if isinstance(s, Dot)}
    for s in every(k.body):
        match s:
            case Loop():
                yield from _loop(s)
            case Dot() if s.add in dots:
                yield "joined operands"
            case Reduce() if s.over in ranks:
                yield "lists reduced"
            case Select():
                yield from _list(s)
            case Read() if any(s.clip):
                yield "clipped reads"
            case Read() if any(True for i in s.index for _ in i.gathers()):
                yield "gathered reads"
            case Map() if s.out.axes & ranks:
                yield "lists mapped"
            case _:
                pass


def _list(s: Select) -> Iterator[str]:
    if s.reducer is Reducer.BOTTOMK:
        yield "NaN comes last"
    if s.k is None:
        yield f"position of the {'largest' if s.reducer is Reducer.ARGMAX else 'smallest'}"
        return
    n = s.k.size
    size = n if isinstance(n, int) else n.value
    assert size is not None
    yield "list of a power of two" if size & (size - 1) == 0 else "list of no power of two"


def _loop(s: Loop) -> Iterator[str]:
    yield "whole tiles" if s.full else "ragged tiles"
    if any(isinstance(x, Store) for x in s.body):
        yield "sweep"
    if sum(isinstance(x, Dot) for x in s.body) > 1:
        yield "several dots"
    bounds = {type(b) for end in (s.start, s.stop) for b in _bounds(end)}
    if bounds & {Lowest, Highest}:
        yield "bounds by data"
    if bounds & {Down, Up}:
        yield "bounds by a mask"


def _bounds(b: Bound) -> Iterator[Bound]:
    yield b
    match b:
        case Down() | Up():
            yield from _bounds(b.arg)
        case Least() | Greatest():
            for x in b.args:
                yield from _bounds(x)
        case At() | Lowest() | Highest():
            pass
