"""Fused functions on a CUDA device, by printed kernels. Skipped where there is none."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from catalogue import ONE_PASS, SEVERAL, L, draw
from helpers import assert_close, double

import redfuser

Launcher = pytest.importorskip("redfuser.backends.triton.launch", reason="needs triton", exc_type=ImportError).Launcher
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DRAWS = 6
ROUNDING = 2.0**-23


@pytest.fixture
def launched(monkeypatch):
    """One entry for every program of kernels that is made ready for a call."""
    seen = []
    bind = Launcher.bind

    def counted(self, *args):
        seen.append(self.program.name)
        return bind(self, *args)

    monkeypatch.setattr(Launcher, "bind", counted)
    return seen


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 8.0, -1) @ v


def fused_attention(strategy):
    return redfuser.fuse(attention, rest="eager", tune="off", strategy=strategy, segments=4 * (strategy == "multi"))


def qkv(device="cuda"):
    g = torch.Generator(device).manual_seed(0)
    return [torch.randn(2, 4, n, 64, device=device, dtype=torch.bfloat16, generator=g) for n in (96, 700, 700)]


@pytest.mark.parametrize("strategy", ["single", "multi", "whole"])
@pytest.mark.parametrize("case", ONE_PASS + SEVERAL, ids=lambda c: c.name)
def test_catalogue(case, strategy, launched):
    """The numerical contract: twice the worst error of eager over several draws, plus n roundings."""
    calls = []
    for n in range(DRAWS):
        with draw(n):
            calls.append([a.cuda() for a in case.inputs()])
    with torch.device("cuda"):
        fused = redfuser.fuse(case.fn, rest="eager", tune="off", strategy=strategy, strict=True, **case.options)
        eager = [case.fn(*args) for args in calls]
        wants = [case.fn(*double(args)) for args in calls]
        got = fused(*calls[0])
    error = max(assert_close(e, w, tolerance=0.1) for e, w in zip(eager, wants, strict=True))
    assert launched, "no kernel ran"
    assert_close(got, wants[0], tolerance=2 * error + L * ROUNDING + case.step + case.cast, like=eager[0])


@pytest.mark.parametrize("strategy", ["single", "multi"])
def test_graph_capture(strategy, launched):
    fused, (q, k, v) = fused_attention(strategy), qkv()
    with torch.no_grad():
        fused(q, k, v)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = fused(q, k, v)
        q.copy_(torch.randn_like(q))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, fused(q, k, v))
    assert launched


@pytest.mark.parametrize("strategy", ["single", "multi"])
def test_side_stream(strategy, launched):
    fused, (q, k, v) = fused_attention(strategy), qkv()
    with torch.no_grad():
        want = fused(q, k, v)
        late = torch.zeros_like(q)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)  # what runs on another stream would read the zeros
            late.copy_(q)
            got = fused(late, k, v)
        stream.synchronize()
    assert launched and torch.equal(got, want)


@pytest.mark.parametrize("strategy", ["single", "multi"])
def test_runs_are_equal_bit_for_bit(strategy, launched):
    fused, args = fused_attention(strategy), qkv()
    with torch.no_grad():
        first, *others = [fused(*args) for _ in range(5)]
    assert launched and all(torch.equal(first, o) for o in others)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("strategy", ["single", "multi"])
def test_a_device_that_is_not_current(strategy, launched):
    fused, here = fused_attention(strategy), qkv()
    there = [x.to("cuda:1") for x in here]
    with torch.no_grad(), torch.cuda.device(0):
        want = fused(*here)
        for _ in range(2):  # the first call compiles
            got = fused(*there)
            assert torch.cuda.current_device() == 0
            assert got.device == there[0].device and torch.equal(got.cpu(), want.cpu())
    assert launched


def variance(x):
    return x.var(-1)


def fused_variance():
    return redfuser.fuse(variance, rest="eager", tune="off", strategy="multi", segments=16)


def test_programs_meet_on_every_stream_and_in_graphs(launched):
    """The counters are zeros again behind each launch, whoever launches and wherever."""
    fused = fused_variance()
    rows = [torch.randn(3, 100_000, device="cuda") + n for n in range(4)]
    wants = [x.double().var(-1) for x in rows]
    streams = [torch.cuda.Stream() for _ in rows]
    with torch.no_grad():
        fused(rows[0])
        graphs = []
        for x in rows:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = fused(x)
            graphs.append((graph, out))
        torch.cuda.synchronize()
        for _ in range(20):
            gots = []
            for x, stream, (graph, _) in zip(rows, streams, graphs, strict=True):
                with torch.cuda.stream(stream):
                    gots.append(fused(x))
                    graph.replay()
            torch.cuda.synchronize()
            for got, (_, replayed), want in zip(gots, graphs, wants, strict=True):
                assert_close(got, want, tolerance=1e-6)
                assert torch.equal(got, replayed)
    assert launched


def test_threads_share_a_stream(launched):
    """Each launch finds what its own programs have stored."""
    fused = fused_variance()
    rows = [torch.randn(2, 50_000, device="cuda") * (n + 1) for n in range(4)]
    with torch.no_grad():
        wants = [fused(x) for x in rows]

        def many(n):
            with torch.no_grad():
                return all(torch.equal(fused(rows[n]), wants[n]) for _ in range(200))

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(many, range(4)))
    assert launched
