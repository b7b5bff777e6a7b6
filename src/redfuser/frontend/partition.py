"""Cutting the part of a graph that a fused kernel replaces, and putting one call in its place.

A cut is convex: no path leaves it and comes back. It is closed: it becomes a module of its own, which computes the same
unfused and is lowered again to the program that the kernel is built from.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from redfuser.frontend.kinds import (
    CONTRACTIONS,
    is_cast,
    is_scaling,
    is_size,
    is_tensor,
    is_view,
    op_of,
    tensor_inputs,
)
from redfuser.frontend.lower import Lowered, lower
from redfuser.frontend.origins import name_of
from redfuser.index.ints import Int


@dataclass(frozen=True)
class Cut:
    """A sub-graph. ``module(*inputs, *ints)`` computes ``outputs``; ``lowered`` is its own index program.

    ``inputs`` are tensors of the surrounding graph, ``ints`` its symbolic lengths that the sub-graph mentions.
    """

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    ints: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    module: fx.GraphModule
    lowered: Lowered

    def sizes(self, inputs: Sequence[torch.Tensor], ints: Sequence[Any]) -> dict[str, Any]:
        """The program's symbolic sizes at a call, by name. Symbolic in, symbolic out."""
        out: dict[str, Any] = {}
        for node, value in zip(self.inputs, inputs, strict=True):
            for expected, got in zip(node.meta["val"].shape, value.shape, strict=True):
                if (name := _symbol(expected)) is not None:
                    out[name] = got
        for node, n in zip(self.ints, ints, strict=True):
            if (name := _symbol(node.meta["val"])) is not None:
                out[name] = n
        return out

    @property
    def shapes(self) -> tuple[tuple[Int, ...], ...]:
        """The shapes of the outputs over the program's sizes."""
        program = self.lowered.program
        return tuple(tuple(a.size for a in program[o.value].axes) for o in program.outputs)


def _symbol(n: object) -> str | None:
    if isinstance(n, torch.SymInt) and n.node.expr.is_Symbol:
        return str(n.node.expr)
    return None


def extract(lowered: Lowered, members: frozenset[str], producers: frozenset[str]) -> Cut | None:
    """The smallest useful sub-graph around the given reductions; None when no convex one exists.

    Walks back through elementwise operations and views that feed the members, and forward through what depends on them
    only. It stops at placeholders, other reductions and operations that are not covered. Operands of contractions are
    taken through views, casts and one scaling only: what is costlier is better computed once, outside.
    """
    finder = _Finder(lowered, members | producers)
    interior = finder.interior()
    if interior is None:
        return None
    return _build(lowered.graph, interior, finder.copies)


class _Finder:
    def __init__(self, lowered: Lowered, wanted: frozenset[str]) -> None:
        self.graph = lowered.graph.graph
        self.order = {n: i for i, n in enumerate(self.graph.nodes)}
        self.core = {n for name in wanted for n in lowered.nodes_of(name)}
        outputs = {o.value for o in lowered.program.outputs}
        # the origin of any other definition stops the walk, and so does whatever the lowering did not cover
        others = [d.name for d in lowered.program.definitions if d.name not in outputs]
        self.stops = {n for name in others for n in lowered.nodes_of(name)} - self.core
        self.stops |= set(lowered.input_nodes.values())
        self.stops |= {n for n in self.graph.nodes if n.op != "call_function"}
        self.free = self._free()
        self.copies: set[fx.Node] = set()

    def _free(self) -> set[fx.Node]:
        """Nodes that depend on no data: positions, masks made of them, constants."""
        out: set[fx.Node] = set()
        for n in self.graph.nodes:
            covered = op_of(n) is not None and n not in self.stops and n not in self.core
            if covered and is_tensor(n) and all(i in out for i in tensor_inputs(n)):
                out.add(n)
        return out

    def interior(self) -> set[fx.Node] | None:
        inside = self._between(self.core)
        if inside is None:
            return None
        self._forward(inside)
        closed = self._between(inside)
        if closed is None:
            return None
        self._backward(closed)
        return closed

    def _between(self, seeds: set[fx.Node]) -> set[fx.Node] | None:
        """The seeds, what lies on a path between two of them, and the pieces of their results."""
        below = reach(seeds, lambda n: n.users)
        above = reach(seeds, lambda n: n.all_input_nodes)
        out = set(seeds) | {n for n in below & above if not is_size(n)}
        if out & self.stops or any(op_of(n) is None and n.target is not operator.getitem for n in out):
            return None
        for n in list(out):
            out |= {u for u in n.users if u.target is operator.getitem}
        return out

    def _forward(self, inside: set[fx.Node]) -> None:
        """Elementwise operations on results of the cut, where that leaves no more results to store."""
        for n in self.graph.nodes:
            if n in inside or n in self.stops or op_of(n) is None or not is_tensor(n):
                continue
            given = tensor_inputs(n)
            ours = [i for i in given if i in inside]
            if not ours or any(i not in inside and i not in self.free for i in given):
                continue
            if any(all(u in inside or u is n for u in i.users) for i in ours):
                inside.add(n)
        # views of a result are free outside
        for n in sorted(inside, key=self.order.__getitem__, reverse=True):
            if is_view(n) and n not in self.core and not any(u in inside for u in n.users):
                inside.discard(n)

    def _backward(self, inside: set[fx.Node]) -> None:
        """What feeds the cut and is cheap to compute in it. Nodes with other users are copied, not moved."""
        below = set(inside)
        for n in sorted(below, key=self.order.__getitem__, reverse=True):
            for i in tensor_inputs(n):
                if i not in inside:
                    operand = op_of(n) in CONTRACTIONS or op_of(n) == "scaled_dot_product_attention"
                    self._take(i, inside, scalings=1 if operand else None)

    def _take(self, n: fx.Node, inside: set[fx.Node], scalings: int | None) -> None:
        """``scalings`` counts the multiplications by a number still allowed; None allows all elementwise operations."""
        if n in inside or n in self.stops or (op_of(n) is None and n.target is not operator.getitem):
            return
        if n.target is operator.getitem and not is_view(n):
            return
        owned = all(u in inside for u in n.users)
        if not (n in self.free or is_view(n) or owned):
            return
        if scalings is not None and n not in self.free:
            if is_scaling(n) and scalings:
                scalings -= 1
            elif not (is_view(n) or is_cast(n)):
                return
        if not owned:
            self.copies.add(n)
        inside.add(n)
        for i in tensor_inputs(n):
            self._take(i, inside, scalings)


def reach(seeds: Iterable[fx.Node], step: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node]:
    """Everything at least one step away."""
    seen: set[fx.Node] = set()
    stack = [m for n in seeds for m in step(n)]
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            stack.extend(step(n))
    return seen


def _build(gm: fx.GraphModule, inside: set[fx.Node], copies: set[fx.Node]) -> Cut | None:
    nodes = [n for n in gm.graph.nodes if n in inside]
    outer = [n for n in gm.graph.nodes if n not in inside and any(u in inside for u in n.users)]
    inputs, ints = [n for n in outer if is_tensor(n)], [n for n in outer if is_size(n)]
    outputs = [n for n in nodes if n not in copies and is_tensor(n) and any(u not in inside for u in n.users)]
    if len(inputs) + len(ints) != len(outer) or not inputs or not outputs:
        return None
    module = _module(gm, nodes, [*inputs, *ints], outputs)
    return Cut(tuple(nodes), tuple(inputs), tuple(ints), tuple(outputs), module, lower(module))


def _module(
    gm: fx.GraphModule, nodes: list[fx.Node], inputs: list[fx.Node], outputs: list[fx.Node]
) -> fx.GraphModule:
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for n in inputs:
        place = graph.placeholder(n.name)
        place.meta = {k: n.meta[k] for k in ("val", "stack_trace", "from_node") if k in n.meta}
        place.meta["user_name"] = name_of(n)
        env[n] = place
    for n in nodes:
        env[n] = graph.node_copy(n, env.__getitem__)
    graph.output(tuple(env[n] for n in outputs))
    return fx.GraphModule(gm, graph)
