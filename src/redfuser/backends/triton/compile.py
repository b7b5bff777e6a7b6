"""Kernels for a machine that need not be present: compiled for ``cuda:90`` and others without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from redfuser.backends.triton.printed import Counters, Length, Pointer, Printed, Stride
from redfuser.tile.nodes import Tensor

_POINTER = {
    "bool": "i1", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5", "float16": "fp16", "bfloat16": "bf16",
    "float32": "fp32", "float64": "fp64",
}  # fmt: skip


def target_of(name: str) -> GPUTarget:
    """``cuda:90`` or ``hip:gfx942`` as Triton's target."""
    kind, _, arch = name.partition(":")
    if kind == "cuda":
        return GPUTarget("cuda", int(arch), 32)
    return GPUTarget("hip", arch, 64)


def compile_kernel(
    k: Printed, function: Any, tensors: Mapping[str, Tensor], arguments: Sequence[int | None],
    blocks: Mapping[str, int], target: str, warps: int, stages: int,
) -> Any:  # fmt: skip
    """A printed kernel compiled for a target, as a launch with these integer arguments would compile it.

    Pointers count as aligned to 16 bytes. Raises what Triton raises where the target cannot run it.
    """
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...] | str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for n, ((name, a), value) in enumerate(zip(k.arguments, arguments, strict=True)):
        match a:
            case Pointer():
                signature[name] = f"*{_POINTER[tensors[a.tensor].dtype.value]}"
                attributes[(n,)] = [["tt.divisibility", 16]]
            case Counters():
                signature[name] = "*i32"
                attributes[(n,)] = [["tt.divisibility", 16]]
            case Stride() if value == 1:
                signature[name] = "constexpr"
                constants[name] = 1
            case Stride() | Length():
                assert value is not None
                signature[name] = "i32" if abs(value) < 2**31 else "i64"
                if isinstance(a, Stride) and value % 16 == 0:
                    attributes[(n,)] = [["tt.divisibility", 16]]
    for name, size in blocks.items():
        signature[name] = "constexpr"
        constants[name] = size
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=target_of(target), options=options)
