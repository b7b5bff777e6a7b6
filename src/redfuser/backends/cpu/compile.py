"""A C++ compiler: the system's, else the one in the pip package ziglang; and shared libraries by content.

A library is compiled once for a source, a runtime header, a compiler, its flags and a machine, and kept in the cache on
disk. It is loaded from a private copy of what the cache has verified, so nothing that happens to the folder matters.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from redfuser.backends.cpu.writer import RUNTIME, runtime_text
from redfuser.errors import BackendError

# no finite-math and no flush-to-zero: infinities, NaN and subnormal numbers are as in eager PyTorch, but for sums of
# products of bfloat16 pairs (runtime/dots.h), in which what is below the smallest normal number may count as 0
FLAGS = (
    "-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=fast",
    "-fno-exceptions", "-fno-rtti", "-fPIC", "-Wno-psabi",
)  # fmt: skip
OLDEST = {"g++": 12, "clang++": 15}
ADVICE = "install g++ (12 or later) or clang++ (15 or later), or: pip install 'redfuser[compiler]'"


@dataclass(frozen=True, slots=True)
class Compiler:
    """How it is called, and what it says of its version."""

    command: tuple[str, ...]
    version: str

    @property
    def is_zig(self) -> bool:
        return "ziglang" in self.command

    def flags(self, target: str) -> tuple[str, ...]:
        """The flags for a machine: ``native``, ``cpu:<name for -march>``, or ``triple:<a target of zig>``."""
        kind, _, name = target.partition(":")
        if kind == "triple":
            machine: tuple[str, ...] = ("-target", name)
        elif kind == "cpu":
            machine = (f"-march={name.replace('-', '_') if self.is_zig else name}",)
        else:
            machine = (native_flag(),)
        return (*FLAGS, *(("-nostdlib++",) if self.is_zig else ()), *machine)


def native_flag() -> str:
    return "-mcpu=native" if platform.machine().lower() in ("arm64", "aarch64") else "-march=native"


@functools.cache
def find_compiler() -> Compiler | None:
    """The compiler that is used: ``$CXX``, g++, clang++, or zig; None where none of them is there."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        path = shutil.which(name) if name else None
        version = _version((path,)) if path else None
        if path and version and _is_new_enough(version):
            return Compiler((path,), version)
    return zig()


@functools.cache
def zig() -> Compiler | None:
    """The compiler in the pip package ziglang."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    command = (sys.executable, "-m", "ziglang", "c++")
    version = _version(command)
    return Compiler(command, version) if version else None


def _version(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else None


def _is_new_enough(version: str) -> bool:
    name = "clang++" if "clang" in version.lower() else "g++"
    found = re.search(r"(\d+)\.\d+", version)
    return found is not None and int(found[1]) >= OLDEST[name]


@functools.cache
def machine() -> str:
    """What ``native`` stands for here: a folder may be shared by different machines."""
    text = platform.machine()
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{text} {platform.processor()}"
    lines = [x for x in info.splitlines() if x.startswith(("flags", "Features", "model name"))]
    return f"{text} {' '.join(dict.fromkeys(lines))}"


def compile_text(text: str, compiler: Compiler, target: str, *, link: bool = True) -> bytes:
    """The shared library (or the object file) of a source. Raises BackendError with the compiler's words."""
    with tempfile.TemporaryDirectory(prefix="redfuser-") as folder:
        source, out = Path(folder) / "kernel.cpp", Path(folder) / "kernel.out"
        source.write_text(text)
        kind = ["-shared"] if link else ["-c"]
        command = [*compiler.command, *compiler.flags(target), *kind, f"-I{RUNTIME}", str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise BackendError(f"{compiler.version} does not compile a kernel: {done.stderr.strip()[:2000]}")
        return out.read_bytes()


class Store(Protocol):
    """The cache on disk."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, data: bytes, what: str = "") -> None: ...


def key_parts(text: str, compiler: Compiler, target: str) -> tuple[str, ...]:
    """What a library depends on."""
    here = machine() if target == "native" else ""
    return ("library", text, runtime_text(), compiler.version, " ".join(compiler.flags(target)), here)


_libraries: dict[str, ctypes.CDLL] = {}
_lock = threading.Lock()


def load(text: str, key: str, compiler: Compiler, target: str, store: Store, what: str) -> ctypes.CDLL:
    """The library of a source, from this process, from the store, or compiled."""
    found = _libraries.get(key)
    if found is None:
        data = store.get(key)
        if data is None:
            data = compile_text(text, compiler, target)
            store.put(key, data, what)
        with _lock:
            found = _libraries.get(key) or _libraries.setdefault(key, open_library(data))
    return found


def open_library(data: bytes) -> ctypes.CDLL:
    """Loads a library from its bytes."""
    suffix = ".dll" if sys.platform == "win32" else ".so"
    handle, path = tempfile.mkstemp(prefix="redfuser-", suffix=suffix)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        return ctypes.CDLL(path)
    finally:
        if sys.platform != "win32":  # a library that is loaded needs its file no longer
            os.unlink(path)
