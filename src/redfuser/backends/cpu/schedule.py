"""Statements into loop nests: neighbours that run over the same axes share one, so that their values stay in registers.

    div = s / 8          \\
    m   = max(div)       /  one nest over {i, l}
    base, scale             one over {i}
    p   = exp(div - base)   the next over {i, l}; ``div`` is cheap and is computed again instead of kept
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from redfuser.backends.cpu.layout import Layout
from redfuser.index.expr import Apply, Cast, Const, Expr, Fn, Position, children
from redfuser.index.ints import Axis
from redfuser.tile.nodes import (
    Assign,
    Declare,
    Dot,
    Guard,
    Loop,
    Map,
    Read,
    Reduce,
    Rename,
    Select,
    SelectMerge,
    Statement,
    Store,
    Value,
    outputs_of,
)
from redfuser.tile.uses import uses_of

CHEAP = 4  # operations that are rather repeated than their result kept

_COST = {
    Fn.ADD: 1, Fn.SUB: 1, Fn.MUL: 1, Fn.NEG: 1, Fn.ABS: 1, Fn.WHERE: 1, Fn.MAXIMUM: 3, Fn.MINIMUM: 3, Fn.LT: 1, Fn.LE: 1,
    Fn.GT: 1, Fn.GE: 1, Fn.EQ: 1, Fn.NE: 1, Fn.AND: 1, Fn.OR: 1, Fn.NOT: 1,
}  # fmt: skip


@dataclass(slots=True)
class Nest:
    """Loops over ``axes``; ``over``: those that its reductions run along."""

    axes: frozenset[Axis]
    statements: list[Statement]
    over: frozenset[Axis] = frozenset()


Step = Nest | Statement


@dataclass
class Scheduler:
    """Orders the statements of one block between two loops. ``later``: names that something behind it reads."""

    layout: Layout
    values: dict[str, Value]
    micro: frozenset[int]  # dots that the micro-kernel computes, by id
    later: frozenset[str]
    steps: list[Step] = field(default_factory=list)

    def run(self, block: Sequence[Statement]) -> list[Step]:
        self.made = {v.name: s for s in block for v in outputs_of(s) if not isinstance(s, Declare)}
        self.place = {id(s): n for n, s in enumerate(block)}
        self.repeated = self._repeated(block)
        waits = self._waits(block)
        pending = [s for s in block if not self._is_repeated(s)]
        done: set[int] = {id(s) for s in block if self._is_repeated(s)}
        while pending:
            first = pending.pop(0)
            done.add(id(first))
            if self.is_whole(first):
                self.steps.append(first)
                continue
            nest = Nest(self.space(first), [first], self.over(first))
            inside = {id(first)}
            for s in list(pending):
                if self._joins(s, nest, waits[id(s)], done, inside):
                    nest.statements.append(s)
                    nest.over |= self.over(s)
                    inside.add(id(s))
                    pending.remove(s)
            done |= inside
            nest.statements = self._with_repeated(nest.statements)
            self.steps.append(nest)
        return self.steps

    # -- what a statement is ---------------------------------------------------------------------------------------
    def is_whole(self, s: Statement) -> bool:
        """True for an operation on whole tiles, which has loops of its own."""
        return isinstance(s, Read | Select | SelectMerge | Rename | Loop) or id(s) in self.micro

    def space(self, s: Statement) -> frozenset[Axis]:
        return iteration(s, self.layout, self.values)

    def over(self, s: Statement) -> frozenset[Axis]:
        if isinstance(s, Reduce):
            return self.layout.many({s.over})
        return self.layout.many(s.over) if isinstance(s, Dot) else frozenset()

    # -- what it waits for -------------------------------------------------------------------------------------------
    def _waits(self, block: Sequence[Statement]) -> dict[int, set[int]]:
        """For each statement those before it that must come before it."""
        waits: dict[int, set[int]] = {}
        made: dict[str, int] = {}
        readers: dict[str, set[int]] = {}
        for s in block:
            needs = {made[n] for n in self._reads(s) if n in made}
            if isinstance(s, Assign):
                needs |= readers.get(s.state, set()) | ({made[s.state]} if s.state in made else set())
                made[s.state] = id(s)
                readers[s.state] = set()
            for n in self._reads(s):
                readers.setdefault(n, set()).add(id(s))
            for v in outputs_of(s):
                made[v.name] = id(s)
            waits[id(s)] = needs - {id(s)}
        return waits

    def _reads(self, s: Statement) -> set[str]:
        """The names a statement reads, those of repeated values through to what they are made of."""
        out: set[str] = set()
        stack = list(uses_of(s))
        while stack:
            n = stack.pop()
            if n in self.repeated:
                stack += uses_of(self.repeated[n])
            else:
                out.add(n)
        return out

    def _joins(self, s: Statement, nest: Nest, waits: set[int], done: set[int], inside: set[int]) -> bool:
        if self.is_whole(s) or self.space(s) != nest.axes:
            return False
        over = self.over(s)
        if over and nest.over and over != nest.over:
            return False
        for w in waits - done:
            if w not in inside:
                return False
        if waits & inside:
            reduced = {id(x) for x in nest.statements if self.over(x)}
            if waits & reduced:
                return False
        return True

    # -- values that are computed again ------------------------------------------------------------------------------
    def _is_repeated(self, s: Statement) -> bool:
        return isinstance(s, Map | Guard) and s.out.name in self.repeated

    def _repeated(self, block: Sequence[Statement]) -> dict[str, Map | Guard]:
        users: dict[str, list[Statement]] = {}
        for s in block:
            for n in uses_of(s):
                users.setdefault(n, []).append(s)
        states = {s.state for s in block if isinstance(s, Assign)}
        out: dict[str, Map | Guard] = {}
        cost: Counter[str] = Counter()
        for s in block:
            if not isinstance(s, Map | Guard) or s.out.name in self.later or not self.space(s):
                continue
            used = users.get(s.out.name, [])
            if any(self.is_whole(u) or self.space(u) != self.space(s) for u in used) or uses_of(s) & states:
                continue
            own = 1 if isinstance(s, Guard) else _cost(s.expr)
            total = own + sum(cost[n] for n in uses_of(s) if n in out)
            if total <= CHEAP:
                out[s.out.name] = s
                cost[s.out.name] = total
        return out

    def _with_repeated(self, statements: list[Statement]) -> list[Statement]:
        """The statements of a nest in order, each after the repeated values it reads."""
        out: list[Statement] = []
        seen: set[str] = set()

        def add(n: str) -> None:
            if n in self.repeated and n not in seen:
                seen.add(n)
                for x in sorted(uses_of(self.repeated[n])):
                    add(x)
                out.append(self.repeated[n])

        for s in sorted(statements, key=lambda s: self.place[id(s)]):
            for n in sorted(uses_of(s)):
                add(n)
            out.append(s)
        return out


def iteration(s: Statement, layout: Layout, values: Mapping[str, Value]) -> frozenset[Axis]:
    """The axes that the loops of a statement run over."""
    match s:
        case Reduce():
            return layout.many(values[s.arg].axes)
        case Dot():
            return layout.many(values[s.left].axes | values[s.right].axes)
        case Assign():
            return layout.many(values[s.state].axes)
        case Store():
            return layout.many(s.axes)
        case Loop():
            return frozenset()
        case _:
            return layout.many(outputs_of(s)[0].axes)


def _cost(e: Expr) -> int:
    match e:
        case Apply():
            own = _COST.get(e.fn, CHEAP + 1)
            if e.fn is Fn.DIV and isinstance(e.args[1], Const):
                own = 1
            if e.dtype.is_float and e.dtype.bytes < 4:
                own += 3
            return own + sum(_cost(a) for a in children(e))
        case Cast():
            return _cost(e.arg) + (3 if e.dtype.is_float and e.dtype.bytes < 4 else 1)
        case Position():
            return 1
        case _:
            return 0


def split(body: Iterable[Statement]) -> list[list[Statement]]:
    """A body cut at its loops; each loop is a block of its own."""
    blocks: list[list[Statement]] = [[]]
    for s in body:
        if isinstance(s, Loop):
            blocks += [[s], []]
        else:
            blocks[-1].append(s)
    return [b for b in blocks if b]
