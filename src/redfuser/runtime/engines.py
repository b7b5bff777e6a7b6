"""The engines: which one runs a cascade, and how each prepares a tile program."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from redfuser.algebra.nodes import Derivation
from redfuser.backends import reference
from redfuser.backends.listing import Listing, Subject
from redfuser.errors import BackendError
from redfuser.regions.nodes import Region
from redfuser.runtime.cache import Cache, open_cache
from redfuser.runtime.engine import Engine, Prepared, Sizes
from redfuser.runtime.timers import cpu_timer, cuda_timer
from redfuser.runtime.tune import Timer
from redfuser.settings import Backend, Options
from redfuser.tile.cost import Decision, choose, cost
from redfuser.tile.nodes import Kind, Program, Strategy
from redfuser.tile.strategy import Schedule

if TYPE_CHECKING:
    from redfuser.backends.triton.launch import Launcher

log = logging.getLogger("redfuser")


def engine_for(device: torch.device, options: Options) -> Engine:
    """The engine for tensors of a device, or for the machine that ``target`` names. ``backend`` forces one.

    ``auto`` takes Triton on GPUs where it is installed, and C++ on CPUs where there is a compiler.
    """
    target = "" if options.target == "native" else options.target
    gpu = target if target.startswith(("cuda", "hip")) else "" if target else _target(device)
    if options.backend is Backend.TRITON or (options.backend is Backend.AUTO and gpu and _has_triton()):
        if not _has_triton():
            raise BackendError("backend='triton' needs the package triton: pip install 'triton>=3.6'")
        return TritonEngine(device, gpu or "cuda:90", open_cache(options))
    on_cpu = not gpu and (target.startswith("cpu:") or device.type in ("cpu", "meta"))
    if options.backend is Backend.CPU or (options.backend is Backend.AUTO and on_cpu):
        return _cpu_engine(options, target or "native") or ReferenceEngine()
    return ReferenceEngine()


def _cpu_engine(options: Options, target: str) -> Engine | None:
    """C++ where it can be compiled; else None, with one warning, or an error where the options ask for it."""
    from redfuser.backends.cpu.compile import ADVICE, find_compiler
    from redfuser.runtime.native import CpuEngine

    compiler = find_compiler()
    if compiler is not None:
        return CpuEngine(compiler, target, options)
    if options.backend is Backend.CPU:
        raise BackendError(f"backend='cpu' needs a C++ compiler: {ADVICE}")
    _warn_once(f"no C++ compiler was found, so cascades on CPUs run tile by tile in PyTorch; {ADVICE}")
    return None


@functools.cache
def _warn_once(text: str) -> None:
    log.warning(text)


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _target(device: torch.device) -> str:
    """The target of a device that is there; empty for the CPU."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return ""
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return f"hip:{properties.gcnArchName.split(':')[0]}"
    return f"cuda:{properties.major}{properties.minor}"


class ReferenceEngine:
    """Tile by tile with PyTorch's operations. Chosen by the memory that it saves; nothing is measured."""

    timer: Timer = staticmethod(cpu_timer)
    identity = "reference"
    mode = ""
    idle = True

    def decide(self, region: Region, derivation: Derivation, sizes: Sizes, options: Options) -> Decision:
        return choose(
            region,
            derivation,
            sizes=sizes,
            strategy=options.strategy,
            tile=options.tile,
            segments=options.segments,
            threshold=options.fuse_threshold,
        )

    def candidates(self, region: Region, derivation: Derivation, sizes: Sizes, options: Options) -> Sequence[Schedule]:
        return ()

    def warm(self, programs: Sequence[tuple[Program, Schedule]], sizes: Sizes, inputs: Sequence[Tensor]) -> None:
        return

    def prepare(self, program: Program, schedule: Schedule, sizes: Sizes) -> Prepared:
        names, lengths = [t.name for t in program.of(Kind.INPUT)], dict(sizes)

        def prepared(inputs: Sequence[Tensor]) -> list[Tensor]:
            return reference.run(program, dict(zip(names, inputs, strict=True)), lengths)

        return prepared

    def listing(self, program: Program, schedule: Schedule, why: str, subject: Callable[[], Subject]) -> Listing | None:
        return None


class TritonEngine:
    """Kernels printed for a GPU. The model rules candidates out, and time decides."""

    def __init__(self, device: torch.device, target: str, cache: Cache) -> None:
        self.device, self.target, self.cache = device, target, cache
        self._launchers: dict[tuple[int, Schedule, str], tuple[Program, Launcher]] = {}

    @property
    def timer(self) -> Timer:
        return cuda_timer if self.device.type == "cuda" else cpu_timer

    @property
    def idle(self) -> bool:
        return self._present and not torch.cuda.is_current_stream_capturing()

    @property
    def identity(self) -> str:
        import triton

        name = torch.cuda.get_device_name(self.device) if self._present else self.target
        return f"triton {triton.__version__} torch {torch.__version__} {name} {self.mode}"

    @property
    def mode(self) -> str:
        """The precision of float32 dots, as the user has set PyTorch's: ``tf32`` or ``ieee``."""
        matmul = torch.backends.cuda.matmul
        named = getattr(matmul, "fp32_precision", None)  # PyTorch from 2.9; it then refuses the older name at times
        return "tf32" if (matmul.allow_tf32 if named is None else named == "tf32") else "ieee"

    @property
    def _present(self) -> bool:
        """True when the machine at hand is the target."""
        return self.device.type == "cuda" and torch.cuda.is_available() and _target(self.device) == self.target

    def decide(self, region: Region, derivation: Derivation, sizes: Sizes, options: Options) -> Decision:
        c = cost(region, sizes)
        if options.strategy is Strategy.UNFUSED:
            return Decision(Strategy.UNFUSED, None, c, "the option strategy says so")
        dropped: list[str] = []
        first = next(self._candidates(region, derivation, sizes, options, dropped), None)
        if first is None:
            why = dropped[0] if dropped else "no schedule is known for these lengths"
            return Decision(Strategy.UNFUSED, None, c, f"no tile program runs on {self.target}: {why}")
        why = (
            "the option strategy says so"
            if options.strategy is not Strategy.AUTO
            else "the first candidate that the model does not rule out"
        )
        return Decision(first.strategy, first, c, why)

    def candidates(self, region: Region, derivation: Derivation, sizes: Sizes, options: Options) -> Sequence[Schedule]:
        return list(self._candidates(region, derivation, sizes, options))

    def _candidates(
        self, region: Region, derivation: Derivation, sizes: Sizes, options: Options, dropped: list[str] | None = None
    ) -> Iterator[Schedule]:
        from redfuser.backends.triton.candidates import candidates
        from redfuser.backends.triton.resources import machine

        return candidates(
            region, derivation, sizes, machine(self.target),
            strategy=options.strategy, tile=options.tile, segments=options.segments, precision=self.mode, dropped=dropped,
        )  # fmt: skip

    def launcher(self, program: Program, schedule: Schedule) -> Launcher:
        from redfuser.backends.triton.launch import Launcher
        from redfuser.backends.triton.printed import Form
        from redfuser.backends.triton.resources import machine

        mode = self.mode
        key = id(program), schedule, mode
        if key not in self._launchers:
            form = Form(
                precision=mode, bulk=schedule.bulk, coarse=self.target.startswith("cuda") and not _interpreted(),
                e4m3=machine(self.target).e4m3,
            )  # fmt: skip
            made = Launcher(program, form, schedule.warps, schedule.stages, self.cache.kernels, self.cache.added)
            self._launchers[key] = program, made
        return self._launchers[key][1]

    def warm(self, programs: Sequence[tuple[Program, Schedule]], sizes: Sizes, inputs: Sequence[Tensor]) -> None:
        if not self._present:
            return

        def one(pair: tuple[Program, Schedule]) -> None:
            try:
                self.launcher(*pair).compile(inputs, sizes, self.target)
            except Exception:
                return  # measuring it will say why

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            list(pool.map(one, programs))

    def prepare(self, program: Program, schedule: Schedule, sizes: Sizes) -> Prepared:
        if not self._present and not _interpreted():
            raise BackendError(
                f"kernels for {self.target} do not run on tensors on {self.device}: explain(...).source prints them for "
                "that machine; to run here, leave the options target and backend out, or set TRITON_INTERPRET=1"
            )
        return self.launcher(program, schedule).prepare(dict(sizes))

    def listing(self, program: Program, schedule: Schedule, why: str, subject: Callable[[], Subject]) -> Listing | None:
        from redfuser.backends.triton.candidates import obstacle
        from redfuser.backends.triton.resources import machine

        if obstacle(program, machine(self.target)):
            return None

        def write(listings: Sequence[Listing]) -> str:
            from redfuser.backends.triton.source import script

            return script(listings, lambda x: self.launcher(x.program, x.schedule))

        return Listing(program, schedule, self.target, why, subject, write)


def _interpreted() -> bool:
    """True where Triton runs kernels on the CPU, in Python."""
    import triton

    return bool(triton.knobs.runtime.interpret)
