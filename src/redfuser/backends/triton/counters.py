"""Counters in which the programs of a launch meet: zeros, which each launch leaves as zeros.

A stream has counters of its own, since launches on a stream follow each other. A graph may be replayed on any stream,
beside others: a launch that is captured takes counters that no other launch gets, ever, from a slab; when that is used
up, the graph clears some at each replay.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

FEWEST = 1024  # counters of a stream
SLAB = 2**16  # counters of a device for the launches that graphs have captured

_by_stream: dict[tuple[int, int], Tensor] = {}
_slabs: dict[int, tuple[Tensor, int]] = {}
_lock = threading.Lock()


def zeros(device: torch.device, count: int) -> Tensor:
    """At least ``count`` zeros, int32, for one launch on the current stream of a device, which is the current one."""
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    if torch.cuda.is_current_stream_capturing():
        return _captured(device, count)
    key = device.index, torch._C._cuda_getCurrentRawStream(device.index)
    found = _by_stream.get(key)
    if found is None or len(found) < count:
        found = _by_stream[key] = torch.zeros(max(FEWEST, count), dtype=torch.int32, device=device)
        with _lock:
            if device.index not in _slabs:
                _slabs[device.index] = torch.zeros(SLAB, dtype=torch.int32, device=device), 0
                torch.cuda.current_stream(device).synchronize()  # a graph may run on any stream
    return found


def _captured(device: torch.device, count: int) -> Tensor:
    with _lock:
        slab, used = _slabs.get(device.index, (None, 0))
        if slab is not None and used + count <= SLAB:
            _slabs[device.index] = slab, used + count
            return slab[used : used + count]
    return torch.zeros(count, dtype=torch.int32, device=device)
