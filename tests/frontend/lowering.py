"""Shared by the tests: a function lowered and evaluated in float64 against eager PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from redfuser.frontend.functional import functional
from redfuser.frontend.lower import Lowered, lower
from redfuser.index.eval import evaluate
from redfuser.index.nodes import Reduce


def traced(fn: Callable[..., Any], args: Sequence[Any], *, grad: bool = False) -> tuple[Any, list[Any]]:
    """The one functional graph of a call, and the inputs that Dynamo gave it."""
    torch._dynamo.reset()
    seen: list[tuple[Any, list[Any]]] = []

    def backend(gm: Any, inputs: list[Any]) -> Any:
        seen.append((functional(gm, inputs), inputs))
        return gm.forward

    with torch.set_grad_enabled(grad):
        torch.compile(fn, backend=backend, fullgraph=True)(*args)
    assert len(seen) == 1
    return seen[0]


def arrays(lowered: Lowered, inputs: Sequence[Any]) -> dict[str, np.ndarray]:
    """The program's inputs by name, given those of the graph."""
    places = [n for n in lowered.graph.graph.nodes if n.op == "placeholder"]
    given = dict(zip(places, inputs, strict=True))
    out = {}
    for name, node in lowered.input_nodes.items():
        x = given[node]
        if isinstance(x, torch.Tensor):
            out[name] = x.detach().double().numpy() if x.is_floating_point() else x.numpy()
        else:
            out[name] = np.asarray(float(x))
    return out


def sizes(lowered: Lowered, inputs: Sequence[Any]) -> dict[str, int]:
    places = [n for n in lowered.graph.graph.nodes if n.op == "placeholder"]
    out: dict[str, int] = {}
    for node, x in zip(places, inputs, strict=True):
        if isinstance(x, torch.Tensor):
            for n, m in zip(node.meta["val"].shape, x.shape, strict=True):
                if isinstance(n, torch.SymInt) and n.node.expr.is_Symbol:
                    out[str(n.node.expr)] = int(m)
    return out


def widened(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def assert_close(got: np.ndarray, want: torch.Tensor, tolerance: float) -> None:
    """Same shape, same NaN and infinities, and finite values within the tolerance (absolute and relative)."""
    expected = want.detach().double().numpy() if want.is_floating_point() else want.numpy()
    assert got.shape == expected.shape, (got.shape, expected.shape)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def check(
    fn: Callable[..., Any], *args: Any, tolerance: float = 1e-9, opaque: bool = False, rounded: bool = False
) -> Lowered:
    """Lowers ``fn`` and compares its evaluation with eager in float64 (or as written, if rounded)."""
    graph, inputs = traced(fn, args)
    lowered = lower(graph)
    if not opaque:
        assert not lowered.refusals, [str(r) for r in lowered.refusals]
    found = evaluate(lowered.program, arrays(lowered, inputs), sizes(lowered, inputs), rounded=rounded)
    reference = fn(*args) if rounded else fn(*pytree.tree_map(widened, args))
    wanted = [x for x in pytree.tree_leaves(reference) if isinstance(x, torch.Tensor)]
    assert len(found) == len(wanted)
    for f, w in zip(found, wanted, strict=True):
        assert_close(f, w, tolerance)
    return lowered


def shape_of(lowered: Lowered) -> list[tuple[str, int, int]]:
    """The skeleton of a program: reducer and numbers of kept and reduced axes of each reduction, sorted."""
    reductions = (d for d in lowered.program.definitions if isinstance(d, Reduce))
    return sorted((str(d.reducer), len(d.axes), len(d.over)) for d in reductions)
