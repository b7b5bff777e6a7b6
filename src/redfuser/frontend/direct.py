"""Calling regions without the dispatcher, where a call needs nothing of it.

The operator ``redfuser::region`` serves autograd, tracing, fake tensors and modes; entering it from Python costs more
than a short kernel. A graph of regions and views alone calls them as functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
import torch.fx as fx
from torch.autograd import forward_ad

from redfuser.frontend.region_op import entry

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.get_dynamic_layer_stack_depth


def direct(gm: fx.GraphModule) -> fx.GraphModule:
    """The same graph with each call of the region operator replaced by a call of a function.

    ``redfuser.region.default([x], [s0], "handle")`` -> ``region([x], [s0])``
    """
    out = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    out.meta = gm.meta
    for n in out.graph.nodes:
        if n.op == "call_function" and n.target is torch.ops.redfuser.region.default:
            inputs, sizes, handle = n.args
            n.target, n.args = _function(handle), (inputs, sizes)
    out.recompile()
    return out


def _function(handle: str) -> Callable[[Sequence[torch.Tensor], Sequence[int]], list[torch.Tensor]]:
    operator, found = torch.ops.redfuser.region.default, entry(handle)
    run, unfused = found.run, found.cut.module

    def region(inputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        if forward_ad._current_level >= 0:
            return list(unfused(*inputs, *sizes))  # Dynamo does not guard on it, and the operator has no tangents
        if _dispatch_modes() or _transforms():
            return operator(inputs, sizes, handle)  # type: ignore[no-any-return]
        recording = torch.is_grad_enabled()
        for x in inputs:
            # Dynamo's guards speak for all of this, but users can switch guards off
            if type(x) not in _PLAIN or x.is_meta or x.is_neg() or (recording and x.requires_grad):
                return operator(inputs, sizes, handle)  # type: ignore[no-any-return]
        return run(inputs, sizes)

    return region
