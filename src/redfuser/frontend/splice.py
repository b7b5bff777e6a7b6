"""Putting one call of the region operator in the place of a cut."""

from __future__ import annotations

import operator

import torch
import torch.fx as fx

from redfuser.frontend.partition import Cut, reach
from redfuser.frontend.region_op import Kernel, register


def splice(gm: fx.GraphModule, cut: Cut, kernel: Kernel) -> None:
    """Replaces the cut in its graph by one call of the region operator; what it no longer needs is erased."""
    graph, handle = gm.graph, register(cut, kernel)
    order = {n: i for i, n in enumerate(graph.nodes)}
    anchor = max([*cut.inputs, *cut.ints], key=order.__getitem__)
    while anchor.next.op in ("placeholder", "get_attr"):
        anchor = anchor.next
    with graph.inserting_after(anchor):
        call = graph.call_function(torch.ops.redfuser.region.default, (list(cut.inputs), list(cut.ints), handle))
    call.meta = {**cut.outputs[-1].meta, "val": [n.meta["val"] for n in cut.outputs]}
    last = call
    inside = set(cut.nodes)
    for position, n in enumerate(cut.outputs):
        with graph.inserting_after(last):
            piece = graph.call_function(operator.getitem, (call, position))
        piece.meta = dict(n.meta)
        n.replace_all_uses_with(piece, delete_user_cb=lambda u: u not in inside)
        last = piece
    _move_below(graph, call, last)
    for n in reversed(cut.nodes):
        if not n.users:
            graph.erase_node(n)
    graph.lint()
    gm.recompile()


def _move_below(graph: fx.Graph, call: fx.Node, last: fx.Node) -> None:
    """Nodes that read a result and stand above the call move below it, in their order."""
    late = reach([call], lambda n: n.users)
    for n in list(graph.nodes):
        if n is call:
            return
        if n in late:
            last.append(n)
            last = n
