"""The ways to compute an entry, by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from benchmarks.entry import Entry, Inputs
from benchmarks.timing import Runner

#: In the order in which they are prepared: what takes Inductor long comes last, so that a limit costs the least.
ALTERNATIVES = ("redfuser", "sdpa-flash", "sdpa-cudnn", "library", "eager", "flex", "compile", "compile-max")
WITHOUT_COMPILER = ("redfuser", "eager")  # what a machine without a GPU compares unless told otherwise
ON_CPU = ("redfuser", "sdpa-flash", "eager", "compile")  # what the suite of CPUs compares


class Skip(Exception):
    """The alternative cannot be run here; the text says why."""


def applicable(entry: Entry, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that can express the entry, in the order of ``ALTERNATIVES``."""
    possible = {
        "sdpa-flash": entry.sdpa is not None and "flash" in entry.sdpa_backends,
        "sdpa-cudnn": entry.sdpa is not None and "cudnn" in entry.sdpa_backends,
        "flex": entry.flex is not None,
        "library": entry.library is not None,
    }
    return [n for n in ALTERNATIVES if n in names and possible.get(n, True)]


def prepare(name: str, entry: Entry, sets: Sequence[Inputs]) -> Runner:
    """An alternative bound to each set of inputs. Compilation happens at the first call. Raises ``Skip``."""
    if name == "flex":
        assert entry.flex is not None
        return Runner(name, [entry.flex(inputs) for inputs in sets])
    if name.startswith("sdpa-"):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        assert entry.sdpa is not None
        backend = SDPBackend.FLASH_ATTENTION if name == "sdpa-flash" else SDPBackend.CUDNN_ATTENTION
        return Runner(name, [partial(entry.sdpa, *inputs) for inputs in sets], partial(sdpa_kernel, backend))
    if name == "redfuser":
        import redfuser

        fn = redfuser.fuse(entry.fn)
    elif name == "compile":
        fn = torch.compile(entry.fn, dynamic=False)
    elif name == "compile-max":
        fn = torch.compile(entry.fn, dynamic=False, mode="max-autotune-no-cudagraphs")
    elif name == "library":
        assert entry.library is not None
        fn = entry.library
    else:
        _room_for_eager(entry, sets[0][0].device)
        fn = entry.fn
    return Runner(name, [partial(fn, *inputs) for inputs in sets])


def _room_for_eager(entry: Entry, device: torch.device) -> None:
    if device.type != "cuda":
        return
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    if entry.eager_bytes > free:
        raise Skip(f"its intermediates take {entry.eager_bytes / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")
