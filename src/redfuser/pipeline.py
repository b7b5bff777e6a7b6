"""The compiler, top to bottom. Each stage is one call; its name is the name that errors, dumps and docs use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from redfuser.algebra.checked import derive_checked
from redfuser.algebra.nodes import Derivation
from redfuser.analysis import Analysis, Cascade
from redfuser.backends.listing import RESERVED, Subject
from redfuser.frontend.backend import Choice, make_backend
from redfuser.frontend.capture import Capture
from redfuser.frontend.lower import Lowered, TooDeep, lower
from redfuser.frontend.partition import Cut, extract
from redfuser.frontend.plain import plain
from redfuser.frontend.values import hint_of
from redfuser.index.refusals import Refusal, RefusalKind
from redfuser.regions.build import build
from redfuser.regions.find import Group, find
from redfuser.regions.nodes import Region
from redfuser.report.describe import describe
from redfuser.report.subject import bound, names, summary
from redfuser.runtime.engines import engine_for
from redfuser.runtime.plan import Plan
from redfuser.settings import Options, Rest, current


@dataclass(frozen=True, slots=True)
class Planned:
    """One cascade after all stages."""

    cut: Cut
    region: Region
    derivation: Derivation
    plan: Plan


def plan(lowered: Lowered, group: Group, options: Options) -> Planned | str:
    """One cascade of an index program through the stages; a sentence where a stage has no answer."""
    inductor = options.rest is Rest.INDUCTOR
    cut = extract(lowered, frozenset(group.members), group.beside, inductor=inductor)
    if cut is None:
        return "its operations cannot be cut out of the graph without a cycle"
    return plan_cut(cut, options)


def plan_cut(cut: Cut, options: Options) -> Planned | str:
    """Cut -> region in a common frame -> proved derivation -> plan."""
    groups = find(cut.lowered.program)
    if not groups:
        return "an operation that stays outside separates its reductions"
    region = build(cut.lowered.program, max(groups, key=lambda g: len(g.members)))
    if region is None:
        return "its reductions index their kept axes in ways that no common frame covers"
    if any(a.size.value == 0 for i in region.program.inputs for a in i.axes):
        return "a tensor is empty, which leaves nothing to fuse"
    derivation = derive_checked(region.problem, exact_casts=options.exact_casts, fuse_rounding=options.fuse_rounding)
    return Planned(cut, region, derivation, Plan(region, derivation, options, engine_for(cut.device, options), cut))


def analyse(capture: Capture, function: str, options: Options, parameters: Sequence[str] = ()) -> Analysis:
    """Every captured graph through the stages; nothing is run. ``parameters`` are those of the function."""
    cascades: list[Cascade] = []
    refusals: list[Refusal] = list(capture.refusals)
    graphs = []
    for captured in capture.graphs:
        try:
            lowered = lower(captured.graph)
        except TooDeep as why:
            hint = "write the loop as reductions over an axis; it runs unfused, as the function was written"
            refusals.append(Refusal(function, RefusalKind.UNSUPPORTED, str(why), hint, None))
            continue
        graphs.append(lowered.program)
        refusals += lowered.refusals
        for group in find(lowered.program):
            planned = plan(lowered, group, options)
            if isinstance(planned, str):
                refusals.append(_unsupported(lowered, group, planned))
            else:
                cascades.append(
                    describe(planned.region, planned.derivation, planned.plan, subject(planned, function, parameters))
                )
    refusals += [r for c in cascades for r in c.refusals]
    return Analysis(function, tuple(cascades), tuple(refusals), tuple(graphs))


def subject(planned: Planned, function: str, parameters: Sequence[str]) -> Callable[[], Subject]:
    """What a printed file says and checks beside its kernels."""

    def make() -> Subject:
        cut, program = planned.cut, planned.region.program
        numbers = [hint_of(n.meta["val"]) for n in cut.ints]
        given = names([i.name for i in program.inputs] + [f"n{k}" for k in range(len(numbers))])
        lines, results = plain(cut.module, given, RESERVED)
        return Subject(
            function,
            summary(planned.region, planned.derivation),
            given,
            (*cut.shapes_of_inputs, *numbers),
            tuple(parameters),
            tuple((b.name, b.text(given, len(cut.inputs))) for b in cut.bindings),
            tuple((s.name, s.hint) for s in program.sizes),
            tuple(lines),
            tuple(results),
            bound(planned.region),
        )

    return make


def dynamo_backend(options: Options) -> Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]:
    """The Dynamo backend: the same stages, then every cascade worth fusing runs by its plan."""

    def factory(cut: Cut) -> Plan | None:
        planned = plan_cut(cut, options)
        return planned.plan if isinstance(planned, Planned) and planned.plan.worthwhile else None

    def choose(lowered: Lowered) -> list[Choice]:
        return [(frozenset(g.members), g.beside, factory) for g in find(lowered.program)]

    return make_backend(choose, rest=options.rest.value, strict=options.strict)


def redfuser_backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """``torch.compile(fn, backend="redfuser")``, with the options in force where the graph is compiled."""
    return dynamo_backend(current())(gm, example_inputs)


def _unsupported(lowered: Lowered, group: Group, reason: str) -> Refusal:
    last = lowered.program[group.members[-1]]
    return Refusal(
        " -> ".join(group.members),
        RefusalKind.UNSUPPORTED,
        f"there is no tile program for this cascade: {reason}",
        "it runs unfused, as the function was written",
        last.origin.where if last.origin else None,
    )
