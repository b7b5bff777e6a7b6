"""The choice between tile programs and the unfused code by measurement, remembered on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from redfuser.index.print import show_program
from redfuser.regions.nodes import Region
from redfuser.runtime.cache import bucket, key_of, open_cache
from redfuser.runtime.engine import Engine, Replaced, Sizes
from redfuser.runtime.tune import Outcome, Row, progress_bar, tune
from redfuser.settings import Options, Tune
from redfuser.tile.cost import Cost, Decision
from redfuser.tile.nodes import Dot, Program, Role, Strategy
from redfuser.tile.strategy import Schedule
from redfuser.tile.uses import every

log = logging.getLogger("redfuser")
LIMITS = {Tune.FAST: (8, 10.0), Tune.FULL: (64, 300.0)}  # candidates and seconds
MOST_BESIDE = 2**28  # bytes of intermediates on a CPU; what makes more of them is not faster
HEAT = 0.8  # seconds in which products of matrices bring a GPU to its power limit
INDUCTOR = 1.0  # µs that unfused code has to be faster by on a GPU: its calls keep the host busy for longer
SHARE = 0.4  # of the free memory that the unfused code's intermediates may take while it is measured


@dataclass(frozen=True, slots=True)
class Request:
    """One cascade at given lengths, to be chosen for."""

    region: Region
    derivation: str  # its proof as text: what a cached choice depends on
    sizes: Sizes
    options: Options
    cost: Cost

    def key(self, engine: Engine) -> str:
        o = self.options
        lengths = ",".join(f"{s.name}={bucket(self.sizes.get(s.name, s.hint))}" for s in self.region.program.sizes)
        settings = f"{o.strategy} {o.tile} {o.segments} {o.tune} {o.exact_casts} {o.fuse_rounding} {o.rest}"
        program = show_program(self.region.program)
        return key_of("choice", program, self.derivation, lengths, settings, engine.identity)

    @property
    def what(self) -> str:
        return " -> ".join(s.name for s in self.region.problem.stages)


def remembered(request: Request, engine: Engine) -> Decision | None:
    """The choice that an earlier call or process has measured."""
    found = open_cache(request.options).get_json(request.key(engine))
    if found is None:
        return None
    try:
        schedule = _schedule(found["schedule"])
        reason = str(found["reason"])
    except (KeyError, TypeError, ValueError):
        return None
    strategy = Strategy.UNFUSED if schedule is None else schedule.strategy
    return Decision(strategy, schedule, request.cost, reason, True)


def measured(
    request: Request,
    schedules: Sequence[Schedule],
    engine: Engine,
    replaced: Replaced,
    program: Callable[[Schedule], Program],
) -> Decision | None:
    """The fastest of the schedules and the unfused code on this machine; None where nothing could be measured.

    The unfused code comes second, and however little time there is it is measured: nothing slower may take its place.
    The time limit is for measuring. Compiling comes before it, the unfused code's too, which takes as long without us.
    """
    options, sizes = request.options, request.sizes
    at_most, seconds = LIMITS[options.tune]
    schedules = list(schedules)[: at_most - 1]
    try:
        inputs = replaced.examples(sizes)
    except torch.OutOfMemoryError:
        log.info("too little memory to measure candidates for %s", request.what)
        return None
    pairs = [(program(s), s) for s in schedules]
    engine.warm(pairs, sizes, inputs)

    def build(s: Schedule | None) -> Callable[[], None]:
        if s is None:
            return _call(lambda: replaced.unfused(inputs, sizes))
        prepared = engine.prepare(program(s), s, sizes)
        return _call(lambda: prepared(inputs))

    contenders: list[Schedule | None] = list(schedules)
    competes = options.strategy is Strategy.AUTO and (_affordable(request.cost, inputs) or replaced.lean(inputs))
    if competes:
        contenders.insert(1, None)
        with contextlib.suppress(Exception):  # measuring it will say why
            replaced.unfused(inputs, sizes)
    on_gpu = any(x.is_cuda for x in inputs)
    with progress_bar(f"tuning {request.what}") as progress, torch.no_grad():
        outcome = tune(
            contenders, build, engine.timer,
            at_most=at_most, seconds=seconds, at_least=1 + competes, progress=progress,
            heat=HEAT if on_gpu and any(_multiplies(p) for p, _ in pairs) else 0.0,
            handicap=lambda s: INDUCTOR if s is None and on_gpu else 0.0,
        )  # fmt: skip
    if not any(r.microseconds is not None for r in outcome.rows):
        return None
    decision = _decision(request, outcome)
    if outcome.in_time:
        schedule = None if decision.schedule is None else _record(decision.schedule)
        record = {"schedule": schedule, "reason": decision.reason}
        open_cache(options).put_json(request.key(engine), record, request.what)
    return decision


def _call(fn: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        fn()

    return run


def _multiplies(p: Program) -> bool:
    return any(isinstance(s, Dot) for k in p.kernels for s in every(k.body))


def _affordable(cost: Cost, inputs: Sequence[torch.Tensor]) -> bool:
    """True when the unfused code can be run at all, and beside what the caller has allocated."""
    if not any(x.is_cuda for x in inputs):
        return cost.saved <= MOST_BESIDE
    free, _ = torch.cuda.mem_get_info()
    return 2 * cost.saved < SHARE * free


def _decision(request: Request, outcome: Outcome[Schedule | None]) -> Decision:
    best = outcome.best
    rows = sorted((r for r in outcome.rows if r.microseconds is not None), key=lambda r: r.microseconds or 0.0)
    reason = "measured: " + "; ".join(f"{_name(r)} {r.microseconds:.1f} µs" for r in rows[:4])
    failed = len(outcome.rows) - len(rows)
    if failed:
        reason += f"; {failed} did not run"
    if rows[0].candidate is None and best is not None:
        reason += "; unfused calls take the host longer"
    strategy = Strategy.UNFUSED if best is None else best.strategy
    return Decision(strategy, best, request.cost, reason, True)


def _name(r: Row[Schedule | None]) -> str:
    s = r.candidate
    if s is None:
        return "unfused"
    parts = "" if s.strategy is not Strategy.MULTI else f" of {s.segments} segments"
    if s.vector is not None:
        return f"{s.strategy}{parts} ({s.row}x{s.tile}, {s.vector} in lanes)"
    extra = ", bulk copies" * s.bulk + (f", {s.lanes} lanes" if s.lanes else "")
    return f"{s.strategy}{parts} ({s.row}x{s.tile}, {s.warps} warps, {s.stages} stages{extra})"


def _record(s: Schedule) -> dict[str, str | int | None]:
    return {k: v.value if isinstance(v, Enum) else v for k, v in dataclasses.asdict(s).items()}


def _schedule(record: object) -> Schedule | None:
    if record is None:
        return None
    if not isinstance(record, dict):
        raise TypeError("a schedule is a table")
    vector = record.get("vector")
    return Schedule(**{**record, "strategy": Strategy(record["strategy"]), "vector": vector and Role(vector)})
