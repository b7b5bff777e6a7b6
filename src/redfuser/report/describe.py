"""A planned cascade in public terms: what ``Analysis.cascades`` holds."""

from __future__ import annotations

from collections.abc import Callable

from redfuser.algebra.nodes import Derivation
from redfuser.analysis import Cascade, Decided, Decision, Reduction
from redfuser.backends.listing import Subject
from redfuser.index.print import show, show_int
from redfuser.regions.nodes import Region
from redfuser.runtime.plan import Plan
from redfuser.tile.nodes import Program, Strategy
from redfuser.tile.print import show_program
from redfuser.tile.strategy import Unsupported


def describe(region: Region, derivation: Derivation, plan: Plan, subject: Callable[[], Subject]) -> Cascade:
    """The public view of one cascade: what it is, why one loop is legal, and what runs."""
    reports = {r.stage: r for r in derivation.reports}
    reductions = tuple(
        Reduction(
            name=s.name,
            reducer=s.reducer,
            body=show(s.body),
            treatment=reports[s.name].treatments,
            update=reports[s.name].update,
            merge=reports[s.name].merge,
            state=reports[s.name].state,
            in_pass=reports[s.name].passed + 1,
            where=s.origin.where if s.origin else None,
        )
        for s in region.problem.stages
    )
    axis = region.problem.axis
    decision, loop, program = _chosen(plan)
    listing = None
    if program is not None:
        listing = plan.engine.listing(program, plan.shown, decision.reason, subject)
    return Cascade(
        reductions=reductions,
        axes=((axis.name, show_int(axis.size)),),
        passes=len(derivation.passes),
        sweeps=int(any(axis in r.axes for r in region.results)),
        fused=decision.strategy != "unfused",
        decision=decision,
        proof=derivation.proof,
        refusals=derivation.refusals,
        loop=loop,
        listing=listing,
    )


def _chosen(plan: Plan) -> tuple[Decision, str, Program | None]:
    """What runs, and the loop as text. A cascade that runs unfused shows the loop that it could run."""
    try:
        program = plan.program(plan.shown)
    except Unsupported as e:
        return Decision("unfused", Decided.UNSUPPORTED, str(e)), "no tile program", None
    made = plan.decide({})
    forced = plan.options.strategy is not Strategy.AUTO
    return (
        Decision(str(made.strategy), Decided.FORCED if forced else Decided.COST, made.reason),
        show_program(program),
        program,
    )
