"""Finding ``file.py:function`` and making its arguments for ``redfuser explain``."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from redfuser.api import Explanation, explain
from redfuser.errors import InputSpecError, TargetNotFoundError, suggestion

_DTYPES = {
    "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64, "i8": torch.int8,
    "u8": torch.uint8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "bool": torch.bool,
    "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
}  # fmt: skip
_SPEC = re.compile(r"\s*(?P<name>\w+)\s*=\s*(?P<dtype>\w+)\s*\[(?P<sizes>[^\]]*)\]\s*\Z")
_LENGTH = 256  # stands in for a named size; it is marked dynamic, so only costs see it


def explain_target(target: str, specs: list[str]) -> Explanation:
    """The explanation of ``file.py:function``.

    Raises:
        TargetNotFoundError: no such file or function, or no inputs to call it with.
        InputSpecError: a spec is not of the form name=dtype[sizes].
    """
    module, fn = find(target)
    if specs:
        return explain(fn, **bind(fn, specs))
    if hasattr(module, "example_inputs"):
        given = module.example_inputs()
        if isinstance(given, dict):
            return explain(fn, **given)
        return explain(fn, *(given if isinstance(given, tuple | list) else (given,)))
    wanted = " ".join(f'--arg "{p}=f32[4,L]"' for p in inspect.signature(fn).parameters)
    raise TargetNotFoundError(f"{target} needs inputs: give {wanted}, or define example_inputs() in the file.")


def find(target: str) -> tuple[ModuleType, Callable[..., Any]]:
    """The module and the callable that ``file.py:name`` (or ``file.py:Class.method``) names."""
    path, _, name = target.rpartition(":")
    if not path or not name:
        raise TargetNotFoundError(f"{target!r} is not of the form file.py:function.")
    file = Path(path)
    if not file.is_file():
        raise TargetNotFoundError(f"there is no file {path}.")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise TargetNotFoundError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)
    sys.path.insert(0, str(file.parent.resolve()))
    spec.loader.exec_module(module)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
            raise TargetNotFoundError(f"{path} has no {name}.{suggestion(part, known)} It has: {', '.join(known)}.")
        found = getattr(found, part)
    return module, found


def bind(fn: Callable[..., Any], specs: list[str]) -> dict[str, Any]:
    """Arguments for ``fn``: fake tensors (no memory) for the specs, by name."""
    mode = FakeTensorMode()
    kwargs = {}
    for spec in specs:
        name, tensor = parse(spec, mode)
        kwargs[name] = tensor
    try:
        inspect.signature(fn).bind(**kwargs)
    except TypeError as e:
        raise InputSpecError(f"the arguments do not fit {getattr(fn, '__name__', fn)}: {e}.") from None
    return kwargs


def parse(spec: str, mode: FakeTensorMode) -> tuple[str, torch.Tensor]:
    """``q=bf16[1,8,L,64]`` as a name and a fake tensor; L becomes a dynamic dimension."""
    match = _SPEC.match(spec)
    if match is None:
        raise InputSpecError(f"{spec!r} is not of the form name=dtype[sizes], as q=bf16[1,8,L,64].")
    if match["dtype"] not in _DTYPES:
        hint = suggestion(match["dtype"], _DTYPES)
        raise InputSpecError(f"{spec!r}: unknown dtype {match['dtype']}.{hint} Known: {', '.join(_DTYPES)}.")
    sizes = [s.strip() for s in match["sizes"].split(",") if s.strip()]
    for s in sizes:
        if not s.isidentifier() and not s.isdigit():
            raise InputSpecError(f"{spec!r}: {s!r} is neither a length nor a name.")
    with mode:
        tensor = torch.empty([int(s) if s.isdigit() else _LENGTH for s in sizes], dtype=_DTYPES[match["dtype"]])
    for dim, s in enumerate(sizes):
        if not s.isdigit():
            torch._dynamo.maybe_mark_dynamic(tensor, dim)
    return match["name"], tensor
