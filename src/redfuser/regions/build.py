"""Puts one cascade of a program into a common frame: its stages, producers and results over shared axes.

The reductions of a program each have axes of their own. The frame identifies them: a stage that reads ``m[b, i]`` puts
the axes of ``m`` where its own b and i are. What is found is a substitution per definition, from its own axes to
expressions over the frame's axes; a definition that fits no substitution makes the region unsupported.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from redfuser.algebra.nodes import Problem, Stage
from redfuser.index.expr import DType, Expr, Load, Part, loads, substitute
from redfuser.index.ints import ZERO, Axis, FloorDiv, Int, as_int, product
from redfuser.index.nodes import Map, Program, Reduce
from redfuser.regions.find import Group
from redfuser.regions.nodes import Region, Result


@dataclass(slots=True)
class _Frame:
    """The frame while it is being found. ``placed`` maps a definition to the frame expressions of its own axes."""

    axis: Axis
    over: tuple[Int, ...]
    members: Mapping[str, Reduce]
    maps: tuple[Map, ...]
    placed: dict[str, dict[Axis, Int]] = field(default_factory=dict)
    axes: list[Axis] = field(default_factory=list)

    def at(self, name: str) -> tuple[Int, ...]:
        """Where the kept axes of a placed member lie; its top-k axis stands for itself."""
        r = self.members[name]
        return tuple(self.placed[name][a] for a in r.axes) + ((as_int(r.k),) if r.k is not None else ())


def build(program: Program, group: Group) -> Region | None:
    """The region of ``group``, or None when its members cannot share a frame."""
    definitions = {d.name: d for d in program.definitions}
    members = {m: d for m in group.members if isinstance(d := definitions[m], Reduce)}
    axis, over = _streamed_axis(next(iter(members.values())))
    maps = tuple(d for d in program.definitions if isinstance(d, Map))
    frame = _Frame(axis, over, members, maps)
    while waiting := [r for r in members.values() if r.name not in frame.placed]:
        if not _place(_next(waiting, frame), frame):
            return None
    stages = tuple(_stage(r, frame) for r in members.values())
    known = {s.name: s for s in stages}
    placed_epilogues = _epilogues((d for d in program.definitions if d.name in group.epilogues), frame, known)
    if placed_epilogues is None:
        return None
    epilogues, places = placed_epilogues
    element_loads = {x for s in stages for x in loads(s.body)}
    results = []
    for o in program.outputs:
        if o.value not in definitions:
            return None
        d = definitions[o.value]
        if isinstance(d, Reduce):
            if d.name in places:
                results.append(_epilogue_result(d, places[d.name], frame))
            elif d.name in known:
                results.append(_reduction_result(d, known[d.name], frame, o.part))
            else:
                return None
            continue
        placed = _place_map(d, frame, element_loads)
        if placed is None:
            return None
        results.append(_map_result(d, placed, frame, known))
        if any(x.index != places[x.source] for x in loads(results[-1].body) if x.source in places):
            return None
    producers = tuple(d for d in program.definitions if isinstance(d, Reduce) and d.name in group.producers)
    available = {i.name for i in program.inputs} | set(known) | {p.name for p in (*producers, *epilogues)}
    bodies = [*(s.body for s in stages), *(p.body for p in (*producers, *epilogues)), *(r.body for r in results)]
    if any(x.source not in available for body in bodies for x in loads(body)):
        return None
    if not all(_covers(r) for r in results):
        return None
    return Region(program, Problem(axis, stages), producers, tuple(results), epilogues)


def _epilogues(
    reductions: Iterable[Map | Reduce], frame: _Frame, stages: Mapping[str, Stage]
) -> tuple[tuple[Reduce, ...], dict[str, tuple[Int, ...]]] | None:
    """The epilogues over the frame's axes and the slots of their lists, and where each lies in the frame."""
    out: list[Reduce] = []
    places: dict[str, tuple[Int, ...]] = {}
    for r in reductions:
        assert isinstance(r, Reduce)
        trial = replace(frame, axes=list(frame.axes))
        where = _solve(r.axes, _equations(r.body, frame, set(r.axes)), [as_int(a) for a in frame.axes], trial)
        slots = {k for x in loads(r.body) if x.source in stages and (k := stages[x.source].k) is not None}
        if where is None or trial.axes != frame.axes or len(slots) != 1:
            return None
        (k,) = slots

        def canonical(x: Load) -> Expr | None:
            s = stages.get(x.source)
            return None if s is None else _canonical(x, s.axes, s.k)

        body = substitute(r.body, {**where, r.over[0]: as_int(k)}, canonical)
        places[r.name] = tuple(where[a] for a in r.axes)
        if any(x.index != places[x.source] for x in loads(body) if x.source in places):
            return None
        out.append(replace(r, over=(k,), body=body))
    return tuple(out), places


def _epilogue_result(r: Reduce, place: tuple[Int, ...], frame: _Frame) -> Result:
    axes = _in_order((x for i in place for x in i.axes()), frame)
    return Result(r.name, tuple(a.size for a in r.axes), place, axes, Load(r.name, place, r.dtype, Part.VALUE), r.dtype)


def _covers(r: Result) -> bool:
    """Whether every position of a result is written: a stage that is read at one position only may lie there alone."""
    if product(a.size for a in r.axes) == product(r.shape):
        return True
    seen: set[Axis] = set()
    for i, n in zip(r.index, r.shape, strict=True):
        if seen & i.axes() or not _onto(i, n):
            return False
        seen |= i.axes()
    return True


def _onto(i: Int, length: Int) -> bool:
    """Whether an index takes every value below ``length``."""
    if length.value == 1:
        return True
    if i.axis is not None:
        return i.axis.size == length
    atoms = list(i.atoms())
    if len(atoms) == 1 and i == as_int(atoms[0]) and isinstance(atoms[0], FloorDiv):
        return _onto(atoms[0].num, atoms[0].den * length)
    return product(a.size for a in i.axes()) == length


def _streamed_axis(r: Reduce) -> tuple[Axis, tuple[Int, ...]]:
    """The one axis that is streamed, and the reduced axes as expressions of it (row-major)."""
    if len(r.over) == 1:
        return r.over[0], (as_int(r.over[0]),)
    flat = Axis("".join(a.name for a in r.over), product(a.size for a in r.over))
    return flat, _digits(flat, r.over)


def _digits(flat: Axis, axes: tuple[Axis, ...]) -> tuple[Int, ...]:
    """The positions of ``axes`` at one position of an axis as long as all of them together."""
    out: list[Int] = []
    rest = as_int(flat)
    for a in reversed(axes[1:]):
        out.append(rest % a.size)
        rest = rest // a.size
    return (rest, *reversed(out))


def _next(waiting: list[Reduce], frame: _Frame) -> Reduce:
    """A member that a placed one reads, else one that reads a placed one, else the last."""
    read = {x.source for name in frame.placed for x in loads(frame.members[name].body)}
    for r in waiting:
        if r.name in read:
            return r
    for r in waiting:
        if any(x.source in frame.placed for x in loads(r.body)):
            return r
    return waiting[-1]


def _place(r: Reduce, frame: _Frame) -> bool:
    """Finds where the axes of ``r`` lie in the frame: as its readers say, else as what it reads says, else new axes."""
    wanted = _demanded(r, frame)
    if wanted is None:
        return False
    if not wanted:
        equations = _equations(r.body, frame, set(r.axes))
        candidates = [as_int(a) for a in frame.axes]
        solved = _solve(r.axes, [*equations, *_beside(r, frame)], candidates, frame)
        if solved is None:  # the results want it at several positions
            solved = _solve(r.axes, equations, candidates, frame)
        if solved is None:
            return False
        wanted = solved
    frame.placed[r.name] = {**wanted, **dict(zip(r.over, frame.over, strict=True))}
    return True


def _beside(r: Reduce, frame: _Frame) -> list[tuple[Int, Int]]:
    """Where ``r`` lies by the results that read it together with placed members: each at the same positions."""
    out = []
    for d in frame.maps:
        at: dict[Axis, Int] = {}
        for i, target in _equations(d.body, frame, set(d.axes)):
            if i.axis is not None:
                at.setdefault(i.axis, target)
        for x in loads(d.body):
            if x.source == r.name:
                pairs = zip(r.axes, x.index, strict=False)
                out += [(as_int(a), i.substitute(at)) for a, i in pairs if i.axes() and i.axes() <= at.keys()]
    return out


def _demanded(r: Reduce, frame: _Frame) -> dict[Axis, Int] | None:
    """The position that placed readers give to ``r``; {} when none reads it, None when two disagree."""
    found: dict[Axis, Int] = {}
    for name, where in frame.placed.items():
        for x in loads(frame.members[name].body):
            if x.source != r.name:
                continue
            at = dict(zip(r.axes, [i.substitute(where) for i in x.index], strict=False))
            if found and at != found:
                return None
            found = at
    return found


def _equations(body: Expr, frame: _Frame, own: set[Axis]) -> list[tuple[Int, Int]]:
    """(expression over own axes, expression over the frame) for every index at which a placed definition is read."""
    out = []
    for x in loads(body):
        if x.source in frame.placed:
            out += [(i, t) for i, t in zip(x.index, frame.at(x.source), strict=True) if i.axes() & own or not i.axes()]
    return out


def _solve(
    axes: tuple[Axis, ...],
    equations: list[tuple[Int, Int]],
    candidates: list[Int],
    frame: _Frame,
) -> dict[Axis, Int] | None:
    """Frame expressions for ``axes`` that satisfy every equation; axes that no equation names become frame axes."""
    solved: dict[Axis, Int] = {a: ZERO for a in axes if a.size.value == 1}
    for i, target in equations:
        if i.axis is not None and i.axis in axes:
            solved.setdefault(i.axis, target)
    for a in axes:
        if a not in solved and (joined := _rejoined(a, equations)) is not None:
            solved[a] = joined
    named = {a for i, _ in equations for a in i.axes()}
    open_axes = [a for a in axes if a not in solved and a in named]
    for choice in itertools.islice(itertools.product(candidates, repeat=len(open_axes)), 512):
        trial = {**solved, **dict(zip(open_axes, choice, strict=True))}
        if all(i.substitute(trial) == target for i, target in equations):
            for a in axes:
                if a not in trial:
                    trial[a] = as_int(a)
                    frame.axes.append(a)
            return trial
    return None


def _rejoined(a: Axis, equations: list[tuple[Int, Int]]) -> Int | None:
    """c when the equations read ``c // k`` at one frame position and ``c % k`` at another: k*first + second."""
    for i, high in equations:
        for j, low in equations:
            k = low.axis.size if low.axis is not None else None
            if k is not None and i == as_int(a) // k and j == as_int(a) % k and i != j:
                return high * k + low
    return None


def _stage(r: Reduce, frame: _Frame) -> Stage:
    def canonical(x: Load) -> Expr | None:
        m = frame.members.get(x.source)
        return None if m is None else _canonical(x, _kept_axes(m, frame), m.k)

    body = substitute(r.body, frame.placed[r.name], canonical)
    return Stage(r.name, r.reducer, _kept_axes(r, frame), body, r.dtype, r.k, r.origin)


def _in_order(axes: Iterable[Axis], frame: _Frame) -> tuple[Axis, ...]:
    order = {a: n for n, a in enumerate(frame.axes)}
    return tuple(sorted(set(axes), key=lambda a: (order.get(a, len(order)), a.serial)))


def _kept_axes(r: Reduce, frame: _Frame) -> tuple[Axis, ...]:
    return _in_order((x for a in r.axes for x in frame.placed[r.name][a].axes()), frame)


def _canonical(x: Load, axes: tuple[Axis, ...], k: Axis | None) -> Load:
    """A load of a stage in the form that the algebra reads: indexed by the stage's own kept axes."""
    return Load(x.source, tuple(as_int(a) for a in axes) + ((x.index[-1],) if k is not None else ()), x.dtype, x.part)


def _reduction_result(r: Reduce, stage: Stage, frame: _Frame, part: Part) -> Result:
    index = frame.at(r.name)
    axes = stage.axes + ((r.k,) if r.k is not None else ())
    dtype = r.dtype if part is Part.VALUE else DType.INT64
    body = Load(r.name, tuple(as_int(a) for a in axes), dtype, part)
    return Result(r.name, tuple(a.size for a in r.result_axes), index, axes, body, dtype)


def _place_map(d: Map, frame: _Frame, elements: set[Load]) -> dict[Axis, Int] | None:
    """Where the axes of an output map lie: fixed by the stages it reads, then by streaming the same elements."""
    equations = _equations(d.body, frame, set(d.axes))
    split = _split_axes(d.axes, equations)
    equations = [(i.substitute(split), target) for i, target in equations]
    open_axes = [a for a in d.axes if a not in split] + [a for i in split.values() for a in i.axes() if a.name == _PART]
    fixed = {a for i, _ in equations for a in i.axes()}
    free = [a for a in open_axes if a not in fixed and a.size.value != 1]
    for chosen in (*_streamed_choices(free, frame), {}):
        trial = replace(frame, axes=list(frame.axes))
        candidates = [as_int(a) for a in frame.axes]
        solved = _solve(tuple(a for a in open_axes if a not in chosen), equations, candidates, trial)
        if solved is None:
            continue
        leaves = {**solved, **chosen}
        where = {a: (split[a].substitute(leaves) if a in split else leaves[a]) for a in d.axes}
        moved = {x for x in loads(substitute(d.body, where)) if any(frame.axis in i.axes() for i in x.index)}
        if not chosen or moved & elements:
            return where
    return None


_PART = "part"


def _split_axes(axes: tuple[Axis, ...], equations: list[tuple[Int, Int]]) -> dict[Axis, Int]:
    """Axes of which a stage knows only the quotient by a length: a becomes k*(that quotient) + a part below k."""
    out: dict[Axis, Int] = {}
    for a in axes:
        for i, target in equations:
            k = _divisor(i, a)
            if k is not None and not any(j == as_int(a) % k for j, _ in equations):
                out[a] = target * k + Axis(_PART, k)
    return out


def _divisor(i: Int, a: Axis) -> Int | None:
    """k when i is ``a // k``."""
    atoms = list(i.atoms())
    if len(atoms) == 1 and isinstance(atoms[0], FloorDiv) and atoms[0].num == as_int(a) and i == as_int(atoms[0]):
        return atoms[0].den
    return None


def _streamed_choices(free: list[Axis], frame: _Frame) -> Iterable[dict[Axis, Int]]:
    """The ways to lay free axes of an output along the streamed axis, several of them as its digits."""
    for n in range(1, len(free) + 1):
        for axes in itertools.islice(itertools.permutations(free, n), 64):
            if product(a.size for a in axes) == frame.axis.size:
                yield dict(zip(axes, _digits(frame.axis, axes), strict=True))


def _map_result(d: Map, where: Mapping[Axis, Int], frame: _Frame, stages: Mapping[str, Stage]) -> Result:
    def canonical(x: Load) -> Expr | None:
        s = stages.get(x.source)
        return None if s is None else _canonical(x, s.axes, s.k)

    body = substitute(d.body, where, canonical)
    index = tuple(where[a] for a in d.axes)
    axes = _in_order((x for i in index for x in i.axes()), frame)
    return Result(d.name, tuple(a.size for a in d.axes), index, axes, body, d.dtype)
