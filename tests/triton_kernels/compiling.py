"""Compiled kernels, and what they use: read off the binary by the tools that Triton brings."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from planning import Shaped

from redfuser.backends.triton.emit import Form
from redfuser.backends.triton.launch import Launcher
from redfuser.tile.build import build
from redfuser.tile.strategy import Schedule

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclass(frozen=True)
class Usage:
    """Of one kernel for NVIDIA: registers and bytes of stack and local memory a thread."""

    registers: int
    stack: int
    local: int

    @property
    def spills(self) -> bool:
        return self.stack > 0 or self.local > 0


def usage(kernel: Any) -> Usage:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [CUOBJDUMP, "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    assert found, text
    return Usage(*(int(n) for n in found.groups()))


def launcher(shaped: Shaped, schedule: Schedule, directory: Path, form: Form, name: str = "") -> Launcher:
    """The kernels of a region at one schedule; their sources lie in the directory."""
    program = build(shaped.planned.region, shaped.planned.derivation, schedule, *([name] if name else []))
    return Launcher(program, form, schedule.warps, schedule.stages, directory)


def compiled(shaped: Shaped, schedule: Schedule, directory: Path, target: str, **form: bool) -> list[Any]:
    """The kernels of a region at one schedule, for a target that need not be there."""
    return launcher(shaped, schedule, directory, Form(**form)).compile(shaped.inputs, {}, target)
