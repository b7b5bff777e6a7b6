"""The public surface: what a user calls, passes, mistypes and gets back."""

import copy
import json
import math
import pickle
import sys
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from catalogue import rnd
from helpers import assert_close, double
from stages import fused_runs

import redfuser
from redfuser.backends import reference
from redfuser.errors import NotFusedError, UnknownOptionError

pytestmark = pytest.mark.usefixtures("quick_kernels")
FORCED = {"rest": "eager", "strategy": "single", "tile": 16, "strict": True}


def attention(q, k, v):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    weights = scores.softmax(-1)
    return weights @ v


def qkv(n=9, m=70, d=16, **kw):
    return rnd(2, n, d, **kw), rnd(2, m, d, seed=1), rnd(2, m, 8, seed=2)


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(16, 16) for _ in range(3))

    def forward(self, x, *, mask=None):
        scores = self.q(x) @ self.k(x).mT * 0.25
        if mask is not None:
            scores = scores + mask
        return {"out": scores.softmax(-1) @ self.v(x), "lengths": (x.shape[1],)}

    @redfuser.fuse(**FORCED)
    def score(self, x):
        return torch.softmax(self.q(x), -1) @ x.mT


# -- calling -------------------------------------------------------------------------------------------------------
def test_decorator_with_and_without_options():
    @redfuser.fuse
    def plain(x):
        return x.softmax(-1)

    @redfuser.fuse(**FORCED)
    def with_options(x):
        return x.softmax(-1)

    x = rnd(4, 50)
    assert plain.__name__ == "plain" and with_options.__wrapped__ is not None
    assert_close(with_options(x), x.double().softmax(-1))


def test_modules_methods_keywords_and_pytrees():
    head, x, mask = Head(), rnd(2, 30, 16), rnd(30, 30, seed=3)
    fused = redfuser.fuse(head, **FORCED)
    with torch.no_grad():
        got, want = fused(x, mask=mask), head(x, mask=mask)
        assert got["lengths"] == want["lengths"]
        assert_close(got["out"], want["out"].double())
        assert_close(head.score(x), (torch.softmax(head.q(x), -1) @ x.mT).double())


def test_lengths_change_without_a_compilation_each():
    fused = redfuser.fuse(attention, **FORCED)
    for n, m in [(9, 70), (9, 71), (5, 33), (17, 64), (2, 300), (9, 70)]:
        args = qkv(n, m)
        assert_close(fused(*args), attention(*double(args)))
    assert fused._compiled.variants <= 3


@pytest.mark.parametrize("shape", [(9, 0), (0, 70), (1, 1), (1, 70), (9, 1)])
def test_lengths_zero_and_one(shape):
    args = qkv(*shape)
    assert_close(redfuser.fuse(attention, **FORCED)(*args), attention(*double(args)), like=attention(*args))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    args = [a.to(dtype) for a in qkv()]
    want, eager = attention(*double(args)), attention(*args)
    error = assert_close(redfuser.fuse(attention, **FORCED)(*args), want, tolerance=2e-2, like=eager)
    scale = float(want.abs().max())
    rounding = torch.finfo(dtype).eps * (1 if dtype is not torch.float64 else 8)  # eager is the reference there
    assert error <= 2 * float((eager.double() - want).abs().max()) / scale + rounding


def test_gradients_equal_eagers():
    args = [a.requires_grad_() for a in qkv()]
    weight = rnd(2, 9, 8, seed=9)
    got = torch.autograd.grad((redfuser.fuse(attention, **FORCED)(*args) * weight).sum(), args)
    want = torch.autograd.grad((attention(*double(args)) * weight).sum(), args)
    assert_close(got, want)


def test_training_a_module_moves_its_weights_like_eager():
    a, x = Head(), rnd(2, 30, 16)
    b = copy.deepcopy(a)
    for m in (redfuser.fuse(a, **FORCED), b):
        m(x)["out"].square().sum().backward()
    got = torch.cat([p.grad.flatten() for p in a.parameters()])  # as one: the bias of k has no gradient but rounding
    assert_close(got, torch.cat([p.grad.flatten() for p in b.parameters()]).double(), tolerance=1e-4)


def test_switching_gradients_inside():
    def fn(q, k, v):
        with torch.no_grad():
            k = k * 2
        return attention(q, k, v)

    args = qkv()
    want = fn(*double(args))
    plain = redfuser.fuse(fn, **FORCED)
    with fused_runs() as runs:
        assert_close(plain(*args), want)
    assert runs, "without gradients the switch means nothing, so it fuses"
    leaves = [a.clone().requires_grad_() for a in args]
    got = torch.autograd.grad(redfuser.fuse(fn, **FORCED)(*leaves).sum(), leaves, allow_unused=True)
    eager = torch.autograd.grad(fn(*leaves).sum(), leaves, allow_unused=True)
    assert got[1] is None and eager[1] is None
    assert_close([got[0], got[2]], double([eager[0], eager[2]]), tolerance=1e-4)


def test_autocast():
    args = qkv()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = redfuser.fuse(attention, **FORCED)(*args), attention(*args)
    assert got.dtype == want.dtype == torch.bfloat16
    assert_close(got, attention(*double(args)), tolerance=2e-2)

    def inside(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = attention(q, k, v)
        return out.float() * 2

    assert_close(
        redfuser.fuse(inside, **FORCED)(*args), 2 * attention(*double(args)), tolerance=2e-2, like=inside(*args)
    )


def test_copies_and_pickles():
    fused = redfuser.fuse(attention, **FORCED)
    args = qkv()
    want = fused(*args)
    for twin in (copy.deepcopy(fused), copy.copy(fused), pickle.loads(pickle.dumps(fused))):
        assert twin.options == fused.options
        assert torch.equal(twin(*args), want)


def test_meta_tensors_give_meta_results():
    out = redfuser.fuse(attention, **FORCED)(*[a.to("meta") for a in qkv()])
    assert out.is_meta and out.shape == (2, 9, 8)


def test_threads():
    fused, results = redfuser.fuse(attention, **FORCED), {}
    cases = [qkv(n, m) for n, m in [(5, 30), (8, 33), (8, 33), (13, 64)]]
    threads = [threading.Thread(target=lambda i=i: results.update({i: fused(*cases[i])})) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, args in enumerate(cases):
        assert_close(results[i], attention(*double(args)))


def test_same_bits_every_time():
    fused, args = redfuser.fuse(attention, **FORCED), qkv(40, 500)
    assert torch.equal(fused(*args), fused(*args))


def test_inputs_are_not_changed_and_mutations_are_kept():
    def scaled_in_place(x):
        x.mul_(2.0)
        return x.softmax(-1)

    x = rnd(4, 50)
    y = x.clone()
    got = redfuser.fuse(scaled_in_place, **FORCED)(x)
    want = scaled_in_place(y)
    assert_close(got, want.double())
    assert torch.equal(x, y)
    args = qkv()
    before = [a.clone() for a in args]
    redfuser.fuse(attention, **FORCED)(*args)
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True))


def test_a_view_of_an_argument_changed_in_place_runs_as_written():
    """PyTorch exports no functional graph of it: no exception, a refusal, and eager's results."""

    def fn(x, v):
        y = F.dropout(x, 0.5, training=False)
        y -= y.amax(-1, keepdim=True)
        y.exp_()
        total = y.sum(-1, keepdim=True)
        x.div_(total)
        return total, y @ v

    x, v = rnd(4, 50), rnd(50, 3, seed=1)
    y = x.clone()
    assert redfuser.analyze(fn, x, v).refusals
    got, want = redfuser.fuse(fn, **FORCED)(x, v), fn(y, v)
    assert_close([*got, x], double([*want, y]))


def test_a_very_long_unrolled_loop_runs_as_written():
    def fn(x):
        m, total = x[:, 0], torch.ones_like(x[:, 0])
        for j in range(1, x.shape[1]):
            n = torch.maximum(m, x[:, j])
            total = total * torch.exp(m - n) + torch.exp(x[:, j] - n)
            m = n
        return m + torch.log(total)

    x = rnd(6, 150, scale=5.0)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Python's own: libraries imported by other tests raise it
    try:
        analysis = redfuser.analyze(fn, x)
        assert not analysis.cascades and "too long" in analysis.refusals[0].reason
        assert_close(redfuser.fuse(fn, **FORCED)(x), x.double().logsumexp(-1))
    finally:
        sys.setrecursionlimit(limit)


def test_strided_inputs():
    q = rnd(2, 16, 9).mT
    k = rnd(70, 16, 2, seed=1).permute(2, 0, 1)
    v = rnd(2, 140, 8, seed=2)[:, ::2]
    assert_close(redfuser.fuse(attention, **FORCED)(q, k, v), attention(*double((q, k, v))))
    expanded = rnd(1, 70, 8, seed=2).expand(2, -1, -1)
    assert_close(redfuser.fuse(attention, **FORCED)(q, k, expanded), attention(*double((q, k, expanded))))


# -- the cost decides ------------------------------------------------------------------------------------------------
def test_small_cascades_run_unfused_and_large_ones_fused():
    """By the reference backend, which is chosen by the memory that it saves."""
    small = redfuser.fuse(attention, backend="reference").analyze(*qkv()).cascades[0]
    assert not small.fused and small.decision.ground == "cost" and "threshold" in small.decision.reason
    with redfuser.options(fuse_threshold=1000, backend="reference"):
        assert redfuser.analyze(attention, *qkv()).cascades[0].fused
    forced = redfuser.fuse(attention, strategy="multi", segments=3).analyze(*qkv()).cascades[0]
    assert forced.fused and forced.decision.ground == "forced" and forced.decision.strategy == "multi"


def test_unfused_runs_the_same_bits_as_eager():
    args = qkv()
    assert torch.equal(redfuser.fuse(attention, rest="eager", strategy="unfused")(*args), attention(*args))


def test_one_compilation_serves_small_and_large():
    """With lengths known only at the call, each call is decided on its own."""
    fused = redfuser.fuse(attention, rest="eager", backend="reference", fuse_threshold=200_000)
    with fused_runs() as runs:
        for m in (40, 41, 42, 2000):
            args = qkv(9, m)
            assert not runs, "a small call was fused"
            assert_close(fused(*args), attention(*double(args)))
    assert len(runs) == 1 and fused._compiled.variants <= 2


def test_a_long_call_fuses_after_short_ones(monkeypatch):
    """Also when the lengths were open from the first compilation on, as after an explanation at other lengths."""

    def fn(q, k, v):
        return torch.softmax(q @ k.mT / 4.0, -1) @ v

    runs = []
    run = reference.run
    monkeypatch.setattr(reference, "run", lambda *a: runs.append(1) or run(*a))
    redfuser.explain(fn, *qkv(1500, 1500))
    fused = redfuser.fuse(fn, rest="eager", backend="reference", fuse_threshold=2**24)
    for n in (30, 40):
        fused(*qkv(n, n))
    assert not runs
    args = qkv(1500, 1500)
    assert_close(fused(*args), fn(*double(args)))
    assert runs and fused._compiled.variants <= 2


# -- analysis --------------------------------------------------------------------------------------------------------
def test_analysis_names_what_the_user_wrote():
    cascade = redfuser.analyze(attention, *qkv()).cascades[0]
    assert cascade.reductions[0].name.startswith("weights")
    assert cascade.reductions[0].where.text == "weights = scores.softmax(-1)"
    assert cascade.passes == 1 and cascade.sweeps == 0 and cascade.proof.verdict.accepted
    assert cascade.reductions[2].treatment == {"rescale", "defer"}


def test_analysis_needs_no_data():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = [torch.empty_strided(a.shape, a.stride()) for a in qkv()]
    for args in (fake, [a.to("meta") for a in qkv()]):
        assert redfuser.analyze(attention, *args).cascades[0].passes == 1


def test_opaque_operations_split_and_are_named():
    def fn(x, v):
        p = torch.softmax(x, -1)
        y = torch.sort(p @ v, -1).values
        return torch.softmax(y, -1).amax(-1)

    args = rnd(5, 70), rnd(70, 20, seed=1)
    analysis = redfuser.analyze(fn, *args)
    assert len(analysis.cascades) == 2
    (refusal,) = [r for r in analysis.refusals if r.kind == "opaque_op"]
    assert "sort" in refusal.reason + refusal.subject and "torch.sort" in refusal.where.text
    assert_close(redfuser.fuse(fn, **FORCED)(*args), fn(*double(args)))


def test_graph_breaks_give_several_graphs_and_a_refusal():
    def fn(x):
        y = x.softmax(-1)
        torch._dynamo.graph_break()
        return y.var(-1)

    analysis = redfuser.analyze(fn, rnd(5, 70))
    assert len(analysis.graphs) == 2 and len(analysis.cascades) == 2
    assert [r.kind for r in analysis.refusals] == ["graph_break"]
    assert_close(redfuser.fuse(fn, **FORCED)(rnd(5, 70)), fn(rnd(5, 70).double()))


def test_explanation_as_text_and_data():
    explanation = redfuser.explain(attention, *qkv())
    text = str(explanation)
    order = [
        "weights_max = max of",
        "  how ",
        "  update ",
        "  merge ",
        "\nproof",
        "checker: accepted",
        "\nloop ",
        "for l in",
    ]
    positions = [text.index(part) for part in order]
    assert positions == sorted(positions)
    data = json.loads(json.dumps(explanation.to_dict()))
    assert data["cascades"][0]["passes"] == 1
    assert data["cascades"][0]["reductions"][1]["treatment"] == ["rescale"]


def test_assert_fused_says_what_was_refused():
    assert redfuser.assert_fused(attention, *qkv()).cascades
    with pytest.raises(NotFusedError, match=r"needs 2 passes[\s\S]*hint"):
        redfuser.assert_fused(lambda x: (x - x.mean(-1, keepdim=True)).abs().sum(-1), rnd(5, 70))
    with pytest.raises(NotFusedError, match="no cascade"):
        redfuser.assert_fused(lambda x: x + 1, rnd(5))


# -- mistakes ----------------------------------------------------------------------------------------------------------
MISTAKES = {
    "shapes": lambda: (attention, (rnd(2, 9, 16), rnd(2, 70, 15), rnd(2, 70, 8))),
    "integer softmax": lambda: (lambda x: x.softmax(-1) @ x.float(), (torch.arange(64).view(8, 8),)),
    "mixed dtypes": lambda: (attention, (rnd(2, 9, 16), rnd(2, 70, 16).double(), rnd(2, 70, 8))),
    "k too large": lambda: (lambda x: torch.topk(x.softmax(-1), 99), (rnd(4, 20),)),
    "no such dimension": lambda: (lambda x: x.softmax(5), (rnd(4, 20),)),
    "user's own": lambda: (lambda x: x.softmax(-1) + {}["missing"], (rnd(4, 20),)),
    "wrong number of arguments": lambda: (attention, (rnd(2, 9, 16),)),
}


@pytest.mark.parametrize("rest", ["eager", "inductor"])
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_raise_what_eager_raises(name, rest):
    fn, args = MISTAKES[name]()
    with pytest.raises(Exception) as eager:
        fn(*args)
    with pytest.raises(type(eager.value)) as fused:
        redfuser.fuse(fn, rest=rest, strategy="single")(*args)
    assert type(fused.value) is type(eager.value) and str(fused.value) == str(eager.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs two devices")
def test_mixed_devices_raise_what_eager_raises():
    def fn(x, y):
        return torch.softmax(x, -1) @ y

    with pytest.raises(RuntimeError) as eager:
        fn(rnd(4, 20), rnd(20, 3).cuda())
    with pytest.raises(RuntimeError) as fused:
        redfuser.fuse(fn, rest="eager", strategy="single")(rnd(4, 20), rnd(20, 3).cuda())
    assert str(fused.value) == str(eager.value)


def test_options_are_checked():
    with pytest.raises(UnknownOptionError, match="Did you mean 'strategy'"):
        redfuser.fuse(attention, strategi="single")
    with pytest.raises(UnknownOptionError, match="Did you mean 'single'"):
        redfuser.fuse(attention, strategy="singel")
    with pytest.raises(UnknownOptionError, match="whole number"):
        redfuser.fuse(attention, tile="many")
    with pytest.raises(UnknownOptionError, match="not negative"):
        redfuser.fuse(attention, tile=-1)


def test_a_misspelt_environment_variable_is_an_error(monkeypatch):
    monkeypatch.setenv("REDFUSER_STRATGY", "multi")
    with pytest.raises(UnknownOptionError, match="Did you mean 'strategy'"):
        redfuser.fuse(attention)


def test_options_of_environment_and_block(monkeypatch):
    monkeypatch.setenv("REDFUSER_STRATEGY", "multi")
    assert redfuser.fuse(attention).options.strategy == "multi"
    with redfuser.options(strategy="whole", segments=2):
        assert redfuser.fuse(attention).options.strategy == "whole"
        assert redfuser.fuse(attention, strategy="single").options.segments == 2
    assert redfuser.fuse(attention, enabled=False)(*qkv()).shape == (2, 9, 8)


def test_the_recompile_limit_speaks():
    fused = redfuser.fuse(lambda x: x.softmax(-1), rest="eager", recompile_limit=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for rank in range(1, 5):
            x = rnd(*[3] * rank)
            assert_close(fused(x), x.double().softmax(-1))
    assert any("recompile_limit" in str(w.message) for w in seen)


# -- beside torch.compile ------------------------------------------------------------------------------------------------
def test_is_a_torch_compile_backend():
    from redfuser.pipeline import redfuser_backend

    args = qkv()
    with redfuser.options(**FORCED):
        got = torch.compile(attention, backend=redfuser_backend)(*args)
    assert_close(got, attention(*double(args)))


def test_is_inlined_by_an_outer_torch_compile():
    fused, args = redfuser.fuse(attention, **FORCED), qkv()
    got = torch.compile(lambda *a: fused(*a) * 2, backend="eager", fullgraph=True)(*args)
    assert_close(got, 2 * attention(*double(args)))


def test_inductor_compiles_the_rest():
    def block(x, w):
        h = F.gelu(x @ w)
        return torch.softmax(h @ h.mT, -1) @ h + x.sum()

    args = rnd(2, 40, 16), rnd(16, 16, seed=1)
    fused = redfuser.fuse(block, strategy="single", tile=16, strict=True)
    assert_close(fused(*args), block(*double(args)))
    x = args[0].clone().requires_grad_()
    (got,) = torch.autograd.grad(fused(x, args[1]).square().sum(), x)
    y = args[0].double().requires_grad_()
    (want,) = torch.autograd.grad(block(y, args[1].double()).square().sum(), y)
    assert_close(got, want, tolerance=1e-4)
