"""Printed kernels as callables: the module is written once, and a call allocates, binds and launches.

What depends on shapes and strides alone is worked out the first time they occur; a later call of the same shapes
allocates its outputs and launches.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redfuser.backends.torch_expr import TORCH
from redfuser.backends.triton.emit import Form, Length, Pointer, Printed, Source, Stride, emit
from redfuser.backends.triton.layout import power
from redfuser.index.ints import Atom, Int
from redfuser.tile.nodes import Kind, Program

REMEMBERED = 64  # combinations of strides that a program keeps ready


def load(text: str, directory: Path) -> Any:
    """The module of a source text; Triton reads the source of a kernel from its file."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    name = f"redfuser_kernel_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    path = directory / f"{name}.py"
    if not path.exists() or path.read_text() != text:
        directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory, suffix=".tmp")
        with os.fdopen(handle, "w") as f:
            f.write(text)
        os.replace(temporary, path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Launcher:
    """Runs one tile program with Triton: ``launcher(inputs, sizes)`` gives the outputs in order.

    ``warps`` and ``stages`` are Triton's launch options. Inputs are by position, in the order of the program.
    """

    def __init__(self, program: Program, form: Form, warps: int, stages: int, directory: Path) -> None:
        self.program, self.form, self.warps, self.stages = program, form, warps, stages
        self.directory = directory
        self._forms: dict[bool, tuple[Source, Any]] = {}
        self._inputs = list(program.of(Kind.INPUT))
        self._made = [t for t in program.tensors if t.kind is not Kind.INPUT]
        self._outputs = [t.name for t in program.of(Kind.OUTPUT)]

    def source(self, wide: bool) -> tuple[Source, Any]:
        if wide not in self._forms:
            form = Form(wide, self.form.group, self.form.precision)
            made = emit(self.program, form)
            self._forms[wide] = made, load(made.text, self.directory)
        return self._forms[wide]

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
        number = _Numbers(sizes)
        device = max((x.device for x in inputs), key=lambda d: d.type != "cpu")
        shapes = {t.name: tuple(number(i) for i in t.shape) for t in self.program.tensors}
        for t, x in zip(self._inputs, inputs, strict=True):
            if tuple(x.shape) != shapes[t.name] or x.dtype is not TORCH[t.dtype]:
                raise ValueError(
                    f"{t.name} is {x.dtype} {tuple(x.shape)}, the program takes {t.dtype.value} {shapes[t.name]}"
                )
        strides = self._strides(inputs, number)
        source, module = self.source(self._is_wide(strides, number))
        places = {t.name: n for n, t in enumerate(self._inputs)}
        places |= {t.name: len(self._inputs) + n for n, t in enumerate(self._made)}
        launches = []
        for k in source.kernels:
            blocks, arguments = self._arguments(k, number, strides)
            launches.append(self._launch(k, getattr(module, k.name), number, places, blocks, arguments))
        made = [(shapes[t.name], TORCH[t.dtype]) for t in self._made]
        returned = [places[n] for n in self._outputs]

        scalars = [n for n, x in enumerate(inputs) if x.device != device]

        def run(tensors: Sequence[Tensor]) -> list[Tensor]:
            every = list(tensors)
            for n in scalars:
                every[n] = every[n].to(device)
            every += [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in made]
            for launch in launches:
                launch(every)
            return [every[n] for n in returned]

        if device.type != "cuda":
            return run

        def on_device(tensors: Sequence[Tensor]) -> list[Tensor]:
            if torch.cuda.current_device() == device.index:
                return run(tensors)
            with torch.cuda.device(device):
                return run(tensors)

        return on_device

    def compile(self, inputs: Sequence[Tensor], sizes: Mapping[str, int], target: str) -> list[Any]:
        """Every kernel compiled for a target, as a launch with these inputs (meta tensors are enough) would be."""
        from redfuser.backends.triton.compile import compile_kernel

        number = _Numbers(sizes)
        strides = self._strides(inputs, number)
        source, module = self.source(self._is_wide(strides, number))
        tensors = {t.name: t for t in self.program.tensors}
        out = []
        for k in source.kernels:
            blocks, arguments = self._arguments(k, number, strides)
            kernel = getattr(module, k.name)
            out.append(compile_kernel(k, kernel, tensors, arguments, blocks, target, self.warps, self.stages))
        return out

    def _strides(self, inputs: Sequence[Tensor], number: _Numbers) -> dict[str, tuple[int, ...]]:
        strides = {t.name: x.stride() for t, x in zip(self._inputs, inputs, strict=True)}
        return strides | {t.name: _contiguous(tuple(number(i) for i in t.shape)) for t in self._made}

    def _is_wide(self, strides: Mapping[str, tuple[int, ...]], number: _Numbers) -> bool:
        """True when some tensor has an element that 32 bits do not reach."""
        for t in self.program.tensors:
            shape = [number(i) for i in t.shape]
            if sum(abs(s) * max(0, n - 1) for s, n in zip(strides[t.name], shape, strict=True)) >= 2**31:
                return True
        return False

    @staticmethod
    def _arguments(
        k: Printed, number: _Numbers, strides: Mapping[str, tuple[int, ...]]
    ) -> tuple[dict[str, int], list[Any]]:
        blocks = {b.name: b.value if b.size is None else power(number(b.size)) for b in k.blocks}
        arguments: list[Any] = []
        for _, a in k.arguments:
            match a:
                case Pointer():
                    arguments.append(None)
                case Stride():
                    arguments.append(strides[a.tensor][a.dim])
                case Length():
                    arguments.append(number.sizes[a.size])
        return {n: v for n, v in blocks.items() if v is not None}, arguments

    def _launch(self, k: Printed, kernel: Any, number: _Numbers, places: Mapping[str, int], blocks: dict[str, int],
                arguments: list[Any]) -> Callable[[list[Tensor]], None]:  # fmt: skip
        grid = (math.prod(_count(number(n), blocks, step) for n, step in k.grid),)
        pointers = [(n, places[a.tensor]) for n, (_, a) in enumerate(k.arguments) if isinstance(a, Pointer)]
        options = {"num_warps": self.warps, "num_stages": self.stages} | blocks

        def launch(tensors: list[Tensor]) -> None:
            given = list(arguments)
            for n, place in pointers:
                given[n] = tensors[place]
            kernel[grid](*given, **options)

        return launch


class _Numbers:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def __call__(self, i: Int) -> int:
        env: dict[Atom, int] = {s: self.sizes[s.name] for s in i.sizes()}
        return i.evaluate(env)


def _count(n: int, blocks: Mapping[str, int], step: str | None) -> int:
    if step is None:
        return n
    return -(-n // (blocks[step] if step in blocks else int(step)))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= max(1, n)
    return tuple(reversed(out))
