"""The graphs of a call, without running a kernel and without reading data.

Arguments become fake tensors (shapes, strides, dtypes and devices only) and the function runs once under Dynamo. A
function that branches on data cannot be followed that way: it then runs on the tensors it was given, if they are real.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from redfuser.frontend.functional import NotFunctional, functional
from redfuser.frontend.quiet import quiet
from redfuser.frontend.values import hint_of
from redfuser.index.nodes import Where
from redfuser.index.refusals import Refusal, RefusalKind

_DATA = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
# what an earlier call saw must not change what this one finds
_SETTINGS: dict[str, Any] = {
    "recompile_limit": 1 << 20, "accumulated_recompile_limit": 1 << 20, "automatic_dynamic_shapes": False,
}  # fmt: skip
_MARKS = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_dynamic_range", "_dynamo_static_indices")


@dataclass(frozen=True)
class CapturedGraph:
    """One graph of a call as functional ATen operations, and what it was traced with."""

    graph: fx.GraphModule
    inputs: tuple[object, ...]


@dataclass(frozen=True)
class Capture:
    """The graphs of a call in order; a graph break is a refusal with its reason and place."""

    graphs: tuple[CapturedGraph, ...]
    refusals: tuple[Refusal, ...]


def capture(
    fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], *, dynamic: bool | None = None
) -> Capture:
    """Traces ``fn(*args, **kwargs)``. Dimensions marked with ``torch._dynamo.mark_dynamic`` become symbolic sizes.

    Raises what eager PyTorch raises when the call is wrong.
    """
    recorder = _Recorder()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    leaves, spec = pytree.tree_flatten((list(args), dict(kwargs)))
    fakes = [_faked(x, mode) for x in leaves]
    fake_args, fake_kwargs = pytree.tree_unflatten(fakes, spec)
    failure = _failure(lambda: recorder.run(fn, fake_args, fake_kwargs, dynamic), mode)
    if failure is not None:
        # a wrong call raises the user's own error, not the compiler's account of it
        eager_args, eager_kwargs = pytree.tree_unflatten(fakes, spec)
        eager = _failure(lambda: fn(*eager_args, **eager_kwargs), mode)
        if eager is not None and not _on_data(eager):
            raise eager
        if not _on_data(failure) and not _on_data(eager):
            raise failure
        if any(isinstance(x, torch.Tensor) and (isinstance(x, FakeTensor) or x.is_meta) for x in leaves):
            recorder.breaks.append(_branch_refusal())
        else:
            recorder = _Recorder()
            recorder.run(fn, list(args), dict(kwargs), dynamic)
    return Capture(tuple(recorder.graphs), tuple(recorder.breaks))


def _failure(run: Callable[[], object], mode: FakeTensorMode) -> Exception | None:
    try:
        with mode, quiet():
            run()
    except Exception as error:
        return error
    return None


class _Recorder:
    """A Dynamo backend that keeps the graphs and runs them as they came."""

    def __init__(self) -> None:
        self.graphs: list[CapturedGraph] = []
        self.breaks: list[Refusal] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        try:
            self.graphs.append(CapturedGraph(functional(gm, example_inputs), tuple(example_inputs)))
        except NotFunctional as why:
            self.breaks.append(_mutation_refusal(str(why)))
        reason = getattr(gm, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            self.breaks.append(_break_refusal(reason))
        return gm.forward

    def run(self, fn: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], dynamic: bool | None) -> None:
        """Calls a copy of the function, so that what Dynamo caches for it is dropped with the copy."""
        with torch._dynamo.config.patch(_SETTINGS):
            torch.compile(_copied(fn), backend=self, dynamic=dynamic)(*args, **kwargs)


def _copied(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same callable with code of its own. Its parameters keep their names where it is a function underneath."""
    match fn:
        case types.FunctionType():
            code = fn.__code__.replace()
            out = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
            out.__kwdefaults__ = fn.__kwdefaults__
            return out
        case types.MethodType() if isinstance(fn.__func__, types.FunctionType):
            return types.MethodType(_copied(fn.__func__), fn.__self__)
        case torch.nn.Module() if isinstance(fn.forward, types.MethodType) and not _hooked(fn):
            return _copied(fn.forward)
    self = fn

    def call(*args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    call.__code__ = call.__code__.replace()
    return call


def _hooked(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _faked(x: object, mode: FakeTensorMode) -> object:
    if not isinstance(x, torch.Tensor):
        return x
    if isinstance(x, FakeTensor):
        size, stride = ([hint_of(n) for n in ns] for ns in (x.shape, x.stride()))
        with mode:
            out: torch.Tensor = torch.empty_strided(size, stride, dtype=x.dtype, device=x.device)
        out.requires_grad_(x.requires_grad)
    else:
        out = mode.from_tensor(x, static_shapes=True)
    for mark in _MARKS:
        if hasattr(x, mark):
            setattr(out, mark, getattr(x, mark))
    return out


def _on_data(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, _DATA):
            return True
        error = error.__cause__
    return False


def _break_refusal(reason: Any) -> Refusal:
    frames = list(reason.user_stack or ())
    where = Where(frames[-1].filename, frames[-1].lineno or 0, (frames[-1].line or "").strip()) if frames else None
    why = str(reason.reason).strip().splitlines()[0]
    hint = "what comes before and after fuses on its own; move this statement out of the function to fuse across it"
    if "generic_jump" in why or "data-dependent" in why.lower():
        why, hint = "it branches on the value of a tensor", "choose with torch.where, which stays in the graph"
    return Refusal(
        where.text if where else "the function",
        RefusalKind.GRAPH_BREAK,
        f"the function is split here: {why}",
        hint,
        where,
    )


def _mutation_refusal(why: str) -> Refusal:
    return Refusal(
        "in-place operations",
        RefusalKind.UNSUPPORTED,
        f"the graph cannot be written without its in-place operations: {why}",
        "write it without changing a view of an argument in place",
        None,
    )


def _branch_refusal() -> Refusal:
    return Refusal(
        "the function",
        RefusalKind.GRAPH_BREAK,
        "the function branches on data, which fake and meta tensors do not have",
        "call it with real tensors to follow the branch that they take",
        None,
    )
