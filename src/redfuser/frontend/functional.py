"""Dynamo's graph as a functional ATen graph with the same calling convention, before autograd."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx
from torch._functorch.aot_autograd import aot_export_module
from torch.amp import autocast_mode

from redfuser.frontend.autocast import make_casts_explicit
from redfuser.frontend.composites import APART
from redfuser.frontend.kinds import op_of

aten = torch.ops.aten
# views that share memory with what they are taken of
_ALIASES = frozenset({
    "view", "transpose", "permute", "t", "expand", "unsqueeze", "squeeze", "select", "slice", "detach", "alias",
    "diagonal",
})  # fmt: skip


def _enter_autocast(device: str, dtype: torch.dtype | None, enabled: bool, cache: bool) -> torch.amp.autocast:
    context = torch.amp.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache)
    context.__enter__()  # type: ignore[no-untyped-call]
    return context


def _exit_autocast(context: torch.amp.autocast) -> None:
    context.__exit__(None, None, None)


class NotFunctional(Exception):
    """PyTorch cannot export the graph without its mutations, as when a view of an input is changed in place.

    The text is PyTorch's reason. The graph runs as it came.
    """


def functional(gm: fx.GraphModule, example_inputs: Sequence[object]) -> fx.GraphModule:
    """A functional ATen graph that takes ``gm``'s inputs and gives its outputs, composite operations kept whole.

    Mutations of inputs are written back at the end with ``copy_``. Every node keeps the user's stack trace and, through
    ``from_node``, the user's variable names. Casts of autocast are explicit; ``meta["autocast"]`` says whether there
    are any, and then the graph has to run with autocast off. Nothing is computed on data.
    """
    source = _with_applied_autocast(gm)
    try:
        exported, signature = aot_export_module(
            source, list(example_inputs), trace_joint=False, pre_dispatch=True, decompositions=APART
        )
    except RuntimeError as e:
        raise NotFunctional(str(e).splitlines()[0] if str(e) else type(e).__name__) from e
    assert isinstance(exported, fx.GraphModule)
    graph = exported.graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    originals = [n for n in gm.graph.nodes if n.op == "placeholder"]
    # parameters and buffers that the module owns come first as inputs of the exported graph
    owned = [*signature.parameters, *signature.buffers]
    for node, name in zip(placeholders, [*owned, *(o.name for o in originals)], strict=True):
        node.meta["user_name"] = name
    for node, x in zip(placeholders[len(owned) :], example_inputs, strict=True):
        if type(x) is torch.Tensor and not x.is_floating_point():
            node.meta["given"] = weakref.ref(x)  # what to measure with: integers may be indices, or say what is masked
    _drop_checks(graph)
    _expand_copies(graph)
    _reapply_mutations(graph, signature)
    exported.meta["autocast"] = make_casts_explicit(graph)
    for node, name in zip(placeholders, owned, strict=False):
        _to_attribute(graph, node, name)
        _install(exported, name, lookup(gm, name))
    exported.recompile()
    return exported


def _with_applied_autocast(gm: fx.GraphModule) -> fx.GraphModule:
    """Pre-dispatch tracing records autocast regions without applying them; plain functions are traced through."""
    retarget = {autocast_mode._enter_autocast: _enter_autocast, autocast_mode._exit_autocast: _exit_autocast}
    if not any(n.target in retarget for n in gm.graph.nodes if n.op == "call_function"):
        return gm
    out = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    out.meta = gm.meta
    for n in out.graph.nodes:
        if n.op == "call_function" and n.target in retarget:
            n.target = retarget[n.target]
    out.recompile()
    return out


def _drop_checks(graph: fx.Graph) -> None:
    """Checks of metadata hold by tracing; as users of a value they would make it one to keep."""
    for n in list(graph.nodes):
        if n.target is aten._assert_tensor_metadata.default:
            graph.erase_node(n)


def _reapply_mutations(graph: fx.Graph, signature: Any) -> None:
    mutated = {**signature.buffers_to_mutate, **signature.user_inputs_to_mutate}
    output = next(n for n in graph.nodes if n.op == "output")
    results = list(output.args[0])
    inputs = {n.name: n for n in graph.nodes if n.op == "placeholder"}
    owned = {b: p for p, b in signature.inputs_to_buffers.items()}
    written: dict[fx.Node, fx.Node] = {}
    with graph.inserting_before(output):
        for value, target in zip(results, mutated.values(), strict=False):
            place = inputs[owned.get(target, target)]
            written[value] = graph.call_function(aten.copy_.default, (place, value))
            written[value].meta = {"val": place.meta["val"]}
        output.args = (tuple(_on_argument(graph, x, written) for x in results[len(mutated) :]),)


def _on_argument(graph: fx.Graph, result: Any, written: dict[fx.Node, fx.Node]) -> Any:
    """A result that views a mutated argument, as a view of the argument itself: both stay one memory."""
    chain: list[fx.Node] = []
    n = result
    while isinstance(n, fx.Node) and n not in written and op_of(n) in _ALIASES:
        chain.append(n)
        n = n.args[0]
    if n not in written:
        return result
    new = written[n]
    for view in reversed(chain):
        source, view_of = new, graph.node_copy(view, lambda x: x)
        view_of.args = (source, *view.args[1:])
        new = view_of
    return new


def _expand_copies(graph: fx.Graph) -> None:
    """``aten.copy`` has no derivative: copy(dst, src) is src cast to dst's dtype and expanded to its shape."""
    for n in list(graph.nodes):
        if n.target is not aten.copy.default:
            continue
        dst, src = n.args[:2]
        like, value = dst.meta["val"], src.meta["val"]
        with graph.inserting_before(n):
            new = src
            if value.dtype != like.dtype:
                new = graph.call_function(aten._to_copy.default, (new,), {"dtype": like.dtype})
                new.meta = {**n.meta, "val": value.to(like.dtype)}
            if value.shape != like.shape:
                new = graph.call_function(aten.expand_as.default, (new, dst))
                new.meta = dict(n.meta)
            if new is src:
                # what was copied and the copy are two values: only one of them is the argument's
                new = graph.call_function(aten.alias.default, (src,))
                new.meta = dict(n.meta)
        n.replace_all_uses_with(new)
        graph.erase_node(n)


def _to_attribute(graph: fx.Graph, node: fx.Node, name: str) -> None:
    with graph.inserting_before(node):
        attribute = graph.get_attr(name)
        attribute.meta = dict(node.meta)
    node.replace_all_uses_with(attribute)
    graph.erase_node(node)


def lookup(gm: torch.nn.Module, name: str) -> object:
    """The parameter, buffer or module that a dotted name of a graph's ``get_attr`` stands for."""
    found: object = gm
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _install(gm: torch.nn.Module, name: str, value: object) -> None:
    *path, last = name.split(".")
    owner: torch.nn.Module = gm
    for part in path:
        child = getattr(owner, part, None)
        if not isinstance(child, torch.nn.Module):
            child = torch.nn.Module()
            owner.add_module(part, child)
        owner = child
    if isinstance(value, torch.nn.Parameter):
        owner.register_parameter(last, value)
    elif isinstance(value, torch.Tensor):
        owner.register_buffer(last, value)
