"""Which values statements read."""

from __future__ import annotations

from collections.abc import Iterator

from redfuser.index.expr import Expr, Load, Position, Ref, walk
from redfuser.index.ints import Int
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
    Read,
    Reduce,
    Rename,
    Select,
    SelectMerge,
    Statement,
    Store,
    Up,
)


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


def uses_of(s: Statement) -> set[str]:
    """The names a statement reads; for a loop those of its bounds and of its body."""
    match s:
        case Read():
            return set[str]().union(*(gathered(i) for i in s.index))
        case Store():
            return {s.value}.union(*(gathered(i) for i in s.index))
        case Map() | Correct():
            return names_in(s.expr)
        case Guard() | Reduce() | Select() | Rename():
            return {s.arg}
        case Dot():
            return {s.left, s.right, *([s.add] if s.add is not None else [])}
        case Combine():
            return {s.left, s.right}
        case SelectMerge():
            return {s.left, s.left_index, s.right, s.right_index}
        case Declare():
            return {s.init} if isinstance(s.init, str) else set()
        case Assign():
            return {s.value}
        case Loop():
            return {*bound_values(s.start), *bound_values(s.stop)}.union(*(uses_of(x) for x in s.body))
