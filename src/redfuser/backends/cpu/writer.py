"""The state of printing one kernel: lines, names, where values lie, and memory for those that stay in a tile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from redfuser.backends.cpu.expr import Scope, convert, show_int
from redfuser.backends.cpu.layout import Kind, Layout, kind_of
from redfuser.index.ints import Axis, Int, Size, as_int
from redfuser.tile.names import Names
from redfuser.tile.nodes import Kernel, Program, Role, Statement, Value, outputs_of
from redfuser.tile.nodes import Kind as TensorKind
from redfuser.tile.uses import every, uses_of

RUNTIME = Path(__file__).parent / "runtime"
ON_STACK = 2048  # bytes of a value that the compiler may keep in registers
_BYTES = {
    "float": 4,
    "tile_bf16": 4,
    "i32": 4,
    "bf16": 2,
    "f16": 2,
    "i16": 2,
    "b8": 1,
    "u8": 1,
    "i8": 1,
    "e4m3": 1,
    "e5m2": 1,
}  # else 8
HELD = "tile_bf16"
"""What a tile keeps the bfloat16 numbers of a dot in: as they are, or widened where the machine has no products of them."""
WIDEST = 16  # lanes of the widest vector
FIRST_TENSOR = 4  # the arguments before: threads, and a matrix product

_KEYWORDS = """
alignas alignof and asm auto bool break case catch char class compl const constexpr continue default delete do double else
enum explicit export extern false float for friend goto if inline int long mutable namespace new not operator or private
protected public register return short signed sizeof static struct switch template this throw true try typedef typeid
typename union unsigned using virtual void volatile while xor a m u U W memory first last point rest count
"""


@cache
def runtime_text() -> str:
    """The runtime header and what it includes, in the order in which they are included."""
    names = ("lanes", "numbers", "functions", "loops", "dots", "lists", "team", "redfuser")
    return "\n".join((RUNTIME / f"{n}.h").read_text() for n in names)


@cache
def reserved() -> frozenset[str]:
    """Words that no name of a kernel may be."""
    text = runtime_text()
    named = re.findall(r"\b([A-Za-z_]\w+)\s*\(", text) + re.findall(r"#define (\w+)", text)
    named += re.findall(r"(?:struct|using|enum) (\w+)", text) + re.findall(r"\b([A-Za-z_]\w+);", text)
    return frozenset(_KEYWORDS.split()) | frozenset(named)


@dataclass(frozen=True, slots=True)
class Form:
    """``lanes``: the role whose axes lie along lanes, None for the printer's choice; ``wide``: positions of 64 bits."""

    lanes: Role | None = None
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a value lies: a variable, or memory with a step for each of its axes. ``element``: the type stored there."""

    pointer: str
    kind: Kind
    element: str
    steps: Mapping[Axis, str]
    variable: bool = False
    packed: bool = False  # in memory of the tile, its lanes padded to whole vectors

    def address(self, at: Callable[[Axis], str]) -> str:
        terms = [_product(at(a), s) for a, s in self.steps.items()]
        return " + ".join([self.pointer, *(t for t in terms if t != "0")])


def _product(a: str, b: str) -> str:
    if a == "0" or b == "0":
        return "0"
    if b == "1":
        return a
    return f"{a if a.isidentifier() else f'({a})'} * {b if b.isidentifier() or b.isdigit() else f'({b})'}"


class Arguments:
    """What a program is called with, in order: the threads, pointers of tensors, their strides, lengths."""

    def __init__(self, p: Program, sizes: Iterable[str], names: Names) -> None:
        self.names: dict[str, str] = {t.name: names.new(identifier(t.name)) for t in p.tensors}
        self.sizes = {s: names.new(identifier(s)) for s in sizes}
        self.place: dict[str, int] = {}
        n = FIRST_TENSOR
        for t in p.tensors:
            self.place[self.names[t.name]] = n
            n += 1
        self.strides: dict[tuple[str, int], str] = {}
        for t in p.tensors:
            for d in range(len(t.shape)):
                name = self.strides[t.name, d] = names.new(f"{self.names[t.name]}_{d}")
                self.place[name] = n
                n += 1
        for text in self.sizes.values():
            self.place[text] = n
            n += 1
        self.count = n


def identifier(name: str) -> str:
    text = re.sub(r"\W", "_", name)
    return text if text and not text[0].isdigit() else f"v{text}"


@dataclass(slots=True)
class Frame:
    """Memory that the values of a block take: its own, and the most that one of the blocks inside it takes."""

    fixed: int = 0
    own: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> str:
        own = " + ".join([*([str(self.fixed)] if self.fixed else []), *self.own]) or "0"
        if not self.inside:
            return own
        most = self.inside[0]
        for x in self.inside[1:]:
            most = most if x == most else f"imax({most}, {x})"
        return f"{own} + {most}" if own != "0" else most


class Writer:
    def __init__(self, p: Program, k: Kernel, form: Form, arguments: Arguments, names: Names) -> None:
        self.program, self.k, self.form, self.arguments = p, k, form, arguments
        self.layout = Layout(k, form.lanes)
        self.names = Names(
            [*reserved(), *arguments.names.values(), *arguments.strides.values(), *arguments.sizes.values()]
        )
        self.name = names.new(identifier(k.name))
        self.axis_names = {t.axis: self.names.new(identifier(t.axis.name)) for t in k.axes}
        self.firsts = {t.axis: self.names.new(f"{self.axis_names[t.axis]}_first") for t in k.axes}
        self.counts = {t.axis: self.names.new(f"{self.axis_names[t.axis]}_n") for t in k.axes}
        self.ends = {t.first: t.axis for t in k.axes} | {t.last: t.axis for t in k.axes}
        self.lasts = frozenset(t.last for t in k.axes)
        self.tensors = {t.name: t for t in p.tensors}
        self.lines: list[str] = []
        self.depth = 1
        self.values: dict[str, Value] = {v.name: v for s in every(k.body) for v in outputs_of(s)}
        self.slots: dict[str, Slot] = {}
        self.identifiers: dict[str, str] = {}
        self.registers: dict[str, str] = {}
        self.used: dict[str, None] = {}
        self.frames = [Frame()]
        self.held: frozenset[str] = frozenset()  # values that a tile keeps as HELD
        self.exact: dict[Axis, bool] = {}  # axes whose tiles are whole vectors here
        self.users: dict[str, list[Statement]] = {}
        for s in every(k.body):
            for n in uses_of(s):
                self.users.setdefault(n, []).append(s)

    # -- lines -------------------------------------------------------------------------------------------------------
    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def open(self, text: str) -> None:
        self.line(f"{text} {{" if text else "{")
        self.depth += 1

    def close(self, text: str = "}") -> None:
        self.depth -= 1
        self.line(text)

    # -- names -------------------------------------------------------------------------------------------------------
    def ident(self, name: str) -> str:
        if name not in self.identifiers:
            self.identifiers[name] = self.names.new(identifier(name))
        return self.identifiers[name]

    def register(self, name: str) -> str:
        """The variable that holds a value, or a vector of it, inside a nest."""
        if name not in self.registers:
            self.registers[name] = self.names.new(f"{self.ident(name)}_")
        return self.registers[name]

    def argument(self, name: str) -> str:
        self.used[name] = None
        return name

    def size(self, s: Size) -> str:
        return self.argument(self.arguments.sizes[s.name])

    def stride(self, tensor: str, dim: int) -> str:
        return self.argument(self.arguments.strides[tensor, dim])

    # -- positions and lengths ---------------------------------------------------------------------------------------
    def position(self, axis: Axis, at: Callable[[Axis], str]) -> str:
        """The position of an axis, ``at`` positions into its tile; or an end of its block."""
        if axis in self.ends:
            base = self.ends[axis]
            if base in self.layout.single:
                return self.axis_names[base]
            return f"{self.firsts[base]} + {self.counts[base]} - 1" if axis in self.lasts else self.firsts[base]
        if axis in self.layout.single:
            return self.axis_names[axis]
        inside = at(axis)
        return self.firsts[axis] if inside == "0" else f"{self.firsts[axis]} + {inside}"

    def number(self, i: Int, at: Callable[[Axis], str] = lambda a: "0") -> str:
        return show_int(i, self.scope(None, at, lambda n: self.scalar(n, at)))

    def scope(self, lane: Axis | None, at: Callable[[Axis], str], value: Callable[[str], tuple[str, Kind]]) -> Scope:
        return Scope(
            lane, value, lambda a: self.position(a, at), self.size, lambda n: self.layout.many(self.values[n].axes),
            self.form.wide,
        )  # fmt: skip

    def length(self, axis: Axis) -> str:
        """Positions of an axis in the tile at hand."""
        return self.counts[axis]

    def room(self, axis: Axis, lane: bool) -> str:
        """Positions of an axis that a tile's memory has; whole vectors along the lanes."""
        n = self.layout.capacity(axis)
        if n is not None:
            return str(-(-n // WIDEST) * WIDEST if lane else n)
        size = self.number(as_int(axis.size))
        return f"padded({size})" if lane else size

    # -- memory ------------------------------------------------------------------------------------------------------
    def take(self, name: str, element: str, rooms: list[str]) -> str:
        """Memory for a value; the name of its pointer."""
        constant = all(r.isdigit() for r in rooms)
        if constant:
            n = 1
            for r in rooms:
                n *= int(r)
            if 8 * n <= ON_STACK:
                self.line(f"alignas(64) {element} {name}[{n}];")
                return name
            count = str(n)
        else:
            count = " * ".join(rooms)
        self.line(f"{element} *{name} = take<{element}>({self.arena}, {count});")
        if constant:
            self.frames[-1].fixed += -(-int(count) * _BYTES.get(element, 8) // 64) * 64
        else:
            self.frames[-1].own.append(f"cdiv({count} * (i64)sizeof({element}), 64) * 64")
        return name

    @property
    def arena(self) -> str:
        return "m" if len(self.frames) == 1 else f"m{len(self.frames) - 1}"

    def tile(self, v: Value, element: str | None = None, name: str | None = None) -> Slot:
        """Memory of the tile for a value: its axes in the order of the layout, the lanes last."""
        kind = kind_of(v.dtype)
        element = element or (HELD if v.name in self.held else kind.element)
        order, lane = self.layout.order(v.axes), self.layout.lane(v.axes)
        rooms = [self.room(a, a is lane) for a in order]
        pointer = self.take(name or self.ident(v.name), element, rooms or ["1"])
        steps: dict[Axis, str] = {}
        for n, a in enumerate(order):
            rest = rooms[n + 1 :]
            constant = all(r.isdigit() for r in rest)
            product = 1
            for r in rest if constant else ():
                product *= int(r)
            steps[a] = str(product) if constant else " * ".join(rest)
        return Slot(pointer, kind, element, steps, packed=True)

    # -- values ------------------------------------------------------------------------------------------------------
    def scalar(self, name: str, at: Callable[[Axis], str]) -> tuple[str, Kind]:
        """One element of a value."""
        s = self.slots[name]
        if s.variable:
            return s.pointer, s.kind
        if s.kind is Kind.MASK and s.element == "mask":
            return f"(*({s.address(at)}) != 0)", s.kind
        return f"get({s.address(at)})", s.kind

    def vector(self, name: str, at: Callable[[Axis], str], lane: Axis) -> str:
        """The elements of a value along a lane axis that it spans, or one of them in every lane."""
        s = self.slots[name]
        if lane not in s.steps:
            return f"bc({convert(*self.scalar(name, at), kind_of(self.values[name].dtype))})"
        if s.kind is Kind.MASK and s.element == "mask":
            return f"kept({s.address(at)})"
        return f"ld({s.address(at)})"

    def is_output(self, tensor: str) -> bool:
        return self.tensors[tensor].kind is not TensorKind.INPUT
