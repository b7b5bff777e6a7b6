"""A plan: what one cascade compiles to. It picks a tile program for the lengths of each call, so one plan serves all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from redfuser.algebra.nodes import Derivation
from redfuser.algebra.print import show_derivation
from redfuser.errors import BackendError
from redfuser.index.ints import Int
from redfuser.regions.nodes import Region
from redfuser.runtime.cache import bucket
from redfuser.runtime.choice import Request, measured, remembered
from redfuser.runtime.engine import Engine, Prepared, Replaced, Sizes
from redfuser.settings import Options, Tune
from redfuser.tile.build import build
from redfuser.tile.cost import Decision, cost, schedule
from redfuser.tile.nodes import Program, Strategy
from redfuser.tile.strategy import Schedule, Unsupported

log = logging.getLogger("redfuser")
Key = tuple[str | int, ...]  # the engine's mode, and a length for each symbol
REMEMBERED = 1024  # combinations of lengths that a plan keeps ready


class Plan:
    """Tile programs for one region, made when a call first needs them, and kept ready for the lengths it had."""

    def __init__(
        self, region: Region, derivation: Derivation, options: Options, engine: Engine, replaced: Replaced
    ) -> None:
        self.region = region
        self.derivation = derivation
        self.options = options
        self.engine = engine
        self._replaced = replaced
        self._ready: dict[Key, Prepared | None] = {}
        self._decisions: dict[Key, Decision] = {}
        self._modelled: dict[Key, Decision] = {}
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
        try:
            key: Key = (self.engine.mode, *[sizes[n] for n in self._names])
            ready = self._ready
            prepared = ready[key] if key in ready else self._prepare(key, sizes)
            return None if prepared is None else prepared(inputs)
        except Exception as why:
            if self.options.strict:
                raise
            if isinstance(why, BackendError):  # it says all there is to say
                log.warning("a region runs unfused from now on: %s", why)
            else:
                log.warning("a region runs unfused from now on: its tile program failed", exc_info=True)
            self._failed = True
            return None

    def _prepare(self, key: Key, sizes: Sizes) -> Prepared | None:
        """What runs at these lengths, remembered; None where that is the unfused program."""
        prepared = None
        if all(self._number(n, sizes) for n in self._lengths):
            chosen = self.settle(sizes).schedule
            prepared = None if chosen is None else self.engine.prepare(self.program(chosen), chosen, sizes)
        if len(self._ready) >= REMEMBERED:
            self._ready = {}
        self._ready[key] = prepared
        return prepared

    def decide(self, sizes: Sizes) -> Decision:
        """What would run at these lengths, and why, without measuring: as remembered, else by the model.

        Lengths that are not given count as when the function was compiled.
        """
        key = self._bucket(sizes)
        known = self._decisions.get(key) or self._modelled.get(key)
        if known is None:
            known = (remembered(self._request(sizes), self.engine) if self._tuned else None) or self.engine.decide(
                self.region, self.derivation, sizes, self.options
            )
            self._modelled[key] = known
        return known

    def settle(self, sizes: Sizes) -> Decision:
        """What runs at these lengths: measured the first time, where the options and the machine allow it."""
        key = self._bucket(sizes)
        known = self._decisions.get(key)
        if known is not None:
            return known
        decision = self.decide(sizes)
        if self._tuned and not decision.measured and not self.engine.idle:
            return decision  # as the model has it, until a call can measure
        if self._tuned and not decision.measured:
            candidates = self.engine.candidates(self.region, self.derivation, sizes, self.options)
            if candidates:
                request = self._request(sizes)
                decision = measured(request, candidates, self.engine, self._replaced, self.program) or decision
        self._decisions[key] = decision
        return decision

    @property
    def _tuned(self) -> bool:
        return self.options.tune is not Tune.OFF and not self.options.deterministic

    def _request(self, sizes: Sizes) -> Request:
        c = cost(self.region, sizes)
        return Request(self.region, show_derivation(self.derivation), sizes, self.options, c)

    def _bucket(self, sizes: Sizes) -> Key:
        """Lengths for which one decision is made: exact where all are fixed, else rounded up."""
        return (self.engine.mode, *[bucket(sizes.get(s.name, s.hint)) for s in self._sizes])

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
        return bool(self._sizes) or self.settle({}).schedule is not None

    @property
    def shown(self) -> Schedule:
        """The schedule that an explanation shows: the one that runs, or streaming in one segment if it runs unfused."""
        chosen = self.decide({}).schedule
        return chosen or schedule(self.region, self.derivation, Strategy.SINGLE, {}, self.options.tile)

    def program(self, chosen: Schedule) -> Program:
        """The tile program of a schedule. Raises Unsupported where there is none."""
        with self._lock:
            cut = replace(chosen, warps=0, stages=0, bulk=False, vector=None)
            program = self._programs.get(cut)
            if program is None:
                program = self._programs[cut] = build(self.region, self.derivation, cut)
            return program

    @staticmethod
    def _number(n: Int, sizes: Sizes) -> int:
        return n.evaluate({s: sizes[s.name] for s in n.sizes()})
