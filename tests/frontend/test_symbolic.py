"""Programs with symbolic sizes hold at every length, not only at the one that was traced."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering import assert_close, traced, widened

from redfuser.frontend.lower import Lowered, lower
from redfuser.index.eval import evaluate

Tensor = torch.Tensor


def at_lengths(fn: Callable[..., Any], make: Callable[[int], list[Any]], marks: list[tuple[int, int]]) -> Lowered:
    """``make(n)`` gives the arguments at length n; ``marks`` are the (argument, dimension) pairs that have it."""
    args = make(11)
    for arg, dim in marks:
        torch._dynamo.mark_dynamic(args[arg], dim)
    graph, inputs = traced(fn, args)
    lowered = lower(graph)
    assert not lowered.refusals, [str(r) for r in lowered.refusals]
    (size,) = lowered.program.sizes
    places = [n for n in graph.graph.nodes if n.op == "placeholder"]
    order = [next(k for k, a in enumerate(args) if a is x) if isinstance(x, Tensor) else None for x in inputs]
    for n in (2, 3, 8, 11, 40):
        again = make(n)
        given = {p: again[k] for p, k in zip(places, order, strict=True) if k is not None}
        arrays = {name: widened(given[node]).numpy() for name, node in lowered.input_nodes.items() if node in given}
        found = evaluate(lowered.program, arrays, {size.name: n})
        want = fn(*(widened(a) for a in again))
        for f, w in zip(found, want if isinstance(want, tuple) else (want,), strict=True):
            assert_close(f, w, 1e-9)
    return lowered


def test_attention_over_heads() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = ((x @ w[i]).view(b, s, 4, 4).transpose(1, 2) for i in range(3))
        scores = (q @ k.mT / 2).masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, -1)

    w = torch.randn(3, 16, 16)
    at_lengths(f, lambda n: [torch.randn(2, n, 16), w], [(0, 1)])


@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_product_attention(causal: bool) -> None:
    def f(q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, is_causal=causal, enable_gqa=True)

    q = torch.randn(1, 4, 5, 8)
    at_lengths(f, lambda n: [q, torch.randn(1, 2, n, 8)], [(1, 2)])


def test_mean_divides_by_the_length() -> None:
    at_lengths(lambda x: (x.mean(0), x.var(0), x.std(), F.layer_norm(x.T, (x.shape[0],))),
               lambda n: [torch.randn(n, 6)], [(0, 0)])  # fmt: skip


def test_slices_from_both_ends() -> None:
    at_lengths(lambda x: (x[1:] - x[:-1], x[-2:], x[:2], x[-1], x.flip(0)), lambda n: [torch.randn(n, 6)], [(0, 0)])


def test_cat_with_a_fixed_piece() -> None:
    y = torch.randn(3, 6)
    at_lengths(lambda x, y: torch.cat([x, y, x]).softmax(0), lambda n: [torch.randn(n, 6), y], [(0, 0)])


def test_flattened_batches() -> None:
    at_lengths(lambda x: x.reshape(-1, 6).softmax(0).view(x.shape[0], 3, 6).sum(1),
               lambda n: [torch.randn(n, 3, 6)], [(0, 0)])  # fmt: skip


def test_arithmetic_on_the_length() -> None:
    at_lengths(lambda x: x * x.shape[0] + torch.arange(x.shape[0])[:, None] * 0.5 - x.shape[0] ** 2 / 4,
               lambda n: [torch.randn(n, 6)], [(0, 0)])  # fmt: skip


def test_scalar_arguments_are_inputs() -> None:
    seen = []

    def backend(gm: Any, inputs: list[Any]) -> Any:
        from redfuser.frontend.functional import functional

        seen.append(lower(functional(gm, inputs)))
        return gm.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda x, s: (x * s).softmax(-1) * (s + 1), backend=backend)
    for s in (0.5, 0.25, 0.75):
        compiled(torch.randn(3, 4), s)
    assert len(seen) == 2
    assert sorted(len(i.axes) for i in seen[1].program.inputs) == [0, 2]
    assert not seen[1].refusals
