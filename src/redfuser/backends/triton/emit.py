"""Tile programs as Triton source: one ``@triton.jit`` function for each kernel.

The text names no shape that may change from call to call: symbolic lengths and strides are arguments, blocks are
constexprs. Values keep the names of the tile program, which are the user's.
"""

from __future__ import annotations

from redfuser.backends.triton import functions
from redfuser.backends.triton.kernel import KernelWriter
from redfuser.backends.triton.layout import RESERVED, Layout
from redfuser.backends.triton.printed import Form, Printed, Source
from redfuser.backends.triton.quotients import by_inverses
from redfuser.backends.triton.scales import pull_scales
from redfuser.index.expr import DType
from redfuser.tile.names import Names
from redfuser.tile.nodes import Kernel, Program, Role
from redfuser.tile.strategy import Unsupported

HEADER = '''"""{note}"""

import torch
import triton
import triton.language as tl

'''


def emit(p: Program, form: Form) -> Source:
    """The module that runs a tile program. Raises Unsupported where Triton has no form for it."""
    used: set[str] = set()
    names = Names(RESERVED)
    printed: list[Printed] = []
    joins: Printed | None = None  # what the last program of the kernel before goes on with
    for k, before in reversed([*zip(p.kernels, (None, *p.kernels), strict=False)]):
        writer = KernelWriter(p, by_inverses(pull_scales(k)), form, used, names.new(f"{p.name}_{k.name}"))
        if joins is None and before is not None and meets(before, k):
            joins = writer.told()
        else:
            printed.insert(0, writer.kernel(joins))
            joins = None
    if not form.e4m3 and ("to_e4m3" in used or any(t.dtype is DType.FLOAT8_E4M3 for t in p.tensors)):
        raise Unsupported("float8_e4m3fn needs a GPU that has it: of NVIDIA's, compute capability 8.9 and later")
    helpers = functions.source(used)
    body = "\n\n".join(k.text for k in printed)
    header = HEADER.format(note=f"{p.name}: " + "; ".join(k.note for k in p.kernels) + ".")
    return Source(header + (helpers + "\n\n" if helpers else "\n") + body, helpers, tuple(printed))


def meets(before: Kernel, after: Kernel) -> bool:
    """True where ``after`` has one program for all those of ``before`` that differ in their segment only."""
    apart = {t.axis for t in before.grid if t.role is Role.SEGMENT}
    joined = {t.axis for t in after.inside if t.role is Role.SEGMENT}
    return bool(apart) and apart == joined and _grid(before) == _grid(after)


def _grid(k: Kernel) -> object:
    """How the axes of a grid are cut in blocks, beside the segments."""
    layout = Layout(k)
    values = {b.name: b.value for b in layout.blocks}
    rows = tuple(t.axis for t in k.grid if t.role is Role.ROW)
    cut = {
        t.axis: None
        if (d := layout.dims.get(t.axis)) is None
        else values.get(str(d.pieces[0].length), d.pieces[0].length)
        for t in k.grid
        if t.role is not Role.SEGMENT
    }
    return rows, cut
