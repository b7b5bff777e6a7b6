"""Shared by the tests: a backend that 'fuses' given reductions with a kernel that runs the unfused module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from redfuser.frontend.backend import Rest, make_backend
from redfuser.frontend.lower import Lowered
from redfuser.frontend.partition import Cut
from redfuser.index.nodes import Reduce


class Fuser:
    """``pick`` names the reductions to fuse together, all by default. Records cuts and kernel calls."""

    def __init__(self, rest: Rest = "eager", pick: Callable[[Reduce], bool] | None = None) -> None:
        self.cuts: list[Cut] = []
        self.calls: list[dict[str, int]] = []
        self.graphs: list[Lowered] = []
        self.pick = pick or (lambda d: True)
        self.backend = make_backend(self.choose, rest)

    def choose(self, lowered: Lowered) -> list[Any]:
        self.graphs.append(lowered)
        names = frozenset(d.name for d in lowered.program.reductions if self.pick(d))
        return [(names, frozenset(), self.kernel)] if names else []

    def kernel(self, cut: Cut) -> Callable[..., list[torch.Tensor]]:
        self.cuts.append(cut)

        def run(inputs: list[torch.Tensor], sizes: dict[str, int]) -> list[torch.Tensor]:
            self.calls.append(sizes)
            return cut.unfused(inputs, sizes)

        return run

    def compile(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        torch._dynamo.reset()
        compiled: Callable[..., Any] = torch.compile(fn, backend=self.backend)
        return compiled


def tracked(xs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [x for x in xs if x.requires_grad]


def leaves(x: Any) -> list[torch.Tensor]:
    return [y for y in pytree.tree_leaves(x) if isinstance(y, torch.Tensor)]


def assert_same(
    fuser: Fuser, fn: Callable[..., Any], args: Sequence[torch.Tensor], *, tolerance: float = 1e-5, grad: bool = True
) -> None:
    """Outputs and gradients of the fused function equal eager's."""
    ours, theirs = ([a.detach().clone().requires_grad_(grad and a.is_floating_point()) for a in args] for _ in "ab")
    got, want = leaves(fuser.compile(fn)(*ours)), leaves(fn(*theirs))
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    assert [g.requires_grad for g in got] == [w.requires_grad for w in want]
    if grad:
        seeds = [torch.randn_like(w) for w in want if w.requires_grad]
        grads = [
            torch.autograd.grad(tracked(out), tracked(at), seeds, allow_unused=True)
            for out, at in ((got, ours), (want, theirs))
        ]
        assert [g is None for g in grads[0]] == [g is None for g in grads[1]]
        for g, w in zip(*grads, strict=True):
            if g is not None:
                torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance)
