"""Running single stages: plans of a function, the values at their cuts, their oracle, and any tiling of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from redfuser import settings
from redfuser.backends import reference
from redfuser.frontend.capture import capture
from redfuser.frontend.lower import lower
from redfuser.index.eval import evaluate
from redfuser.pipeline import Planned, plan
from redfuser.regions.find import find
from redfuser.tile.build import build
from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule


def planned(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[fx.GraphModule, list[Planned]]:
    """The functional graph of a function (which must have one) and its planned cascades."""
    (captured,) = capture(fn, args, {}).graphs
    lowered = lower(captured.graph)
    plans = [plan(lowered, g, settings.current()) for g in find(lowered.program)]
    assert all(isinstance(p, Planned) for p in plans), plans
    return captured.graph, plans


class _Recorder(fx.Interpreter):
    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.values[n] = value
        return value


def inputs_of_cuts(graph: fx.GraphModule, plans: Sequence[Planned], args: Sequence[Any]) -> list[list[Tensor]]:
    """The tensors that each region of a graph receives when the function is called with ``args``."""
    recorder = _Recorder(graph)
    with torch.no_grad():
        recorder.run(*[a for a in args if isinstance(a, Tensor)])
    return [[recorder.values[n] for n in p.cut.inputs] for p in plans]


def oracle(p: Planned, inputs: Sequence[Tensor], rounded: bool = False) -> list[Tensor]:
    """The region's index program interpreted in float64."""
    named = {
        i.name: (x.double() if x.is_floating_point() else x).numpy()
        for i, x in zip(p.region.program.inputs, inputs, strict=True)
    }
    results = evaluate(p.region.program, named, {}, rounded=rounded)
    return [torch.as_tensor(r) for r in results]


def run_tiled(p: Planned, inputs: Sequence[Tensor], tile: int, segments: int, row: int = 4) -> list[Tensor]:
    """The region run by the reference backend at one tiling."""
    strategy = Strategy.SINGLE if segments == 1 else Strategy.MULTI
    program = build(p.region, p.derivation, Schedule(strategy, row=row, tile=tile, segments=segments))
    return reference.run(program, {i.name: x for i, x in zip(p.region.program.inputs, inputs, strict=True)}, {})
