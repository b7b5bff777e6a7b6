"""Casts that autocast makes at run time, written into the graph.

Tracing applies autocast without recording its casts: a matmul of float32 operands is said to give bfloat16. Afterwards
every operation gives, without autocast, what the tracing recorded.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx
from torch.amp import autocast_mode
from torch.utils import _pytree as pytree

from redfuser.frontend.quiet import quiet

aten = torch.ops.aten
_SWITCHES = (autocast_mode._enter_autocast, autocast_mode._exit_autocast)


def make_casts_explicit(graph: fx.Graph) -> bool:
    """Adds the casts and removes the switches. True when autocast was on anywhere: then run it with autocast off."""
    switches = [n for n in graph.nodes if n.op == "call_function" and n.target in _SWITCHES]
    if not switches and not torch._C._is_any_autocast_enabled():
        return False
    for n in list(graph.nodes):
        if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload) and n.target.namespace == "aten":
            dtype = _dtype(n.meta.get("val"))
            if dtype is not None and dtype.is_floating_point and dtype is not _plain_dtype(n):
                _cast_inputs(graph, n, dtype)
    for n in reversed(switches):
        graph.erase_node(n)
    return True


def _dtype(value: Any) -> torch.dtype | None:
    return next((v.dtype for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)), None)


def _plain_dtype(n: fx.Node) -> torch.dtype | None:
    """The dtype of the result without autocast; None when the operation fails without."""
    args, kwargs = pytree.tree_map(
        lambda x: x.meta["val"] if isinstance(x, fx.Node) else x, (list(n.args), dict(n.kwargs))
    )
    mode = next((v.fake_mode for v in pytree.tree_leaves((args, kwargs)) if hasattr(v, "fake_mode")), None)
    if mode is None:
        return _dtype(n.meta.get("val"))
    try:
        with torch._C._DisableAutocast(), mode, torch.no_grad(), quiet():
            return _dtype(n.target(*args, **kwargs))  # type: ignore[operator]
    except Exception:
        # operands of different dtypes, which autocast would have brought together
        return None


def _cast_inputs(graph: fx.Graph, n: fx.Node, dtype: torch.dtype) -> None:
    def cast(x: fx.Node) -> fx.Node:
        value = x.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype is dtype:
            return x
        with graph.inserting_before(n):
            new = graph.call_function(aten._to_copy.default, (x,), {"dtype": dtype})
        new.meta = {k: n.meta[k] for k in ("stack_trace",) if k in n.meta}
        with value.fake_mode, torch.no_grad():  # type: ignore[attr-defined]
            new.meta["val"] = value.to(dtype)
        return new

    n.args, n.kwargs = fx.map_arg(n.args, cast), fx.map_arg(n.kwargs, cast)
