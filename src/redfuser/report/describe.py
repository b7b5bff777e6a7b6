"""A planned cascade in public terms: what ``Analysis.cascades`` holds."""

from __future__ import annotations

from redfuser.algebra.nodes import Derivation
from redfuser.analysis import Cascade, Decision, Reduction
from redfuser.index.print import show, show_int
from redfuser.regions.nodes import Region


def describe(region: Region, derivation: Derivation, decision: Decision, loop: str) -> Cascade:
    """The public view of one cascade. ``loop`` is its tile program as text."""
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
    )
