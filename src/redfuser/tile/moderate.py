"""Results that an inverse may be taken of: neither nearly 0 nor nearly infinite, whatever the data."""

from __future__ import annotations

from redfuser.algebra.nodes import Problem, Stage
from redfuser.index.expr import Apply, Expr, Fn, Load
from redfuser.index.nodes import Reducer


def moderate(p: Problem) -> frozenset[str]:
    """The stages that sum exp(x - max x) over the elements of the maximum: the largest element alone counts 1.

    So they lie between 1 and the number of elements, unless they are 0, infinite or not a number, as their inverses are
    then. A shift that was rounded to the stage's dtype moves that by a few roundings.
    """
    stages = {s.name: s for s in p.stages}
    return frozenset(s.name for s in p.stages if s.reducer is Reducer.SUM and _shifted(s.body, s, stages))


def _shifted(e: Expr, s: Stage, stages: dict[str, Stage]) -> bool:
    match e:
        case Apply(fn=Fn.EXP, args=(Apply(fn=Fn.SUB, args=(x, Load(source=name, index=index))),)) if name in stages:
            largest = stages[name]
            same = [i.axis for i in index] == [*largest.axes] and set(largest.axes) <= set(s.axes)
            return same and largest.reducer is Reducer.MAX and largest.body == x
        case _:
            return False
