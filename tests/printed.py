"""Regions as Triton kernels: what a test launches, compiles or reads."""

from __future__ import annotations

from pathlib import Path

from stages import Recorded
from torch import Tensor

from redfuser.backends.triton.launch import Launcher
from redfuser.backends.triton.printed import Form
from redfuser.tile.build import build
from redfuser.tile.strategy import Schedule


class WideLauncher(Launcher):
    """Offsets of 64 bits, as for tensors that 32 bits do not reach."""

    def _is_wide(self, *_: object) -> bool:
        return True


def launcher(r: Recorded, schedule: Schedule, directory: Path, name: str = "", wide: bool = False) -> Launcher:
    """The kernels of a region at one schedule; their sources lie in the directory."""
    program = build(r.planned.region, r.planned.derivation, schedule, *([name] if name else []))
    kind = WideLauncher if wide else Launcher
    return kind(program, Form(), schedule.warps, schedule.stages, directory)


def launch(r: Recorded, schedule: Schedule, directory: Path, wide: bool = False) -> list[Tensor]:
    """The region's outputs, by its kernels."""
    return launcher(r, schedule, directory, wide=wide).prepare(r.sizes)(list(r.inputs.values()))
