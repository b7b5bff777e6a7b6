"""Which values statements read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from redfuser.index.expr import Expr, Load, Position, Ref, walk
from redfuser.index.ints import Axis, FloorDiv, Gather, Int, Mod, as_int
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
    Least,
    Loop,
    Lowest,
    Map,
    Program,
    Read,
    Reduce,
    Rename,
    Select,
    SelectMerge,
    Statement,
    Store,
    Up,
)


def every(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """All statements, those inside loops included, in order."""
    for s in body:
        yield s
        if isinstance(s, Loop):
            yield from every(s.body)


def farthest(p: Program, number: Callable[[Int], int]) -> int:
    """No position that the program computes with, outside the indices of its tensors, is larger. ``number`` gives lengths."""
    exprs = (s.expr for k in p.kernels for s in every(k.body) if isinstance(s, Map | Correct))
    found = (x.index for e in exprs for x in walk(e) if isinstance(x, Position))
    return max((_largest(i, number) for i in found), default=0)


def _largest(i: Int, number: Callable[[Int], int]) -> int:
    total = 0
    for monomial, c in i.terms:
        term = abs(c)
        for a, n in monomial:
            match a:
                case FloorDiv() | Mod():
                    size = _largest(a.num, number)
                case Axis():
                    size = number(as_int(a.size))
                case Gather():
                    size = number(a.bound)
                case _:
                    size = number(as_int(a))
            term *= max(1, size) ** n
        total += term
    return total


def gathered(i: Int) -> set[str]:
    """The values that an index is gathered by."""
    return {g.value.name for g in i.gathers() if isinstance(g.value, Ref)}


def names_in(e: Expr) -> set[str]:
    """The values that an expression reads."""
    out: set[str] = set()
    for x in walk(e):
        match x:
            case Ref():
                out.add(x.name)
            case Position():
                out |= gathered(x.index)
            case Load():
                out = out.union(*(gathered(i) for i in x.index))
            case _:
                pass
    return out


def bound_values(b: Bound) -> Iterator[str]:
    """The values that a bound of a loop reads."""
    match b:
        case At():
            return
        case Down() | Up():
            yield from bound_values(b.arg)
        case Least() | Greatest():
            for x in b.args:
                yield from bound_values(x)
        case Lowest() | Highest():
            yield b.value


def operands(s: Statement) -> list[str]:
    """The names a statement reads, in its own order where it has one; for a loop those of its bounds and of its body."""
    match s:
        case Read():
            return sorted(set[str]().union(*(gathered(i) for i in s.index)))
        case Store():
            return [s.value, *sorted(set[str]().union(*(gathered(i) for i in s.index)))]
        case Map() | Correct():
            return sorted(names_in(s.expr))
        case Guard() | Reduce() | Select() | Rename():
            return [s.arg]
        case Dot():
            return [s.left, s.right, *([s.add] if s.add is not None else [])]
        case Combine():
            return [s.left, s.right]
        case SelectMerge():
            return [s.left, s.left_index, s.right, s.right_index]
        case Declare():
            return [s.init] if isinstance(s.init, str) else []
        case Assign():
            return [s.value]
        case Loop():
            return [*bound_values(s.start), *bound_values(s.stop), *(n for x in s.body for n in operands(x))]


def uses_of(s: Statement) -> set[str]:
    """The names a statement reads."""
    return set(operands(s))
