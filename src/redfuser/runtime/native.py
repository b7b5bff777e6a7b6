"""The engine that compiles C++ for CPUs: candidates by the lengths, the choice by time, tiny work by the model alone."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from redfuser.algebra.nodes import Derivation
from redfuser.backends.cpu.candidates import candidates
from redfuser.backends.cpu.compile import Compiler, key_parts, load, machine
from redfuser.backends.cpu.emit import Source, emit
from redfuser.backends.cpu.launch import Launcher
from redfuser.backends.cpu.writer import Form
from redfuser.backends.listing import Listing, Subject
from redfuser.regions.nodes import Region
from redfuser.runtime.cache import key_of, open_cache
from redfuser.runtime.engine import Prepared, Sizes
from redfuser.runtime.timers import cpu_timer
from redfuser.runtime.tune import Timer
from redfuser.settings import Options
from redfuser.tile.build import build
from redfuser.tile.cost import Decision, cost
from redfuser.tile.nodes import Program, Strategy
from redfuser.tile.strategy import Schedule, Unsupported

TINY = 2**16  # bytes read and written, below which measuring costs more than a wrong choice


class CpuEngine:
    """Kernels printed as C++ and compiled for a machine: the one at hand, or ``cpu:<name>`` for another."""

    timer: Timer = staticmethod(cpu_timer)
    idle = True

    def __init__(self, compiler: Compiler, target: str, options: Options) -> None:
        self.compiler, self.target, self.options = compiler, target, options
        self._launchers: dict[tuple[int, Schedule], tuple[Program, Launcher]] = {}

    @property
    def mode(self) -> str:
        return f"{torch.get_num_threads()} threads"

    @property
    def identity(self) -> str:
        here = key_of(machine())[:16] if self.target == "native" else self.target
        return f"{self.compiler.version} torch {torch.__version__} {here} {self.mode}"

    def decide(self, region: Region, derivation: Derivation, sizes: Sizes, options: Options) -> Decision:
        c = cost(region, sizes)
        if options.strategy is Strategy.UNFUSED:
            return Decision(Strategy.UNFUSED, None, c, "the option strategy says so")
        first = next(self._candidates(region, derivation, sizes, options), None)
        if first is None:
            return Decision(Strategy.UNFUSED, None, c, "there is no form in C++ for its tile program")
        why = (
            "the option strategy says so"
            if options.strategy is not Strategy.AUTO
            else "the likeliest candidate at these lengths"
        )
        return Decision(first.strategy, first, c, why)

    def candidates(self, region: Region, derivation: Derivation, sizes: Sizes, options: Options) -> Sequence[Schedule]:
        c = cost(region, sizes)
        if c.read + c.written + c.saved < TINY and options.strategy is Strategy.AUTO:
            return ()
        return list(self._candidates(region, derivation, sizes, options))

    def _candidates(self, region: Region, derivation: Derivation, sizes: Sizes, options: Options) -> Iterator[Schedule]:
        """The likely schedules that can be printed, the likeliest first."""
        for s in candidates(
            region, derivation, sizes, torch.get_num_threads(),
            strategy=options.strategy, tile=options.tile, segments=options.segments,
        ):  # fmt: skip
            if _printable(region, derivation, s):
                yield s

    def warm(self, programs: Sequence[tuple[Program, Schedule]], sizes: Sizes, inputs: Sequence[Tensor]) -> None:
        def one(pair: tuple[Program, Schedule]) -> None:
            try:
                self.launcher(*pair).compile(sizes)
            except Exception:
                return  # measuring it will say why

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(one, programs))

    def launcher(self, program: Program, schedule: Schedule) -> Launcher:
        key = id(program), schedule
        if key not in self._launchers:
            self._launchers[key] = program, Launcher(program, Form(schedule.vector), self.load)
        return self._launchers[key][1]

    def load(self, source: Source) -> ctypes.CDLL:
        """The library of a source: of this process, of the cache on disk, or compiled."""
        key = key_of(*key_parts(source.text, self.compiler, self.target))
        return load(source.text, key, self.compiler, self.target, open_cache(self.options), source.name)

    def prepare(self, program: Program, schedule: Schedule, sizes: Sizes) -> Prepared:
        return self.launcher(program, schedule).prepare(dict(sizes))

    def listing(self, program: Program, schedule: Schedule, why: str, subject: Callable[[], Subject]) -> Listing | None:
        def write(listings: Sequence[Listing]) -> str:
            from redfuser.backends.cpu.source import script

            return script(listings, lambda x: self.launcher(x.program, x.schedule).source(), self.compiler, self.target)

        return Listing(program, schedule, self.target, why, subject, write)


def _printable(region: Region, derivation: Derivation, schedule: Schedule) -> bool:
    """True where there is a tile program, and a form in C++ for all of it."""
    try:
        emit(build(region, derivation, schedule), Form(schedule.vector))
    except Unsupported:
        return False
    return True
