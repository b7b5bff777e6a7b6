"""Cuts, the region operator and the backend, with a kernel that runs the unfused sub-graph."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusing import Fuser, assert_same, leaves

from redfuser.frontend.backend import make_backend
from redfuser.frontend.partition import Cut
from redfuser.frontend.unfused import Unfused
from redfuser.index.nodes import Reduce
from redfuser.index.refusals import RefusalKind
from redfuser.regions.find import find

Tensor = torch.Tensor
Q, K, V = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 8**-0.5).softmax(-1) @ v


def named(*names: str) -> Any:
    return lambda d: any(d.name.startswith(n) for n in names)


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_attention(rest: Any) -> None:
    fuser = Fuser(rest)
    assert_same(fuser, lambda q, k, v: attention(q, k, v) * 2 + v.sum(), (Q, K, V))
    (cut,) = fuser.cuts
    assert len(cut.inputs) == 3
    assert fuser.calls == [{}]


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_the_unfused_code_is_compiled_only_where_the_rest_is(rest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU; here the cut says that it runs on one."""
    compiled = []

    def compile_(self: Unfused, inputs: Any) -> Any:
        compiled.append(self)
        return self._module

    monkeypatch.setattr(Unfused, "_compiled", compile_)
    monkeypatch.setattr(Cut, "device", torch.device("cuda"))
    fuser = Fuser(rest)
    assert_same(fuser, attention, (Q, K, V), grad=False)
    assert fuser.calls and len(compiled) == (1 if rest == "inductor" else 0)


def test_gradient_of_a_mask() -> None:
    assert_same(Fuser(), lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, (Q, K, V, torch.randn(1, 4, 5, 7)))


def test_views_and_index_masks_go_inside() -> None:
    def f(x: Tensor) -> Tensor:
        q, k, v = x.view(2, 6, 3, 4, 2).permute(2, 0, 3, 1, 4).unbind()
        s = (q @ k.mT).masked_fill(torch.arange(6) > torch.arange(6)[:, None], -torch.inf)
        return (s.softmax(-1) @ v).transpose(1, 2).reshape(2, 6, 8)

    fuser = Fuser()
    assert_same(fuser, f, (torch.randn(2, 6, 24),))
    (cut,) = fuser.cuts
    assert [n.op for n in cut.inputs] == ["placeholder"]
    assert [n.meta["val"].shape for n in cut.outputs] == [(2, 4, 6, 2)]


def test_costly_operands_stay_outside() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q.sin() + q, k.cos() * k, v)

    fuser = Fuser()
    assert_same(fuser, f, (Q, K, V))
    inside = {str(n.target) for n in fuser.cuts[0].nodes}
    assert not inside & {"aten.sin.default", "aten.cos.default", "aten.add.Tensor"}


def test_elementwise_inputs_of_reductions_go_inside() -> None:
    fuser = Fuser()
    assert_same(fuser, lambda x, y: (x * 2 + y.tanh()).softmax(-1), (Q, Q + 1))
    assert "aten.tanh.default" in {str(n.target) for n in fuser.cuts[0].nodes}


def test_returned_probabilities_are_one_more_output() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        p = (q @ k.mT).softmax(-1)
        return p @ v, p

    fuser = Fuser()
    assert_same(fuser, f, (Q, K, V))
    assert len(fuser.cuts[0].outputs) == 2


def test_results_of_several_kinds() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, index = x.softmax(-1).topk(2)
        return values / values.sum(-1, keepdim=True), index, x.amax(-1)

    assert_same(Fuser(), f, (torch.randn(6, 9),))


def test_a_cut_that_would_not_be_convex_is_refused() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        m = x.amax(-1, keepdim=True)
        y = torch.linalg.cholesky(w + m[0, 0] ** 2 * torch.eye(3))
        return (x - m + y.sum()).exp().sum(-1)

    fuser = Fuser(pick=lambda d: d.name in ("m", "sum_1", "sum"))
    w = torch.eye(3)
    assert_same(fuser, f, (torch.randn(4, 6), w), grad=False)
    assert not fuser.cuts


def test_an_operation_that_is_not_covered_splits_the_graph() -> None:
    def f(x: Tensor) -> Tensor:
        return x.softmax(-1).cumsum(-1).softmax(-1)

    fuser = Fuser(pick=named("softmax_2"))
    assert_same(fuser, f, (torch.randn(4, 6),))
    (refusal,) = fuser.graphs[0].refusals
    assert refusal.kind is RefusalKind.OPAQUE_OP
    assert "cumsum" in refusal.subject
    assert refusal.where is not None and "cumsum" in refusal.where.text


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_any_length(rest: Any) -> None:
    fuser = Fuser(rest)
    compiled = fuser.compile(attention)
    k = K.clone()
    torch._dynamo.mark_dynamic(k, 2)
    for keys in (k, *(torch.randn(2, 4, n, 8) for n in (3, 19, 64))):
        torch.testing.assert_close(compiled(Q, keys, keys), attention(Q, keys, keys))
    assert len(fuser.cuts) == 1
    assert [list(c.values()) for c in fuser.calls] == [[7], [3], [19], [64]]
    one = torch.randn(2, 4, 1, 8)
    torch.testing.assert_close(compiled(Q, one, one), attention(Q, one, one))


def test_automatic_dynamic_lengths() -> None:
    fuser = Fuser()
    compiled = fuser.compile(lambda x: (x.reshape(x.shape[0], -1, 4).softmax(1) * x.shape[1]).sum(1))
    for n in (4, 8, 12, 20, 1000):
        x = torch.randn(3, n)
        torch.testing.assert_close(compiled(x), (x.reshape(3, -1, 4).softmax(1) * n).sum(1))
    assert len(fuser.cuts) <= 3


def test_meta_tensors_give_meta_results() -> None:
    fuser = Fuser()
    out = fuser.compile(attention)(*(x.to("meta") for x in (Q, K, V)))
    assert out.is_meta and out.shape == (2, 4, 5, 8)
    assert not fuser.calls


def test_double_backward() -> None:
    x = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
    compiled = Fuser().compile(lambda x: x.softmax(-1) * x.sum(-1, keepdim=True))
    assert torch.autograd.gradcheck(compiled, x)
    assert torch.autograd.gradgradcheck(compiled, x)


def test_part_of_the_gradients() -> None:
    q, k = Q.clone(), K.clone().requires_grad_()
    v = V.clone()
    out = Fuser().compile(attention)(q, k, v)
    (got,) = torch.autograd.grad(out.sum(), k)
    (want,) = torch.autograd.grad(attention(q, k, v).sum(), k)
    torch.testing.assert_close(got, want)


def test_gradient_of_an_unused_output_is_undefined() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        p = x.softmax(-1)
        return p, p.logsumexp(-1)

    x = torch.randn(4, 6, requires_grad=True)
    got = torch.autograd.grad(Fuser().compile(f)(x)[1].sum(), x)
    torch.testing.assert_close(got, torch.autograd.grad(f(x)[1].sum(), x))


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_ambient_autocast(rest: Any) -> None:
    fuser = Fuser(rest)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(fuser, attention, (Q, K, V), tolerance=2e-2)
        assert fuser.compile(attention)(Q, K, V).dtype is torch.bfloat16
    assert fuser.cuts


def test_autocast_inside() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = attention(q, k, v)
        return y.float() @ v.mT

    fuser = Fuser(pick=lambda d: "softmax" in d.name or d.name == "y")
    assert_same(fuser, f, (Q, K, V), tolerance=5e-2)
    assert fuser.compile(f)(Q, K, V).dtype is torch.float32
    assert fuser.cuts


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_mutated_arguments(rest: Any) -> None:
    def f(x: Tensor, cache: Tensor) -> Tensor:
        cache[1:3] = x[:2]
        return cache.softmax(-1)

    fuser = Fuser(rest)
    caches = torch.zeros(4, 6), torch.zeros(4, 6)
    x = torch.randn(4, 6)
    torch.testing.assert_close(fuser.compile(f)(x, caches[0]), f(x, caches[1]))
    torch.testing.assert_close(*caches)
    assert fuser.cuts


def test_switching_gradients_off_inside() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            p = x.softmax(-1)
        return (p * y).sum(-1)

    assert_same(Fuser(), f, (torch.randn(4, 6), torch.randn(4, 6)))


def test_our_failure_is_not_the_users(caplog: pytest.LogCaptureFixture) -> None:
    fuser = Fuser()

    def broken(lowered: Any) -> Any:
        raise ValueError("a bug of ours")

    from redfuser.frontend.backend import make_backend

    fuser.backend = make_backend(broken, "eager")
    assert_same(fuser, attention, (Q, K, V))
    assert "a bug of ours" in caplog.text


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    from redfuser.frontend import backend

    def missing() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    backend.has_compiler.cache_clear()
    with pytest.warns(UserWarning, match=r"C\+\+ compiler"):
        assert_same(Fuser("inductor"), lambda q, k, v: attention(q, k, v) * 2 + v.sum(), (Q, K, V))
    backend.has_compiler.cache_clear()


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x: Tensor, p: float = 0.0) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        p_ = F.dropout((q @ k.mT).softmax(-1), p, self.training)
        return x + self.out((p_ @ v).transpose(1, 2).flatten(2))


def picked(d: Reduce) -> bool:
    return "softmax" in d.name or d.name.startswith("matmul")


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_training_a_module(rest: Any) -> None:
    layer, x = Layer(), torch.randn(2, 5, 16)
    fuser = Fuser(rest, picked)
    compiled = fuser.compile(layer)
    grads = []
    for f in (compiled, layer):
        layer.zero_grad()
        f(x).square().sum().backward()
        grads.append([p.grad.clone() for p in layer.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(*grads)
    assert len(fuser.calls) == 1


def test_dropout_is_left_alone() -> None:
    fuser = Fuser(pick=picked)
    layer = Layer()
    out = leaves(fuser.compile(lambda x: layer(x, 0.5))(torch.randn(2, 5, 16)))
    assert out[0].shape == (2, 5, 16)
    assert any("dropout" in r.subject for r in fuser.graphs[0].refusals)


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_results_that_share_memory(rest: Any) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        p = x.softmax(-1)
        return p, p, p.view(-1), x, x[1:], p * 2

    x = torch.randn(4, 6)
    got, want = Fuser(rest).compile(f)(x), f(x)
    torch.testing.assert_close(got, want)
    assert got[0] is got[1] or got[0].data_ptr() == got[1].data_ptr()
    assert got[2].data_ptr() == got[0].data_ptr()
    assert got[3] is x and got[4].data_ptr() == x[1:].data_ptr()


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_a_result_that_views_a_mutated_argument(rest: Any) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(1)
        return x.view(-1), x.softmax(-1)

    a, b = torch.zeros(4, 6), torch.zeros(4, 6)
    got, want = Fuser(rest).compile(f)(a), f(b)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(a, b)
    got[0].zero_()
    assert not a.any()


def test_a_result_copied_into_an_argument_stays_apart() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.softmax(-1)
        x.copy_(y)
        return y

    a, b = torch.randn(4, 6), torch.zeros(4, 6)
    b.copy_(a)
    got, want = Fuser().compile(f)(a), f(b)
    torch.testing.assert_close([got, a], [want, b])
    got.zero_()
    assert a.any()


def test_a_length_that_only_a_multiple_of_gives() -> None:
    def f(x: Tensor) -> Tensor:
        return x.view(3, -1, 4).softmax(1).sum(-1)

    fuser = Fuser()
    compiled = fuser.compile(f)
    x = torch.randn(3, 20)
    torch._dynamo.mark_dynamic(x, 1)
    for n in (20, 8, 44):
        y = x if n == 20 else torch.randn(3, n)
        torch.testing.assert_close(compiled(y), f(y))


def test_gathered_rows_are_computed_outside() -> None:
    def f(table: Tensor, ids: Tensor) -> Tensor:
        return table[ids].softmax(-1)

    fuser = Fuser()
    assert_same(fuser, f, (torch.randn(7, 5), torch.tensor([1, 6, 0])))
    assert "aten.index.Tensor" not in {str(n.target) for n in fuser.cuts[0].nodes}


def test_masks_are_measured_with_the_integers_of_the_call() -> None:
    cuts = []

    def keep(cut: Any) -> None:
        cuts.append(cut)

    def choose(lowered: Any) -> list[Any]:
        return [(frozenset(g.members), g.beside, keep) for g in find(lowered.program)]

    def documents(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(ids[:, None] != ids, float("-inf")).softmax(-1).amax(-1)

    ids = torch.tensor([0, 0, 1, 1, 1, 2])
    torch.compile(documents, backend=make_backend(choose, rest="eager", strict=True))(torch.randn(6, 6), ids)
    (cut,) = cuts
    floats, integers = (x for x in sorted(cut.examples({}), key=lambda x: x.dtype == ids.dtype))
    assert torch.equal(integers, ids) and floats.is_floating_point()
