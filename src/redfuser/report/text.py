"""An analysis as text for a terminal: for each cascade its reductions, proof and loop, then what was refused."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator

from redfuser.analysis import Analysis, Cascade, Reduction
from redfuser.index.nodes import Where
from redfuser.index.refusals import Refusal

_WIDTH = 110
NO_SOURCE = 'none: the reference backend runs the loop with PyTorch\'s operations; backend="triton" prints kernels'
_SOURCE = "kernels for {target} as a file that runs alone: explain(...).source, or redfuser explain --source"


def render(analysis: Analysis) -> str:
    """The whole explanation. Sections come in the order in which a reader needs them."""
    blocks = [_headline(analysis)]
    blocks += [_cascade(n, c) for n, c in enumerate(analysis.cascades, 1)]
    if analysis.refusals:
        blocks.append("\n".join(_refusals(analysis.refusals)))
    return "\n\n".join(blocks)


def _headline(a: Analysis) -> str:
    if not a.cascades:
        none = "no cascade: no two reductions over one axis that fuse, the second using the first, and none over a large product"
        return f"{a.function}: {none}" + ("; see refused below" if a.refusals else "")
    one = sum(c.passes == 1 for c in a.cascades)
    several = len(a.cascades) - one
    passes = [f"{n} in {word}" for n, word in ((one, "one pass"), (several, "several passes")) if n]
    fused = sum(c.fused for c in a.cascades)
    runs = f"; {fused} of {len(a.cascades)} runs fused at these lengths"
    return f"{a.function}: {_count(len(a.cascades), 'cascade')}, {', '.join(passes)}{runs}\n{_LEGEND}"


_LEGEND = (
    "  x' is x before a tile, x.a and x.b are x in two partial states; a base is the value that running sums are relative\n"
    "  to; [...] marks the part of F that depends on the elements"
)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}{'es' if noun.endswith('s') else 's'}"


def _cascade(number: int, c: Cascade) -> str:
    axes = ", ".join(f"{name}<{length}" for name, length in c.axes)
    head = f"cascade {number}: {c.name}   over {axes}   {_count(c.passes, 'pass')}"
    if c.sweeps:
        head += f" + {_count(c.sweeps, 'sweep')} that writes results"
    lines = [head, "=" * min(len(head), _WIDTH)]
    for r in c.reductions:
        lines += _reduction(r, c.passes)
    lines += ["", "proof"]
    lines += _proof(c)
    lines += ["", f"loop   ({c.decision})" if c.fused else f"loop   (not run: {c.decision.reason})"]
    lines += textwrap.indent(c.loop, "    ").splitlines()
    lines += ["", f"source   {NO_SOURCE if c.listing is None else _SOURCE.format(target=c.listing.target)}"]
    return "\n".join(lines)


def _reduction(r: Reduction, passes: int) -> Iterator[str]:
    at = f"{place(r.where)}: {r.where.text}" if r.where else ""
    turn = f"   [pass {r.in_pass}]" if passes > 1 else ""
    yield ""
    yield f"  {r.name} = {r.reducer} of {r.body}{turn}"
    if at:
        yield f"    at      {at}"
    how = f"{', '.join(sorted(str(t) for t in r.treatment))}: {_why(r)}"
    yield from textwrap.wrap(how, _WIDTH, initial_indent="    how     ", subsequent_indent=" " * 12)
    yield from _block("    update  ", r.update)
    yield from _block("    merge   ", r.merge)
    if r.state:
        yield f"    state   {', '.join(r.state)}"


def place(w: Where) -> str:
    """file:line, relative to the working directory where the file is below it."""
    path = os.path.relpath(w.file)
    return f"{w.file if path.startswith(os.pardir) else path}:{w.line}"


_REASONS = {
    "plain": "it does not depend on an earlier result",
    "rescale": "its old value is multiplied by a ratio when an earlier result moves",
    "defer": "a factor that depends only on earlier results is left out of the loop and applied at read-out",
    "rebase": "it is a polynomial around an earlier result and is shifted exactly when that result moves",
    "order": "its largest or smallest element is found without the map, which is applied at read-out",
}


def _why(r: Reduction) -> str:
    if r.in_pass > 1 and r.treatment == {"plain"}:
        return "the earlier results that it uses are final, from a pass before"
    return "; ".join(_REASONS[str(t)] for t in sorted(r.treatment, key=str))


def _block(head: str, text: str) -> Iterator[str]:
    for n, line in enumerate(text.splitlines() or [""]):
        yield (head if n == 0 else " " * len(head)) + line


def _proof(c: Cascade) -> Iterator[str]:
    said: set[str] = set()
    for n, rule in enumerate(c.proof.rules, 1):
        yield f"  {n}. {rule.stage}: {rule.rule}"
        yield f"       {rule.before}"
        yield f"    => {rule.after}"
        for condition in rule.conditions:
            if condition not in said:
                yield f"       since {condition}"
            said.add(condition)
    for condition in c.proof.conditions:
        yield f"  holds up to: {condition}"
    v = c.proof.verdict
    if v is None:
        yield "  checker: not run"
    else:
        word = "accepted" if v.accepted else "REJECTED"
        yield f"  checker: {word} after {v.runs} runs, worst error {v.worst:.1e} of sum |F|{': ' + v.detail if v.detail else ''}"


def _refusals(refusals: tuple[Refusal, ...]) -> Iterator[str]:
    yield "refused"
    yield "======="
    for r in refusals:
        at = f"   ({place(r.where)}: {r.where.text})" if r.where else ""
        yield f"  {r.subject}{at}"
        yield from textwrap.wrap(f"{r.reason}", _WIDTH, initial_indent="    why   ", subsequent_indent="          ")
        yield from textwrap.wrap(f"{r.hint}", _WIDTH, initial_indent="    hint  ", subsequent_indent="          ")
