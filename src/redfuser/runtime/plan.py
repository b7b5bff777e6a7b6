"""A plan: what one cascade compiles to. It picks a tile program for the lengths of each call, so one plan serves all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from redfuser.algebra.nodes import Derivation
from redfuser.index.ints import Int
from redfuser.regions.nodes import Region
from redfuser.settings import Options
from redfuser.tile.build import build
from redfuser.tile.cost import Decision, choose, schedule
from redfuser.tile.nodes import Program, Strategy
from redfuser.tile.strategy import Schedule, Unsupported

log = logging.getLogger("redfuser")
Sizes = Mapping[str, int]


Prepared = Callable[[Sequence[Tensor]], list[Tensor]]
"""A tile program at fixed lengths: the program's input tensors in their order in, its outputs in their order out.

Inputs come with any strides, on one device, which need not be the current one; a CPU scalar may stand among them. Nothing
that a later call changes may share memory with an output. It may be called from several threads, on any stream.
"""

REMEMBERED = 1024  # combinations of lengths that a plan keeps ready


class Backend(Protocol):
    """What runs tile programs."""

    def prepare(self, program: Program, sizes: Sizes) -> Prepared:
        """All that depends on the program and its symbolic lengths alone, done once; the rest is done at each call."""
        ...


class Plan:
    """Tile programs for one region, made when a call first needs them, and kept ready for the lengths it had."""

    def __init__(self, region: Region, derivation: Derivation, options: Options, backend: Backend) -> None:
        self.region = region
        self.derivation = derivation
        self.options = options
        self._backend = backend
        self._ready: dict[tuple[int, ...], Prepared | None] = {}
        self._decisions: dict[tuple[int, ...], Decision] = {}
        self._programs: dict[Schedule, Program] = {}
        self._failed = False
        self._lock = threading.Lock()
        self._sizes = region.program.sizes
        self._names = tuple(s.name for s in self._sizes)
        self._lengths = tuple({a.size for i in region.program.inputs for a in i.axes} | {region.problem.axis.size})

    def __call__(self, inputs: Sequence[Tensor], sizes: Sizes) -> list[Tensor] | None:
        """The results, or None when this call is better run unfused."""
        if self._failed:
            return None
        key, ready = tuple([sizes[n] for n in self._names]), self._ready
        try:
            prepared = ready[key] if key in ready else self._prepare(key, sizes)
            return None if prepared is None else prepared(inputs)
        except Exception:
            if self.options.strict:
                raise
            log.warning("a region runs unfused from now on: its tile program failed", exc_info=True)
            self._failed = True
            return None

    def _prepare(self, key: tuple[int, ...], sizes: Sizes) -> Prepared | None:
        """What runs at these lengths, remembered; None where that is the unfused program."""
        prepared = None
        if all(self._number(n, sizes) for n in self._lengths):
            chosen = self.decide(sizes).schedule
            prepared = None if chosen is None else self._backend.prepare(self.program(chosen), sizes)
        if len(self._ready) >= REMEMBERED:
            self._ready = {}
        self._ready[key] = prepared
        return prepared

    def decide(self, sizes: Sizes) -> Decision:
        """What runs at these lengths, and why. Lengths that are not given count as when the function was compiled."""
        key = tuple(sizes.get(s.name, s.hint) for s in self._sizes)
        decision = self._decisions.get(key)
        if decision is None:
            o = self.options
            decision = choose(
                self.region,
                self.derivation,
                sizes=sizes,
                strategy=o.strategy,
                tile=o.tile,
                segments=o.segments,
                threshold=o.fuse_threshold,
            )
            self._decisions[key] = decision
        return decision

    @property
    def worthwhile(self) -> bool:
        """False when no call can ever be fused: the lengths are all fixed, or the options forbid it.

        With open lengths the region is kept ready, however short the lengths seen while compiling: a later call of the
        same compilation may be long enough to need it.
        """
        if any(n.value == 0 for n in self._lengths) or self.options.strategy is Strategy.UNFUSED:
            return False
        try:
            self.program(self.shown)
        except Unsupported:
            return False
        return bool(self._sizes) or self.decide({}).schedule is not None

    @property
    def shown(self) -> Schedule:
        """The schedule that an explanation shows: the one that runs, or streaming in one segment if it runs unfused."""
        chosen = self.decide({}).schedule
        return chosen or schedule(self.region, self.derivation, Strategy.SINGLE, {}, self.options.tile)

    def program(self, chosen: Schedule) -> Program:
        """The tile program of a schedule. Raises Unsupported where there is none."""
        with self._lock:
            program = self._programs.get(chosen)
            if program is None:
                program = self._programs[chosen] = build(self.region, self.derivation, chosen)
            return program

    @staticmethod
    def _number(n: Int, sizes: Sizes) -> int:
        return n.evaluate({s: sizes[s.name] for s in n.sizes()})
