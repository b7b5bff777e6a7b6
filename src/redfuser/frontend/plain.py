"""A cut as ordinary PyTorch code, a statement for each operation under the lines of the user that it came from."""

from __future__ import annotations

import operator
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx

from redfuser.frontend.kinds import is_tensor, op_of
from redfuser.frontend.origins import name_of, where_of

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "eq": "==", "ne": "!=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "pow": "**", "remainder": "%",
    "floor_divide": "//",
}  # fmt: skip
_NUMBERS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.floordiv: "//", operator.mod: "%",
    operator.truediv: "/", operator.neg: "-",
}  # fmt: skip


def plain(module: fx.GraphModule, parameters: Sequence[str], taken: Sequence[str]) -> tuple[list[str], list[str]]:
    """The statements, and an expression for each result. ``parameters`` name the placeholders."""
    return _Printer(parameters, taken).print(module)


class _Printer:
    def __init__(self, parameters: Sequence[str], taken: Sequence[str]) -> None:
        self.parameters = list(parameters)
        self.used = {*parameters, *taken}
        self.names: dict[fx.Node, str] = {}
        self.device = ""

    def print(self, module: fx.GraphModule) -> tuple[list[str], list[str]]:
        lines: list[str] = []
        results: list[str] = []
        before = ""
        places = iter(self.parameters)
        for n in module.graph.nodes:
            if n.op == "placeholder":
                self.names[n] = next(places)
                if is_tensor(n) and (not self.device or n.meta["val"].dim()):
                    self.device = self.device or f"{self.names[n]}.device"
            elif n.op == "output":
                results = [self.value(x) for x in n.args[0]]
            else:
                where = where_of(n)
                if where is not None and where.text and where.text != before:
                    before = where.text
                    lines += textwrap.wrap(before, 100, initial_indent="# ", subsequent_indent="#     ")
                text = self.call(n)
                self.names[n] = self.new(name_of(n))
                lines.append(f"{self.names[n]} = {text}")
        return lines, results

    def new(self, wish: str) -> str:
        name, n = wish, 2
        while name in self.used:
            name, n = f"{wish}_{n}", n + 1
        self.used.add(name)
        return name

    def value(self, x: Any) -> str:
        match x:
            case fx.Node():
                return self.names[x]
            case torch.dtype() if x.is_floating_point:
                return f"precision or {x}"
            case torch.device():
                return self.device
            case float() if x != x or x in (float("inf"), float("-inf")):
                return f'float("{x}")'
            case tuple() | list():
                return f"[{', '.join(self.value(i) for i in x)}]"
            case slice():
                raise ValueError("a slice is an operation of its own")
            case _:
                return str(x) if isinstance(x, torch.dtype | torch.memory_format | torch.layout) else repr(x)

    def call(self, n: fx.Node) -> str:
        op = op_of(n)
        if op is None:
            return self.other(n)
        target: Any = n.target
        args = [self.value(x) for x in n.args]
        kwargs = {k: self.value(x) for k, x in n.kwargs.items() if x is not None and k not in ("pin_memory", "layout")}
        overload = target._overloadname
        if op in ("_to_copy", "to") and (len(args) == 1 or overload == "dtype"):
            kind = kwargs.get("dtype") or (args[1] if len(args) > 1 else "")
            return f"{args[0]}.to({kind})" if kind else args[0]
        if op in ("div",) and kwargs.get("rounding_mode"):
            return f"torch.div({_listed(args, kwargs)})"
        if _INFIX.get(op) and len(args) == 2 and not kwargs and n.args:
            return f"{args[0]} {_INFIX[op]} {args[1]}"
        if op == "bitwise_not":
            return f"~{args[0]}"
        if op in ("add", "sub", "rsub") or op.startswith("_") or not self.public(op, n):
            return f"torch.ops.{target}({_listed(args, kwargs)})"
        if callable(getattr(torch, op, None)):
            return f"torch.{op}({_listed(args, kwargs)})"
        return f"{args[0]}.{op}({_listed(args[1:], kwargs)})"

    @staticmethod
    def public(op: str, n: fx.Node) -> bool:
        """True where the same arguments call the function of that name in ``torch``, or the method of a tensor."""
        if callable(getattr(torch, op, None)):
            return True
        first = n.args[0] if n.args else None
        return isinstance(first, fx.Node) and is_tensor(first) and hasattr(torch.Tensor, op)

    def other(self, n: fx.Node) -> str:
        args = [self.value(x) for x in n.args]
        if n.target is operator.getitem:
            return f"{args[0]}[{args[1]}]"
        if n.target in _NUMBERS:
            sign = _NUMBERS[n.target]
            return f"{sign}{args[0]}" if len(args) == 1 else f"{args[0]} {sign} {args[1]}"
        raise ValueError(f"{n.target} has no plain form")


def _listed(args: Sequence[str], kwargs: Mapping[str, str]) -> str:
    return ", ".join([*args, *(f"{k}={v}" for k, v in kwargs.items())])
