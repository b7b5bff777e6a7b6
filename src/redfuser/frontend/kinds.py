"""What kind of operation a node is, for cutting a graph: a view, a cast, elementwise, or something with a reduction."""

from __future__ import annotations

import operator

import torch
import torch.fx as fx

VIEWS = frozenset({
    "view", "reshape", "_unsafe_view", "unflatten", "flatten", "view_as", "reshape_as", "transpose", "swapaxes",
    "swapdims",
    "permute", "t", "numpy_T", "mT", "adjoint", "expand", "broadcast_to", "expand_as", "unsqueeze", "squeeze", "select",
    "slice", "narrow", "split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_chunk", "tensor_split", "unbind",
    "alias", "detach", "diagonal", "clone", "contiguous", "lift_fresh_copy", "repeat_interleave",
})  # fmt: skip
CASTS = frozenset({"_to_copy", "to", "type_as"})
CONTRACTIONS = frozenset({"matmul", "mm", "bmm", "linear", "addmm", "baddbmm", "einsum", "mv", "dot", "linalg_matmul"})
ATTENTION = frozenset({"scaled_dot_product_attention"})
GATHERS = frozenset({"embedding", "gather", "index", "_unsafe_index", "index_select", "take_along_dim"})
REDUCTIONS = CONTRACTIONS | ATTENTION | frozenset({
    "sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "var", "std", "var_mean", "std_mean", "softmax",
    "_softmax", "log_softmax", "_log_softmax", "logsumexp", "layer_norm", "native_layer_norm", "rms_norm", "group_norm",
    "linalg_vector_norm", "norm", "topk", "argmax", "argmin", "aminmax", "count_nonzero", "cosine_similarity",
    "cross_entropy_loss", "nll_loss_nd", "nll_loss", "scatter",
})  # fmt: skip

# their results are made of reductions, by an elementwise operation at the end
COMPOSITES = frozenset({
    "softmax", "_softmax", "log_softmax", "_log_softmax", "layer_norm", "native_layer_norm", "rms_norm", "group_norm",
})  # fmt: skip


def op_of(node: fx.Node) -> str | None:
    """The name of an ATen operation, without its overload."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    return target._schema.name.split("::")[1]


def is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and is_view(source)
    return op_of(node) in VIEWS


def is_cast(node: fx.Node) -> bool:
    return op_of(node) in CASTS


def is_join(node: fx.Node) -> bool:
    """A concatenation along the last dimension."""
    if op_of(node) not in ("cat", "concat", "concatenate"):
        return False
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    return isinstance(dim, int) and dim % node.meta["val"].dim() == node.meta["val"].dim() - 1


def is_scaling(node: fx.Node) -> bool:
    """A product with, or quotient by, a number."""
    return op_of(node) in ("mul", "div") and not isinstance(node.args[1], fx.Node)


def is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def is_size(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


def tensor_inputs(node: fx.Node) -> list[fx.Node]:
    """Inputs that are tensors, or tuples of them."""
    numbers = (int, float, torch.SymInt, torch.SymFloat)
    return [n for n in node.all_input_nodes if not isinstance(n.meta.get("val"), numbers)]
