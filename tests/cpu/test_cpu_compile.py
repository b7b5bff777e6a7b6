"""Compilers, targets and the cache of libraries: concurrent processes, a process that is killed, machines not present."""

import ctypes
import logging
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from catalogue import rnd
from helpers import assert_close
from native import launch, launcher, launcher_of, program_of
from stages import record

import redfuser
from redfuser.backends.cpu import compile as native_compile
from redfuser.backends.cpu.compile import Compiler, compile_text, find_compiler, zig
from redfuser.errors import BackendError
from redfuser.runtime import engines
from redfuser.runtime.native import CpuEngine
from redfuser.tile.nodes import Role, Strategy
from redfuser.tile.strategy import Schedule

STREAM = Schedule(Strategy.SINGLE, row=1, tile=32, vector=Role.CASCADE)
ROWS = Schedule(Strategy.SINGLE, row=16, tile=16, vector=Role.ROW)


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def region(fn=attention, *shapes):
    shapes = shapes or ((2, 21, 16), (2, 40, 16), (2, 40, 8))
    (r,) = record(fn, tuple(rnd(*s, seed=n) for n, s in enumerate(shapes)))
    return r


needs_zig = pytest.mark.skipif(zig() is None, reason="ziglang is not installed")


@needs_zig
@pytest.mark.parametrize("triple", ["aarch64-linux-gnu", "aarch64-macos", "x86_64-windows-gnu"])
def test_machines_that_are_not_present(triple):
    """Printed kernels compile for other architectures and systems, with lanes of 4."""
    for fn, shapes in ((attention, ()), (lambda x: torch.topk(x.softmax(-1), 4, -1), ((20, 40),))):
        text = launcher(region(fn, *shapes), ROWS).source().text
        data = compile_text(text, zig(), f"triple:{triple}", link=False)
        magic = {"aarch64-linux-gnu": b"\x7fELF", "aarch64-macos": b"\xcf\xfa\xed\xfe"}.get(triple, b"\x64\x86")
        assert data.startswith(magic)


@needs_zig
def test_the_compiler_of_the_package_runs_kernels(monkeypatch):
    """Where no compiler is installed: the same results, here by clang."""
    r = region()
    library = lambda s: native_compile.open_library(compile_text(s.text, zig(), "native"))  # noqa: E731
    run = launcher_of(program_of(r, ROWS), launcher(r, ROWS).form)
    run._load = library
    assert_close(run.prepare(r.sizes)(list(r.inputs.values())), r.oracle(), tolerance=1e-5)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="needs an x86-64 CPU")
@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:x86-64"])
@pytest.mark.parametrize("schedule", [STREAM, ROWS], ids=["cascade", "rows"])
def test_narrower_vectors_of_this_architecture(target, schedule):
    for fn, shapes in ((attention, ()), (lambda x: torch.topk(x.softmax(-1), 4, -1), ((20, 40),))):
        r = region(fn, *shapes)
        assert_close(launch(r, schedule, target=target), r.oracle(), tolerance=1e-5)


def test_what_does_not_compile_is_told_with_the_compilers_words():
    with pytest.raises(BackendError, match=r"does not compile a kernel: .*nonsense"):
        compile_text("nonsense", find_compiler(), "native")


def test_without_a_compiler_there_is_one_warning_that_says_what_to_install(monkeypatch, caplog):
    monkeypatch.setattr(native_compile, "find_compiler", lambda: None)
    engines._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "redfuser"):
        for n in range(2):
            fused = redfuser.fuse(lambda x, n=n: (x + n).logsumexp(-1), rest="eager", strategy="single")
            assert_close(fused(rnd(4, 50)), (rnd(4, 50).double() + n).logsumexp(-1))
    said = [r.getMessage() for r in caplog.records if "compiler" in r.getMessage()]
    assert len(said) == 1 and "pip install 'redfuser[compiler]'" in said[0] and "g++" in said[0]
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"needs a C\+\+ compiler"):
        redfuser.fuse(lambda x: x.logsumexp(-1), backend="cpu", strict=True)(rnd(4, 50))


@needs_zig
def test_without_a_compiler_of_the_system_the_package_is_taken(monkeypatch):
    monkeypatch.setattr(native_compile.shutil, "which", lambda name: None)
    assert native_compile.find_compiler.__wrapped__() == zig()


def test_cpus_take_compiled_code_unless_told_otherwise():
    for device in ("cpu", "meta"):
        assert isinstance(engines.engine_for(torch.device(device), redfuser.Options()), CpuEngine)
    on_another = engines.engine_for(torch.device("cuda"), redfuser.Options(target="cpu:x86-64-v3"))
    assert isinstance(on_another, CpuEngine) and on_another.target == "cpu:x86-64-v3"
    chosen = engines.engine_for(torch.device("cpu"), redfuser.Options(backend="reference"))
    assert isinstance(chosen, engines.ReferenceEngine)


def test_versions_that_are_too_old_are_passed_over():
    assert native_compile._is_new_enough("g++ (Debian 12.2.0-14) 12.2.0")
    assert not native_compile._is_new_enough("g++ (Ubuntu 9.4.0) 9.4.0")
    assert not native_compile._is_new_enough("Debian clang version 14.0.6")
    assert native_compile._is_new_enough("clang version 18.1.3")


SCRIPT = """
import sys, torch, redfuser
options = dict(backend="cpu", tune="off", rest="eager", strict=True, cache_dir={directory!r})
fused = redfuser.fuse(lambda x: x.logsumexp(-1) * {n}, **options)
x = torch.linspace(0, 1, 640).view(8, 80)
print("start", flush=True)
assert torch.allclose(fused(x), x.logsumexp(-1) * {n}, atol=1e-5)
print("done", flush=True)
"""


def start(directory, n=3):
    code = SCRIPT.format(n=n, directory=str(directory))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)


def test_processes_share_the_cache(tmp_path):
    running = [start(tmp_path) for _ in range(3)]
    assert [p.communicate()[0].split() for p in running] == [["start", "done"]] * 3
    cache = redfuser.runtime.cache.open_cache(redfuser.Options(cache_dir=str(tmp_path)))
    assert cache.entries() and not cache.verify().damaged


def test_a_process_that_is_killed_leaves_nothing_wrong(tmp_path):
    for wait in (0.05, 0.3, 0.8):
        p = start(tmp_path)
        assert p.stdout.readline() == "start\n"
        time.sleep(wait)
        p.send_signal(signal.SIGKILL)
        p.wait()
    p = start(tmp_path)
    assert p.communicate()[0].split() == ["start", "done"]


def test_a_damaged_library_is_compiled_again(tmp_path):
    assert start(tmp_path).communicate()[0].split() == ["start", "done"]
    files = list(tmp_path.rglob("*.entry"))
    for f in files:
        data = bytearray(f.read_bytes())
        data[len(data) // 2] ^= 255
        f.write_bytes(bytes(data))
    assert files and start(tmp_path).communicate()[0].split() == ["start", "done"]


def test_a_library_of_the_cache_is_not_compiled_again(tmp_path, monkeypatch):
    def call():
        native_compile._libraries.clear()
        torch._dynamo.reset()
        options = {"backend": "cpu", "tune": "off", "rest": "eager", "strict": True, "cache_dir": str(tmp_path)}
        return redfuser.fuse(lambda x: x.logsumexp(-1), **options)(rnd(4, 50))

    first = call()

    def never(*args, **kwargs):
        raise AssertionError("compiled again")

    monkeypatch.setattr(native_compile, "compile_text", never)
    assert torch.equal(call(), first)


def test_threads_follow_pytorch():
    """The same bits with one thread and with several, and the team is PyTorch's own."""
    r = region(attention, (4, 200, 32), (4, 300, 32), (4, 300, 32))
    run = launcher(r, ROWS).prepare(r.sizes)
    inputs = list(r.inputs.values())
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        (one,) = run(inputs)
        torch.set_num_threads(2)
        (two,) = run(inputs)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)


def test_flush_to_zero_is_left_alone():
    """Loading a kernel changes nothing about the arithmetic of the thread."""
    tiny = torch.tensor([1e-40])
    launch(region(), ROWS)
    assert float(tiny * 0.5) > 0.0


def test_the_compiler_is_a_value():
    found = find_compiler()
    assert isinstance(found, Compiler) and ctypes.sizeof(ctypes.c_void_p) == 8
    assert "-ffast-math" not in found.flags("native") and "-march=native" in found.flags("native")
