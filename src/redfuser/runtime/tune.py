"""Measured choice: candidates in the order of the cost model, timed turn by turn, the fastest wins.

Nothing here knows what a candidate is: the caller builds it and says how it is timed.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from redfuser.runtime.timers import HOT

if TYPE_CHECKING:
    import rich.progress

C = TypeVar("C")
Timer = Callable[[Callable[[], None]], float]
"""Microseconds of one call of what it is given."""

ROUNDS = 5
SLOW = 1.5  # times the best of the first round: what takes longer is not measured again
TIE = 1.01  # times the best: within it, what the cost model put first wins


class Progress(Protocol):
    """What tuning reports to: candidates behind it, candidates in all, the best so far in microseconds."""

    def __call__(self, tried: int, total: int, best: float | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Row(Generic[C]):
    """One candidate that was tried. ``microseconds`` is None where it does not run, and ``reason`` says why; a
    candidate that was measured in the first round only has both."""

    candidate: C
    microseconds: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[C]):
    """What tuning found. ``rows`` are in the order of the candidates; ``best`` is None when none of them runs.

    ``in_time`` is False when the time limit left candidates or rounds out: another run might choose another one.
    """

    best: C | None
    rows: tuple[Row[C], ...]
    in_time: bool
    seconds: float


class _Entrant(Generic[C]):
    """A candidate in the race."""

    def __init__(self, candidate: C) -> None:
        self.candidate = candidate
        self.run: Callable[[], None] | None = None
        self.times: list[float] = []
        self.reason = ""

    @property
    def microseconds(self) -> float | None:
        return statistics.median(self.times) if self.times else None

    def fail(self, why: Exception) -> None:
        text = str(why).strip()
        first = text.splitlines()[0] if text else ""
        self.run, self.times = None, []
        self.reason = f"{type(why).__name__}: {first[:200]}" if first else type(why).__name__


def tune(
    candidates: Sequence[C],
    build: Callable[[C], Callable[[], None]],
    timer: Timer,
    *,
    at_most: int,
    seconds: float,
    at_least: int = 1,
    heat: float = 0.0,
    handicap: Callable[[C], float] = lambda _: 0.0,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome[C]:
    """The fastest of the first ``at_most`` candidates that run, as far as ``seconds`` allow.

    Each is built, run once and measured once, in the order given (the best first, by the cost model). One that raises
    at any of these is left out, with the reason. Those within 1.5 times of the best are then measured in turns, so that
    a card that grows hot does so for all of them. The median counts, with the ``handicap`` in microseconds that a
    candidate has for what the timer does not see; within 1 % the earlier candidate wins.

    A card at its power limit ranks candidates otherwise than a cold one. Where the best take long, all of them run for
    ``heat`` seconds before the turns begin, and what was measured before that does not count.

    The time limit ends this between two measurements, or behind the heat once that has begun, but not before
    ``at_least`` candidates were measured: a caller without any would have nothing to run.
    """
    start = clock()
    entrants: list[_Entrant[C]] = []
    in_time = True
    for candidate in candidates:
        racing = sum(e.run is not None for e in entrants)
        if racing >= at_most:
            break
        if racing >= at_least and clock() - start >= seconds:
            in_time = False
            break
        if progress:
            failed = len(entrants) - racing
            progress(len(entrants), min(len(candidates), at_most + failed), _fastest(entrants))
        entrants.append(_first_round(candidate, build, timer))

    racing_ones = [e for e in entrants if e.run is not None]
    if racing_ones:
        _drop_slow(racing_ones)
        racing_ones = [e for e in racing_ones if not e.reason]
        heated = clock() - start < seconds and _heat(racing_ones, timer, heat, clock)
        finished = _further_rounds(racing_ones, timer, lambda: clock() - start < seconds)
        for e in racing_ones:
            if heated and len(e.times) > 1:
                del e.times[0]
        in_time = in_time and finished
    if progress:
        progress(len(entrants), len(entrants), _fastest(entrants))

    rows = tuple(Row(e.candidate, e.microseconds, e.reason) for e in entrants)
    return Outcome(_best(entrants, handicap), rows, in_time, clock() - start)


def _first_round(candidate: C, build: Callable[[C], Callable[[], None]], timer: Timer) -> _Entrant[C]:
    entrant = _Entrant(candidate)
    try:
        entrant.run = build(candidate)
        entrant.run()
    except Exception as why:
        entrant.fail(why)
    else:
        _measure(entrant, entrant.run, timer)
    return entrant


def _measure(entrant: _Entrant[C], run: Callable[[], None], timer: Timer) -> None:
    try:
        taken = timer(run)
        if not (math.isfinite(taken) and taken >= 0):
            raise ValueError(f"the timer says {taken} µs")
        entrant.times.append(taken)
    except Exception as why:
        entrant.fail(why)


def _drop_slow(racing: list[_Entrant[C]]) -> None:
    limit = SLOW * min(e.times[0] for e in racing)
    for e in racing:
        if e.times[0] > limit:
            e.reason = f"dropped after the first round: {SLOW * e.times[0] / limit:.1f} times as long as the best"


def _heat(racing: list[_Entrant[C]], timer: Timer, seconds: float, clock: Callable[[], float]) -> bool:
    """Runs the candidates in turn, unmeasured, for so many seconds; False where that is not called for."""
    if len(racing) == 1 or not seconds or min(e.times[0] for e in racing) < HOT:
        return False
    end = clock() + seconds
    while clock() < end:
        for e in racing:
            if e.run is not None:
                _measure(e, e.run, timer)
                del e.times[1:]
    return True


def _further_rounds(racing: list[_Entrant[C]], timer: Timer, in_time: Callable[[], bool]) -> bool:
    """Measures in turns. False when time ran out; a round that is not complete then counts for nobody."""
    if len(racing) == 1:
        return True
    for turn in range(1, ROUNDS):
        for e in racing:
            if not in_time():
                for other in racing:
                    del other.times[turn:]
                return False
            if e.run is not None:
                _measure(e, e.run, timer)
    return True


def _fastest(entrants: Sequence[_Entrant[C]]) -> float | None:
    return min((e.microseconds for e in entrants if e.microseconds is not None), default=None)


def _best(entrants: Sequence[_Entrant[C]], handicap: Callable[[C], float]) -> C | None:
    """The first of those that are as fast as the fastest one. Who was dropped early cannot win on one lucky turn."""
    finished = [
        (e.candidate, e.microseconds + handicap(e.candidate))
        for e in entrants
        if e.microseconds is not None and not e.reason
    ]
    fastest = min((t for _, t in finished), default=None)
    if fastest is None:
        dropped = [e for e in entrants if e.times]
        return min(dropped, key=lambda e: e.times[0]).candidate if dropped else None
    return next(c for c, t in finished if t <= TIE * fastest)


@contextmanager
def progress_bar(what: str, *, after: float = 1.0, clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """A bar on stderr while tuning lasts longer than ``after`` seconds, and only where stderr is a terminal.

    It is drawn when it is told of progress, by nobody else: there is no thread to leave behind.
    """
    start, bar, task = clock(), None, None

    def show(tried: int, total: int, best: float | None) -> None:
        nonlocal bar, task
        if bar is None or task is None:
            if clock() - start < after or sys.stderr is None or not sys.stderr.isatty():
                return
            bar, task = _bar(what)
        said = "" if best is None else f"best {best:,.1f} µs"
        bar.update(task, completed=tried, total=total, best=said)
        bar.refresh()

    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()


def _bar(what: str) -> tuple[rich.progress.Progress, rich.progress.TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[best]}")
    bar = Bar(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    task = bar.add_task(what, total=None, best="")
    bar.start()
    return bar, task
