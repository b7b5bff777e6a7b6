"""Regions of functions at any shape, without running them: the tensors may be without data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from redfuser.frontend.capture import capture
from redfuser.frontend.lower import lower
from redfuser.pipeline import Planned, plan
from redfuser.regions.find import find
from redfuser.settings import Options


@dataclass(frozen=True)
class Shaped:
    """A region with the tensors that it gets."""

    planned: Planned
    inputs: list[Tensor]


def regions(fn: Callable[..., Any], args: Sequence[Tensor], **options: Any) -> list[Shaped]:
    """The regions of a call, in the order of the graph."""
    found = []
    for captured in capture(fn, tuple(args), {}).graphs:
        lowered = lower(captured.graph)
        for group in find(lowered.program):
            planned = plan(lowered, group, Options(**options))
            assert isinstance(planned, Planned), planned
            found.append(Shaped(planned, [n.meta["val"] for n in planned.cut.inputs]))
    return found
