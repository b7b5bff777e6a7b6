"""Cutting the part of a graph that a fused kernel replaces, and putting one call in its place.

A cut is convex: no path leaves it and comes back. It is closed: it becomes a module of its own, which computes the same
unfused and is lowered again to the program that the kernel is built from.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.fx as fx

from redfuser.frontend.kinds import (
    ATTENTION,
    CONTRACTIONS,
    GATHERS,
    is_cast,
    is_join,
    is_scaling,
    is_size,
    is_tensor,
    is_view,
    op_of,
    tensor_inputs,
)
from redfuser.frontend.lower import Lowered, lower
from redfuser.frontend.origins import name_of
from redfuser.frontend.unfused import Unfused
from redfuser.frontend.values import hint_of, int_from_torch
from redfuser.index.ints import Int
from redfuser.index.nodes import Reduce


@dataclass(frozen=True)
class Binding:
    """Where a call gives a symbolic size: ``scale * size + offset`` is a length of an input, or an int (no dim)."""

    name: str
    argument: int
    dim: int | None
    scale: int
    offset: int

    def text(self, parameters: Sequence[str], inputs: int) -> str:
        """The size as code over the names of the inputs and then of the ints."""
        given = (
            parameters[inputs + self.argument] if self.dim is None else f"{parameters[self.argument]}.shape[{self.dim}]"
        )
        if self.offset:
            given = f"({given} - {self.offset})"
        return given if self.scale == 1 else f"{given} // {self.scale}"


@dataclass(frozen=True)
class Cut:
    """A sub-graph. ``module(*inputs, *ints)`` computes ``outputs``; ``lowered`` is its own index program.

    ``inputs`` are tensors of the surrounding graph, ``ints`` its symbolic lengths that the sub-graph mentions.
    ``layouts`` has for each output its dimensions from the outermost in memory to the innermost, as the user's code
    lays it out. ``inductor`` says whether it may compile the module.
    """

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    ints: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    module: fx.GraphModule
    lowered: Lowered
    bindings: tuple[Binding, ...]
    layouts: tuple[tuple[int, ...], ...]
    inductor: bool

    def sizes(self, inputs: Sequence[torch.Tensor], ints: Sequence[Any]) -> dict[str, Any]:
        """The program's symbolic sizes at a call, by name. Symbolic in, symbolic out."""
        out: dict[str, Any] = {}
        for b in self.bindings:
            given = ints[b.argument] if b.dim is None else inputs[b.argument].shape[b.dim]
            out[b.name] = given if b.scale == 1 and b.offset == 0 else (given - b.offset) // b.scale
        return out

    def unfused(self, inputs: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> list[torch.Tensor]:
        """The outputs, computed as the user wrote them. Takes what a kernel takes."""
        ints = [int_from_torch(n.meta["val"]) for n in self.ints]
        return self.run(inputs, [n.evaluate({s: sizes.get(s.name, s.hint) for s in n.sizes()}) for n in ints])

    def lean(self, inputs: Sequence[torch.Tensor]) -> bool:
        """True where the unfused code is known to write none of its intermediates."""
        return not self.ints and self.run.lean(inputs)

    @cached_property
    def run(self) -> Unfused:
        """The sub-graph as a function of its inputs and ints, without gradients."""
        fixed = not self.ints and all(isinstance(n, int) for x in self.inputs for n in x.meta["val"].shape)
        return Unfused(self.module, self.inductor and fixed and self.device.type == "cuda")

    @property
    def device(self) -> torch.device:
        """Where it runs: a CPU scalar may stand among tensors of another device."""
        values = [n.meta["val"] for n in self.inputs]
        return max(values, key=lambda x: (x.device.type != "cpu", x.dim())).device if values else torch.device("cpu")

    def examples(self, sizes: Mapping[str, int]) -> list[torch.Tensor]:
        """Inputs of the shapes, strides, dtypes and devices that were seen, at the given symbolic lengths.

        Random, but integers are what the call gave where they are at hand, since masks may depend on them.
        """
        return [_like(n.meta["val"], sizes, n.meta.get("given", lambda: None)()) for n in self.inputs]

    @property
    def shapes_of_inputs(self) -> tuple[torch.Tensor, ...]:
        """Meta tensors of the shapes, strides and dtypes that were seen."""
        return tuple(
            torch.empty_strided(
                [hint_of(n) for n in x.shape], [hint_of(n) for n in x.stride()], dtype=x.dtype, device="meta"
            )
            for x in (n.meta["val"] for n in self.inputs)
        )

    @property
    def shapes(self) -> tuple[tuple[Int, ...], ...]:
        """The shapes of the outputs over the program's sizes."""
        program = self.lowered.program
        return tuple(tuple(a.size for a in program[o.value].axes) for o in program.outputs)


def _like(x: torch.Tensor, sizes: Mapping[str, int], given: torch.Tensor | None) -> torch.Tensor:
    """A tensor of the same kind with random numbers; integers, which may be indices, are as given, or 0."""

    def number(n: Any) -> int:
        i = int_from_torch(n)
        return i.evaluate({s: sizes.get(s.name, s.hint) for s in i.sizes()})

    shape, strides = [number(n) for n in x.shape], [number(n) for n in x.stride()]
    if given is not None and list(given.shape) == shape:
        return given.detach()
    out = torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device)
    if not x.dtype.is_floating_point:
        return out.zero_()
    return out.normal_() if x.dtype.itemsize > 1 else out.copy_(torch.randn(shape, device=x.device))


def _layout(x: torch.Tensor) -> tuple[int, ...]:
    """Row-major unless the elements of ``x`` lie dense in another order."""
    sizes, strides = ([hint_of(n) for n in ns] for ns in (x.shape, x.stride()))
    order = sorted(range(x.dim()), key=lambda d: -strides[d])
    for candidate in (list(range(x.dim())), order):
        expected, dense = 1, True
        for d in reversed(candidate):
            dense &= sizes[d] == 1 or strides[d] == expected
            expected *= sizes[d]
        if dense:
            return tuple(candidate)
    return tuple(range(x.dim()))


def _bindings(inputs: list[fx.Node], ints: list[fx.Node]) -> Iterator[Binding]:
    """Every symbol that a length of an input gives, directly where possible."""
    found: list[tuple[Any, int, int | None]] = [(n.meta["val"], k, None) for k, n in enumerate(ints)]
    found += [(length, k, d) for k, n in enumerate(inputs) for d, length in enumerate(n.meta["val"].shape)]
    for length, argument, dim in found:
        if isinstance(length, torch.SymInt) and len(length.node.expr.free_symbols) == 1:
            (symbol,) = length.node.expr.free_symbols
            polynomial = length.node.expr.as_poly(symbol)
            if polynomial is not None and polynomial.degree() == 1:
                scale, offset = (int(c) for c in polynomial.all_coeffs())
                yield Binding(str(symbol), argument, dim, scale, offset)


def extract(lowered: Lowered, members: frozenset[str], beside: frozenset[str], *, inductor: bool = True) -> Cut | None:
    """The smallest useful sub-graph around a cascade's members and what is computed beside them; None when no convex one
    exists.

    Walks back through elementwise operations and views that feed the members, and forward through what depends on them
    only. It stops at placeholders, other reductions and operations that are not covered. Operands of contractions are
    taken through views, casts, joins of features and one scaling only: what is costlier is better computed once, outside.
    """
    finder = _Finder(lowered, members | beside)
    interior = finder.interior()
    if interior is None:
        return None
    return _build(lowered.graph, interior, finder.copies, inductor)


class _Finder:
    def __init__(self, lowered: Lowered, wanted: frozenset[str]) -> None:
        self.graph = lowered.graph.graph
        self.order = {n: i for i, n in enumerate(self.graph.nodes)}
        self.core = {n for name in wanted for n in lowered.nodes_of(name)}
        outputs = {o.value for o in lowered.program.outputs}
        # the origin of any other definition stops the walk, and so does whatever the lowering did not cover
        others = [d.name for d in lowered.program.definitions if isinstance(d, Reduce) or d.name not in outputs]
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
                    operand = op_of(n) in CONTRACTIONS | ATTENTION
                    self._take(i, inside, scalings=1 if operand else None)

    def _take(self, n: fx.Node, inside: set[fx.Node], scalings: int | None) -> None:
        """``scalings`` counts the multiplications by a number still allowed; None allows all elementwise operations."""
        if n in inside or n in self.stops or (op_of(n) is None and n.target is not operator.getitem):
            return
        if n.target is operator.getitem and not is_view(n):
            return
        if op_of(n) in GATHERS and not all(i in self.free for i in tensor_inputs(n) if i is not n.args[0]):
            return  # indices read from data: better gathered once, outside
        owned = all(u in inside for u in n.users)
        if not (n in self.free or is_view(n) or owned):
            return
        if scalings is not None and n not in self.free:
            if is_scaling(n) and scalings:
                scalings -= 1
            elif not (is_view(n) or is_cast(n) or is_join(n)):
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


def _build(gm: fx.GraphModule, inside: set[fx.Node], copies: set[fx.Node], inductor: bool) -> Cut | None:
    nodes = [n for n in gm.graph.nodes if n in inside]
    outer = [n for n in gm.graph.nodes if n not in inside and any(u in inside for u in n.users)]
    inputs, ints = [n for n in outer if is_tensor(n)], [n for n in outer if is_size(n)]
    outputs = [n for n in nodes if n not in copies and is_tensor(n) and any(u not in inside for u in n.users)]
    if len(inputs) + len(ints) != len(outer) or not inputs or not outputs:
        return None
    module = _module(gm, nodes, [*inputs, *ints], outputs)
    lowered = lower(module)
    best: dict[str, Binding] = {}
    for b in sorted(_bindings(inputs, ints), key=lambda b: b.scale != 1 or b.offset != 0):
        best.setdefault(b.name, b)
    mentioned = {s.name for n in ints for s in int_from_torch(n.meta["val"]).sizes()}
    needed = sorted({s.name for s in lowered.program.sizes} | mentioned)
    if any(name not in best for name in needed):
        return None
    bindings = tuple(best[name] for name in needed)
    layouts = tuple(_layout(n.meta["val"]) for n in outputs)
    return Cut(tuple(nodes), tuple(inputs), tuple(ints), tuple(outputs), module, lowered, bindings, layouts, inductor)


def _module(gm: fx.GraphModule, nodes: list[fx.Node], inputs: list[fx.Node], outputs: list[fx.Node]) -> fx.GraphModule:
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
