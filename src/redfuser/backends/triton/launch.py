"""Printed kernels as callables: the module is written once, and a call allocates, binds and launches.

What depends on shapes and strides alone is worked out the first time they occur; a later call of the same shapes
allocates its outputs and launches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from redfuser.backends.allocate import Numbers, contiguous, empty_on_gpu
from redfuser.backends.sources import load
from redfuser.backends.torch_expr import TORCH
from redfuser.backends.triton import workspace
from redfuser.backends.triton.emit import emit
from redfuser.backends.triton.layout import power
from redfuser.backends.triton.printed import Counters, Form, Length, Place, Pointer, Printed, Source, Stride
from redfuser.tile.nodes import Kind, Program
from redfuser.tile.uses import farthest

REMEMBERED = 64  # combinations of strides that a program keeps ready


class Launcher:
    """Runs one tile program with Triton: ``launcher.prepare(sizes)(inputs)`` gives the outputs in order.

    ``warps`` and ``stages`` are Triton's launch options. Inputs are by position, in the order of the program, on one
    device, with any strides. ``ValueError`` where a shape or a dtype is not the program's. The modules lie in
    ``directory``, as ``load`` has it.
    """

    def __init__(
        self, program: Program, form: Form, warps: int, stages: int, directory: Path | None,
        written: Callable[[Path], None] | None = None,
    ) -> None:  # fmt: skip
        self.program, self.warps, self.stages = program, warps, stages
        self.form = replace(form, stages=stages)
        self.directory, self.written = directory, written
        self._forms: dict[Form, tuple[Source, Any]] = {}
        self._inputs = list(program.of(Kind.INPUT))
        self._made = [t for t in program.tensors if t.kind is not Kind.INPUT]
        self._outputs = list(program.of(Kind.OUTPUT))
        self._scratch = list(program.of(Kind.SCRATCH))

    def source(self, wide: bool = False, bulk: bool = True) -> tuple[Source, Any]:
        """The module as text and loaded; ``wide`` offsets, and ``bulk`` copies where the form has them."""
        form = replace(self.form, wide=wide, bulk=bulk and self.form.bulk)
        if form not in self._forms:
            made = self._text(wide, bulk)
            self._forms[form] = made, load(made.text, self.directory, self.written)
        return self._forms[form]

    def printed(self, inputs: Sequence[Tensor], sizes: Mapping[str, int]) -> Source:
        """The text that a call with these inputs (meta tensors are enough) would run; nothing is loaded or built."""
        number = Numbers(sizes)
        strides = self._strides(inputs, number)
        wide = self._is_wide(strides, number)
        source = self._text(wide, True)
        return source if self._can_copy(source, inputs, strides) else self._text(wide, False)

    def _text(self, wide: bool, bulk: bool) -> Source:
        return emit(self.program, replace(self.form, wide=wide, bulk=bulk and self.form.bulk))

    def _source(
        self, inputs: Sequence[Tensor], strides: Mapping[str, tuple[int, ...]], number: Numbers
    ) -> tuple[Source, Any]:
        """The module for inputs of these strides."""
        wide = self._is_wide(strides, number)
        source, module = self.source(wide)
        return (source, module) if self._can_copy(source, inputs, strides) else self.source(wide, False)

    def _can_copy(self, source: Source, inputs: Sequence[Tensor], strides: Mapping[str, tuple[int, ...]]) -> bool:
        """True when every tensor that the source reads in bulk lies as the copy engine needs it."""
        copied = {pair for k in source.kernels for pair in k.bulk}
        addresses = {t.name: x for t, x in zip(self._inputs, inputs, strict=True)}
        for name, unit in copied:
            x = addresses.get(name)
            size = self.program.tensor(name).dtype.bytes
            aligned = all(n == unit or s * size % 16 == 0 for n, s in enumerate(strides[name]))
            placed = x is None or x.is_meta or x.data_ptr() % 16 == 0
            if strides[name][unit] != 1 or not aligned or not placed:
                return False
        return True

    def prepare(self, sizes: Mapping[str, int]) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """The program at these lengths, as a function of its inputs. What strides and devices ask for is kept ready."""
        bound: dict[object, Callable[[Sequence[Tensor]], list[Tensor]]] = {}

        def run(inputs: Sequence[Tensor]) -> list[Tensor]:
            key = tuple([(x.stride(), x.data_ptr() & 15 == 0, x.device) for x in inputs])
            ready = bound.get(key)
            if ready is None:
                if len(bound) >= REMEMBERED:
                    bound.clear()
                ready = bound[key] = self.bind(inputs, sizes)
            return ready(inputs)

        return run

    def bind(self, inputs: Sequence[Tensor], sizes: Mapping[str, int]) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """The launches for the shapes and strides of these inputs; calling it runs them."""
        number = Numbers(sizes)
        device = max((x.device for x in inputs), key=lambda d: d.type != "cpu")
        shapes = {t.name: tuple(number(i) for i in t.shape) for t in self.program.tensors}
        for t, x in zip(self._inputs, inputs, strict=True):
            if tuple(x.shape) != shapes[t.name] or x.dtype is not TORCH[t.dtype]:
                raise ValueError(
                    f"{t.name} is {x.dtype} {tuple(x.shape)}, the program takes {t.dtype.value} {shapes[t.name]}"
                )
        strides = self._strides(inputs, number)
        source, module = self._source(inputs, strides, number)
        outputs = [(shapes[t.name], TORCH[t.dtype], strides[t.name]) for t in self._outputs]
        scratch = [(shapes[t.name], TORCH[t.dtype]) for t in self._scratch]
        names = [t.name for t in (*self._inputs, *self._outputs, *self._scratch)]
        places = {name: n for n, name in enumerate(names)}
        options = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}
        launches, counters = [], 0
        for k in source.kernels:
            blocks, arguments = self._arguments(k, number, strides)
            grid = _programs(k.grid, blocks, number)
            counters = max(counters, 0 if k.meeting is None else _programs(k.meeting, blocks, number))
            pointers = [(n, places[a.tensor]) for n, (_, a) in enumerate(k.arguments) if isinstance(a, Pointer)]
            pointers += [(n, len(names)) for n, (_, a) in enumerate(k.arguments) if isinstance(a, Counters)]
            launches.append(_Launch(getattr(module, k.name), grid, arguments, pointers, blocks, options))
        scalars = [n for n, x in enumerate(inputs) if x.device != device]
        return _Bound(launches, outputs, scratch, counters, scalars, device, any(k.bulk for k in source.kernels))

    def compile(self, inputs: Sequence[Tensor], sizes: Mapping[str, int], target: str) -> list[Any]:
        """Every kernel compiled for a target, as a launch with these inputs (meta tensors are enough) would be."""
        from redfuser.backends.triton.compile import compile_kernel

        number = Numbers(sizes)
        strides = self._strides(inputs, number)
        source, module = self._source(inputs, strides, number)
        tensors = {t.name: t for t in self.program.tensors}
        out = []
        for k in source.kernels:
            blocks, arguments = self._arguments(k, number, strides)
            kernel = getattr(module, k.name)
            out.append(compile_kernel(k, kernel, tensors, arguments, blocks, target, self.warps, self.stages))
        return out

    def _strides(self, inputs: Sequence[Tensor], number: Numbers) -> dict[str, tuple[int, ...]]:
        strides = {t.name: x.stride() for t, x in zip(self._inputs, inputs, strict=True)}
        return strides | {t.name: contiguous(tuple(number(i) for i in t.shape)) for t in self._made}

    def _is_wide(self, strides: Mapping[str, tuple[int, ...]], number: Numbers) -> bool:
        """True when 32 bits do not reach some element of a tensor, or some position that is computed with."""
        if farthest(self.program, number) >= 2**31:
            return True
        for t in self.program.tensors:
            shape = [number(i) for i in t.shape]
            if sum(abs(s) * max(0, n - 1) for s, n in zip(strides[t.name], shape, strict=True)) >= 2**31:
                return True
        return False

    @staticmethod
    def _arguments(
        k: Printed, number: Numbers, strides: Mapping[str, tuple[int, ...]]
    ) -> tuple[dict[str, int], list[Any]]:
        blocks = {b.name: b.value if b.size is None else power(number(b.size)) for b in k.blocks}
        arguments: list[Any] = []
        for _, a in k.arguments:
            match a:
                case Pointer() | Counters():
                    arguments.append(None)
                case Stride():
                    arguments.append(strides[a.tensor][a.dim])
                case Length():
                    arguments.append(number.sizes[a.size])
        return {n: v for n, v in blocks.items() if v is not None}, arguments


class _Launch:
    """One kernel with its grid and its integer arguments. After the first call the compiled kernel is entered directly."""

    def __init__(
        self,
        kernel: Any,
        grid: int,
        arguments: list[Any],
        pointers: list[tuple[int, int]],
        blocks: dict[str, int],
        options: dict[str, int],
    ) -> None:
        self._kernel, self._grid, self._options = kernel, (grid, 1, 1), options | blocks
        self._arguments, self._pointers = arguments, pointers
        self._given = [*arguments, *blocks.values()]
        self.runner: Callable[[int, Sequence[Any]], None] | None = None

    def first(self, tensors: Sequence[Tensor]) -> None:
        """Compiles for these tensors, and launches."""
        given = list(self._arguments)
        for n, place in self._pointers:
            given[n] = tensors[place]
        compiled = self._kernel[self._grid](*given, **self._options)
        if compiled is not None:
            self.runner = _runner(compiled, self._grid)

    def again(self, addresses: Sequence[int], stream: int) -> None:
        given = self._given.copy()
        for n, place in self._pointers:
            given[n] = addresses[place]
        assert self.runner is not None
        self.runner(stream, given)


def _runner(compiled: Any, grid: tuple[int, int, int]) -> Callable[[int, Sequence[Any]], None]:
    """Launches a compiled kernel on a stream, as Triton does; profilers are told what they are told otherwise."""
    told = compiled[grid]
    enter, function, metadata, (x, y, z) = compiled.run, compiled.function, compiled.packed_metadata, grid
    knobs = triton.knobs.runtime

    def run(stream: int, given: Sequence[Any]) -> None:
        if _is_heard(knobs.launch_enter_hook) or _is_heard(knobs.launch_exit_hook):
            told(*given, stream=stream)
        else:
            enter(x, y, z, stream, function, metadata, None, None, None, *given)

    return run


def _is_heard(hook: Any) -> bool:
    """True where somebody wants to know of launches."""
    return hook is not None and bool(getattr(hook, "calls", True))


class _Bound:
    """The launches of a program for given shapes and strides. Safe to call from several threads and on any
    stream of PyTorch's; memory is kept by a stream's handle, which a stream from elsewhere must not share with another."""

    def __init__(
        self,
        launches: list[_Launch],
        outputs: list[tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]],
        scratch: list[tuple[tuple[int, ...], torch.dtype]],
        counters: int,
        scalars: list[int],
        device: torch.device,
        descriptors: bool,
    ) -> None:
        self._launches, self._outputs, self._scratch, self._scalars = launches, outputs, scratch, scalars
        self._counters = counters
        self._device, self._descriptors = device, descriptors
        self._offsets: list[int] = []
        self._bytes = 0
        for shape, dtype in scratch:
            self._offsets.append(self._bytes)
            self._bytes += -(-math.prod(shape) * dtype.itemsize // 256) * 256
        self._ready = False

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        device = self._device
        if device.type == "cuda" and torch._C._cuda_getDevice() != device.index:
            with torch.cuda.device(device):
                return self._run(tensors)
        return self._run(tensors)

    def _run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        device = self._device
        if self._scalars:
            tensors = [x.to(device) if n in self._scalars else x for n, x in enumerate(tensors)]
        if self._descriptors:
            triton.set_allocator(_scratch)
        if not self._ready:
            outputs = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, _ in self._outputs]
            scratch = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self._scratch]
            last = [torch.zeros(self._counters, dtype=torch.int32, device=device)] if self._counters else []
            for launch in self._launches:
                launch.first([*tensors, *outputs, *scratch, *last])
            self._ready = all(launch.runner is not None for launch in self._launches)
            return outputs
        # a launch has compiled for a GPU: device is the current one
        outputs = [empty_on_gpu(shape, strides, dtype) for shape, dtype, strides in self._outputs]
        addresses = [x.data_ptr() for x in tensors] + [x.data_ptr() for x in outputs]
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        if self._bytes:  # of several launches, others of the stream may come between them
            kept = workspace.scratch(device, stream, self._bytes) if len(self._launches) == 1 else None
            buffer = (
                kept if kept is not None else empty_on_gpu((self._bytes,), (1,), torch.uint8)
            )  # held until all is launched
            start = buffer.data_ptr()
            addresses += [start + offset for offset in self._offsets]
        if self._counters:
            met = workspace.counters(device, stream, self._counters)  # held alike
            addresses.append(met.data_ptr())
        for launch in self._launches:
            launch.again(addresses, stream)
        return outputs


def _scratch(size: int, alignment: int, stream: int | None) -> Tensor:
    """Memory in which a kernel keeps its descriptors."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _programs(grid: Sequence[Place], blocks: Mapping[str, int], number: Numbers) -> int:
    """The number of places in a grid."""

    def count(p: Place) -> int:
        step = 1 if p.step is None else blocks[p.step] if p.step in blocks else int(p.step)
        return -(-number(p.positions) // step)

    return math.prod(map(count, grid))
