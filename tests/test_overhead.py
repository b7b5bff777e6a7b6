"""What a call costs before its kernel, and that the short way gives what the long one does."""

import logging
import statistics
import sys
import time

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from helpers import assert_close, double
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import redfuser
from redfuser.api import _compile
from redfuser.backends.cpu import launch
from redfuser.backends.cpu.compile import find_compiler
from redfuser.frontend.region_op import Entry
from redfuser.runtime.native import CpuEngine

pytestmark = pytest.mark.usefixtures("quick_kernels")
FORCED = {"rest": "eager", "strategy": "single", "tile": 16, "strict": True}


def rnd(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def attention(q, k, v):
    return (q @ k.mT * 0.25).softmax(-1) @ v


def heads(q, k, v):
    """Views before and after: (batch, length, model) in and out."""
    q, k, v = (x.unflatten(-1, (2, 4)).transpose(1, 2) for x in (q, k, v))
    return attention(q, k, v).transpose(1, 2)


def qkv(n=5, m=20, d=8):
    return rnd(2, n, d), rnd(2, m, d, seed=1), rnd(2, m, d, seed=2)


@pytest.fixture
def ways(monkeypatch):
    """How each region was entered: "direct", or "operator" through the dispatcher. Told by the module that calls."""
    seen, run = [], Entry.run

    def counted(self, inputs, sizes):
        caller = sys._getframe(1).f_globals["__name__"].rpartition(".")[2]
        seen.append({"direct": "direct", "region_op": "operator"}[caller])
        return run(self, inputs, sizes)

    monkeypatch.setattr(Entry, "run", counted)
    return seen


@pytest.mark.parametrize("rest", ["eager", "inductor"])
@pytest.mark.parametrize("fn", [attention, heads])
@pytest.mark.parametrize("gradients", [False, True])
def test_a_lone_region_is_called_directly(fn, gradients, rest, ways):
    args = qkv()
    with torch.set_grad_enabled(gradients):
        got = redfuser.fuse(fn, **FORCED | {"rest": rest})(*args)
        want = fn(*args)
    assert ways == ["direct"]
    assert_close(got, fn(*double(args)), like=want)
    assert got.stride() == want.stride() and not got.requires_grad


def test_regions_beside_each_other_are_called_directly(ways):
    def fn(x, y):
        return x.softmax(-1).mT, (y - y.mean(-1, keepdim=True)).square().sum(-1)

    args = rnd(4, 20), rnd(4, 30)
    got = redfuser.fuse(fn, **FORCED)(*args)
    assert_close(got, fn(*double(args)))
    assert got[0].stride() == fn(*args)[0].stride()
    assert ways == ["direct"] * 2


def test_a_region_beside_something_else_is_an_operator(ways):
    def fn(x, w):
        return (x.cumsum(-1).softmax(-1) @ w).cumsum(-1)

    args = rnd(4, 20), rnd(20, 3)
    assert_close(redfuser.fuse(fn, **FORCED)(*args), fn(*double(args)))
    assert set(ways) == {"operator"}


def test_lengths_are_those_of_the_call(ways):
    fused = redfuser.fuse(heads, **FORCED)
    for n, m in [(5, 20), (5, 33), (7, 50), (5, 20), (5, 0), (0, 20), (1, 1)]:
        args = qkv(n, m)
        assert_close(fused(*args), heads(*double(args)))
    assert set(ways) == {"direct"}


def test_gradients_after_a_call_without(ways):
    fused, args = redfuser.fuse(attention, **FORCED), qkv()
    fused(*args)
    with torch.no_grad():
        fused(*(a.clone().requires_grad_() for a in args))
    assert ways == ["direct"] * 2
    leaves = [a.clone().requires_grad_() for a in args]
    got = torch.autograd.grad(fused(*leaves).square().sum(), leaves)
    oracle = [a.double().requires_grad_() for a in args]
    assert_close(got, torch.autograd.grad(attention(*oracle).square().sum(), oracle), tolerance=1e-4)
    one = args[1].clone().requires_grad_()
    assert fused(args[0], one, args[2]).requires_grad
    assert not fused(*args).requires_grad


@pytest.mark.parametrize("held", [False, True])
def test_a_parameter_that_needs_a_gradient_is_seen(held, ways):
    from redfuser.pipeline import dynamo_backend

    class Keys(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.k = torch.nn.Parameter(rnd(2, 20, 8, seed=1))

        def forward(self, q, v):
            return (attention(q, self.k, v),)

    keys, (q, _, v) = Keys(), qkv()
    if held:  # a graph that owns its parameter, which Dynamo would give as an input
        options = redfuser.Options(**FORCED)

        def fused(*args):
            return dynamo_backend(options)(torch.fx.symbolic_trace(keys), list(args))(*args)
    else:
        fused = redfuser.fuse(keys, **FORCED)
    (got,) = torch.autograd.grad(fused(q, v)[0].sum(), keys.k)
    with torch.no_grad():
        assert_close(fused(q, v), attention(*double((q, keys.k, v))))
    assert ways[-1] == "direct"
    k = keys.k.detach().double().requires_grad_()
    assert_close(got, torch.autograd.grad(attention(q.double(), k, v.double()).sum(), k)[0], tolerance=1e-4)


def test_guards_switched_off_lose_no_gradient(ways):
    """A caller may drop Dynamo's guards; what needs the dispatcher then still goes through it."""
    from redfuser.pipeline import redfuser_backend

    args = qkv()
    with redfuser.options(**FORCED):
        compiled = torch.compile(attention, backend=redfuser_backend, options={"guard_filter_fn": _no_guards})
        compiled(*args)
    leaves = [a.clone().requires_grad_() for a in args]
    got = torch.autograd.grad(compiled(*leaves).sum(), leaves)
    assert ways == ["direct", "operator"]
    assert_close(got, double(torch.autograd.grad(attention(*leaves).sum(), leaves)), tolerance=1e-4)
    assert compiled(*(a.to("meta") for a in args)).is_meta
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(a) for a in args]
    assert isinstance(compiled(*fakes), torch._subclasses.FakeTensor)


def _no_guards(entries):
    return [False for _ in entries]


def test_results_share_no_memory():
    """An argument handed back by a kernel, a result given twice, and a transposed one are all copied."""
    from redfuser.frontend.region_op import _owned

    x, y = rnd(3, 4), rnd(3, 4, seed=5)
    out = _owned([x, y, y, y.mT, y[1:]], [x], [(0, 1), (0, 1), (0, 1), (0, 1), (1, 0)])
    assert len({o.untyped_storage().data_ptr() for o in [x, *out]}) == 6
    assert out[1] is y and out[4].mT.is_contiguous()
    for o, w in zip(out, [x, y, y, y.mT, y[1:]], strict=True):
        assert torch.equal(o, w)
    z = rnd(3, 4).requires_grad_()
    (fresh,) = _owned([z * 2], [z], [(0, 1)])
    assert not fresh.requires_grad


def test_arguments_changed_in_place(ways):
    def fn(x, y):
        p = y.softmax(-1)
        x.copy_(p)
        return p

    x, y = rnd(4, 20), rnd(4, 20, seed=1)
    got = redfuser.fuse(fn, **FORCED)(x, y)
    assert_close([got, x], [y.double().softmax(-1)] * 2)
    got.zero_()
    assert x.sum() > 3.9


def test_unfused_where_the_kernel_says_so(ways):
    fused = redfuser.fuse(attention, rest="eager", backend="reference", fuse_threshold=10_000)
    for m in (40, 41, 2000, 42):
        args = qkv(5, m)
        got = fused(*args)
        assert_close(got, attention(*double(args)))
    assert "direct" in ways


def test_a_program_that_fails_runs_unfused_from_then_on(monkeypatch, caplog):
    fused, args, calls = redfuser.fuse(attention, **FORCED | {"strict": False}), qkv(), []

    def broken(*a):
        calls.append(a)
        raise ValueError("no such kernel")

    monkeypatch.setattr(launch._Call, "__call__", broken)
    for _ in range(3):
        assert_close(fused(*args), attention(*double(args)))
    (warning,) = [r for r in caplog.records if r.name == "redfuser" and r.levelno >= logging.WARNING]
    assert len(calls) == 1 and "no such kernel" in str(warning.exc_info)
    with pytest.raises(ValueError, match="no such kernel"):
        redfuser.fuse(attention, **FORCED)(*args)


def test_a_program_that_cannot_be_prepared_runs_unfused(monkeypatch, caplog):
    def broken(*a):
        raise ValueError("does not compile")

    monkeypatch.setattr(CpuEngine, "prepare", broken)
    args = qkv()
    assert_close(redfuser.fuse(attention, **FORCED | {"strict": False})(*args), attention(*double(args)))
    assert "does not compile" in caplog.text


def test_programs_are_prepared_once_for_each_length(monkeypatch):
    seen, prepare = [], CpuEngine.prepare

    def counted(engine, program, schedule, sizes):
        seen.append(tuple(sizes.values()))
        return prepare(engine, program, schedule, sizes)

    monkeypatch.setattr(CpuEngine, "prepare", counted)
    fused = redfuser.fuse(attention, **FORCED)
    for m in (20, 33, 34, 33, 34, 20):
        fused(*qkv(5, m))
    assert sorted(seen) == [(), (33,), (34,)] or sorted(seen) == [(), (20,), (33,), (34,)]


def test_plans_do_not_grow_without_end(monkeypatch):
    from redfuser.frontend import region_op
    from redfuser.runtime import plan

    monkeypatch.setattr(plan, "REMEMBERED", 2)
    fused = redfuser.fuse(attention, **FORCED)
    for m in (20, 33, 34, 35, 36, 33):
        args = qkv(5, m)
        assert_close(fused(*args), attention(*double(args)))
        *_, latest = region_op._entries.values()
        assert len(latest.kernel._ready) <= 2
    assert {length for _, length in latest.kernel._ready} <= {35, 36, 33}


def test_autocast(ways):
    args = qkv()
    fused = redfuser.fuse(attention, **FORCED)
    full = fused(*args)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = fused(*args), attention(*args)
    assert got.dtype is want.dtype is torch.bfloat16 and full.dtype is torch.float32
    assert_close(got, attention(*double(args)), tolerance=2e-2)
    assert ways == ["direct"] * 2


@pytest.mark.parametrize("warm", [False, True])
class TestWhatNeedsTheDispatcher:
    """Each before and after a plain call of the same function has compiled it."""

    def made(self, warm):
        fused = redfuser.fuse(attention, **FORCED)
        if warm:
            fused(*qkv())
        return fused

    def test_meta(self, warm):
        out = self.made(warm)(*(a.to("meta") for a in qkv()))
        assert out.is_meta and out.shape == (2, 5, 8)

    def test_meta_inside_a_pytree(self, warm):
        fused = redfuser.fuse(lambda d: attention(*d["qkv"]), **FORCED)
        if warm:
            fused({"qkv": qkv()})
        assert fused({"qkv": [a.to("meta") for a in qkv()]}).is_meta

    @pytest.mark.parametrize("inside", [False, True])
    def test_fake_tensors(self, warm, inside):
        fused = self.made(warm)
        with FakeTensorMode() as mode:
            args = [mode.from_tensor(a) for a in qkv()]
            out = fused(*args) if inside else None
        out = fused(*args) if out is None else out
        assert isinstance(out, torch._subclasses.FakeTensor) and out.shape == (2, 5, 8)

    def test_vmap(self, warm):
        args = [torch.stack([a, a + 1, a * 2]) for a in qkv()]
        assert_close(torch.vmap(self.made(warm))(*args), attention(*double(args)))

    def test_functional_gradients(self, warm):
        q, k, v = qkv()
        fused = self.made(warm)
        got = torch.func.grad(lambda q: fused(q, k, v).square().sum())(q)
        q, k, v = double((q, k, v))
        assert_close(got, torch.func.grad(lambda q: attention(q, k, v).square().sum())(q), tolerance=1e-4)

    def test_tangents(self, warm):
        q, k, v = qkv()
        fused = self.made(warm)
        with forward_ad.dual_level():
            got = forward_ad.unpack_dual(fused(forward_ad.make_dual(q, q), k, v)).tangent
            want = forward_ad.unpack_dual(attention(forward_ad.make_dual(q, q), k, v)).tangent
        assert_close(got, want.double())
        assert_close(fused(q, k, v), attention(*double((q, k, v))))

    def test_tangents_through_the_backend(self, warm):
        from redfuser.pipeline import redfuser_backend

        q, k, v = qkv()
        with redfuser.options(**FORCED):
            compiled = torch.compile(attention, backend=redfuser_backend)
            if warm:
                compiled(q, k, v)
            with forward_ad.dual_level():
                got = forward_ad.unpack_dual(compiled(forward_ad.make_dual(q, q), k, v)).tangent
                want = forward_ad.unpack_dual(attention(forward_ad.make_dual(q, q), k, v)).tangent
        assert_close(got, want.double())

    def test_modes_see_operations(self, warm):
        class Names(TorchDispatchMode):
            def __init__(self):
                super().__init__()
                self.seen = []

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                self.seen.append(func)
                return func(*args, **(kwargs or {}))

        fused, args = self.made(warm), qkv()
        with Names() as mode:
            got = fused(*args)
        assert mode.seen
        assert_close(got, attention(*double(args)))

    def test_subclasses(self, warm):
        class Marked(torch.Tensor):
            pass

        q, k, v = qkv()
        got = self.made(warm)(q.as_subclass(Marked), k, v)
        assert type(got) is Marked
        assert_close(got.as_subclass(torch.Tensor), attention(*double((q, k, v))))

    def test_negated_views(self, warm):
        q, k, v = qkv()
        negative = torch.complex(q, q).conj().imag
        assert negative.is_neg()
        assert_close(self.made(warm)(negative, k, v), attention(*double((-q, k, v))))

    def test_inference_mode(self, warm):
        fused, args = self.made(warm), qkv()
        with torch.inference_mode():
            got = fused(*args)
        assert got.is_inference()
        assert_close(got, attention(*double(args)))

    def test_outer_compile(self, warm):
        fused, args = self.made(warm), qkv()
        got = torch.compile(lambda *a: fused(*a) * 2, backend="eager", fullgraph=True)(*args)
        assert_close(got, 2 * attention(*double(args)))

    def test_export(self, warm):
        fused, args = self.made(warm), qkv()

        class Model(torch.nn.Module):
            def forward(self, *args):
                return fused(*args)

        assert_close(torch.export.export(Model(), args).module()(*args), attention(*double(args)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_graphs(ways):
    fused, args = redfuser.fuse(heads, **FORCED), [a.cuda() for a in qkv()]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        fused(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fused(*args)
    args[0].mul_(2)
    graph.replay()
    assert_close(out.cpu(), heads(*double([a.cpu() for a in args])))
    assert set(ways) == {"direct"}


def _per_call(fn, args, calls=300):
    start = time.perf_counter()
    for _ in range(calls):
        fn(*args)
    return (time.perf_counter() - start) / calls


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_overhead(monkeypatch, gradients, dynamic):
    """A kernel that takes no time: a fused call against what Dynamo needs to enter a graph of one operation.

    Measured in turns, since other processes share the machine. The ratio is about 1.3, and was above 3 when every call
    went through the dispatcher.
    """
    args, out = qkv(), torch.empty(2, 5, 8)
    monkeypatch.setattr(
        CpuEngine, "prepare", lambda engine, program, schedule, sizes: lambda inputs: [torch.empty_like(out)]
    )
    if dynamic:
        torch._dynamo.mark_dynamic(args[1], 1)
        torch._dynamo.mark_dynamic(args[2], 1)
    fused = redfuser.fuse(attention, **FORCED)
    trivial = torch.compile(lambda q, k, v: q + 1, backend="eager")
    with torch.set_grad_enabled(gradients):
        for fn in (fused, trivial):
            _per_call(fn, args, 20)
        ratios = [_per_call(fused, args) / _per_call(trivial, args) for _ in range(9)]
    assert statistics.median(ratios) < 2.5, ratios


@pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")
def test_overhead_of_a_kernel():
    """A call that is one cascade, its kernel included, against entering the same function where its graph does nothing.

    In turns, with the settings of ``fuse`` on both sides. The ratio is about 2.9 for these tiny tensors.
    """
    args = qkv()
    with torch.no_grad():
        out = (attention(*args),)
        fused = redfuser.fuse(attention, rest="eager", strict=True)
        entered = _compile(lambda *a: attention(*a), lambda graph, inputs: lambda *a: out, 8)
        for fn in (fused, entered):
            _per_call(fn, args, 20)
        ratios = [_per_call(fused, args, 100) / _per_call(entered, args, 100) for _ in range(25)]
    assert statistics.median(ratios) < 4, ratios


def test_settings_of_dynamo_hold_for_compilations_alone(monkeypatch):
    """The limit in force elsewhere stays the user's; no call sets a setting, or marks for a profiler that is off."""
    config = torch._dynamo.config

    def no_mark(*args, **kwargs):
        raise AssertionError("a compiled call marks its own start")

    for name in ("record_pregraph_bytecode_enter", "record_pregraph_bytecode_exit"):
        monkeypatch.setattr(torch._dynamo.utils, name, no_mark, raising=False)

    def many(x):
        return x.softmax(-1)

    fused = redfuser.fuse(many, **FORCED, recompile_limit=20)
    for rank in range(1, 13):
        x = rnd(*[2] * rank)
        assert_close(fused(x), x.double().softmax(-1))
    assert fused._compiled.variants == 12 > config.recompile_limit == 8
    few = redfuser.fuse(lambda x: x.softmax(-1), **FORCED, recompile_limit=2)
    with pytest.warns(UserWarning, match="recompile_limit"):
        for rank in range(1, 5):
            x = rnd(*[3] * rank)
            assert_close(few(x), x.double().softmax(-1))
    assert few._compiled.variants == 2
    head = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
    with torch.no_grad():
        assert_close(redfuser.fuse(head, **FORCED)(x := rnd(4, 8)), head(x).double())

    def no_more(*args, **kwargs):
        raise AssertionError("a compiled call changed the configuration")

    monkeypatch.setattr(type(config), "patch", no_more)
    assert_close(fused(x), x.double().softmax(-1))
