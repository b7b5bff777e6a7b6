"""Which values are stored although they are elementwise: those that meet again what was contracted from them.

In ``y = x + f(x)``, where f contracts x with weights, x is needed whole before f and once more after it. Inlining what
x was computed from into every later reader would tie reductions together that have nothing to do with each other.
"""

from __future__ import annotations

import torch.fx as fx

from redfuser.frontend.kinds import (
    ATTENTION,
    COMPOSITES,
    CONTRACTIONS,
    REDUCTIONS,
    is_cast,
    is_tensor,
    is_view,
    op_of,
    tensor_inputs,
)


def stored_values(graph: fx.Graph) -> frozenset[fx.Node]:
    """Elementwise values made of reductions that an elementwise operation joins with a contraction of themselves."""
    bits: dict[fx.Node, int] = {}
    above: dict[fx.Node, int] = {}  # every tensor node that it depends on
    direct: dict[fx.Node, int] = {}  # the reductions that it reads without another between
    nodes: list[fx.Node] = []
    found: set[fx.Node] = set()
    for n in graph.nodes:
        if n.op == "output":
            continue
        given = tensor_inputs(n)
        bits[n] = 1 << len(nodes)
        nodes.append(n)
        above[n] = 0
        direct[n] = 0
        for i in given:
            above[n] |= above[i] | bits[i]
            direct[n] |= direct[i]
        if op_of(n) in REDUCTIONS:
            direct[n] = bits[n]
        elif is_tensor(n) and len(given) > 1:
            for a in given:
                whole = _whole(a)
                if op_of(whole) in REDUCTIONS - COMPOSITES or not direct[whole] or not is_tensor(whole):
                    continue
                if a.meta["val"].shape != n.meta["val"].shape:
                    continue  # broadcast: a factor of every row or column, cheap to have twice
                if any(_contracts(nodes, direct[b], above, bits[whole]) for b in given if b is not a):
                    found.add(whole)
                    direct[whole] = bits[whole]
    return frozenset(found)


def _whole(n: fx.Node) -> fx.Node:
    """What a view or a cast was taken of."""
    while is_view(n) or is_cast(n):
        source = n.all_input_nodes[0]
        if not is_tensor(source):
            return n
        n = source
    return n


def _contracts(nodes: list[fx.Node], reductions: int, above: dict[fx.Node, int], source: int) -> bool:
    """Whether one of the reductions is a contraction of the source."""
    while reductions:
        low = reductions & -reductions
        reductions ^= low
        n = nodes[low.bit_length() - 1]
        if op_of(n) in CONTRACTIONS | ATTENTION and above[n] & source:
            return True
    return False
