"""Tile programs as one C++17 file over the runtime header: a function for each kernel, and one that runs them in order."""

from __future__ import annotations

from dataclasses import dataclass

from redfuser.backends.cpu.kernel import KernelWriter
from redfuser.backends.cpu.layout import Kind, kind_of
from redfuser.backends.cpu.writer import Arguments, Form, identifier, reserved
from redfuser.index.ints import Int, Size
from redfuser.tile.names import Names
from redfuser.tile.nodes import Kernel, Program, outputs_of
from redfuser.tile.uses import every


@dataclass(frozen=True, slots=True)
class Source:
    """A file, the name of its function, and how many numbers that takes."""

    text: str
    name: str
    arguments: int
    sizes: tuple[str, ...]


def emit(p: Program, form: Form) -> Source:
    """The file that runs a tile program. Raises Unsupported where there is no form for it."""
    names = Names(reserved())
    run = names.new(identifier(f"{p.name}_run"))
    sizes = sorted({s.name for s in _sizes(p)})
    arguments = Arguments(p, sizes, names)
    lines = [f"// {p.name}: " + "; ".join(k.note for k in p.kernels) + "."]
    if any(_is_double(k) for k in p.kernels):
        lines.append("#define LANE_BYTES 8")
    if form.wide:
        lines.append("#define WIDE")
    lines += ['#include "redfuser.h"', ""]
    calls = []
    for k in p.kernels:
        w = KernelWriter(p, k, form, arguments, names)
        lines += [w.text()]
        calls.append(f"  run({w.name}, a, {w.points()}, {w.bytes});")
    lines.append(f'extern "C" void {run}(const i64 *a) {{')
    for s in sizes:
        lines.append(
            f"  const i64 {arguments.sizes[s]} = a[{arguments.place[arguments.sizes[s]]}]; (void){arguments.sizes[s]};"
        )
    lines += [*calls, "}"]
    return Source("\n".join(lines) + "\n", run, arguments.count, tuple(sizes))


def _is_double(k: Kernel) -> bool:
    return any(kind_of(v.dtype) is Kind.DOUBLE for s in every(k.body) for v in outputs_of(s))


def _sizes(p: Program) -> set[Size]:
    found: set[Size] = set()

    def add(i: Int) -> None:
        found.update(i.sizes())

    for t in p.tensors:
        for n in t.shape:
            add(n)
    for k in p.kernels:
        for x in k.axes:
            found.update(x.axis.size.sizes())
    return found
