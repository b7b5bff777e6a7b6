"""Memory for results, allocated in as little time as PyTorch allows, and what lengths and strides they have."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from redfuser.index.ints import Atom, Int

LARGE = 8 * 2**20  # bytes of a result that is worth asking for large pages
PAGE, ADVICE = 4096, 14  # MADV_HUGEPAGE
_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]


def _slow(device: str) -> Empty:
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)


# without the dispatcher, where PyTorch has that for its own compiler; on the current GPU
empty_on_cpu: Empty = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", _slow("cpu"))
empty_on_gpu: Empty = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", _slow("cuda"))


class Numbers:
    """Lengths as numbers, with the symbolic ones given."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def __call__(self, i: Int) -> int:
        env: dict[Atom, int] = {s: self.sizes[s.name] for s in i.sizes()}
        return i.evaluate(env)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= max(1, n)
    return tuple(reversed(out))


def in_large_pages(x: Tensor) -> Tensor:
    """The same tensor, which is about to be written, in pages of 2 MiB where the system gives them to who asks.

    Fresh memory is given page by page as it is written, and with pages of 4 KiB that may take longer than the work.
    """
    advise = _advise()
    if advise is not None:
        start = -(-x.data_ptr() // PAGE) * PAGE
        advise(start, (x.data_ptr() + x.nbytes - start) // PAGE * PAGE, ADVICE)
    return x


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    """The system's madvise; None where large pages are given always, never, or not by asking for them."""
    try:
        if sys.platform != "linux" or "[madvise]" not in _PAGES.read_text():
            return None
        call = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    call.argtypes, call.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return call
