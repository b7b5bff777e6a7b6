"""Microseconds of one call, on a GPU and on the CPU. Both take a function that was called before: nothing is warmed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch

BUDGET = 60_000.0  # microseconds that the samples of one measurement may take together
FEWEST, MOST = 3, 50  # samples
LONG = 1e6  # microseconds of a call on a CPU that is measured once
HOT = 200.0  # microseconds of a call on a GPU that heats it, where nothing comes between the calls
BURST = 90_000.0  # microseconds of such calls, which bring a GPU to the clock that their power allows
MOST_AHEAD = 256  # flushes queued in front of them


def cuda_timer(fn: Callable[[], None]) -> float:
    """Microseconds that the current CUDA (or ROCm) device works on one call, its inputs not in the L2 cache.

    The median of 3 to 50 samples, between two events on the current stream. The queue of the device is filled before
    the first sample starts, or longer than the host's, so the time that Python takes to launch is not in it, unless
    ``fn`` waits for the device.

    Of calls of 200 µs and more it is the mean of those of 90 ms, one behind the other: what they read of each other's
    cache is little, and what else the device did between them would cool it.
    """
    flush = _flush_buffer()
    one_flush, host, whole = _first_look(fn, flush)
    if whole - one_flush > HOT and host < HOT:
        return _burst(fn, max(2, round(BURST / (whole - one_flush))))
    n = _samples(whole)
    # The device writes the buffer until the host has queued all samples, in which it is at least as long at flushing;
    # where a sample takes it longer than the host, it goes on at once, and stays as hot as it is.
    ahead = 0 if whole > 1.5 * host else math.ceil(1.5 * n * max(0.0, host - one_flush) / one_flush)
    for _ in range(min(ahead, MOST_AHEAD)):
        flush.zero_()
    marks = [_sample(fn, flush) for _ in range(n)]
    marks[-1][1].synchronize()
    return statistics.median(_between(start, end) for start, end in marks)


def cpu_timer(fn: Callable[[], None]) -> float:
    """Microseconds of one call on the CPU: the median of 3 to 50 samples, of a long call a single one. What it reads may
    be in the caches."""
    times = [_wall(fn)]
    if times[0] > LONG:
        return times[0]
    times += [_wall(fn) for _ in range(_samples(times[0]) - 1)]
    return statistics.median(times)


def _flush_buffer() -> torch.Tensor:
    """Twice the L2 cache of the current device: writing it leaves nothing else in there."""
    device = torch.device("cuda", torch.cuda.current_device())
    size = max(2 * int(torch.cuda.get_device_properties(device).L2_cache_size), 32 * 2**20)
    return torch.empty(size // 4, dtype=torch.int32, device=device)


def _first_look(fn: Callable[[], None], flush: torch.Tensor) -> tuple[float, float, float]:
    """Microseconds of one flush; of the host for queueing one sample; from sample to sample, whoever is slower."""
    flush.zero_()
    begin, middle, end = _event(), _event(), _event()
    begin.record()
    for _ in range(4):
        flush.zero_()
    middle.record()
    host = statistics.median(_wall(lambda: _sample(fn, flush)) for _ in range(3))
    end.record()
    end.synchronize()
    return max(1.0, _between(begin, middle) / 4), host, _between(middle, end) / 3


def _sample(fn: Callable[[], None], flush: torch.Tensor) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    start, end = _event(), _event()
    flush.zero_()
    start.record()
    fn()
    end.record()
    return start, end


def _burst(fn: Callable[[], None], n: int) -> float:
    start, end = _event(), _event()
    start.record()
    for _ in range(n):
        fn()
    end.record()
    end.synchronize()
    return _between(start, end) / n


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _between(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    """Microseconds between two events that have passed."""
    return float(start.elapsed_time(end)) * 1000


def _wall(fn: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    fn()
    return (time.perf_counter_ns() - start) / 1000


def _samples(one: float) -> int:
    return max(FEWEST, min(MOST, round(BUDGET / max(one, 1.0))))
