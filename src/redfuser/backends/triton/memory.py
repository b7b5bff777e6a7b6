"""Reading and storing tiles: pointer arithmetic, masks and bulk copies."""

from __future__ import annotations

from collections.abc import Sequence

from redfuser.backends.triton.expr import Scope, show_const, show_int
from redfuser.backends.triton.layout import Dim
from redfuser.backends.triton.printed import Pointer, Stride
from redfuser.backends.triton.writer import Writer
from redfuser.index.expr import DType, Ref, const
from redfuser.index.ints import ZERO, Axis, FloorDiv, Gather, Int, Mod, as_int
from redfuser.tile.nodes import (
    Read,
    Role,
    Store,
)
from redfuser.tile.strategy import Unsupported


class Memory(Writer):
    """Loads and stores of one kernel."""

    def address(self, tensor: str, index: Sequence[Int], clip: Sequence[bool], scope: Scope, at: dict[Dim, int],
                plain: bool = False) -> str:  # fmt: skip
        """Pointer arithmetic: scalars first, then one vector for each set of dimensions."""
        shape = self.program.tensor(tensor).shape
        groups: dict[tuple[Dim, ...], list[str]] = {}
        for n, (i, clipped) in enumerate(zip(index, clip, strict=True)):
            if not i.terms:
                continue
            stride = self.argument(f"{tensor}_stride_{n}", Stride(tensor, n))
            parts = [i] if clipped else [Int((t,)) for t in i.terms]
            for part in parts:
                dims = self.index_dims(part)
                inner = self.scope(dims, at, plain)
                text = show_int(part, inner)
                if clipped:
                    text = f"tl.minimum(tl.maximum({text}, 0), {show_int(shape[n] - 1, inner)})"
                groups.setdefault(dims, []).append(f"{text} * {stride}" if text != "1" else stride)
        pointer = self.argument(f"{tensor}_ptr", Pointer(tensor))
        texts = [pointer]
        for dims in sorted(groups, key=lambda g: (len(g), [d.rank for d in g])):
            texts.append(scope.spread(" + ".join(groups[dims]), dims) if dims else " + ".join(groups[dims]))
        return " + ".join(texts)

    def index_dims(self, i: Int) -> tuple[Dim, ...]:
        axes: set[Axis] = set()
        for a in i.atoms():
            match a:
                case Axis():
                    axes.add(a)
                case FloorDiv() | Mod():
                    return self.layout.of(frozenset(axes) | i.axes() | self._gathered(i))
                case Gather():
                    axes |= self._gathered(as_int(a))
                case _:
                    pass
        return self.layout.of(frozenset(axes))

    def _gathered(self, i: Int) -> frozenset[Axis]:
        return frozenset[Axis]().union(
            *(self.values[g.value.name].axes for g in i.gathers() if isinstance(g.value, Ref))
        )

    def read(self, s: Read) -> None:
        narrow = s.out.dtype.is_float and s.out.dtype.bytes < 4
        lifted = narrow and s.out.name not in self.raw
        dims = self.define(s.out, DType.FLOAT32 if lifted else None)
        copied = self.form.bulk and not lifted and self.copied(s, dims)
        nothing = show_const(const(0, self.program.tensor(s.tensor).dtype))
        for at in self.everywhere(dims):
            mask = self.mask(dims, at)
            options = f", mask={mask}, other={nothing}" if mask else ""
            options += self.policy(s)
            tail = ".to(tl.float32)" if lifted else ""
            text = f"tl.load({self.address(s.tensor, s.index, s.clip, self.scope(dims, at), at)}{options}){tail}"
            key = self.address(s.tensor, s.index, s.clip, self.scope(dims, at, True), at, True) + options + tail
            if copied:
                text, options, tail = self.copy(s, dims, at), "", ""
            name = self.variable(s.out.name, dims, at)
            known = next((b.loaded[key] for b in self.blocks if key in b.loaded), None)
            self.line(f"{name} = {known or text}")
            if known is None:
                self.blocks[-1].loaded[key] = name

    def policy(self, s: Read) -> str:
        """How long the cache keeps what is read: the end of a first sweep until the second one begins there."""
        kept = "evict_first" if self.last_use else "evict_last" if s.tensor in self.again else ""
        return f', eviction_policy="{kept}"' if kept and self.alone(s) else ""

    def alone(self, s: Read) -> bool:
        """True for a read of elements that no other program reads."""
        axes = frozenset[Axis]().union(*(i.axes() for i in s.index))
        return all(t.axis in axes or as_int(t.axis.size).value == 1 for t in self.k.grid)

    def copied(self, s: Read, dims: tuple[Dim, ...]) -> bool:
        """True for a tile of a loop's axis and one whole axis, each an index of its own, at a place that the program fixes."""
        if len(dims) != 2 or not dims[1].whole or any(len(d.axes) > 1 for d in dims) or any(s.clip):
            return False
        if dims[0].role is not Role.CASCADE or dims[0].axes[0] not in self.full:
            return False
        inner = {d.axes[0] for d in dims}
        own = [i.axis for i in s.index if i.axes() & inner]
        fixed = [i for i in s.index if not i.axes() & inner]
        rows = frozenset(self.layout.row.axes if self.layout.row is not None else ())
        still = all(not any(True for _ in i.gathers()) and not i.axes() & rows for i in fixed)
        return len(own) == 2 and own == [d.axes[0] for d in dims] and still

    def copy(self, s: Read, dims: tuple[Dim, ...], at: dict[Dim, int]) -> str:
        """A load by descriptor. The descriptor is made once, before the loop; beyond the tensor's end it gives 0."""
        scope = self.scope((), at)
        places = [n for n, i in enumerate(s.index) if i.axis in {d.axes[0] for d in dims}]
        index = [ZERO if n in places else i for n, i in enumerate(s.index)]
        pointer = self.address(s.tensor, index, s.clip, scope, {})
        shape = ", ".join(show_int(as_int(d.axes[0].size), scope) for d in dims)
        stride = self.argument(f"{s.tensor}_stride_{places[0]}", Stride(s.tensor, places[0]))
        block = ", ".join(str(d.pieces[at[d]].length) for d in dims)
        made = f"tl.make_tensor_descriptor({pointer}, [{shape}], [{stride}, 1], [{block}])"
        name = self.descriptor(s.tensor, made)
        self.bulk[s.tensor] = (s.tensor, places[1])
        start = self.axis_id(dims[0].axes[0], "_start")
        start = f"{start}.to(tl.int32)" if self.form.wide else start  # a position within one axis
        return f"{name}.load([{start}, {dims[1].pieces[at[dims[1]]].start}])"

    def descriptor(self, tensor: str, made: str) -> str:
        key = ("descriptor", made)
        if key not in self.ids:
            self.ids[key] = self.names.new(f"{tensor}_tiles")
            self.blocks[0].lines.append(f"{self.ids[key]} = {made}")
        return self.ids[key]

    def store(self, s: Store) -> None:
        dims = self.layout.of(frozenset(s.axes))
        v = self.values[s.value]
        for at in self.everywhere(dims):
            scope = self.scope(dims, at)
            text = self.get(s.value, dims, at, v.dtype)
            if self.layout.of(v.axes) != dims:
                text = f"tl.broadcast_to({text}, {self.shape(dims, at)})"
            mask = self.mask(dims, at)
            pointer = self.address(s.tensor, s.index, [False] * len(s.index), scope, at)
            pointers = self.layout.of(frozenset[Axis]().union(*(i.axes() for i in s.index)))
            if pointers != dims:
                raise Unsupported(f"{s.tensor} is stored along an axis that its index lacks")
            options = (f", mask={mask}" if mask else "") + (', cache_modifier=".cs"' if self.last_use else "")
            self.line(f"tl.store({pointer}, {text}{options})")
