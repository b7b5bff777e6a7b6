"""Loop nests: element by element without lanes, vector by vector with them, and sums that stay in registers.

for (i64 j …)                            kept axes, the lanes innermost
over<4>(i_n, …)  { for (i64 l …) }       several vectors of a kept lane axis, each with its own accumulator
each<4>(l_n, …)                          lanes that are reduced: several accumulators, joined at the end
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from redfuser.backends.cpu.expr import Scope, convert, rounded, show, show_const
from redfuser.backends.cpu.layout import Kind, kind_of
from redfuser.backends.cpu.memory import Memory
from redfuser.backends.cpu.schedule import Nest
from redfuser.backends.cpu.writer import HELD, Slot
from redfuser.index.expr import Apply, Const, Expr, Fn, walk
from redfuser.index.ints import Axis
from redfuser.index.nodes import Reducer
from redfuser.tile.nodes import (
    Assign,
    Combine,
    Correct,
    Declare,
    Dot,
    Guard,
    Map,
    Reduce,
    Statement,
    Store,
    Value,
    outputs_of,
)
from redfuser.tile.strategy import Unsupported
from redfuser.tile.uses import uses_of

_JOIN = {
    Reducer.SUM: "Sum", Reducer.PROD: "Prod", Reducer.MAX: "Max", Reducer.MIN: "Min", Reducer.ANY: "Any",
    Reducer.ALL: "All", Reducer.LOGSUMEXP: "LogSumExp",
}  # fmt: skip
At = Callable[[Axis], str]


def joined(reducer: Reducer, kind: Kind, a: str, b: str) -> str:
    """Two partial results as one."""
    match reducer:
        case Reducer.SUM:
            return f"({a} + {b})"
        case Reducer.PROD:
            return f"({a} * {b})"
        case Reducer.LOGSUMEXP:
            return f"logaddexp({a}, {b})"
        case Reducer.ANY:
            return f"({a} | {b})"
        case Reducer.ALL:
            return f"({a} & {b})"
        case Reducer.MAX | Reducer.MIN:
            if kind is Kind.MASK:
                return f"({a} {'|' if reducer is Reducer.MAX else '&'} {b})"
            return f"{'larger' if reducer is Reducer.MAX else 'smaller'}({a}, {b})"
        case _:
            raise Unsupported(f"{reducer} of two values without positions")


def _joiner(reducer: Reducer, kind: Kind) -> str:
    if kind is Kind.MASK and reducer in (Reducer.MAX, Reducer.MIN):
        return "Any" if reducer is Reducer.MAX else "All"
    return _JOIN[reducer]


class Nests(Memory):
    kept_outside: Callable[[str, Nest], bool]
    streams: dict[Axis, int]  # the axes of the loops around, with their tiles
    ahead: dict[int, list[str]]  # by the nest, tiles of which the next one is fetched meanwhile
    place_of: Callable[[Value], Slot]

    # -- one statement -------------------------------------------------------------------------------------------------
    def computed(self, s: Statement, scope: Scope, guarded: Callable[[Axis], str | None]) -> str:
        """What a statement without a reduction makes, as text. ``guarded``: what says that an axis is in range."""
        match s:
            case Map() if s.base and kind_of(s.out.dtype) is Kind.FLOAT:
                x = show(s.expr, replace(scope, narrow=True), Kind.FLOAT)
                return convert(x, Kind.FLOAT, scope.kind(s.out.dtype))
            case Map() | Correct():
                kind = scope.kind(s.out.dtype)
                text = show(s.expr, scope, kind)
                # elements are lost below the range of float: what is compared with their sums must be too
                return f"within_float({_bare(text)})" if kind is not kind_of(s.out.dtype) and _shrinks(s.expr) else text
            case Guard():
                kind = scope.kind(s.out.dtype)
                x = convert(*scope.value(s.arg), kind)
                inside = guarded(s.axis)
                return x if inside is None else f"sel({inside}, {x}, {show(s.fill, scope, kind)})"
            case Combine():
                kind = scope.kind(s.out.dtype)
                a, b = (convert(*scope.value(n), kind) for n in (s.left, s.right))
                return rounded(joined(s.reducer, kind, a, b), s.out.dtype, kind)
            case Declare():
                if isinstance(s.init, Const):
                    return show(s.init, scope, scope.kind(s.state.dtype))
                return convert(*scope.value(s.init), scope.kind(s.state.dtype))
            case Reduce():
                return convert(*scope.value(s.arg), scope.kind(s.out.dtype))
            case Dot():
                kind = scope.kind(s.out.dtype)
                a, b = (convert(*scope.value(n), kind) for n in (s.left, s.right))
                return f"({a} * {b})"
            case _:
                raise TypeError(s)

    # -- without lanes -------------------------------------------------------------------------------------------------
    def numbers(self, nest: Nest) -> None:
        """Statements about single numbers."""

        def at(a: Axis) -> str:
            return "0"

        scope = self.scope(None, at, lambda n: self.scalar(n, at))
        for s in nest.statements:
            match s:
                case Assign():
                    slot = self.slots[s.state]
                    self.line(f"{slot.pointer} = {convert(*scope.value(s.value), slot.kind)};")
                case Store():
                    kind = self.stored_kind(s.tensor)
                    self.line(f"put({self.place(s, at)}, {convert(*scope.value(s.value), kind)});")
                case _:
                    v = outputs_of(s)[0]
                    kind = scope.kind(v.dtype)
                    text = self.computed(s, scope, lambda a: None)
                    if isinstance(s, Dot) and s.add is not None:
                        text = f"({convert(*scope.value(s.add), kind)} + {text})"
                    self.slots[v.name] = Slot(self.ident(v.name), kind, kind.scalar, {}, variable=True)
                    const = "" if isinstance(s, Declare) else "const "
                    self.line(f"{const}{kind.scalar} {self.ident(v.name)} = {_bare(text)};")

    # -- with lanes ----------------------------------------------------------------------------------------------------
    def nest(self, nest: Nest) -> None:
        lane = self.layout.lane(nest.axes)
        if lane is None:
            self.numbers(nest)
            return
        _Nest(self, nest, lane).write()


class _Nest:
    """One nest as it is written."""

    def __init__(self, w: Nests, nest: Nest, lane: Axis) -> None:
        self.w, self.nest, self.lane = w, nest, lane
        self.made = {v.name for s in nest.statements for v in outputs_of(s)}
        self.reduces = [s for s in nest.statements if isinstance(s, Reduce | Dot)]
        order = w.layout.order(nest.axes)
        self.kept = [a for a in order if a not in nest.over and a is not lane]
        self.reduced = [a for a in order if a in nest.over and a is not lane]
        self.along = lane in nest.over  # the lanes are reduced
        self.several = bool(self.reduces) and not self.along
        self.loops = [*self.kept, lane, *self.reduced] if not self.along else [*self.kept, *self.reduced, lane]
        self.depth_of = {a: n for n, a in enumerate(self.loops, 1)}
        self.regs: dict[str, tuple[str, Kind]] = {}
        self.loads: dict[int, list[str]] = {}
        self.steps: dict[str, int] = {}

    def at(self, a: Axis) -> str:
        name = self.w.axis_names[a]
        return f"{name} + u * W" if a is self.lane and self.several else name

    # -- values --------------------------------------------------------------------------------------------------------
    def leaves(self) -> list[str]:
        found: dict[str, None] = {}
        for s in self.nest.statements:
            names = uses_of(s) - ({s.add} if isinstance(s, Dot) and s.add is not None else set())
            found.update(dict.fromkeys(n for n in sorted(names) if n not in self.made))
        return list(found)

    def plan_loads(self) -> None:
        """Every value that the nest reads is loaded as far outside as it stays the same."""
        w = self.w
        chunk = self.depth_of[self.lane]
        for n in self.leaves():
            slot = w.slots[n]
            axes = [a for a in slot.steps if a in self.depth_of]
            level = max((self.depth_of[a] for a in axes), default=0)
            vector = self.lane in slot.steps
            reg, kind = w.register(n), kind_of(w.values[n].dtype)
            text = w.vector(n, self.at, self.lane)
            if self.several and vector and level == chunk:
                self.loads.setdefault(level, []).append(
                    f"{kind.vector} {reg}[U]; for (int u = 0; u < U; u++) {reg}[u] = {text};"
                )
                self.regs[n] = f"{reg}[u]", kind
            elif self.several and vector:
                self.loads.setdefault(len(self.loops) + 1, []).append(f"const {kind.vector} {reg} = {text};")
                self.regs[n] = reg, kind
            else:
                self.loads.setdefault(level, []).append(f"const {kind.vector} {reg} = {text};")
                self.regs[n] = reg, kind

    def value(self, name: str) -> tuple[str, Kind]:
        return self.regs[name]

    def inside(self, axis: Axis) -> str | None:
        """What says that lanes lie within the axis; None where all do."""
        if axis is not self.lane or self.w.exact.get(axis):
            return None
        kind = "(i32)" if not self.w.form.wide else ""
        iota = "iota()" if not self.w.form.wide else "iotal()"
        return f"mk({iota} < {kind}({self.w.length(axis)} - ({self.at(axis)})))"

    # -- writing -------------------------------------------------------------------------------------------------------
    def write(self) -> None:
        w = self.w
        outs = [v for s in self.nest.statements for v in outputs_of(s)]
        for v in outs:
            if w.kept_outside(v.name, self.nest):
                slot = w.place_of(v)
                if slot.variable:
                    w.line(f"{slot.kind.scalar} {slot.pointer};")
                self.outside(v.name, slot)
        self.plan_loads()
        scoped = bool(self.loads.get(0)) or (self.along and not self.kept)
        if scoped:
            w.open("")
        self.load(0)
        if self.several:
            self.several_vectors()
        elif self.along:
            self.reduced_lanes()
        else:
            self.plain()
        if scoped:
            w.close()

    def outside(self, name: str, slot: Slot) -> None:
        self.w.slots[name] = slot
        self.steps[name] = 1

    def load(self, level: int) -> None:
        for text in self.loads.get(level, ()):
            self.w.line(text)

    def loop(self, a: Axis) -> None:
        n, w = self.w.axis_names[a], self.w
        w.open(f"for (i64 {n} = 0; {n} < {w.length(a)}; {n}++)")
        self.load(self.depth_of[a])

    def plain(self) -> None:
        w = self.w
        for a in self.kept:
            self.loop(a)
        n = w.axis_names[self.lane]
        w.open(f"for (i64 {n} = 0; {n} < {w.length(self.lane)}; {n} += W)")
        self.fetch()
        self.load(self.depth_of[self.lane])
        self.body({})
        for _ in range(len(self.kept) + 1):
            w.close()

    def fetch(self) -> None:
        for name in self.w.ahead.get(id(self.nest), ()):
            slot = self.w.slots[name]
            if slot.steps.get(self.lane) == "1" and not slot.packed:
                self.w.line(f"fetch({slot.address(self.at)} + {self.w.streams[self.lane]});")

    def several_vectors(self) -> None:
        """Lanes are kept: the reduced loops are inside, and their sums in registers."""
        w = self.w
        for a in self.kept:
            self.loop(a)
        many = sum(text.count("[U]") for text in self.loads.get(self.depth_of[self.lane], ())) + len(self.reduces)
        n, u = w.axis_names[self.lane], 4 if many <= 3 else 2
        w.open(f"over<{u}>({w.length(self.lane)}, [&](auto count, i64 {n}) INLINE")
        w.line("constexpr int U = decltype(count)::value;")
        self.load(self.depth_of[self.lane])
        accumulators = self.accumulators("U")
        for a in self.reduced:
            self.loop(a)
        w.line("#pragma GCC unroll 8")
        w.open("for (int u = 0; u < U; u++)")
        self.load(len(self.loops) + 1)
        self.body({k: f"{v}[u]" for k, v in accumulators.items()})
        w.close()
        for _ in self.reduced:
            w.close()
        w.open("for (int u = 0; u < U; u++)")
        for s in self.reduces:
            self.finish_vector(s, f"{accumulators[s.out.name]}[u]")
        w.close()
        w.close("});")
        for _ in self.kept:
            w.close()

    def reduced_lanes(self) -> None:
        """Lanes are reduced: a few accumulators take turns, and are joined behind the loop."""
        w = self.w
        for a in self.kept:
            self.loop(a)
        u = 4 if len(self.reduces) <= 2 else 2
        accumulators = self.accumulators(str(u))
        for a in self.reduced:
            self.loop(a)
        n = w.axis_names[self.lane]
        w.open(f"each<{u}>({w.length(self.lane)}, [&](i64 {n}, int u) INLINE")
        self.fetch()
        self.load(self.depth_of[self.lane])
        self.body({k: f"{v}[u]" for k, v in accumulators.items()})
        w.close("});")
        for _ in self.reduced:
            w.close()
        for s in self.reduces:
            self.finish_number(s, accumulators[s.out.name])
        for _ in self.kept:
            w.close()

    def accumulators(self, count: str) -> dict[str, str]:
        out = {}
        for s in self.reduces:
            kind = kind_of(s.out.dtype)
            reducer = s.reducer if isinstance(s, Reduce) else Reducer.SUM
            name = out[s.out.name] = self.w.register(s.out.name)
            start = show_const(reducer.identity(s.out.dtype).value, kind)
            self.w.line(f"{kind.vector} {name}[{count}]; for (int u = 0; u < {count}; u++) {name}[u] = bc({start});")
        return out

    def body(self, accumulators: dict[str, str]) -> None:
        w = self.w
        scope = w.scope(self.lane, self.at, self.value)
        for s in self.nest.statements:
            match s:
                case Reduce() | Dot():
                    kind = kind_of(s.out.dtype)
                    x = w.computed(s, scope, self.inside)
                    reducer = s.reducer if isinstance(s, Reduce) else Reducer.SUM
                    if self.along and not self.is_guarded(s):
                        inside = self.inside(self.lane)
                        if inside is not None:
                            x = f"sel({inside}, {x}, bc({show_const(reducer.identity(s.out.dtype).value, kind)}))"
                    acc = accumulators[s.out.name]
                    w.line(f"{acc} = {_bare(joined(reducer, kind, acc, x))};")
                case Assign():
                    self.assign(s)
                case Store():
                    self.store(s)
                case _:
                    v = outputs_of(s)[0]
                    kind, reg = kind_of(v.dtype), w.register(v.name)
                    w.line(f"const {kind.vector} {reg} = {_bare(w.computed(s, scope, self.inside))};")
                    self.regs[v.name] = reg, kind
                    if v.name in self.steps:
                        self.keep(w.slots[v.name], reg)

    def is_guarded(self, s: Reduce | Dot) -> bool:
        """True when what is reduced was set to the identity beyond the end of the lanes."""
        names = [s.arg] if isinstance(s, Reduce) else [s.left, s.right]
        found = [x for x in self.nest.statements if isinstance(x, Guard) and x.out.name in names]
        return any(x.axis is self.lane for x in found)

    def keep(self, slot: Slot, reg: str) -> None:
        call = "keep" if slot.element in ("mask", HELD) else "st"
        self.w.line(f"{call}({slot.address(self.at)}, {reg});")

    def assign(self, s: Assign) -> None:
        slot = self.w.slots[s.state]
        if self.w.slots.get(s.value) is slot:
            return
        text, kind = self.regs[s.value]
        self.keep(slot, convert(text, kind, slot.kind))

    def store(self, s: Store) -> None:
        w = self.w
        text, kind = self.regs[s.value]
        text = convert(text, kind, w.stored_kind(s.tensor))
        step = w.store_step(s, self.lane)
        n = w.length(self.lane)
        if step is not None:
            self.w.line(f"st({w.place(s, self.at)}, {step}, {text}, {n} - ({self.at(self.lane)}));")
            return
        w.open(f"for (int t = 0; t < W; t++) if ({self.at(self.lane)} + t < {n})")
        element = f"{text}[t]" + (" != 0" if w.stored_kind(s.tensor) is Kind.MASK else "")
        w.line(f"put({w.place(s, lambda a: f'{self.at(a)} + t' if a is self.lane else self.at(a))}, {element});")
        w.close()

    def finish_vector(self, s: Reduce | Dot, text: str) -> None:
        slot = self.w.slots[s.out.name]
        if isinstance(s, Dot) and s.add is not None:
            text = f"{self.w.vector(s.add, self.at, self.lane)} + {text}"
        self.keep(slot, rounded(text, s.out.dtype))

    def finish_number(self, s: Reduce | Dot, accumulator: str) -> None:
        w, kind = self.w, kind_of(s.out.dtype)
        op = _joiner(s.reducer if isinstance(s, Reduce) else Reducer.SUM, kind)
        text = f"along(join({accumulator}, {op}{{}}), {op}{{}})"
        if kind is Kind.MASK:
            text = f"({text} != 0)"
        if isinstance(s, Dot) and s.add is not None:
            text = f"{convert(*w.scalar(s.add, self.at), kind)} + {text}"
        text = rounded(text, s.out.dtype)
        slot = w.slots[s.out.name]
        if slot.variable:
            w.line(f"{slot.pointer} = {text};")
        else:
            w.line(f"*({slot.address(self.at)}) = {'-' if slot.element == 'mask' else ''}{text};")


def _shrinks(e: Expr) -> bool:
    return any(isinstance(x, Apply) and x.fn in (Fn.MUL, Fn.DIV, Fn.POW) for x in walk(e))


def _bare(text: str) -> str:
    """A text without the brackets around all of it."""
    if not text.startswith("(") or not text.endswith(")"):
        return text
    depth = 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and n + 1 < len(text):
            return text
    return text[1:-1]
