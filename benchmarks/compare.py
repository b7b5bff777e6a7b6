"""One entry in one process: every alternative is checked, then all are timed turn by turn."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from benchmarks.accuracy import Reference, agree, difference, within_contract
from benchmarks.alternatives import Skip, applicable, prepare
from benchmarks.ceilings import Ceilings
from benchmarks.entry import Entry, Inputs, Maker, Outputs, outputs_of
from benchmarks.record import FAILED, SKIPPED, Measured, Record
from benchmarks.timing import Runner, as_graph, race


@dataclass(frozen=True)
class How:
    """How entries are compared."""

    device: str
    against: tuple[str, ...]
    rounds: int = 9
    burst: float = 0.03  # seconds of one alternative in one round
    heat: float = 0.3  # seconds of all of them before
    seed: int = 0
    quick: bool = False

    @property
    def cuda(self) -> bool:
        return torch.device(self.device).type == "cuda"


GRAPH = "/graph"  # after an alternative's name: only its replays


class DeviceLost(Exception):
    """The device answers no more in this process."""


class Tell(Protocol):
    """Hears what begins: an alternative (empty: none of them) and a stage of it."""

    def __call__(self, alternative: str, stage: str) -> None: ...


def compare(
    entry: Entry, how: How, ceilings: Ceilings, excluded: Mapping[str, str], limit: float, tell: Tell
) -> Record:
    """The record of an entry. ``excluded`` alternatives are not run; the value says why.

    After half of ``limit`` seconds no further alternative is prepared, so that there is time to measure the others.
    """
    start = time.monotonic()
    tell("", "inputs")
    sets = _input_sets(entry, how)
    tell("", "reference")
    reference = Reference(entry, sets[0])
    measured = {name: Measured(FAILED, why) for name, why in excluded.items() if not name.endswith(GRAPH)}
    ready: list[Runner] = []
    first: Outputs | None = None
    for name in applicable(entry, how.against):
        if name in excluded:
            continue
        tell(name, "preparing")
        if time.monotonic() - start > limit / 2:
            measured[name] = Measured(SKIPPED, f"no time left to prepare it within {limit:.0f} s")
            continue
        measured[name], runner, outputs = _checked(name, entry, how, sets, reference, first)
        if runner is not None:
            ready.append(runner)
            first = outputs if first is None else first
    eager_error = reference.eager
    del reference
    moved = sum(x.nbytes for x in (*sets[0], *(first or ())))
    del first
    _collect(how)
    if ready:
        _time(ready, measured, entry, how, start + limit - 5.0, excluded, tell)
    return Record(
        name=entry.name,
        suite=entry.suite,
        shape=entry.shape,
        quick=how.quick,
        flops=entry.flops,
        bytes=moved,
        floor_us=ceilings.floor(entry.flops, moved),
        ceilings={"flops": ceilings.flops, "bandwidth": ceilings.bandwidth},
        input_sets=len(sets),
        rounds=how.rounds,
        eager_error=eager_error,
        alternatives=measured,
    )


def _input_sets(entry: Entry, how: How) -> list[Inputs]:
    """Enough sets that a memory-bound entry finds nothing in the last-level cache: four times its size in all."""
    sets = [entry.inputs(Maker(how.device, how.seed))]
    if entry.cold and how.cuda:
        size = sum(x.nbytes for x in sets[0])
        cache = torch.cuda.get_device_properties(how.device).L2_cache_size
        count = min(16, max(1, -(-4 * cache // size)))
        sets += [entry.inputs(Maker(how.device, how.seed + i)) for i in range(1, count)]
    return sets


def _checked(
    name: str, entry: Entry, how: How, sets: Sequence[Inputs], reference: Reference, first: Outputs | None
) -> tuple[Measured, Runner | None, Outputs | None]:
    """An alternative, run once on every set and compared on the first; without a runner where it fails."""
    start = time.monotonic()
    try:
        runner = prepare(name, entry, sets)
        if first is not None:
            _poison(first)
        with warnings.catch_warnings(record=True) as warned, runner.context():
            warnings.simplefilter("always", UserWarning)
            outputs = outputs_of(runner.calls[0]())
            for call in runner.calls[1:]:
                call()
        error = reference.error(outputs)
        apart = None if first is None else difference(outputs, first)
    except Skip as why:
        return Measured(SKIPPED, str(why)), None, None
    except Exception as why:  # whatever an alternative does wrong is its result
        reason = f"{type(why).__name__}: {why}"[:2000]
        if not usable(how):
            raise DeviceLost(reason) from why
        return Measured(FAILED, reason, prepare_s=time.monotonic() - start), None, None
    found = Measured(
        error=error,
        difference=apart,
        within_contract=within_contract(error, reference.eager, outputs),
        agrees=None if apart is None else agree(apart, reference.eager, outputs),
        notes=sorted({" ".join(str(w.message).split())[:300] for w in warned}),
        prepare_s=time.monotonic() - start,
    )
    if name == "redfuser":
        found.notes += _decisions(entry, sets[0])
    return found, runner, outputs


def _decisions(entry: Entry, inputs: Inputs) -> list[str]:
    """What was chosen for each cascade of the function, as the analysis tells it."""
    import redfuser

    try:
        analysis = redfuser.analyze(entry.fn, *inputs)
    except Exception as why:  # a figure without its explanation is still a figure
        return [f"analyze failed: {type(why).__name__}: {why}"[:300]]
    return [f"{c.name}: {c.decision}"[:300] for c in analysis.cascades] or ["no cascade was found"]


def _poison(like: Outputs) -> None:
    """Leaves NaN in the memory that the allocator is likely to hand out next: what stays unwritten is then seen."""
    held = [torch.full_like(x, float("nan")) for x in like if x.dtype.is_floating_point and x.itemsize > 1]
    del held


def usable(how: How) -> bool:
    """Whether the device still answers: after some faults it does not, in this process."""
    try:
        if how.cuda:
            torch.cuda.synchronize(how.device)
    except Exception:
        return False
    return True


def _collect(how: How) -> None:
    gc.collect()
    if how.cuda:
        torch.cuda.empty_cache()


def _time(
    ready: Sequence[Runner],
    measured: dict[str, Measured],
    entry: Entry,
    how: How,
    until: float,
    excluded: Mapping[str, str],
    tell: Tell,
) -> None:
    """Adds the times to ``measured``. ``tell`` always knows whose turn it is, so that a fault has a name."""
    turn = partial(tell, stage="timing")
    hot = 1 if entry.cold else 3  # arithmetic draws the power that slows the card down: until its clock has settled
    for name, times in race(ready, how.rounds, hot * how.burst, how.cuda, hot * how.heat, until, announce=turn).items():
        measured[name].us = times.median
        measured[name].us_range = min(times.rounds), max(times.rounds)
    if not (entry.graph and how.cuda):
        return
    graphs: list[Runner] = []
    per = 1
    for runner in ready:
        if runner.name + GRAPH in excluded:
            measured[runner.name].graph_reason = excluded[runner.name + GRAPH]
            continue
        tell(runner.name + GRAPH, "capturing")
        try:
            graph, per = as_graph(runner)
            graphs.append(graph)
        except Exception as why:  # capture is refused for many reasons, and the calls above are measured already
            measured[runner.name].graph_reason = f"{type(why).__name__}: {why}"[:500]
            if not usable(how):
                raise DeviceLost(str(why)) from why
    if graphs:

        def replaying(name: str) -> None:
            tell(name + GRAPH, "timing")

        for name, times in race(graphs, how.rounds, how.burst, how.cuda, 0.0, until, per, replaying).items():
            measured[name].graph_us = times.median
