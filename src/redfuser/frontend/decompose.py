"""Operations without a lowering of their own, through the decompositions that Inductor uses."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from redfuser.frontend.quiet import quiet


def decomposed(node: fx.Node) -> fx.GraphModule | None:
    """The node as a graph of simpler operations; its placeholders are the node's inputs. None when there is none."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return None
    inputs = node.all_input_nodes
    values = [n.meta.get("val") for n in inputs]
    if not values or not all(isinstance(v, torch.Tensor) for v in values):
        return None
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
    if mode is None:
        return None

    def run(*given: torch.Tensor) -> Any:
        at = dict(zip(inputs, given, strict=True))
        call = (list(node.args), dict(node.kwargs))
        args, kwargs = pytree.tree_map(lambda x: at[x] if isinstance(x, fx.Node) else x, call)
        return target(*args, **kwargs)

    try:
        with mode, quiet():
            out: fx.GraphModule = make_fx(run, decomposition_table=select_decomp_table())(*values)
    except Exception:
        # a decomposition that cannot be traced is no decomposition; the caller says that the operation is not covered
        return None
    if any(n.target is target for n in out.graph.nodes):
        return None
    return out
