"""Running single stages: the regions of a call with their inputs, their oracle, and any tiling of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from redfuser import settings
from redfuser.backends import reference
from redfuser.backends.cpu import launch
from redfuser.frontend.backend import make_backend
from redfuser.index.eval import evaluate
from redfuser.pipeline import Planned, plan_cut
from redfuser.regions.find import find
from redfuser.tile.build import build
from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule


@dataclass(frozen=True)
class Recorded:
    """A region as a call reached it."""

    planned: Planned
    inputs: dict[str, Tensor]
    sizes: dict[str, int]

    def oracle(self, rounded: bool = False) -> list[Tensor]:
        """The region's index program interpreted in float64."""
        named = {n: (x.double() if x.is_floating_point() else x).numpy() for n, x in self.inputs.items()}
        results = evaluate(self.planned.region.program, named, self.sizes, rounded=rounded)
        return [torch.as_tensor(r) for r in results]

    def run(self, tile: int, segments: int = 1, row: int = 4) -> list[Tensor]:
        """The region run by the reference backend at one tiling."""
        strategy = Strategy.SINGLE if segments == 1 else Strategy.MULTI
        return self.scheduled(Schedule(strategy, row=row, tile=tile, segments=segments))

    def eager(self) -> list[Tensor]:
        """What PyTorch computes for the region."""
        results = self.planned.cut.module(*self.inputs.values())
        return list(results) if isinstance(results, tuple | list) else [results]

    def scheduled(self, schedule: Schedule) -> list[Tensor]:
        program = build(self.planned.region, self.planned.derivation, schedule)
        return reference.run(program, self.inputs, self.sizes)


@contextmanager
def fused_runs() -> Iterator[list[int]]:
    """One entry for every tile program that runs on CPU tensors for what is compiled inside."""
    seen: list[int] = []
    run, call = reference.run, launch._Call.__call__

    def counted(*args: Any) -> list[Tensor]:
        seen.append(1)
        return run(*args)

    def entered(*args: Any) -> list[Tensor]:
        seen.append(1)
        return call(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "run", counted)
        patch.setattr(launch._Call, "__call__", entered)
        yield seen


def record(fn: Callable[..., Any], *calls: Sequence[Any]) -> list[Recorded]:
    """Every region of every call, with what it receives; the calls themselves run unfused."""
    seen: list[Recorded] = []

    def factory(cut: Any) -> Any:
        planned = plan_cut(cut, settings.current())
        assert isinstance(planned, Planned), planned

        def kernel(inputs: Sequence[Tensor], sizes: dict[str, int]) -> None:
            names = [i.name for i in planned.region.program.inputs]
            seen.append(Recorded(planned, dict(zip(names, inputs, strict=True)), sizes))

        return kernel

    def choose(lowered: Any) -> list[Any]:
        return [(frozenset(g.members), g.beside, factory) for g in find(lowered.program)]

    with torch.no_grad():
        compiled = torch.compile(fn, backend=make_backend(choose, rest="eager"))
        for args in calls:
            compiled(*args)
    return seen
