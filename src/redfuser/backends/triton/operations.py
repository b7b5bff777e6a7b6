"""What a tile program computes, as Triton operations on blocks."""

from __future__ import annotations

from redfuser.backends.triton.expr import TL, show_const
from redfuser.backends.triton.layout import Dim, Piece
from redfuser.backends.triton.memory import Memory
from redfuser.index.expr import DType
from redfuser.index.ints import Axis
from redfuser.index.nodes import Reducer
from redfuser.tile.nodes import (
    Dot,
    Guard,
    Reduce,
    Rename,
    Role,
    Select,
    SelectMerge,
    Value,
)
from redfuser.tile.strategy import Unsupported

_NOTHING = Dim("nothing", Role.RANK, (), (Piece(0, 1, 1),), 0)


class Operations(Memory):
    """Guards, reductions, dots and lists of one kernel."""

    def guard(self, s: Guard) -> None:
        own = self.layout.of(self.values[s.arg].axes)
        dims = self.define(s.out, self.dtypes.get(s.arg))
        if s.arg in self.coarse:
            self.coarse.add(s.out.name)
        d = self.layout.dims.get(s.axis)
        ends = [None if d is None else self.inside(d, at, False) for at in self.everywhere(dims)]
        if own == dims and not any(ends) and s.arg not in self.states:
            self.same[s.out.name] = self.same.get(s.arg, s.arg)
            return
        for at, condition in zip(self.everywhere(dims), ends, strict=True):
            scope = self.scope(dims, at)
            text = self.get(s.arg, dims, at)
            if condition is not None:
                filled = (
                    f"tl.where({scope.spread(condition, self.along(d)) if d else ''}, {text}, {show_const(s.fill)})"
                )
                text = (
                    filled
                    if own or s.out.dtype.bytes > 4
                    else f"{filled}.to({TL[self.dtypes.get(s.out.name, s.out.dtype)]})"
                )
            elif own != dims:
                text = f"tl.broadcast_to({text}, {self.shape(dims, at)})"
            self.set(s.out, dims, at, text)

    def rename(self, s: Rename) -> None:
        own = self.layout.of(self.values[s.arg].axes)
        dims = self.define(s.out, self.dtypes.get(s.arg))
        moved = {self.layout.dims.get(a): self.layout.dims.get(b) for a, b in s.axes}
        if [moved.get(d, d) for d in own] != list(dims) or any(
            a is None or b is None or a.pieces != b.pieces for a, b in moved.items()
        ):
            raise Unsupported(f"{s.arg} is used as {s.out.name}, whose axes are laid out differently")
        back = {b: a for a, b in moved.items()}
        for at in self.everywhere(dims):
            there = {d if back.get(d) is None else back[d]: n for d, n in at.items()}
            self.set(s.out, dims, at, self.variable(s.arg, own, {k: n for k, n in there.items() if k is not None}))

    def joined(self, reducer: Reducer, dtype: DType, a: str, b: str) -> str:
        match reducer:
            case Reducer.SUM:
                return f"{a} + {b}"
            case Reducer.PROD:
                return f"{a} * {b}"
            case Reducer.MAX | Reducer.MIN:
                name = "larger" if reducer is Reducer.MAX else "smaller"
                if dtype.is_float:
                    return f"{self.use(name)}({a}, {b})"
                return f"tl.{'maximum' if reducer is Reducer.MAX else 'minimum'}({a}, {b})"
            case Reducer.ANY:
                return f"{a} | {b}"
            case Reducer.ALL:
                return f"{a} & {b}"
            case _:
                raise Unsupported(f"{reducer} has no form in a kernel")

    def reduce(self, s: Reduce) -> None:
        arg = self.values[s.arg]
        own = self.layout.of(arg.axes)
        d = self.layout.dims.get(s.over)
        dims = self.define(s.out, s.out.dtype.compute)
        if d is not None and len(d.axes) > 1:
            raise Unsupported(f"{s.over.name} is reduced apart from the axes it is flattened with")
        over = tuple(x for x in self.layout.of(frozenset((s.over,))) if x not in dims)
        for at in self.everywhere(dims):
            texts = [self.reduced(s, own, over, at | pieces) for pieces in self.everywhere(over)]
            text = texts[0]
            for other in texts[1:]:
                text = self.joined(s.reducer, s.out.dtype, text, other)
            self.set(s.out, dims, at, text)

    def reduced(self, s: Reduce, own: tuple[Dim, ...], over: tuple[Dim, ...], at: dict[Dim, int]) -> str:
        """One dimension after the other, from the last."""
        summed = s.reducer in (Reducer.SUM, Reducer.PROD)
        work = s.out.dtype if summed else self.values[s.arg].dtype.compute
        text = self.get(s.arg, own, at, work)
        for n in reversed([own.index(d) for d in over]):
            text = self.along_one(s, text, n)
        return text

    def along_one(self, s: Reduce, x: str, n: int) -> str:
        match s.reducer:
            case Reducer.SUM:
                return f"tl.sum({x}, {n})"
            case Reducer.PROD:
                return f"tl.reduce({x}, {n}, {self.use('times')})"
            case Reducer.MAX | Reducer.MIN if s.out.dtype.is_float:
                return f"tl.reduce({x}, {n}, {self.use('larger' if s.reducer is Reducer.MAX else 'smaller')})"
            case Reducer.MAX | Reducer.MIN if s.out.dtype is not DType.BOOL:
                return f"tl.{s.reducer.value}({x}, {n})"
            case Reducer.ANY | Reducer.MAX:
                return f"(tl.max(({x}).to(tl.int32), {n}) != 0)"
            case Reducer.ALL | Reducer.MIN:
                return f"(tl.min(({x}).to(tl.int32), {n}) != 0)"
            case _:
                raise Unsupported(f"{s.reducer} has no form in a kernel")

    # -- dots --------------------------------------------------------------------------------------------------------
    def dot(self, s: Dot) -> None:
        left, right = (self.layout.of(self.values[n].axes) for n in (s.left, s.right))
        over = self.layout.of(frozenset(s.over))
        dims = self.define(s.out)
        if all(self.values[n].dtype in (DType.BFLOAT16, DType.FLOAT16) for n in (s.left, s.right)):
            self.coarse.add(s.out.name)
        rows = tuple(d for d in left if d not in over and d not in right)
        columns = tuple(d for d in right if d not in over and d not in left)
        shared = tuple(d for d in left if d in right and d not in over)
        matrix = len(over) == 1 and len(rows) == 1 and len(columns) == 1 and not shared
        for at in self.everywhere(dims):
            add = None if s.add is None else self.get(s.add, dims, at, s.out.dtype)
            choices = list(self.everywhere(over))
            for pieces in choices:
                here = at | pieces
                if matrix:
                    text = self.matrix(s, left, right, over[0], rows[0], columns[0], here, add)
                else:
                    text = self.products(s, left, right, over, dims, here, add)
                self.set(s.out, dims, at, text)
                add = self.variable(s.out.name, dims, at)

    def matrix(self, s: Dot, left: tuple[Dim, ...], right: tuple[Dim, ...], over: Dim, row: Dim, column: Dim,
               at: dict[Dim, int], add: str | None) -> str:  # fmt: skip
        kinds = [self.dtypes.get(n, self.values[n].dtype) for n in (s.left, s.right)]
        same = kinds[0] if kinds[0] is kinds[1] and kinds[0].bytes <= s.out.dtype.bytes else s.out.dtype
        if row.rank > column.rank:
            s_left, s_right, left, right, row, column = s.right, s.left, right, left, column, row
        else:
            s_left, s_right = s.left, s.right
        a, b = self.get(s_left, left, at, same), self.get(s_right, right, at, same)
        a = a if left == (row, over) else f"tl.trans({a})"
        b = b if right == (over, column) else f"tl.trans({b})"
        options = f', input_precision="{self.form.precision}"' if same is DType.FLOAT32 else ""
        if same.bytes == 8:
            options += ", out_dtype=tl.float64"
        if add is None:
            return f"tl.dot({a}, {b}{options})"
        return f"tl.dot({a}, {b}, {add}{options})"

    def products(self, s: Dot, left: tuple[Dim, ...], right: tuple[Dim, ...], over: tuple[Dim, ...],
                 dims: tuple[Dim, ...], at: dict[Dim, int], add: str | None) -> str:  # fmt: skip
        """A dot that is none of two matrices: multiplied, then summed over one dimension after the other."""
        every = tuple(sorted({*left, *right}, key=lambda d: d.rank))
        a, b = (self.get(n, every, at, s.out.dtype) for n in (s.left, s.right))
        text = f"{a} * {b}"
        for d in sorted(over, key=lambda d: -d.rank):
            text = f"tl.sum({text}, {every.index(d)})"
            every = tuple(x for x in every if x is not d)
        return text if add is None else f"{add} + {text}"

    # -- lists -------------------------------------------------------------------------------------------------------
    def keys(self, value: str, index: str, dims: tuple[Dim, ...], at: dict[Dim, int], reducer: Reducer) -> str:
        """Values of a list with their positions, as integers that sort."""
        v = self.values[value]
        if v.dtype is DType.FLOAT64 or (not v.dtype.is_float and v.dtype.bytes > 4):
            raise Unsupported(f"{value} is {v.dtype.value}: its values and positions do not fit one integer")
        if not v.dtype.is_float:
            raise Unsupported(f"{value} holds integers; the best of them are selected outside")
        x = self.get(value, dims, at, DType.FLOAT32)
        return f"{self.use('order_key')}({x}, {index}, {', '.join(_order(reducer))})"

    def select(self, s: Select) -> None:
        own = self.layout.of(self.values[s.arg].axes)
        d = self.layout.dims.get(s.over)
        if d is None or len(d.pieces) > 1 or len(d.axes) > 1:
            raise Unsupported(f"{s.over.name} is selected from in pieces")
        at = dict.fromkeys(own, 0)
        if any(len(x.pieces) > 1 for x in own):
            raise Unsupported(f"{s.arg} is selected from in pieces")
        index = self.scope(own, at).spread(self.flat(d, at), (d,))
        keys = self.id("value", f"{s.out.name}_keys")
        self.line(f"{keys} = {self.keys(s.arg, index, own, at, s.reducer)}")
        self.best(s.out, s.index, s.reducer, s.k, own, d, "best_keys", [keys])

    def best(self, out: Value, index: Value, reducer: Reducer, k: Axis | None, dims: tuple[Dim, ...], d: Dim, fn: str,
             keys: list[str]) -> None:  # fmt: skip
        """The best of lists of keys along a dimension, as values and positions."""
        made = self.define(out)
        self.define(index)
        self.use("key_value"), self.use("key_index")
        smallest, nan_last = _order(reducer)
        at = dict.fromkeys(made, 0)
        found = self.id("value", f"{out.name}_best")
        slots = self.layout.dims.get(k) if k is not None else None
        if slots is None:
            text = f"tl.max({keys[0]}, {dims.index(d)})" if d in dims else keys[0]
            if len(keys) > 1:
                text = f"tl.maximum({keys[0]}, {keys[1]})"
            self.line(f"{found} = {text}")
        else:
            where = tuple(slots if x is d else x for x in dims)
            self.use(fn)
            slot = self.scope(where, at | {slots: 0}).spread(self.flat(slots, {slots: 0}), (slots,))
            n = slots.pieces[0].valid
            self.line(f"{found} = {fn}({', '.join(keys)}, {slot}, {dims.index(d)}, {n}, {nan_last})")
            if where != made:
                self.line(f"{found} = tl.trans({found})")
        value = f"key_value({found}, {smallest}, {nan_last})"
        value = value if out.dtype is DType.FLOAT32 else f"{value}.to({TL[out.dtype]})"
        self.set(out, made, at, value)
        self.set(index, made, at, f"key_index({found})")

    def merge_lists(self, s: SelectMerge) -> None:
        self.values.setdefault(s.out.name, s.out)
        dims = self.layout.of(s.out.axes)
        at = dict.fromkeys(dims, 0)
        keys = []
        for side, (value, index) in (("left", (s.left, s.left_index)), ("right", (s.right, s.right_index))):
            name = self.id("value", f"{s.out.name}_{side}")
            self.line(f"{name} = {self.keys(value, self.get(index, dims, at), dims, at, s.reducer)}")
            keys.append(name)
        slots = self.layout.dims.get(s.k) if s.k is not None else None
        self.best(s.out, s.index, s.reducer, s.k, dims, slots or _NOTHING, "merged_keys", keys)


def _order(reducer: Reducer) -> tuple[str, str]:
    """Whether the smallest come first, and whether NaN comes last."""
    return str(reducer in (Reducer.ARGMIN, Reducer.BOTTOMK)), str(reducer is Reducer.BOTTOMK)
