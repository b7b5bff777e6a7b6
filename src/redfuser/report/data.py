"""An analysis as plain data (JSON types only)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Union

from redfuser.analysis import Analysis, Cascade, Reduction
from redfuser.index.nodes import Where
from redfuser.index.print import show_program
from redfuser.index.refusals import Refusal

Json = Union[Mapping[str, "Json"], Sequence["Json"], str, int, float, bool, None]


def to_dict(a: Analysis) -> dict[str, Json]:
    """The same content as the text, in the same order. Key names equal the attribute names of the objects."""
    return {
        "function": a.function,
        "cascades": [_cascade(c) for c in a.cascades],
        "refusals": [_refusal(r) for r in a.refusals],
        "graphs": [show_program(g) for g in a.graphs],
    }


def _cascade(c: Cascade) -> Json:
    v = c.proof.verdict
    return {
        "name": c.name,
        "axes": [{"name": n, "length": length} for n, length in c.axes],
        "passes": c.passes,
        "sweeps": c.sweeps,
        "fused": c.fused,
        "decision": {"strategy": c.decision.strategy, "ground": str(c.decision.ground), "reason": c.decision.reason},
        "reductions": [_reduction(r) for r in c.reductions],
        "proof": {
            "rules": [
                {
                    "stage": r.stage,
                    "rule": r.rule,
                    "before": r.before,
                    "after": r.after,
                    "conditions": [*r.conditions],
                }
                for r in c.proof.rules
            ],
            "conditions": list(c.proof.conditions),
            "verdict": None
            if v is None
            else {"accepted": v.accepted, "runs": v.runs, "worst": v.worst, "detail": v.detail},
        },
        "loop": c.loop,
        "source": c.source,
    }


def _reduction(r: Reduction) -> Json:
    return {
        "name": r.name,
        "reducer": str(r.reducer),
        "body": r.body,
        "treatment": sorted(str(t) for t in r.treatment),
        "update": r.update,
        "merge": r.merge,
        "state": list(r.state),
        "in_pass": r.in_pass,
        "where": _where(r.where),
    }


def _refusal(r: Refusal) -> Json:
    return {
        "subject": r.subject,
        "kind": str(r.kind),
        "reason": r.reason,
        "hint": r.hint,
        "where": _where(r.where),
    }


def _where(w: Where | None) -> Json:
    return None if w is None else {"file": w.file, "line": w.line, "text": w.text}
