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
from redfuser.errors import InputSpecError, RedfuserError, TargetFailedError, TargetNotFoundError, suggestion

_DTYPES = {
    "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64, "i8": torch.int8,
    "u8": torch.uint8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "bool": torch.bool,
    "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
}  # fmt: skip
_DTYPES |= {str(t).removeprefix("torch."): t for t in list(_DTYPES.values())}
_SPEC = re.compile(r"\s*(?P<name>\w+)\s*=\s*(?P<dtype>\w+)\s*\[(?P<sizes>[^\]]*)\]\s*\Z")
_FIRST = 257  # the first number that stands in for a named length; such lengths are dynamic, only costs see the number


def explain_target(target: str, specs: list[str]) -> tuple[Explanation, dict[str, str]]:
    """The explanation of ``file.py:function``, and the lengths that were given by name: symbol -> name.

    Raises:
        TargetNotFoundError: no such file or function, or no inputs to call it with.
        TargetFailedError: the file or the function raised an error of its own.
        InputSpecError: a spec is not of the form name=dtype[sizes].
    """
    module, fn = find(target)
    if specs:
        lengths = _stand_ins(specs)
        kwargs = bind(fn, specs, lengths)
        explanation = _explained(target, fn, (), kwargs, ", ".join(specs))
        return explanation, _names_of(explanation, lengths)
    if hasattr(module, "example_inputs"):
        given = module.example_inputs()
        if isinstance(given, dict):
            return _explained(target, fn, (), given, "example_inputs()"), {}
        args = tuple(given) if isinstance(given, tuple | list) else (given,)
        return _explained(target, fn, args, {}, "example_inputs()"), {}
    wanted = " ".join(f'--arg "{p}=f32[4,L]"' for p in inspect.signature(fn).parameters)
    raise TargetNotFoundError(f"{target} needs inputs: give {wanted}, or define example_inputs() in the file.")


def _explained(
    target: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], given: str
) -> Explanation:
    try:
        return explain(fn, *args, **kwargs)
    except RedfuserError:
        raise
    except Exception as e:
        first = str(e).splitlines()[0] if str(e) else ""
        raise TargetFailedError(f"{target} raised {type(e).__name__} on {given}: {first}") from e


def _stand_ins(specs: list[str]) -> dict[str, int]:
    """For every length given by name a number of its own, unlikely to be one of the program's."""
    names = [s.strip() for spec in specs for s in spec.partition("[")[2].rstrip("] ").split(",")]
    return {n: _FIRST + 6 * i for i, n in enumerate(dict.fromkeys(n for n in names if n.isidentifier()))}


def _names_of(explanation: Explanation, lengths: dict[str, int]) -> dict[str, str]:
    sizes = {s for g in explanation.analysis.graphs for s in g.sizes}
    names = {n: name for name, n in lengths.items()}
    return {s.name: names[s.hint] for s in sizes if s.hint in names}


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
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        raise TargetFailedError(f"{path} raised {type(e).__name__} when it was imported: {e}") from e
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
            raise TargetNotFoundError(f"{path} has no {name}.{suggestion(part, known)} It has: {', '.join(known)}.")
        found = getattr(found, part)
    return module, found


def bind(fn: Callable[..., Any], specs: list[str], lengths: dict[str, int]) -> dict[str, Any]:
    """Arguments for ``fn`` by name: fake tensors, which take no memory."""
    mode = FakeTensorMode()
    kwargs = dict(parse(spec, mode, lengths) for spec in specs)
    signature = inspect.signature(fn)
    try:
        signature.bind(**kwargs)
    except TypeError:
        takes = ", ".join(signature.parameters)
        raise InputSpecError(f"{fn.__name__} takes ({takes}); you gave {', '.join(kwargs)}.") from None
    return kwargs


def parse(spec: str, mode: FakeTensorMode, lengths: dict[str, int]) -> tuple[str, torch.Tensor]:
    """``q=bf16[1,8,L,64]`` as a name and a fake tensor; L becomes a dynamic dimension."""
    match = _SPEC.match(spec)
    if match is None:
        raise InputSpecError(f"{spec!r} is not of the form name=dtype[sizes], as q=bf16[1,8,L,64].")
    if match["dtype"] not in _DTYPES:
        hint = suggestion(match["dtype"], _DTYPES)
        raise InputSpecError(f"{spec!r}: unknown dtype {match['dtype']}.{hint} Known: {', '.join(list(_DTYPES)[:12])}.")
    sizes = [s.strip() for s in match["sizes"].split(",") if s.strip()]
    for s in sizes:
        if not s.isidentifier() and not s.isdigit():
            raise InputSpecError(f"{spec!r}: {s!r} is neither a length nor a name.")
    with mode:
        tensor = torch.empty([int(s) if s.isdigit() else lengths[s] for s in sizes], dtype=_DTYPES[match["dtype"]])
    for dim, s in enumerate(sizes):
        if not s.isdigit():
            torch._dynamo.maybe_mark_dynamic(tensor, dim)
    return match["name"], tensor
