"""Regions as C++: what a test compiles and runs. Libraries are kept for the test session."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from stages import Recorded
from torch import Tensor

from redfuser.backends.cpu.compile import compile_text, find_compiler, key_parts, load
from redfuser.backends.cpu.emit import Source
from redfuser.backends.cpu.launch import Launcher
from redfuser.backends.cpu.writer import Form
from redfuser.runtime.cache import key_of
from redfuser.tile.build import build
from redfuser.tile.nodes import Program
from redfuser.tile.strategy import Schedule


class Memory(dict):
    """A store that lasts as long as the process."""

    def put(self, key: str, data: bytes, what: str = "") -> None:
        self[key] = data


MEMORY = Memory()


def compiled(source: Source, target: str = "native") -> ctypes.CDLL:
    compiler = find_compiler()
    assert compiler is not None
    key = key_of(*key_parts(source.text, compiler, target))
    return load(source.text, key, compiler, target, MEMORY, source.name)


def launcher(program: Program, form: Form = Form(), target: str = "native") -> Launcher:  # noqa: B008
    return Launcher(program, form, lambda s: compiled(s, target))


def program_of(r: Recorded, schedule: Schedule, name: str = "cascade") -> Program:
    return build(r.planned.region, r.planned.derivation, schedule, name)


def launch(r: Recorded, schedule: Schedule, form: Form = Form(), target: str = "native") -> list[Tensor]:  # noqa: B008
    """The region's outputs, by its kernels."""
    return launcher(program_of(r, schedule), form, target).prepare(r.sizes)(list(r.inputs.values()))


__all__: Sequence[str] = ("compile_text", "compiled", "launch", "launcher", "program_of")
