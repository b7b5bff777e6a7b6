"""Regions as C++: what a test compiles and runs. Libraries are kept in memory for the test session."""

from __future__ import annotations

import ctypes

from stages import Recorded
from torch import Tensor

from redfuser.backends.cpu.compile import Compiler, find_compiler, key_parts, load
from redfuser.backends.cpu.emit import Source
from redfuser.backends.cpu.launch import Launcher
from redfuser.backends.cpu.writer import Form
from redfuser.runtime.cache import key_of
from redfuser.tile.build import build
from redfuser.tile.nodes import Program
from redfuser.tile.strategy import Schedule


class Quick(Compiler):
    """The same compiler, asked for little optimisation: most tests compile many kernels that run once."""

    def flags(self, target: str) -> tuple[str, ...]:
        return tuple("-O1" if f == "-O3" else f for f in super().flags(target))


class Memory(dict[str, bytes]):
    """A store that lasts as long as the process."""

    def put(self, key: str, data: bytes, what: str = "") -> None:
        self[key] = data


MEMORY = Memory()


def compiled(source: Source, target: str, kind: type[Compiler] = Quick) -> ctypes.CDLL:
    found = find_compiler()
    assert found is not None
    compiler = kind(found.command, found.version)
    key = key_of(*key_parts(source.text, compiler, target))
    return load(source.text, key, compiler, target, MEMORY, source.name)


def program_of(r: Recorded, schedule: Schedule, name: str = "cascade") -> Program:
    return build(r.planned.region, r.planned.derivation, schedule, name)


def launcher_of(program: Program, form: Form, target: str = "native", kind: type[Compiler] = Quick) -> Launcher:
    return Launcher(program, form, lambda s: compiled(s, target, kind))


def launcher(r: Recorded, schedule: Schedule, wide: bool = False, target: str = "native") -> Launcher:
    """The kernels of a region at one schedule."""
    return launcher_of(program_of(r, schedule), Form(schedule.vector, wide), target)


def launch(r: Recorded, schedule: Schedule, wide: bool = False, target: str = "native") -> list[Tensor]:
    """The region's outputs, by its kernels."""
    return launcher(r, schedule, wide, target).prepare(r.sizes)(list(r.inputs.values()))
