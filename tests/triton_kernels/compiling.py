"""What compiled kernels use: read off the binary by the tools that Triton brings."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from redfuser.backends.triton.emit import Form
from redfuser.backends.triton.launch import Launcher
from redfuser.tile.strategy import Schedule

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclass(frozen=True)
class Usage:
    """Of one kernel for NVIDIA: registers and bytes of stack and local memory a thread, bytes of shared memory."""

    registers: int
    stack: int
    local: int
    shared: int

    @property
    def spills(self) -> bool:
        return self.stack > 0 or self.local > 0


def usage(kernel: Any) -> Usage:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    assert found, text
    registers, stack, local = (int(n) for n in found.groups())
    return Usage(registers, stack, local, kernel.metadata.shared)


def compiled(shaped: Any, schedule: Schedule, directory: Path, target: str, name: str = "") -> list[Any]:
    """The kernels of a region at one schedule, for a target that need not be there."""
    launcher = Launcher(shaped.planned.plan.program(schedule), Form(), schedule.warps, schedule.stages, directory)
    return launcher.compile(shaped.inputs, {}, target)
