"""Operations on whole tiles: dots by the micro-kernel, and lists of the best with their positions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from redfuser.backends.cpu.expr import show_const
from redfuser.backends.cpu.layout import FEWEST, Kind, Layout, kind_of
from redfuser.backends.cpu.nests import Nests
from redfuser.backends.cpu.writer import Slot
from redfuser.index.expr import Apply, Cast, Const, DType, Expr, Fn, Ref
from redfuser.index.ints import Axis, as_int
from redfuser.index.nodes import Reducer
from redfuser.tile.nodes import Dot, Guard, Kernel, Map, Rename, Select, SelectMerge, Statement, Value, outputs_of
from redfuser.tile.nodes import Read as ReadNode
from redfuser.tile.strategy import Unsupported
from redfuser.tile.uses import every, uses_of

_LONGEST_LIST = 64
_ORDER = {
    Reducer.TOPK: "LARGEST",
    Reducer.ARGMAX: "LARGEST",
    Reducer.ARGMIN: "SMALLEST",
    Reducer.BOTTOMK: "SMALLEST_NAN_LAST",
}


def micro_dots(k: Kernel, layout: Layout) -> frozenset[int]:
    """The dots of a kernel that the micro-kernel computes, by id: their lanes come from one of the operands."""
    values = {v.name: v for s in every(k.body) for v in outputs_of(s)}
    read = {s.out.name for s in every(k.body) if isinstance(s, ReadNode)}
    found = set()
    for s in every(k.body):
        if not isinstance(s, Dot):
            continue
        left, right, kind = values[s.left], values[s.right], kind_of(s.out.dtype)
        lane = layout.lane(s.out.axes)
        if lane is None or (lane in left.axes) == (lane in right.axes) or not layout.many(s.over):
            continue
        if all(kind_of(v.dtype) is kind for v in (left, right)) or all(
            v.name in read and v.dtype is not DType.BOOL for v in (left, right)
        ):
            found.add(id(s))
    return frozenset(found)


def held_values(k: Kernel, layout: Layout, micro: frozenset[int]) -> frozenset[str]:
    """Values that are bfloat16 numbers, read or rounded, and that the micro-kernel multiplies by others of the kind.

    Pairs of them are put side by side first, which only a dot of many rows pays for.
    """
    made = {v.name: s for s in every(k.body) for v in outputs_of(s)}
    values = {v.name: v for s in every(k.body) for v in outputs_of(s)}
    found: set[str] = set()
    for s in every(k.body):
        if not isinstance(s, Dot) or id(s) not in micro or kind_of(s.out.dtype) is not Kind.FLOAT:
            continue
        wide, thin = (s.left, s.right) if layout.lane(s.out.axes) in values[s.left].axes else (s.right, s.left)
        rows = layout.many(s.out.axes & values[thin].axes - values[wide].axes)
        many = any((layout.capacity(a) or FEWEST) >= FEWEST for a in rows)
        if many and all(_is_rounded(n, made) for n in (wide, thin)):
            found |= {wide, thin}
    return frozenset(found) - {
        n for s in every(k.body) if isinstance(s, Select | SelectMerge | Rename) for n in uses_of(s)
    }


def _is_rounded(name: str, made: Mapping[str, Statement]) -> bool:
    """True where every number of a value is a bfloat16 number, as it is computed here: as a float."""
    match made[name]:
        case ReadNode(out=v):
            return v.dtype is DType.BFLOAT16
        case Map(out=v, expr=e):
            return v.dtype is DType.BFLOAT16 and _rounds(e, made)
        case Guard(out=v, arg=arg, fill=fill):
            return v.dtype is DType.BFLOAT16 and _is_rounded(arg, made) and _rounds(fill, made)
        case _:
            return False


def _rounds(e: Expr, made: Mapping[str, Statement]) -> bool:
    match e:
        case Ref():
            return e.name in made and _is_rounded(e.name, made)
        case Const():
            return e.value in (0, 1) or math.isinf(float(e.value))
        case Apply(fn=Fn.WHERE, args=(_, a, b)):
            return _rounds(a, made) and _rounds(b, made)
        case Cast() | Apply():
            return e.dtype is DType.BFLOAT16
        case _:
            return False


class Operations(Nests):
    def dot(self, s: Dot) -> None:
        lane = self.layout.lane(s.out.axes)
        assert lane is not None
        wide, thin = (s.left, s.right) if lane in self.values[s.left].axes else (s.right, s.left)
        b, a, c = self.slots[wide], self.slots[thin], self.place_of(s.out)
        add = s.add is not None
        if s.add is not None and self.slots[s.add] is not c:
            self.copy(self.values[s.add], self.slots[s.add], s.out, c)
        self.slots[s.out.name] = c
        over = [x for x in self.layout.order(s.over) if x in a.steps or x in b.steps]
        inner = max(over, key=lambda x: self.layout.capacity(x) or 2**30)
        m = max(
            (x for x in self.layout.order(s.out.axes) if x is not lane and x in a.steps and x not in b.steps),
            key=lambda x: self.layout.capacity(x) or 2**30,
            default=None,
        )
        loops = [x for x in self.layout.order(s.out.axes) if x is not lane and x is not m]
        count, loops = self._flattened(a, b, c, lane, loops)
        more = [x for x in over if x is not inner]
        for x in [*loops, *more]:
            n = self.axis_names[x]
            self.open(f"for (i64 {n} = 0; {n} < {self.length(x)}; {n}++)")

        def at(x: Axis) -> str:
            return self.axis_names[x] if x in loops or x in more else "0"

        first = " || ".join(["true" if add else "", *(f"{self.axis_names[x]} > 0" for x in more)]).removeprefix(" || ")
        first = "true" if add else first or "false"
        rows = (self.length(m), a.steps[m], c.steps[m]) if m is not None else ("1", "0", "0")
        self.line(
            f"dot({rows[0]}, {count}, {self.length(inner)}, {self._whole(a, at)}, {rows[1]}, {a.steps.get(inner, '0')}, "
            f"{self._whole(b, at)}, {b.steps.get(inner, '0')}, {b.steps[lane]}, {c.address(at)}, {rows[2]}, {first});"
        )
        for _ in [*loops, *more]:
            self.close()

    def _flattened(self, a: Slot, b: Slot, c: Slot, lane: Axis, loops: list[Axis]) -> tuple[str, list[Axis]]:
        """Columns of the dot: the lanes, and the axis beside them where both sides keep the two side by side."""
        if b.packed and c.packed:
            for x in loops:
                step = b.steps.get(x)
                if (
                    x not in a.steps
                    and step is not None
                    and step.isdigit()
                    and step == c.steps.get(x)
                    and step == self.room(lane, True)
                ):
                    return f"{self.length(x)} * {step}", [y for y in loops if y is not x]
        return self.length(lane), loops

    def _whole(self, s: Slot, at: object) -> str:
        assert callable(at)
        return f"&{s.pointer}" if s.variable else s.address(at)

    def copy(self, source: Value, have: Slot, target: Value, slot: Slot) -> None:
        """The elements of one value in the memory of another; axes that it lacks are filled."""
        lane = self.layout.lane(target.axes)
        assert lane is not None
        order = [a for a in self.layout.order(target.axes) if a is not lane]
        for a in order:
            self.open(
                f"for (i64 {self.axis_names[a]} = 0; {self.axis_names[a]} < {self.length(a)}; {self.axis_names[a]}++)"
            )
        n = self.axis_names[lane]

        def at(a: Axis) -> str:
            return self.axis_names[a]

        call, x = "keep" if slot.element == "mask" else "st", self.vector(source.name, at, lane)
        self.line(f"for (i64 {n} = 0; {n} < {self.length(lane)}; {n} += W) {call}({slot.address(at)}, {x});")
        for _ in order:
            self.close()

    # -- lists ---------------------------------------------------------------------------------------------------------
    def select(self, s: Select) -> None:
        k = self._list_length(s.k)
        x, out, index = self.slots[s.arg], self.place_of(s.out), self.place_of(s.index)
        self.slots[s.out.name], self.slots[s.index.name] = out, index
        for v, slot in ((s.out, out), (s.index, index)):
            if slot.variable:
                self.line(f"{slot.kind.scalar} {slot.pointer};")
            del v
        kind = kind_of(s.out.dtype)
        if kind is Kind.MASK:
            raise Unsupported("positions of the best of booleans")
        worst = show_const(s.reducer.identity(s.out.dtype).value, kind)
        order = _ORDER[s.reducer]
        lane = self.layout.lane(self.values[s.arg].axes)
        start = self.position(s.over, lambda a: "0")
        n = self.length(s.over) if s.over not in self.layout.single else "1"
        rows = [a for a in self.layout.order(self.values[s.arg].axes) if a is not s.over]
        if lane is not None and lane is not s.over and s.out.axes and self.layout.lane(s.out.axes) is lane:
            rows.remove(lane)
            call = f"best_of_rows<{k}, {order}>({self.length(lane)}, "
        else:
            call = f"best_of_lanes<{k}, {order}>("
        for a in rows:
            self.open(
                f"for (i64 {self.axis_names[a]} = 0; {self.axis_names[a]} < {self.length(a)}; {self.axis_names[a]}++)"
            )

        def at(a: Axis) -> str:
            return self.axis_names[a] if a in rows else "0"

        if call.startswith("best_of_rows"):
            step = x.steps.get(s.over, "0")
            apart = self._slot_step(out, s.k)
            self.line(
                f"{call}{x.address(at)}, {step}, {n}, {start}, {worst}, {out.address(at)}, {index.address(at)}, {apart});"
            )
        else:
            pairs = ", ".join(f"{self._whole(y, at)}, {self._slot_step(y, s.k)}" for y in (out, index))
            self.line(f"{call}{self._whole(x, at)}, {n}, {start}, {worst}, {pairs});")
        for _ in rows:
            self.close()

    def _slot_step(self, s: Slot, k: Axis | None) -> str:
        return s.steps.get(k, "0") if k is not None else "0"

    def _list_length(self, k: Axis | None) -> int:
        n = 1 if k is None else as_int(k.size).value
        if n is None or n > _LONGEST_LIST:
            raise Unsupported(f"a list of the best {'whose length is not fixed' if n is None else n} in a tile")
        return n

    def merge_lists(self, s: SelectMerge) -> None:
        k = self._list_length(s.k)
        order = _ORDER[s.reducer]
        out, index = self.place_of(s.out), self.place_of(s.index)
        sides = [self.slots[n] for n in (s.left, s.left_index, s.right, s.right_index)]
        for slot in (out, index):
            if slot.variable:
                self.line(f"{slot.kind.scalar} {slot.pointer};")
        self.slots[s.out.name], self.slots[s.index.name] = out, index
        lane = self.layout.lane(s.out.axes)
        rows = [a for a in self.layout.order(s.out.axes) if a is not s.k]
        spans = all(lane in y.steps for y in sides)
        by_rows = (
            lane is not None
            and lane is not s.k
            and spans
            and all(y.element in ("float", "double", "i32", "i64") for y in sides)
        )
        if by_rows:
            rows = [a for a in rows if a is not lane]
        for a in rows:
            self.open(
                f"for (i64 {self.axis_names[a]} = 0; {self.axis_names[a]} < {self.length(a)}; {self.axis_names[a]}++)"
            )

        def at(a: Axis) -> str:
            return self.axis_names[a] if a in rows else "0"

        p = [self._whole(y, at) for y in (*sides, out, index)]
        t = [self._slot_step(y, s.k) for y in (*sides, out, index)]
        if by_rows:
            assert lane is not None
            pairs = ", ".join(f"{x}, {y}" for x, y in zip(p, t, strict=True))
            self.line(f"merge_rows<{k}, {order}>({self.length(lane)}, {pairs});")
        else:
            pairs = ", ".join(f"{x}, {y}" for x, y in zip(p, t, strict=True))
            self.line(f"merge_lists<{k}, {order}>({pairs});")
        for _ in rows:
            self.close()
