"""Graphs of a call: real, fake and meta tensors, methods, modules, pytrees, graph breaks, wrong calls."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from redfuser.frontend.capture import Capture, capture
from redfuser.frontend.lower import lower
from redfuser.index.nodes import Reduce
from redfuser.index.refusals import RefusalKind

Tensor = torch.Tensor


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return scores.softmax(-1) @ v


def reductions(c: Capture) -> list[str]:
    return [d.name for g in c.graphs for d in lower(g.graph).program.definitions if isinstance(d, Reduce)]


EXPECTED = ["scores", "softmax_max", "softmax_sum", "matmul"]


def huge(device: str = "cpu") -> Tensor:
    """A tensor that no machine holds."""
    with FakeTensorMode():
        return torch.empty(64, 1 << 20, 128, device=device)


@pytest.mark.parametrize(
    "x",
    [torch.randn(2, 5, 4), torch.empty(2, 5, 4, device="meta"), huge(), huge("cuda")],
    ids=["real", "meta", "fake", "cuda"],
)
def test_any_kind_of_tensor(x: Tensor) -> None:
    assert reductions(capture(attention, (x, x, x), {})) == EXPECTED


def test_names_and_places_are_the_users() -> None:
    (graph,) = capture(attention, [torch.randn(2, 5, 4)] * 3, {}).graphs
    program = lower(graph.graph).program
    scores = program["scores"]
    assert scores.origin is not None and scores.origin.where is not None
    assert scores.origin.name == "scores"
    assert scores.origin.where.file == __file__
    assert scores.origin.where.text == "scores = q @ k.mT"


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(4, 4)

    def forward(self, x: Tensor, extra: dict[str, Any]) -> dict[str, Tensor]:
        return {"out": self.proj(x).softmax(-1) + extra["bias"]}


def test_module_method_and_pytrees() -> None:
    block, x = Block(), torch.randn(3, 4)
    for fn in (block, block.forward, torch.compile(block)):
        (graph,) = capture(fn, (x,), {"extra": {"bias": x[0], "unused": 3}}).graphs
        assert {i.name for i in lower(graph.graph).program.inputs} >= {"proj_weight", "proj_bias"} or fn is not block


def test_data_is_not_read_and_arguments_are_not_changed() -> None:
    def f(x: Tensor) -> Tensor:
        return x.mul_(2).softmax(-1)

    x = torch.ones(2, 3)
    capture(f, (x,), {})
    assert torch.equal(x, torch.ones(2, 3))


def test_marked_lengths_are_symbols() -> None:
    x = torch.randn(2, 5, 4)
    torch._dynamo.mark_dynamic(x, 1)
    (graph,) = capture(lambda x: x.softmax(1), (x,), {}).graphs
    assert [s.hint for s in lower(graph.graph).program.sizes] == [5]


def test_graph_break() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.softmax(-1)
        torch._dynamo.graph_break()
        return y.logsumexp(-1)

    c = capture(f, (torch.randn(3, 4),), {})
    assert len(c.graphs) == 2
    (refusal,) = c.refusals
    assert refusal.kind is RefusalKind.GRAPH_BREAK
    assert refusal.where is not None and refusal.where.text == "torch._dynamo.graph_break()"


def branching(x: Tensor) -> Tensor:
    y = x.softmax(-1)
    if y.sum() > 0:
        return y.amax(-1)
    return y.amin(-1)


def test_branch_on_data() -> None:
    real = capture(branching, (torch.randn(3, 4),), {})
    assert [d for d in reductions(real) if d.startswith("amax")]
    meta = capture(branching, (torch.randn(3, 4, device="meta"),), {})
    assert len(meta.graphs) == 1
    assert "branches on data" in meta.refusals[-1].reason


def test_wrong_shapes_raise_as_eager() -> None:
    args = torch.randn(2, 5, 4), torch.randn(2, 5, 3), torch.randn(2, 5, 4)
    with pytest.raises(RuntimeError) as eager:
        attention(*args)
    with pytest.raises(RuntimeError) as ours:
        capture(attention, args, {})
    assert type(ours.value) is type(eager.value)
    assert str(ours.value) == str(eager.value)


def test_many_shapes_do_not_run_into_a_limit() -> None:
    for n in range(2, 14):
        assert reductions(capture(attention, [torch.randn(1, n, 4)] * 3, {})) == EXPECTED


def test_earlier_calls_do_not_matter() -> None:
    def sizes(n: int) -> int:
        (graph,) = capture(attention, [torch.randn(2, n, 4)] * 3, {}).graphs
        return len(lower(graph.graph).program.sizes)

    assert [sizes(n) for n in (3, 4, 5)] == [0, 0, 0]
