"""One operator, ``redfuser::region``, that stands for every fused region in a graph.

What it computes is found by a handle in a registry: the kernel, and the unfused sub-graph that it replaces. The
backward recomputes that sub-graph under autograd, so gradients are those of the operations as the user wrote them.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from redfuser.frontend.partition import Cut
from redfuser.frontend.values import torch_dtype
from redfuser.index.print import show_program

# inputs and symbolic sizes in, results out, each row-major in memory of its own; None when this call is better run unfused
Kernel = Callable[[list[torch.Tensor], dict[str, int]], list[torch.Tensor] | None]


@dataclass(frozen=True)
class Entry:
    """What a handle stands for. Its results are the caller's own: see ``_owned``."""

    kernel: Kernel
    cut: Cut

    def run(self, inputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """The results, without gradients: of the kernel, or of the sub-graph where the kernel leaves it."""
        cut = self.cut
        results = self.kernel(list(inputs), cut.sizes(inputs, sizes))
        if results is None:
            return _owned(cut.run(inputs, sizes), inputs, cut.layouts)
        return results if self._row_major else _owned(results, inputs, cut.layouts)

    @cached_property
    def _row_major(self) -> bool:
        return all(layout == _ROW_MAJOR[: len(layout)] for layout in self.cut.layouts)


_entries: dict[str, Entry] = {}
_lock = threading.Lock()
_ROW_MAJOR = tuple(range(64))  # PyTorch allows no more dimensions


def register(cut: Cut, kernel: Kernel) -> str:
    """A handle for a region. It names the content, since compiled graphs that mention it outlive the process."""
    text = show_program(cut.lowered.program) + cut.module.code
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    with _lock:
        n = 0
        while f"{digest}-{n}" in _entries:
            n += 1
        handle = f"{digest}-{n}"
        _entries[handle] = Entry(kernel, cut)
    return handle


def entry(handle: str) -> Entry:
    return _entries[handle]


_library = torch.library.Library("redfuser", "DEF")  # type: ignore[no-untyped-call]
_library.define("region(Tensor[] inputs, SymInt[] sizes, str handle) -> Tensor[]")  # type: ignore[no-untyped-call]


def _run(inputs: Sequence[torch.Tensor], sizes: Sequence[int], handle: str) -> list[torch.Tensor]:
    if any(x.is_meta for x in inputs):
        return _shapes_only(inputs, sizes, handle)
    return _entries[handle].run(inputs, sizes)


def _owned(
    results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], layouts: Sequence[tuple[int, ...]]
) -> list[torch.Tensor]:
    """Dense results, laid out as the user's code does, that share no memory with an input or with each other.

    What has just been allocated passes as it is.
    """
    taken = {x.untyped_storage().data_ptr() for x in inputs}
    out: list[torch.Tensor] = []
    for r, layout in zip(results, layouts, strict=True):
        if r.requires_grad or r._is_view():
            r = r.detach()
        memory = r.untyped_storage().data_ptr()
        if memory in taken or not _laid_out(r, layout):
            r = torch.empty_permuted(r.shape, layout, dtype=r.dtype, device=r.device).copy_(r)
            memory = r.untyped_storage().data_ptr()
        taken.add(memory)
        out.append(r)
    return out


def _laid_out(r: torch.Tensor, layout: tuple[int, ...]) -> bool:
    if layout == _ROW_MAJOR[: len(layout)]:
        return r.is_contiguous()
    return r.permute(layout).is_contiguous()


def _shapes_only(inputs: Sequence[torch.Tensor], sizes: Sequence[Any], handle: str) -> list[torch.Tensor]:
    cut = _entries[handle].cut
    bound = cut.sizes(inputs, sizes)
    program = cut.lowered.program
    # a CPU scalar may stand among tensors of another device
    device = max(inputs, key=lambda x: x.dim()).device
    out = []
    for o, shape, layout in zip(program.outputs, cut.shapes, cut.layouts, strict=True):
        lengths = [n.evaluate({s: bound[s.name] for s in n.sizes()}) for n in shape]
        out.append(torch.empty_permuted(lengths, layout, dtype=torch_dtype(program[o.value].dtype), device=device))
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensors, sizes, handle = inputs
    ctx.save_for_backward(*tensors)
    ctx.sizes, ctx.handle = sizes, handle
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grads: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    """Gradients of the unfused sub-graph, recomputed. Differentiable again when the caller asks for it."""
    module = _entries[ctx.handle].cut.module
    again = torch.is_grad_enabled()
    inputs = [
        _leaf(x, again) if n else x.detach() for x, n in zip(ctx.saved_tensors, ctx.needs_input_grad[0], strict=True)
    ]
    wanted = [x for x in inputs if x.requires_grad]
    found: dict[int, torch.Tensor | None] = {}
    with torch.enable_grad():
        outputs = module(*inputs, *ctx.sizes)
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None and o.requires_grad]
        if pairs and wanted:
            outs, given = zip(*pairs, strict=True)
            results = torch.autograd.grad(outs, wanted, given, allow_unused=True, create_graph=again)
            found = {id(x): g for x, g in zip(wanted, results, strict=True)}
    return [found.get(id(x)) for x in inputs], [None] * len(ctx.sizes), None


def _leaf(x: torch.Tensor, again: bool) -> torch.Tensor:
    if not x.is_floating_point():
        return x
    if again:
        # a view of its own, so that a tensor given twice has two gradients
        return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
    return x.detach().requires_grad_()


_library.impl("region", _run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("redfuser::region", _shapes_only, lib=_library)
torch.library.register_autograd("redfuser::region", _backward, setup_context=_save, lib=_library)
