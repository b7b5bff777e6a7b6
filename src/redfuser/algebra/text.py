"""What the user reads about a stage: update, merge and state, in the stages' names."""

from __future__ import annotations

from redfuser.algebra.nodes import Accumulator, Base, Pass, Stage, StageReport
from redfuser.algebra.state import Notes
from redfuser.index.expr import Expr, Ref, transform
from redfuser.index.nodes import Reducer
from redfuser.index.print import show

_COMBINE = {Reducer.SUM: "+", Reducer.PROD: "*", Reducer.ANY: "|", Reducer.ALL: "&"}


def update_of(a: Accumulator) -> str:
    """``O <- O'*exp(m_base' - m_base) + sum(...)``; a primed value is the one before this tile."""
    kept = f"{a.name}'" if a.correction is None else show(a.correction)
    body = f"{a.reducer}({show(a.element)})"
    sign = _COMBINE.get(a.reducer)
    return f"{a.name} <- {kept} {sign} {body}" if sign else f"{a.name} <- {a.reducer}({kept}, {body})"


def merge_of(a: Accumulator) -> str:
    """Both partial states brought to the joint base, then combined."""
    if a.correction is None:
        left, right = f"{a.name}.a", f"{a.name}.b"
    else:
        left, right = _side(a.correction, "a"), _side(a.correction, "b")
    sign = _COMBINE.get(a.reducer)
    return f"{a.name} <- {left} {sign} {right}" if sign else f"{a.name} <- {a.reducer}({left}, {right})"


def _side(e: Expr, side: str) -> str:
    return show(
        transform(
            e, lambda x: Ref(f"{x.name}.{side}", x.dtype, False, x.part) if isinstance(x, Ref) and x.old else None
        )
    )


def report(stage: Stage, done: Pass, notes: Notes, index: int) -> StageReport:
    """The stage's own accumulators; where it shares another stage's, those it reads."""
    names = list(notes.names)
    read = next(r for r in done.reads if r.stage == stage.name)
    if not names:
        names = [x.name for x in _refs(read.value)]
    steps = [s for s in done.steps if s.name in names]
    update = "; ".join(update_of(s) if isinstance(s, Accumulator) else f"{s.name} <- {show(s.value)}" for s in steps)
    merge = "; ".join(merge_of(s) if isinstance(s, Accumulator) else f"{s.name} <- {show(s.value)}" for s in steps)
    state = tuple(s.name for s in steps if isinstance(s, Accumulator | Base))
    return StageReport(stage.name, frozenset(notes.treatments), update, merge, state, index)


def _refs(e: Expr) -> list[Ref]:
    from redfuser.index.expr import walk

    return [x for x in walk(e) if isinstance(x, Ref)]
