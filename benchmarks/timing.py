"""Timing turn by turn: a card that heats up, or a neighbour on the machine, touches every alternative alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

Call = Callable[[], Any]


@dataclass(frozen=True)
class Runner:
    """One alternative, ready: a call for each set of inputs, and the context that they run in."""

    name: str
    calls: Sequence[Call]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext

    def burst(self, n: int) -> None:
        """``n`` calls, each on the next set of inputs."""
        with self.context():
            for i in range(n):
                self.calls[i % len(self.calls)]()


@dataclass(frozen=True)
class Times:
    """Microseconds per call, one figure for each round."""

    rounds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


def seconds(runner: Runner, n: int, cuda: bool) -> float:
    """Of ``n`` calls together: by events on the device, else by the clock."""
    if not cuda:
        start = time.perf_counter()
        runner.burst(n)
        return time.perf_counter() - start
    begin, end = _event(), _event()
    begin.record()
    runner.burst(n)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call,unused-ignore]


def burst_length(runner: Runner, target: float, cuda: bool) -> int:
    """Calls that fill about ``target`` seconds; the first calls, which may still set things up, are not counted."""
    seconds(runner, 2, cuda)
    once = seconds(runner, 2, cuda) / 2
    return max(1, min(100_000, int(target / max(once, 1e-7))))


def order_of(turn: int, count: int) -> list[int]:
    """Who runs when in a round. Over ``2 * count`` rounds everyone follows everyone else equally often.

    A runner behind a matrix product finds the card hot and its clock low; one that came behind the same neighbour in
    every round would pay for it alone. The rows are those of a Latin square balanced for carry-over (Williams, 1949),
    then of its mirror.
    """
    zigzag = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(count)]
    row = [(at + turn) % count for at in zigzag]
    return row[::-1] if turn // count % 2 else row


def race(
    runners: Sequence[Runner],
    rounds: int,
    burst: float,
    cuda: bool,
    heat: float = 0.0,
    until: float = float("inf"),
    per: int = 1,
    announce: Callable[[str], None] = lambda name: None,
) -> dict[str, Times]:
    """Every runner in each round, for ``burst`` seconds, in the order that :func:`order_of` gives for the round.

    ``heat`` seconds of all of them come first, unmeasured. Past ``until`` (of ``time.monotonic``) no further round
    begins, but three are always run. ``per`` is what one call of a runner stands for.
    ``announce`` is told whose turn it is, between turns.
    """
    lengths: list[int] = []
    for runner in runners:
        announce(runner.name)
        lengths.append(burst_length(runner, burst, cuda))
    warm = time.monotonic() + heat
    while time.monotonic() < min(warm, until):
        for runner, n in zip(runners, lengths, strict=True):
            announce(runner.name)
            seconds(runner, n, cuda)
    times = {r.name: Times() for r in runners}
    for turn in range(rounds):
        if turn >= 3 and time.monotonic() > until:
            break
        for at in order_of(turn, len(runners)):
            runner, n = runners[at], lengths[at]
            announce(runner.name)
            times[runner.name].rounds.append(seconds(runner, n, cuda) / n / per * 1e6)
    return times


GRAPH_CALLS = 20


def as_graph(runner: Runner) -> tuple[Runner, int]:
    """The runner's calls as one CUDA graph, and how many calls a replay makes. Raises where capture does."""
    count = -(-GRAPH_CALLS // len(runner.calls)) * len(runner.calls)
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call,unused-ignore]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        runner.burst(len(runner.calls))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            runner.burst(count)
    torch.cuda.synchronize()
    return Runner(runner.name, [graph.replay]), count
