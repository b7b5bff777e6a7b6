"""Printed programs as callables: compiled for the machine at hand, bound to lengths and strides, entered with addresses."""

from __future__ import annotations

import ctypes
import functools
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards

from redfuser.backends.allocate import LARGE, Numbers, contiguous, empty_on_cpu, in_large_pages
from redfuser.backends.cpu.emit import Source, emit
from redfuser.backends.cpu.writer import FIRST_TENSOR, Form
from redfuser.backends.torch_expr import TORCH
from redfuser.index.ints import as_int
from redfuser.tile.nodes import Dot, Kernel, Kind, Program, outputs_of
from redfuser.tile.uses import every, farthest

REMEMBERED = 64  # combinations of strides that a program keeps ready
SERIAL = 20_000.0  # nanoseconds of work that one thread does sooner alone
FAR = 2**31

Load = Callable[[Source], ctypes.CDLL]


class Launcher:
    """Runs one tile program: ``launcher.prepare(sizes)(inputs)`` gives the outputs in order.

    Inputs are by position, in the order of the program, with any strides. ``ValueError`` where a shape or a dtype is not
    the program's.
    """

    def __init__(self, program: Program, form: Form, load: Load) -> None:
        self.program, self.form, self._load = program, form, load
        self._sources: dict[bool, Source] = {}
        self._inputs = list(program.of(Kind.INPUT))

    def source(self, wide: bool = False) -> Source:
        """The file; ``wide``: for positions that 32 bits do not hold."""
        if wide not in self._sources:
            self._sources[wide] = emit(self.program, replace(self.form, wide=wide or self.form.wide))
        return self._sources[wide]

    def compile(self, sizes: Mapping[str, int]) -> ctypes.CDLL:
        return self._load(self.source(self._is_wide(Numbers(sizes))))

    def _is_wide(self, number: Numbers) -> bool:
        far = any(math.prod(number(n) for n in t.shape) >= FAR for t in self.program.tensors)
        return far or farthest(self.program, number) >= FAR

    def prepare(self, sizes: Mapping[str, int]) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """The program at these lengths, as a function of its inputs."""
        number = Numbers(sizes)
        source = self.source(self._is_wide(number))
        library = self._load(source)
        entry = library[source.name]
        entry.argtypes, entry.restype = [ctypes.c_void_p], None
        shapes = {t.name: tuple(number(n) for n in t.shape) for t in self.program.tensors}
        parallel, threads = openmp()
        serial = int(work(self.program, number) < SERIAL)
        head = [parallel, threads, serial, 0]
        tail = [sizes[s] for s in source.sizes]
        scratch = [
            (t.name, -(-math.prod(shapes[t.name]) * t.dtype.bytes // 64) * 64) for t in self.program.of(Kind.SCRATCH)
        ]
        outputs = [(shapes[t.name], contiguous(shapes[t.name]), TORCH[t.dtype]) for t in self.program.of(Kind.OUTPUT)]
        places = {t.name: FIRST_TENSOR + n for n, t in enumerate(self.program.tensors)}
        call = _Call(
            entry, [places[t.name] for t in self._inputs], [places[t.name] for t in self.program.of(Kind.OUTPUT)],
            [places[name] for name, _ in scratch], [n for _, n in scratch], outputs,
            any(math.prod(shape) * dtype.itemsize >= LARGE for shape, _, dtype in outputs),
        )  # fmt: skip

        def bind(inputs: Sequence[Tensor]) -> array[int]:
            strides = self._strides(inputs, shapes)
            flat = [s for t in self.program.tensors for s in strides[t.name]]
            return array("q", [*head, *([0] * len(self.program.tensors)), *flat, *tail])

        return _Bound(bind, call)

    def _strides(self, inputs: Sequence[Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        out = {}
        for t, x in zip(self._inputs, inputs, strict=True):
            if tuple(x.shape) != shapes[t.name] or x.dtype is not TORCH[t.dtype]:
                raise ValueError(
                    f"{t.name} is {x.dtype} {tuple(x.shape)}, the program takes {t.dtype.value} {shapes[t.name]}"
                )
            out[t.name] = x.stride()
        for t in self.program.tensors:
            if t.kind is not Kind.INPUT:
                out[t.name] = contiguous(shapes[t.name])
        return out


class _Bound:
    """A program with its arguments ready for the shapes and strides that it has had."""

    def __init__(self, bind: Callable[[Sequence[Tensor]], array[int]], call: _Call) -> None:
        self._bind, self._call = bind, call
        self._known: dict[object, tuple[Callable[..., bool], array[int]]] = {}
        self._last: tuple[Callable[..., bool], array[int]] = (lambda *_: False), array("q")

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        same, template = self._last
        # asking whether the tensors are as in the last call takes a third of the time of asking how they are
        if not same(*inputs):
            _, template = self._last = self._find(inputs)
        return self._call(template, inputs)

    def _find(self, inputs: Sequence[Tensor]) -> tuple[Callable[..., bool], array[int]]:
        key = tuple([(x.shape, x.stride(), x.dtype) for x in inputs])
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            template = self._bind(inputs)
            guards = TensorGuards(*inputs, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            found = self._known[key] = guards.check, template
        return found


@dataclass(frozen=True, slots=True)
class _Call:
    """One call: outputs are allocated, addresses are put beside the strides, and the program is entered."""

    entry: Callable[[int], None]
    inputs: list[int]
    outputs: list[int]
    scratch: list[int]
    bytes: list[int]
    shapes: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
    large: bool  # a result is

    def __call__(self, template: array[int], inputs: Sequence[Tensor]) -> list[Tensor]:
        a = template[:]
        for place, x in zip(self.inputs, inputs, strict=True):
            a[place] = x.data_ptr()
        results = [empty_on_cpu(shape, strides, dtype) for shape, strides, dtype in self.shapes]
        if self.large:
            results = [in_large_pages(x) if x.nbytes >= LARGE else x for x in results]
        for place, x in zip(self.outputs, results, strict=True):
            a[place] = x.data_ptr()
        if self.scratch:
            memory = torch.empty(sum(self.bytes) + 64, dtype=torch.uint8)
            at = -(-memory.data_ptr() // 64) * 64
            for place, n in zip(self.scratch, self.bytes, strict=True):
                a[place] = at
                at += n
        self.entry(a.buffer_info()[0])
        return results


@functools.cache
def openmp() -> tuple[int, int]:
    """The addresses of GOMP_parallel and omp_get_max_threads in the OpenMP that PyTorch has loaded; zeros where it has none."""
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        path = Path(torch.__file__).parent / "lib" / name
        if path.exists():
            library = ctypes.CDLL(str(path))
            try:
                found = [
                    ctypes.cast(getattr(library, f), ctypes.c_void_p).value
                    for f in ("GOMP_parallel", "omp_get_max_threads")
                ]
            except AttributeError:
                continue
            return found[0] or 0, found[1] or 0
    return 0, 0


def work(p: Program, number: Numbers) -> float:
    """Nanoseconds that a program takes on one thread, roughly."""
    return sum(_work(k, number) for k in p.kernels)


def _work(k: Kernel, number: Numbers) -> float:
    total = 0.0
    grid = {t.axis for t in k.grid}
    for s in every(k.body):
        for v in outputs_of(s)[:1]:
            axes = v.axes | grid | (frozenset(s.over) if isinstance(s, Dot) else frozenset())
            n = math.prod(number(as_int(a.size)) for a in axes)
            total += n * (1 / 16 if isinstance(s, Dot) else 1 / 4)
    return total
