"""Regions of functions at any shape, without running them: the tensors have no data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redfuser.frontend.capture import capture
from redfuser.frontend.lower import lower
from redfuser.pipeline import Planned, plan
from redfuser.regions.find import find
from redfuser.settings import Options


class Meta:
    """Makes the inputs of a benchmark entry without data; a stand-in for ``benchmarks.entry.Maker``."""

    device = torch.device("meta")

    def normal(self, *size: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
        return torch.empty(size, dtype=dtype, device=self.device)

    def integers(self, high: int, *size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int64, device=self.device)


@dataclass(frozen=True)
class Shaped:
    """A region with the tensors that it gets."""

    planned: Planned
    inputs: list[Tensor]


def regions(fn: Callable[..., Any], args: Sequence[Tensor], options: Options | None = None) -> list[Shaped]:
    """The regions of a call, in the order of the graph."""
    found = []
    for captured in capture(fn, tuple(args), {}).graphs:
        lowered = lower(captured.graph)
        for group in find(lowered.program):
            planned = plan(lowered, group, options or Options(target="cuda:90", backend="triton", tune="off"))
            assert isinstance(planned, Planned), planned
            found.append(Shaped(planned, [n.meta["val"] for n in planned.cut.inputs]))
    return found
