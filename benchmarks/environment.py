"""Where a result came from: device, versions, source."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import redfuser

ROOT = Path(__file__).resolve().parent.parent


def environment(device: str, commit: str = "") -> dict[str, Any]:
    """Everything that is written beside a figure. ``commit`` overrides what git says, where there is no git."""
    cuda = torch.device(device).type == "cuda"
    cudnn: Any = torch.backends.cudnn
    return {
        "device": device_name(device),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "cuda": torch.version.cuda or "",
        "cudnn": str(cudnn.version() or "") if cuda else "",
        "python": platform.python_version(),
        "redfuser": redfuser.__version__,
        "options": _options(),
        "commit": commit or _git_commit(),
        "source": source_hash(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m benchmarks.run", *sys.argv[1:]]),
    }


SAME = ("device", "torch", "triton", "cuda", "cudnn", "python", "options", "source")


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two results may stand for each other: one device, the same versions and the same source."""
    return all(one.get(k) == other.get(k) for k in SAME)


def device_name(device: str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.machine()


def source_hash() -> str:
    """Of the library and the benchmarks: a checkout without git still knows what it ran."""
    digest = hashlib.sha256()
    for folder in ("src/redfuser", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _git_commit() -> str:
    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks/*.py")
        return git("rev-parse", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _options() -> str:
    """The settings of the environment; where the cache lies changes nothing that is measured."""
    named = {k: v for k, v in os.environ.items() if k.startswith("REDFUSER_") and k != "REDFUSER_CACHE_DIR"}
    return " ".join(f"{k}={v}" for k, v in sorted(named.items()))
