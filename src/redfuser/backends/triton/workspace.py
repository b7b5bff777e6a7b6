"""Memory of a stream that launches use in turn: counters in which the programs of a launch meet, and scratch.

Counters are zeros, which each launch leaves as zeros. A stream has memory of its own, since launches on a stream follow
each other. A graph may be replayed on any stream, beside others: a launch that is captured takes counters that no other
launch gets, ever, from a slab; when that is used up, the graph clears some at each replay. It takes scratch of its graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

FEWEST = 1024  # counters of a stream
SLAB = 2**16  # counters of a device for the launches that graphs have captured
MOST_KEPT = 2**22  # bytes of scratch that a stream keeps

_counters: dict[tuple[int, int], tuple[int, Tensor]] = {}
_scratch: dict[tuple[int, int], tuple[int, Tensor]] = {}
_slabs: dict[int, tuple[int, Tensor]] = {}
_lock = threading.Lock()


def counters(device: torch.device, stream: int, count: int) -> Tensor:
    """At least ``count`` zeros, int32, for one launch on a stream, which is the current one of the current device."""
    if torch.cuda.is_current_stream_capturing():
        return _captured(device, count)
    length, found = _counters.get((device.index, stream), (0, None))
    if found is None or length < count:
        length = max(FEWEST, count)
        found = _kept(lambda: torch.zeros(length, dtype=torch.int32, device=device))
        _counters[device.index, stream] = length, found
        with _lock:
            if device.index not in _slabs:
                _slabs[device.index] = 0, _kept(lambda: torch.zeros(SLAB, dtype=torch.int32, device=device))
                torch.cuda.current_stream(device).synchronize()  # a graph may run on any stream
    return found


def scratch(device: torch.device, stream: int, size: int) -> Tensor | None:
    """At least ``size`` bytes for one launch on a stream, as above; None where it is better to allocate them."""
    if size > MOST_KEPT or torch.cuda.is_current_stream_capturing():
        return None
    length, found = _scratch.get((device.index, stream), (0, None))
    if found is None or length < size:
        found = _kept(lambda: torch.empty(size, dtype=torch.uint8, device=device))
        _scratch[device.index, stream] = size, found
    return found


def _kept(make: Callable[[], Tensor]) -> Tensor:
    """Memory of the current stream, allocated by a thread of its own: a memory pool in use, as that of CUDA graphs, takes
    in what its own thread allocates, and may give it to others later."""
    stream = torch.cuda.current_stream()
    made: list[Tensor] = []

    def run() -> None:
        with torch.cuda.stream(stream):
            made.append(make())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return made[0]


def _captured(device: torch.device, count: int) -> Tensor:
    with _lock:
        used, slab = _slabs.get(device.index, (0, None))
        if slab is not None and used + count <= SLAB:
            _slabs[device.index] = used + -(-count // 4) * 4, slab  # kernels take addresses to be multiples of 16
            return slab[used : used + count]
    return torch.zeros(count, dtype=torch.int32, device=device)
