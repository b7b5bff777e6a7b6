"""The compiler, top to bottom. Each stage is one call; its name is the name that dumps, errors and docs use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from redfuser.algebra.derive import derive_checked
from redfuser.algebra.nodes import Derivation
from redfuser.analysis import Analysis, Cascade
from redfuser.frontend.backend import Choice, make_backend
from redfuser.frontend.capture import Capture, functional
from redfuser.frontend.lower import Lowered, lower
from redfuser.frontend.partition import Cut, extract
from redfuser.index.refusals import Refusal, RefusalKind
from redfuser.regions.build import build
from redfuser.regions.find import Group, find
from redfuser.regions.nodes import Region
from redfuser.report.describe import describe
from redfuser.runtime.plan import Plan
from redfuser.settings import Options


@dataclass(frozen=True, slots=True)
class Planned:
    """One cascade on its way through the stages. What a later stage could not do is None, with the refusal."""

    group: Group
    cut: Cut
    region: Region
    derivation: Derivation
    plan: Plan


def plan_graph(lowered: Lowered, options: Options) -> tuple[list[Planned], list[Refusal]]:
    """Index program -> cascades -> regions -> derivations -> plans."""
    planned, refusals = [], []
    for group in find(lowered.program):
        result = plan_group(lowered, group, options)
        if isinstance(result, Refusal):
            refusals.append(result)
        else:
            planned.append(result)
    return planned, refusals


def plan_group(lowered: Lowered, group: Group, options: Options) -> Planned | Refusal:
    """One cascade: its sub-graph, its frame, its proof, its choice of strategy."""
    cut = extract(lowered, frozenset(group.members), group.producers)
    if cut is None:
        return _unsupported(lowered, group, "its operations cannot be cut out of the graph without a cycle")
    inner = find(cut.lowered.program)
    if not inner:
        return _unsupported(lowered, group, "an operation that stays outside separates its reductions")
    region = build(cut.lowered.program, max(inner, key=lambda g: len(g.members)))
    if region is None:
        return _unsupported(lowered, group, "its reductions index their kept axes in ways that no common frame covers")
    derivation = derive_checked(
        region.problem, exact_casts=options.exact_casts, fuse_rounding=options.fuse_rounding
    )
    return Planned(group, cut, region, derivation, Plan(region, derivation, options))


def _unsupported(lowered: Lowered, group: Group, reason: str) -> Refusal:
    origin = lowered.program[group.members[-1]].origin
    return Refusal(
        " -> ".join(group.members),
        RefusalKind.UNSUPPORTED,
        f"this cascade has no tile program: {reason}",
        "it runs unfused; report the function if it should fuse",
        origin.where if origin else None,
    )


def analyse(capture: Capture, function: str, options: Options) -> Analysis:
    """Every captured graph through the stages, without building or running anything."""
    cascades: list[Cascade] = []
    refusals: list[Refusal] = list(capture.refusals)
    graphs = []
    for captured in capture.graphs:
        lowered = lower(functional(captured.graph, captured.example_inputs))
        graphs.append(lowered.program)
        planned, unsupported = plan_graph(lowered, options)
        cascades += [describe(p.region, p.derivation, p.plan) for p in planned]
        refusals += [*lowered.refusals, *unsupported]
    refusals += [r for c in cascades for r in c.refusals]
    return Analysis(function, tuple(cascades), tuple(refusals), tuple(graphs))


def dynamo_backend(options: Options) -> Callable[[fx.GraphModule, Sequence[Tensor]], Callable[..., object]]:
    """The Dynamo backend: the same stages, then every cascade worth fusing is replaced by its plan."""

    def choose(lowered: Lowered) -> list[Choice]:
        planned, _ = plan_graph(lowered, options)
        return [Choice(p.cut, p.plan) for p in planned if p.plan.worthwhile]

    return make_backend(choose, rest=str(options.rest), strict=options.strict)
