"""From a functional ATen graph to an index program.

Every tensor is a function from an index to an expression, so views and elementwise operations vanish into the bodies of
the reductions that read them. Only reductions, and a map for every output, become definitions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from redfuser.frontend.decompose import decomposed
from redfuser.frontend.materialise import stored_values
from redfuser.frontend.ops import OPS, Call
from redfuser.frontend.ops.registry import Body, Result
from redfuser.frontend.origins import identifier, name_of, origin_of, where_of
from redfuser.frontend.values import Arg, Mistaken, NotCovered, NoValue, Scalar, Value, dtype_from_torch, int_from_torch
from redfuser.index.build import apply, cast, exactly
from redfuser.index.expr import DType, Expr, Fn, Part, const, load, position
from redfuser.index.ints import ZERO, Axis, Int, as_int
from redfuser.index.nodes import Definition, Input, Map, Origin, Output, Program, Reduce, Reducer
from redfuser.index.refusals import Refusal, RefusalKind
from redfuser.index.simplify import simplify
from redfuser.index.verify import verify

_KEPT = ("a", "b", "h", "i", "j")
_FEW = {1: ["i"], 3: ["b", "i", "j"]}
_OVER = ("l", "r", "t", "u", "v")
_SILENT = {"_assert_scalar", "_assert_async", "sym_constrain_range", "copy_"}


@dataclass(frozen=True)
class Lowered:
    """A graph and its index program. ``node_of`` tells which node made a definition, ``input_nodes`` which an input."""

    graph: fx.GraphModule
    program: Program
    refusals: tuple[Refusal, ...]
    node_of: dict[str, fx.Node]
    input_nodes: dict[str, fx.Node]
    renamed: dict[str, str]
    mistaken: bool  # an operation of it is one that PyTorch refuses

    def nodes_of(self, name: str) -> tuple[fx.Node, ...]:
        """Every node that computes the definition: one, or several where the program wrote it twice."""
        names = [name, *(old for old, new in self.renamed.items() if new == name)]
        return tuple(dict.fromkeys(self.node_of[n] for n in names))


class TooDeep(Exception):
    """Expressions nest more deeply than Python recurses, as in a long loop that was unrolled. The graph stays as it is."""


def lower(gm: fx.GraphModule) -> Lowered:
    """The index program of a functional graph whose nodes carry ``meta['val']``. No data is read.

    An operation that is not covered becomes an input of the program, with a refusal that names it. Raises TooDeep for a
    graph that is one very long chain of elementwise operations.
    """
    try:
        return _lower(gm)
    except RecursionError as e:
        raise TooDeep("a chain of elementwise operations is too long to be one expression") from e


def _lower(gm: fx.GraphModule) -> Lowered:
    driver = Driver(gm, stored=stored_values(gm.graph))
    outputs: list[fx.Node] = []
    for node in gm.graph.nodes:
        if node.op == "output":
            outputs = [n for n in pytree.tree_leaves(node.args) if isinstance(n, fx.Node)]
        else:
            driver.visit(node)
    wanted = [*outputs, *driver.read_outside]
    kept = [n for n in dict.fromkeys(wanted) if isinstance(driver.env.get(n), Value) and n.op == "call_function"]
    for n in kept:
        driver.output(n)
    written = Program(tuple(driver.inputs), tuple(driver.definitions), tuple(driver.outputs))
    program, renamed = simplify(verify(written))
    verify(program)
    inputs = {i.name: driver.input_nodes[i.name] for i in program.inputs}
    return Lowered(gm, program, tuple(driver.refusals), driver.node_of, inputs, renamed, driver.mistaken)


@dataclass
class Driver:
    """Walks the graph; the ``Lowering`` that operations see."""

    gm: fx.GraphModule
    inputs: list[Input] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    env: dict[fx.Node, Any] = field(default_factory=dict)
    node_of: dict[str, fx.Node] = field(default_factory=dict)
    input_nodes: dict[str, fx.Node] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    mistaken: bool = False
    read_outside: list[fx.Node] = field(default_factory=list)  # what operations that are not covered read
    current: fx.Node | None = None
    stored: frozenset[fx.Node] = frozenset()

    # -- nodes ------------------------------------------------------------------------------------------------------
    def visit(self, node: fx.Node) -> None:
        self.current = node
        if node.op in ("placeholder", "get_attr"):
            self.env[node] = self._given(node)
        elif node.op == "call_function":
            self.env[node] = self._called(node)
            if node in self.stored and isinstance(self.env[node], Value):
                self.env[node] = self._stored(self.env[node])
        else:
            raise NotCovered(f"{node.op} in a functional graph")

    def _given(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if value is None and node.op == "get_attr":
            value = _attribute(self.gm, str(node.target))
        match value:
            case torch.Tensor():
                if (number := _literal(self.gm, node)) is not None:
                    dtype = dtype_from_torch(value.dtype)
                    return Value((), dtype, lambda ix: const(number, dtype))
                try:
                    return self._input(node, value, name_of(node))
                except NotCovered as why:
                    self._refuse(node, str(why))
                    return None
            case bool() | int() | float():
                return value
            case torch.SymInt():
                return int_from_torch(value)
            case torch.SymFloat():
                return self._scalar_input(node)
            case _:
                return None

    def _input(self, node: fx.Node, value: torch.Tensor, name: str) -> Value:
        unique = self._unique(name)
        shape = tuple(int_from_torch(n) for n in value.shape)
        axes = _axes(shape, _KEPT)
        dtype = dtype_from_torch(value.dtype)
        self.inputs.append(Input(unique, axes, dtype, origin_of(node)))
        self.input_nodes[unique] = node
        return Value(shape, dtype, lambda ix: load(unique, ix, dtype))

    def _scalar_input(self, node: fx.Node) -> Expr:
        unique = self._unique(name_of(node))
        self.inputs.append(Input(unique, (), DType.FLOAT64, origin_of(node)))
        self.input_nodes[unique] = node
        return load(unique, (), DType.FLOAT64)

    def _called(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            source = self.env[node.args[0]]  # type: ignore[index]
            if isinstance(source, list):
                item = source[node.args[1]]  # type: ignore[index]
                return item if item is not None else self._opaque_one(node)
            return self._opaque_one(node) if source is None else source
        value = node.meta.get("val")
        if not isinstance(node.target, torch._ops.OpOverload) or not _tensors(value):
            return self._scalar(node, value)
        if _op_name(node.target)[0] in _SILENT:
            return None
        try:
            return self.operation(node)
        except NotCovered as why:
            self.mistaken |= isinstance(why, Mistaken)
            if isinstance(why, NoValue):
                self.read_outside += [n for n in node.all_input_nodes if n not in self.read_outside]
                return self._opaque_one(node)
            return self._opaque(node, str(why))

    def operation(self, node: fx.Node) -> Result:
        """One ATen operation: its own lowering, else that of its decomposition."""
        assert isinstance(node.target, torch._ops.OpOverload)
        op, overload = _op_name(node.target)
        handler = OPS.get(f"{op}.{overload}") or OPS.get(op)
        reason = f"{op} is not covered"
        if handler is not None and node.target.namespace in ("aten", "prims"):
            before = len(self.inputs), len(self.definitions), set(self.names)
            try:
                return handler(self, self._call(node, op))
            except NotCovered as why:
                if isinstance(why, Mistaken | NoValue):
                    raise
                reason = str(why)
                del self.inputs[before[0] :], self.definitions[before[1] :]
                self.names = before[2]
        sub = decomposed(node)
        if sub is None:
            raise NotCovered(reason)
        return self._inlined(node, sub)

    def _inlined(self, node: fx.Node, sub: fx.GraphModule) -> Result:
        """The nodes of a decomposition, as if they stood in the graph in place of the node."""
        tensors = node.all_input_nodes
        places = [n for n in sub.graph.nodes if n.op == "placeholder"]
        inner = {p: self.env[t] for p, t in zip(places, tensors, strict=True)}
        outer, self.env = self.env, {**self.env, **inner}
        before = len(self.definitions), len(self.inputs), set(self.names)
        try:
            for n in sub.graph.nodes:
                if n.op == "call_function":
                    n.meta = {**n.meta, **{k: node.meta[k] for k in ("stack_trace", "from_node") if k in node.meta}}
                    value = n.meta.get("val")
                    if n.target is operator.getitem:
                        self.env[n] = self.env[n.args[0]][n.args[1]]
                    elif isinstance(n.target, torch._ops.OpOverload) and _tensors(value):
                        self.env[n] = self.operation(n)
                    else:
                        self.env[n] = self._scalar(n, value)
                elif n.op == "get_attr":
                    raise NotCovered(f"{node.target} needs a constant tensor")
                elif n.op == "output":
                    out = n.args[0]
            found = [self.env[x] if isinstance(x, fx.Node) else x for x in _list(out)]
        except NotCovered:
            del self.definitions[before[0] :], self.inputs[before[1] :]
            self.names = before[2]
            raise
        finally:
            self.env = outer
        return found if isinstance(out, list | tuple) else found[0]

    def _call(self, node: fx.Node, op: str) -> Call:
        schema = node.target._schema  # type: ignore[union-attr]
        args: dict[str, Arg] = {}
        for n, a in enumerate(schema.arguments):
            if n < len(node.args):
                args[a.name] = self._argument(node.args[n])
            elif a.name in node.kwargs:
                args[a.name] = self._argument(node.kwargs[a.name])
            elif a.has_default_value():
                args[a.name] = a.default_value
        return Call(node, op, args, node.meta.get("val"))

    def _argument(self, x: object) -> Any:
        match x:
            case fx.Node():
                found = self.env.get(x)
                if found is None:
                    raise NoValue(f"{x.name} has no value here")
                return found
            case list() | tuple():
                return [self._argument(y) for y in x]
            case torch.SymInt():
                return int_from_torch(x)
            case _:
                return x

    # -- numbers ----------------------------------------------------------------------------------------------------
    def _scalar(self, node: fx.Node, value: object) -> Any:
        """Arithmetic on Python numbers, symbolic sizes and elements read with ``item``."""
        match value:
            case bool() | int() | float():
                return value
            case torch.SymInt():
                try:
                    return int_from_torch(value)
                except NotCovered:
                    return None
            case torch.SymFloat():
                return self._scalar_float(node)
            case _:
                return None

    def _scalar_float(self, node: fx.Node) -> Expr | None:
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and _op_name(target)[0] in ("item", "_local_scalar_dense"):
            source = self.env.get(node.args[0])  # type: ignore[arg-type]
            return cast(source(()), DType.FLOAT64) if isinstance(source, Value) else None
        name = getattr(node.target, "__name__", "").strip("_").removeprefix("sym_")
        fn = _SCALAR.get(name)
        try:
            args = tuple(_float(self._argument(a)) for a in node.args)
        except NotCovered:
            return None
        if name == "float":
            return args[0]
        return None if fn is None else apply(fn, args, DType.FLOAT64)

    # -- definitions ------------------------------------------------------------------------------------------------
    def reduce(
        self, reducer: Reducer, kept: Sequence[Int], over: Sequence[Int], body: Body, dtype: DType, role: str = ""
    ) -> Value:
        rows, places = _dropped(kept, _KEPT)
        cols, inner = _dropped(over, _OVER)
        if not cols:
            zeros = tuple(ZERO for _ in over)
            return Value(kept, dtype, lambda ix: body(ix, zeros))
        element = body(_at(rows, places, len(kept)), _at(cols, inner, len(over)))
        name = self._define(lambda n, o: Reduce(n, rows, cols, reducer, element, dtype, o), role)
        return Value(kept, dtype, lambda ix: load(name, tuple(ix[p] for p in places), dtype))

    def select(
        self, reducer: Reducer, kept: Sequence[Int], over: Int, body: Body, dtype: DType, k: Int | None, role: str = ""
    ) -> tuple[Value, Value]:
        rows, places = _dropped(kept, _KEPT)
        axis, slots = Axis("l", over), None if k is None else Axis("k", k)
        element = body(_at(rows, places, len(kept)), (as_int(axis),))
        name = self._define(lambda n, o: Reduce(n, rows, (axis,), reducer, element, dtype, o, slots), role)
        shape = [*kept, k] if k is not None else list(kept)
        read = [*places, len(kept)] if k is not None else places

        def part(which: Part, d: DType) -> Value:
            return Value(shape, d, lambda ix: load(name, tuple(ix[p] for p in read), d, which))

        return part(Part.VALUE, dtype), part(Part.INDEX, DType.INT64)

    def _define(self, make: Callable[[str, Origin], Definition], role: str) -> str:
        node = self.current
        assert node is not None
        base = name_of(node)
        name = self._unique(f"{base}_{role}" if role else base)
        self.definitions.append(make(name, origin_of(node)))
        self.node_of[name] = node
        return name

    def _stored(self, value: Value) -> Value:
        """The same value as a definition of its own."""
        axes, places = _dropped(value.shape, _KEPT)
        body = exactly(value(_at(axes, places, value.rank)), value.dtype)
        name = self._define(lambda n, o: Map(n, axes, body, value.dtype, o), "")
        return Value(value.shape, value.dtype, lambda ix: load(name, tuple(ix[p] for p in places), value.dtype))

    def output(self, node: fx.Node) -> None:
        value: Value = self.env[node]
        axes = _axes(value.shape, _KEPT)
        index = tuple(ZERO if a.size.value == 1 else as_int(a) for a in axes)
        base = name_of(node)
        name = self._unique(f"{base}_out" if base in self.names else base)
        body = exactly(value(index), value.dtype)
        self.definitions.append(Map(name, axes, body, value.dtype, origin_of(node)))
        self.node_of[name] = node
        self.outputs.append(Output(name))

    def _unique(self, text: str) -> str:
        base = name = identifier(text)
        n = 2
        while name in self.names:
            name, n = f"{base}_{n}", n + 1
        self.names.add(name)
        return name

    # -- what is not covered ----------------------------------------------------------------------------------------
    def _opaque(self, node: fx.Node, why: str) -> Any:
        self._refuse(node, why)
        return self._opaque_one(node)

    def _opaque_one(self, node: fx.Node) -> Any:
        """The result of an operation that is not covered: an input of the program, as if the caller had given it."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return None
        try:
            return self._input(node, value, name_of(node))
        except NotCovered:
            return None

    def _refuse(self, node: fx.Node, why: str) -> None:
        self.read_outside += [n for n in node.all_input_nodes if n not in self.read_outside]
        op = str(node.target).removeprefix("aten.")
        key = node.op if node.op == "placeholder" else op.partition(".")[0]
        hint = _HINTS.get(key, "what comes before and after it still fuses; compute it outside the chain")
        self.refusals.append(Refusal(f"{name_of(node)} ({op})", RefusalKind.OPAQUE_OP, why, hint, where_of(node)))


_HINTS = {
    "softmax": "softmax takes floats: convert first, as x.float().softmax(-1)",
    "log_softmax": "log_softmax takes floats: convert first, as x.float().log_softmax(-1)",
    "dropout": "it fuses with p=0 and in eval mode; what comes before and after fuses on its own",
    "sort": "sorting needs the whole row; if the k largest or smallest are enough, torch.topk fuses",
    "median": "a median needs the whole row; what comes before and after still fuses",
    "cumsum": "a scan is no reduction; what comes before and after still fuses",
    "placeholder": "view complex tensors as real ones, with torch.view_as_real",
}
_SCALAR = {
    "add": Fn.ADD, "sub": Fn.SUB, "mul": Fn.MUL, "truediv": Fn.DIV, "neg": Fn.NEG, "pow": Fn.POW, "sqrt": Fn.SQRT,
    "rsqrt": Fn.RSQRT, "exp": Fn.EXP, "log": Fn.LOG,
}  # fmt: skip


def _float(x: Scalar) -> Expr:
    match x:
        case bool() | int() | float():
            return const(float(x), DType.FLOAT64)
        case Int():
            return cast(position(x), DType.FLOAT64)
        case Value():
            raise NotCovered("a tensor where a number is expected")
        case _:
            return cast(x, DType.FLOAT64)


def _op_name(target: torch._ops.OpOverload) -> tuple[str, str]:
    return target._schema.name.split("::")[1], target._overloadname


def _tensors(value: object) -> bool:
    return any(isinstance(v, torch.Tensor) for v in pytree.tree_leaves(value))


def _list(x: Any) -> list[Any]:
    return list(x) if isinstance(x, list | tuple) else [x]


def _attribute(gm: fx.GraphModule, name: str) -> object:
    found: object = gm
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _literal(gm: fx.GraphModule, node: fx.Node) -> bool | int | float | None:
    """The number that a program wrote where torch needs a tensor: ``x[0] = 1.0``."""
    if node.op != "get_attr":
        return None
    found = _attribute(gm, str(node.target))
    found = getattr(found, "constant", None) if isinstance(found, FakeTensor) else found
    if type(found) is not torch.Tensor or found.dim() or found.device.type != "cpu" or found.requires_grad:
        return None
    number: bool | int | float = found.item()
    return number


def axis_names(n: int, pool: tuple[str, ...]) -> list[str]:
    """Short names, the innermost ones always the same: ``b h i j`` for four kept axes."""
    if n in _FEW:
        return _FEW[n]
    return [f"{pool[0]}{x}" for x in range(n - len(pool))] + list(pool[max(len(pool) - n, 0) :])


def _axes(shape: Sequence[Int], pool: tuple[str, ...]) -> tuple[Axis, ...]:
    names = axis_names(len(shape), pool) if pool is _KEPT else [pool[min(n, len(pool) - 1)] for n in range(len(shape))]
    return tuple(Axis(n, s) for n, s in zip(names, shape, strict=True))


def _dropped(sizes: Sequence[Int], pool: tuple[str, ...]) -> tuple[tuple[Axis, ...], list[int]]:
    """Axes for the dimensions whose length is not 1, and which dimensions those are."""
    places = [n for n, s in enumerate(sizes) if s.value != 1]
    return _axes([sizes[p] for p in places], pool), places


def _at(axes: tuple[Axis, ...], places: list[int], rank: int) -> tuple[Int, ...]:
    out = [ZERO] * rank
    for a, p in zip(axes, places, strict=True):
        out[p] = as_int(a)
    return tuple(out)
