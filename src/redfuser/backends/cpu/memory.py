"""Reads and stores: a tile of a tensor is used where it lies, or packed so that its lanes are side by side."""

from __future__ import annotations

from collections.abc import Callable

from redfuser.backends.cpu.layout import STORED, Kind, kind_of
from redfuser.backends.cpu.schedule import iteration
from redfuser.backends.cpu.writer import Slot, Writer
from redfuser.index.ints import Axis, Int, as_int
from redfuser.tile.nodes import Dot, Read, Rename, Select, Statement, Store, Value


class Memory(Writer):
    micro: frozenset[int]

    # -- reads ---------------------------------------------------------------------------------------------------------
    def read(self, s: Read) -> None:
        tensor, axes = self.tensors[s.tensor], self.layout.many(s.out.axes)
        stored, kind, name = STORED[tensor.dtype], kind_of(s.out.dtype), self.ident(s.out.name)
        source = self.argument(self.arguments.names[s.tensor])
        lanes, converted = self._wishes(s.out, stored)
        lane = self.layout.lane(axes)
        steps = {a: self._step(s.tensor, s.index, a) for a in self.layout.order(axes)}
        affine = not any(s.clip) and all(x is not None for x in steps.values())
        known = {a: x for a, x in steps.items() if x is not None}
        if not axes:
            self.line(f"const {stored} *{name} = {source}{self._offset(s, lambda a: '0')};")
            self.slots[s.out.name] = Slot(name, kind, stored, {})
            return
        if not affine:
            self._gather(s, source, stored, converted, lane, steps)
            return
        offset = self._offset(s, lambda a: "0")
        if converted:
            tile = self.tile(s.out)
            self._pack(tile, f"{source}{offset}", known, lane)
            self.slots[s.out.name] = tile
            return
        self.line(f"const {stored} *{name} = {source}{offset};")
        if not lanes or lane is None:
            self.slots[s.out.name] = Slot(name, kind, stored, known)
            return
        kept: dict[Axis, str] = {}
        for a, x in known.items():
            if a is not lane:
                kept[a] = self.names.new(f"{name}_{self.axis_names[a]}")
                self.line(f"i64 {kept[a]} = {x};")
        tile = self.tile(s.out, stored, self.names.new(f"{name}_packed"))
        whole = "" if self.exact.get(lane) else f" || {self.length(lane)} % W"
        self.open(f"if ({known[lane]} != 1{whole})")
        self._pack(tile, name, kept | {lane: known[lane]}, lane)
        self.line(" ".join([f"{name} = {tile.pointer};", *(f"{v} = {tile.steps[a]};" for a, v in kept.items())]))
        self.close()
        self.slots[s.out.name] = Slot(name, kind, stored, kept | {lane: "1"})

    def _wishes(self, v: Value, stored: str) -> tuple[bool, bool]:
        """Whether something reads it along its lanes, and whether something needs its elements as they are computed."""
        lane = self.layout.lane(v.axes)
        lanes = converted = False
        for s in self.users.get(v.name, ()):
            match s:
                case Dot() if id(s) in self.micro:
                    out = self.layout.lane(s.out.axes)
                    lanes |= out in v.axes and lane is out
                    converted |= stored != kind_of(s.out.dtype).element
                case Select():
                    lanes, converted = True, converted or stored != kind_of(v.dtype).element
                case Rename():
                    lanes = True
                case _:
                    at = self._lane_of_use(s)
                    lanes |= at is not None and at in v.axes
        return lanes, converted

    def _lane_of_use(self, s: Statement) -> Axis | None:
        return self.layout.lane(iteration(s, self.layout, self.values))

    def _step(self, tensor: str, index: tuple[Int, ...], axis: Axis) -> str | None:
        """How far apart two neighbours along an axis are; None where that differs from place to place."""
        terms = []
        for d, i in enumerate(index):
            if axis not in i.axes() and not any(True for _ in i.gathers()):
                continue
            k = i.coefficient(axis)
            if k is None or any(axis in self.spans_of(g) for g in i.gathers()) or self.layout.many(self._tile_axes(k)):
                return None
            if k.value != 0:
                stride = self.stride(tensor, d)
                terms.append(stride if k.value == 1 else f"{stride} * {self.number(k)}")
        return " + ".join(terms) or "0"

    def _tile_axes(self, i: Int) -> frozenset[Axis]:
        return frozenset(a for a in i.axes() if a in self.layout.tiles)

    def spans_of(self, g: object) -> frozenset[Axis]:
        from redfuser.index.expr import Ref
        from redfuser.index.ints import Gather

        assert isinstance(g, Gather) and isinstance(g.value, Ref)
        return self.values[g.value.name].axes

    def _offset(self, s: Read | Store, at: Callable[[Axis], str]) -> str:
        """`` + offset`` of the element of a tensor at positions of the tile."""
        text = ""
        clip = s.clip if isinstance(s, Read) else (False,) * len(s.index)
        for d, (i, held) in enumerate(zip(s.index, clip, strict=True)):
            if i.value == 0 and not held:
                continue
            n = self.number(i, at)
            if held:
                n = f"imin(imax({n}, 0), {self.number(as_int(self.tensors[s.tensor].shape[d]))} - 1)"
            plain = n.isidentifier() or n.isdigit() or n.startswith("(") or held
            text += f" + {n if plain else f'({n})'} * {self.stride(s.tensor, d)}"
        return text

    def _pack(self, tile: Slot, source: str, steps: dict[Axis, str], lane: Axis | None) -> None:
        """Copies a tile, the last axis but the lanes as the rows of a matrix."""
        assert lane is not None
        others = [a for a in steps if a is not lane]
        row = max(others, key=lambda a: self.layout.capacity(a) or 2**30, default=None)
        loops = [a for a in others if a is not row]
        names = {a: self.axis_names[a] for a in loops}
        for a in loops:
            self.open(f"for (i64 {names[a]} = 0; {names[a]} < {self.length(a)}; {names[a]}++)")
        to = " + ".join([tile.pointer, *(f"{names[a]} * {tile.steps[a]}" for a in loops)])
        of = " + ".join([source, *(f"{names[a]} * ({steps[a]})" for a in loops)])
        if row is None:
            self.line(f"pack({to}, 0, {of}, 0, {steps[lane]}, 1, {self.length(lane)});")
        else:
            self.line(
                f"pack({to}, {tile.steps[row]}, {of}, {steps[row]}, {steps[lane]}, {self.length(row)}, {self.length(lane)});"
            )
        for _ in loops:
            self.close()

    def _gather(
        self, s: Read, source: str, stored: str, converted: bool, lane: Axis | None, steps: dict[Axis, str | None]
    ) -> None:
        """A tile read element by element, or vector by vector where the lanes lie at even distances."""
        assert lane is not None
        tile = self.tile(s.out, None if converted else stored)
        order = [a for a in self.layout.order(s.out.axes) if a is not lane]
        for a in order:
            n = self.axis_names[a]
            self.open(f"for (i64 {n} = 0; {n} < {self.length(a)}; {n}++)")

        def at(a: Axis) -> str:
            return self.axis_names[a] if a in order else "0"

        to = tile.address(at)
        clipped = any(c and lane in i.axes() for c, i in zip(s.clip, s.index, strict=True))
        if steps[lane] is not None and not clipped:
            self.line(f"pack({to}, 0, {source}{self._offset(s, at)}, 0, {steps[lane]}, 1, {self.length(lane)});")
        else:
            n = self.axis_names[lane]
            self.open(f"for (i64 {n} = 0; {n} < padded({self.length(lane)}); {n}++)")
            element = f"{source}{self._offset(s, lambda a: n if a is lane else at(a))}"
            one = f"put({to} + {n}, get({element}))" if converted else f"*({to} + {n}) = *({element})"
            none = f"*({to} + {n}) = {tile.element}{{}}"
            self.line(f"if ({n} < {self.length(lane)}) {one}; else {none};")
            self.close()
        for _ in order:
            self.close()
        self.slots[s.out.name] = tile

    def rename(self, s: Rename) -> None:
        """The same elements along other axes, copied as those ask for it."""
        have = self.slots[s.arg]
        moved = dict(s.axes)
        steps = {moved.get(a, a): x for a, x in have.steps.items()}
        lane = self.layout.lane(s.out.axes)
        if have.variable or lane is None:
            self.slots[s.out.name] = Slot(have.pointer, have.kind, have.element, steps, have.variable)
            return
        tile = self.tile(s.out, have.element)
        self._pack(tile, have.pointer, steps, lane)
        self.slots[s.out.name] = tile

    # -- stores --------------------------------------------------------------------------------------------------------
    def place(self, s: Store, at: Callable[[Axis], str]) -> str:
        """The address of an element of a tensor."""
        return f"{self.argument(self.arguments.names[s.tensor])}{self._offset(s, at)}"

    def store_step(self, s: Store, lane: Axis) -> str | None:
        return self._step(s.tensor, s.index, lane)

    def stored_kind(self, tensor: str) -> Kind:
        return kind_of(self.tensors[tensor].dtype)
