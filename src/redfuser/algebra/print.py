"""A derivation as readable text."""

from __future__ import annotations

from redfuser.algebra.nodes import Accumulator, Derivation, Pass, Step
from redfuser.algebra.text import update_of
from redfuser.index.print import Namer, short, show, show_axes


def show_step(s: Step, namer: Namer = str) -> str:
    if isinstance(s, Accumulator):
        return f"{update_of(s)}    # {short(s.dtype)}[{show_axes(s.axes)}], {s.role} of {s.stage}"
    return f"{s.name} <- {show(s.value, namer)}    # base, {short(s.dtype)}[{show_axes(s.axes)}]"


def show_pass(p: Pass) -> str:
    lines = [f"    {show_step(s)}" for s in p.steps]
    for r in p.reads:
        lines.append(f"  {r.stage} = {show(r.value)}")
        if r.index is not None:
            lines.append(f"  {r.stage}.index = {show(r.index)}")
    return "\n".join(lines)


def show_derivation(d: Derivation) -> str:
    """Passes, reads, refusals, proof."""
    out = []
    for i, p in enumerate(d.passes):
        out.append(f"pass {i + 1} of {len(d.passes)} over {d.problem.axis.name}, for every tile:")
        out.append(show_pass(p))
    for s in d.reports:
        out.append(
            f"{s.stage}: {', '.join(sorted(map(str, s.treatments)))}, pass {s.passed + 1}, state {', '.join(s.state)}"
        )
    out += [f"moved to a later pass: {r}" for r in d.refusals]
    out += [
        f"proof {r.stage}: {r.rule}: {r.before}  =>  {r.after}" + "".join(f"\n    if {c}" for c in r.conditions)
        for r in d.proof.rules
    ]
    out += [f"condition: {c}" for c in d.proof.conditions]
    if d.proof.verdict is not None:
        v = d.proof.verdict
        out.append(
            f"checker: {'accepted' if v.accepted else 'rejected'} after {v.runs} runs, worst error "
            f"{v.worst:.1e}. {v.detail}"
        )
    return "\n".join(out)
