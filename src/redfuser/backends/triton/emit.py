"""Tile programs as Triton source: one ``@triton.jit`` function for each kernel.

The text names no shape that may change from call to call: symbolic lengths and strides are arguments, blocks are
constexprs. Values keep the names of the tile program, which are the user's.
"""

from __future__ import annotations

from redfuser.backends.triton import functions
from redfuser.backends.triton.kernel import KernelWriter
from redfuser.backends.triton.layout import RESERVED
from redfuser.backends.triton.printed import Form, Source
from redfuser.backends.triton.scales import pull_scales
from redfuser.index.expr import DType
from redfuser.tile.names import Names
from redfuser.tile.nodes import Program
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
    printed = [KernelWriter(p, pull_scales(k), form, used, names.new(f"{p.name}_{k.name}")).kernel() for k in p.kernels]
    if not form.e4m3 and ("to_e4m3" in used or any(t.dtype is DType.FLOAT8_E4M3 for t in p.tensors)):
        raise Unsupported("float8_e4m3fn needs a GPU that has it: of NVIDIA's, compute capability 8.9 and later")
    helpers = functions.source(used)
    body = "\n\n".join(k.text for k in printed)
    header = HEADER.format(note=f"{p.name}: " + "; ".join(k.note for k in p.kernels) + ".")
    return Source(header + (helpers + "\n\n" if helpers else "\n") + body, helpers, tuple(printed))
