"""Derivations that the checker accepted: where it rejects a stage, the stage falls back to a pass of its own."""

from __future__ import annotations

from dataclasses import replace

from redfuser.algebra.check import examine
from redfuser.algebra.derive import derive
from redfuser.algebra.nodes import Derivation, Problem, Stage
from redfuser.index.expr import loads
from redfuser.index.refusals import Refusal, RefusalKind


def derive_checked(problem: Problem, *, exact_casts: bool = False, fuse_rounding: bool = False) -> Derivation:
    """A derivation that the checker accepted, with its verdict in the proof.

    A stage that the checker rejects runs in a pass of its own, after everything it reads and as it is written; it
    carries a refusal of kind CHECK_FAILED. In the worst case every stage does, which is the definition itself.
    """
    apart: dict[str, str] = {}
    names = [s.name for s in problem.stages]
    while True:
        d = derive(problem, exact_casts=exact_casts, fuse_rounding=fuse_rounding, apart=frozenset(apart))
        found = examine(d)
        if found.verdict.accepted or len(apart) == len(names):
            break
        wrong = found.stage if found.stage is not None and found.stage not in apart else None
        for name in names if wrong is None else [wrong]:
            apart.setdefault(name, found.verdict.detail)
    failed = tuple(_failed(s, apart[s.name]) for s in problem.stages if s.name in apart and _reads_results(problem, s))
    return replace(d, refusals=(*d.refusals, *failed), proof=replace(d.proof, verdict=found.verdict))


def _reads_results(p: Problem, s: Stage) -> bool:
    return any(x.source in {t.name for t in p.stages} for x in loads(s.body))


def _failed(s: Stage, detail: str) -> Refusal:
    return Refusal(
        s.name,
        RefusalKind.CHECK_FAILED,
        f"the derived loop did not give what the definition gives ({detail}), so it is not used",
        "nothing is wrong with your function: please report this as a fault of the derivation",
        s.origin.where if s.origin else None,
    )
