"""Which reductions of an index program form a cascade, and which others are computed with it.

A cascade grows along dependence: a reduction joins when it reads an earlier result that is fixed along its own reduced
axes, the reduced axes have the same lengths, and both stream a common source. It must stay convex: what a member
streams may not depend on another member, or one pass could never serve both.

Producers are computed inside its tiles; epilogues reduce a list that it ends with (weights over the sum of the chosen).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from redfuser.index.expr import Load, loads
from redfuser.index.ints import Axis, Int
from redfuser.index.nodes import Program, Reduce


@dataclass(frozen=True, slots=True)
class Group:
    """``members`` in program order; ``producers`` are reductions over other axes that its tiles compute, ``epilogues``
    those over the slots of its lists, computed after the passes."""

    members: tuple[str, ...]
    producers: frozenset[str]
    epilogues: frozenset[str] = frozenset()

    @property
    def beside(self) -> frozenset[str]:
        """What is computed with the members."""
        return self.producers | self.epilogues


@dataclass(frozen=True, slots=True)
class _Uses:
    """What one reduction reads: earlier reductions fixed along its axes, all reductions, and the sources it streams."""

    fixed: frozenset[str]
    reductions: frozenset[str]
    streamed: frozenset[str]
    extent: tuple[Int, ...]


def find(program: Program) -> tuple[Group, ...]:
    """All cascades of two or more reductions, epilogues counted, in program order. A reduction belongs to one at most.

    What the tiles of one cascade compute is in no other: it need not be stored, and that saves the most.
    """
    reductions = {r.name: r for r in program.reductions}
    uses = {r.name: _uses(r, reductions) for r in reductions.values()}
    parts = _parts(program, reductions)
    lists = _of_lists(reductions)
    inlined: frozenset[str] = frozenset(lists)
    while True:
        found = []
        for members in _grouped(uses, parts, inlined):
            epilogues = frozenset(e for e, owner in lists.items() if owner in members)
            if len(members) + len(epilogues) > 1:
                found.append(Group(members, _producers(program, members, reductions), epilogues))
        taken = inlined.union(*(g.producers & {m for o in found for m in o.members} for g in found))
        if taken == inlined:
            return tuple(found)
        inlined = taken


def _of_lists(reductions: dict[str, Reduce]) -> dict[str, str]:
    """Reductions over the slots of one list, each with the list; they read nothing else but one another."""
    out: dict[str, str] = {}
    for r in reductions.values():
        owners: set[str] = set()
        if not any(x.index[-1].axis in r.over for x in loads(r.body) if x.source in reductions and x.index):
            continue
        for x in loads(r.body):
            source = reductions.get(x.source)
            if source is None:
                owners.add("")
            elif source.k is not None and x.index[-1].axis in r.over and not _axes(x.index[:-1]) & set(r.over):
                owners.add(source.name)
            else:
                owners.add("" if _axes(x.index) & set(r.over) else out.get(source.name, ""))
        if len(owners) == 1 and "" not in owners and len(r.over) == 1 and not r.reducer.has_index:
            out[r.name] = owners.pop()
    return out


def _axes(index: Iterable[Int]) -> frozenset[Axis]:
    return frozenset[Axis]().union(*(i.axes() for i in index))


def _grouped(uses: dict[str, _Uses], parts: _Parts, apart: frozenset[str]) -> list[tuple[str, ...]]:
    """The reductions in cascades, single ones too, when those in ``apart`` are in none."""
    above = _ancestors(uses)
    groups: dict[str, tuple[str, ...]] = {}
    for name, u in uses.items():
        groups[name] = (name,)
        if name in apart:
            continue
        near = [p for p in u.fixed if p not in apart and uses[p].extent == u.extent]
        candidates = {groups[p] for p in near}
        for chosen in _attempts(candidates):
            merged = tuple(n for n in uses if n in set().union(*chosen) | {name})
            if _streams_together(merged, uses) and _convex(merged, uses, above) and _whole(merged, parts):
                for n in merged:
                    groups[n] = merged
                break
    return [members for members in dict.fromkeys(groups.values()) if not apart & set(members)]


_Part = frozenset[tuple[int, Int]]
_Parts = dict[str, dict[str, set[tuple[tuple[Int, ...], _Part]]]]


def _parts(program: Program, reductions: dict[str, Reduce]) -> _Parts:
    """For each reduction, by reader, where it is read: the index, and the dimensions of which that is a part."""
    out: _Parts = {name: {} for name in reductions}
    for o in program.outputs:
        if o.value in out:
            out[o.value][""] = {((), frozenset())}
    for d in program.definitions:
        for x in loads(d.body):
            if x.source in out:
                r = reductions[x.source]
                part = _part(x, r)
                index = tuple(i for i, a in zip(x.index, r.axes, strict=False) if a.size.value != 1)
                out[x.source].setdefault(d.name, set()).add((index, part))
    return out


def _part(x: Load, r: Reduce) -> _Part:
    """Fixed and gathered positions as they are; a shift, a stride and a shorter axis by where they end."""
    out = []
    for n, (i, length) in enumerate(zip(x.index, (a.size for a in r.axes), strict=False)):
        if length.value == 1:
            continue
        axes = i.axes()
        if not axes or any(True for _ in i.gathers()):
            out.append((n, i))
        elif len(axes) == 1:
            (a,) = axes
            if i.coefficient(a) is not None and (i.axis is None or a.size != length):
                out.append((n, i.substitute({a: a.size})))
    return frozenset(out)


def _whole(members: tuple[str, ...], parts: _Parts) -> bool:
    """A member has one place: another reads it at one index, and if that is a part of it nobody needs the rest."""
    for m in members:
        inside = [at for reader, at in parts[m].items() if reader in members]
        if any(len({index for index, _ in at}) > 1 for at in inside):
            return False
        needed = {p for at in inside for _, p in at}
        if any(needed) and any(p not in needed or len(needed) > 1 for at in parts[m].values() for _, p in at):
            return False
    return True


def _uses(r: Reduce, reductions: dict[str, Reduce]) -> _Uses:
    over = frozenset(r.over)
    fixed: set[str] = set()
    varying: set[str] = set()
    named: set[str] = set()
    for x in loads(r.body):
        moves = any(i.axes() & over for i in x.index)
        if x.source in reductions:
            named.add(x.source)
        if moves:
            varying.add(x.source)
        elif x.source in reductions:
            fixed.add(x.source)
    return _Uses(frozenset(fixed - varying), frozenset(named), frozenset(varying), tuple(a.size for a in r.over))


def _ancestors(uses: dict[str, _Uses]) -> dict[str, frozenset[str]]:
    above: dict[str, frozenset[str]] = {}
    for name, u in uses.items():
        above[name] = u.reductions.union(*(above[p] for p in u.reductions))
    return above


def _attempts(candidates: set[tuple[str, ...]]) -> Iterable[tuple[tuple[str, ...], ...]]:
    """All neighbouring groups together first, then one at a time, the largest first."""
    ordered = sorted(candidates, key=lambda g: (-len(g), g))
    if len(ordered) > 1:
        yield tuple(ordered)
    for g in ordered:
        yield (g,)


def _streams_together(members: tuple[str, ...], uses: dict[str, _Uses]) -> bool:
    """The members are connected by common streamed sources; one that streams nothing (a count) fits anywhere."""
    streams = [set(uses[m].streamed) for m in members if uses[m].streamed]
    if not streams:
        return False
    reached = streams.pop()
    while streams:
        touching = [s for s in streams if s & reached]
        if not touching:
            return False
        for s in touching:
            reached |= s
            streams.remove(s)
    return True


def _convex(members: tuple[str, ...], uses: dict[str, _Uses], above: dict[str, frozenset[str]]) -> bool:
    inside = set(members)
    for m in members:
        if uses[m].streamed & inside:
            return False
        for outside in uses[m].reductions - inside:
            if above[outside] & inside:
                return False
    return True


def _producers(program: Program, members: tuple[str, ...], reductions: dict[str, Reduce]) -> frozenset[str]:
    """Reductions worth computing in a tile: nothing else reads them, and no element of one is computed twice."""
    readers: dict[str, set[str]] = {}
    for d in program.definitions:
        for x in loads(d.body):
            readers.setdefault(x.source, set()).add(d.name)
    kept_out = {o.value for o in program.outputs} | set(members)
    found: dict[str, frozenset[Axis]] = {}
    frontier: list[tuple[Reduce, frozenset[Axis] | None]] = [(reductions[m], None) for m in members]
    while frontier:
        reader, frame = frontier.pop()
        for x in loads(reader.body):
            q = reductions.get(x.source)
            if q is None or q.name in found or q.name in kept_out or q.reducer.has_index:
                continue
            spans = frozenset().union(*(i.axes() for i in x.index))
            if frame is None:
                good = spans >= set(reader.axes) and bool(spans & set(reader.over))
            else:
                good = spans >= frame and _expands(q)
            if good:
                found[q.name] = frozenset(q.axes)
                frontier.append((q, frozenset(q.axes)))
    # A producer that something outside the tile reads would have to be stored anyway.
    inside = set(found)
    while loose := {n for n in inside if not readers[n] <= set(members) | inside}:
        inside -= loose
    return frozenset(inside)


def _expands(q: Reduce) -> bool:
    """True when ``q`` is larger than its operands: each of them lacks one of its axes."""
    operands = [frozenset().union(*(i.axes() for i in x.index)) for x in loads(q.body)]
    return len(operands) > 1 and all(not o >= set(q.axes) for o in operands)
