"""The place of a program in the grid, and the index vectors of its tiles."""

from __future__ import annotations

from collections.abc import Iterator

from redfuser.backends.triton.expr import show_factor, show_int
from redfuser.backends.triton.operations import Operations
from redfuser.backends.triton.printed import Place
from redfuser.index.ints import ONE, Axis, Int, as_int, product
from redfuser.tile.nodes import (
    At,
    Bound,
    Down,
    Greatest,
    Highest,
    Least,
    Loop,
    Lowest,
    Read,
    Role,
    TileAxis,
    Up,
)
from redfuser.tile.uses import every

CACHED = 2**24  # elements of a tensor that programs far apart may still find in a cache


class Places(Operations):
    """The head of one kernel."""

    def prologue(self, told: bool = False) -> tuple[list[str], list[Place]]:
        """The index vectors that the body names, from the place of a program in the grid, which comes first unless the
        program is ``told`` where it is. The places are in the order of the programs."""
        lines: list[str] = []
        rows = [t for t in self.k.grid if t.role is Role.ROW]
        others = [t for t in self.k.grid if t.role is not Role.ROW]
        shared = self.shared()
        others.sort(key=lambda t: (t.role is Role.BATCH, -shared[t.axis]))
        wide = ".to(tl.int64)" if self.form.wide else ""
        grid: list[Place] = []
        total = product(as_int(t.axis.size) for t in rows)
        if rows and total is not ONE:
            step = "ROWS" if self.layout.row is not None else None
            grid.append(Place(None, "row_tile" if step else self.row_name(), total, step))
        for t in others:
            d = self.layout.dims.get(t.axis)
            step = None if d is None else str(d.pieces[0].length)
            if as_int(t.axis.size).value != 1:
                grid.append(Place(t.axis, self.axis_id(t.axis, "_tile" if step else ""), as_int(t.axis.size), step))
        uneven = self.uneven() and self.layout.row is not None and len(grid) > 1
        if not uneven:  # neighbours share what no cache would hold until it is wanted again
            most = max((shared[t.axis] for t in rows), default=0)
            grid.sort(key=lambda p: p.axis is None or shared[p.axis] <= max(most, CACHED))
        if not told:
            lines += self.found(grid, uneven, wide)
        for t in (*others, *(rows if total is ONE else ())):
            if as_int(t.axis.size).value == 1 and self.layout.dims.get(t.axis) is None:
                name = self.axis_id(t.axis)
                if name in self.wanted:
                    lines.append(f"{name} = 0")
        lines += self.vectors(rows, total, wide)
        for t in others:
            d = self.layout.dims.get(t.axis)
            if d is None:
                continue
            step = str(d.pieces[0].length)
            tile = self.axis_id(t.axis, "_tile") if as_int(t.axis.size).value != 1 else "0"
            name = self.index_name(d, 0)
            lines.append(f"{name} = {tile} * {step} + tl.arange(0, {step})")
            lines += [f"{a} = {text}" for a, text in self.first_and_last(t.axis, f"{tile} * {step}", step)]
        lines += self.whole(wide)
        return lines, grid

    def found(self, grid: list[Place], uneven: bool, wide: str) -> list[str]:
        """Where a program is, by its number."""
        if not grid:
            return []
        order = "tl.num_programs(0) - 1 - " if self.k.backwards else ""
        lines = [f"pid = {order}tl.program_id(0){wide}"]
        rest = "pid"
        if uneven:
            lines += self.heavy_first(grid)
            grid, rest = grid[1:], "rest"
        for p in grid[:-1]:
            lines += [f"{p.name} = {rest} % {self.count(p)}", f"{rest} = {rest} // {self.count(p)}"]
        return [*lines, f"{grid[-1].name} = {rest}"]

    def shared(self) -> dict[Axis, int]:
        """For each axis of the grid, the elements of the largest tensor that is the same all along it."""
        out = dict.fromkeys((t.axis for t in self.k.grid), 0)
        reads = [s for s in every(self.k.body) if isinstance(s, Read)]
        for s in reads:
            axes = frozenset[Axis]().union(*(i.axes() for i in s.index))
            elements = product(self.program.tensor(s.tensor).shape)
            n = elements.evaluate({x: x.hint for x in elements.sizes()})
            for a in out.keys() - axes:
                out[a] = max(out[a], n)
        return out

    def row_name(self) -> str:
        """The flat position of the rows where they are taken one at a time."""
        rows = [t for t in self.k.grid if t.role is Role.ROW]
        return self.axis_id(rows[0].axis) if len(rows) == 1 else self.id("axis", "row")

    def count(self, p: Place) -> str:
        """How many places there are along an axis."""
        text = show_factor(p.positions, self.scope((), {}))
        return text if p.step is None else f"tl.cdiv({text}, {p.step})"

    def uneven(self) -> bool:
        """True when the work of a program grows with its rows: a loop stops at a place that depends on them."""
        ends = {a for a, (t, _) in self.ends.items() if t.role is Role.ROW}
        return any(_mentions(s.stop, ends) for s in self.k.body if isinstance(s, Loop))

    def heavy_first(self, grid: list[Place]) -> list[str]:
        others = " * ".join(self.count(p) for p in grid[1:])
        n = self.form.group
        return [
            f"# the longest loops first, {n} batches at a time, whose operands stay in the cache",
            f"row_tiles = {self.count(grid[0])}",
            f"group = pid // ({n} * row_tiles)",
            f"batches = tl.minimum({others} - group * {n}, {n})",
            f"place = pid - group * {n} * row_tiles",
            f"rest = group * {n} + place % batches",
            "row_tile = row_tiles - 1 - place // batches",
        ]

    def vectors(self, rows: list[TileAxis], total: Int, wide: str) -> list[str]:
        if not rows or total is ONE:
            return []
        lines = []
        d = self.layout.row
        single = len(rows) == 1
        flat = self.row_name() if d is None else self.index_name(d, 0)
        if d is not None:
            lines.append(f"{flat} = row_tile * ROWS + tl.arange(0, ROWS)")
        inner = ONE
        scope = self.scope((), {})
        last = f"tl.minimum(row_tile * ROWS + ROWS, {show_int(total, scope)}) - 1" if d is not None else flat
        first = "row_tile * ROWS" if d is not None else flat
        ends = {self.known_axis(a) for t in rows for a in (t.first, t.last)} & set(self.wanted)
        if ends and not single:
            lines += [f"row_first = {first}", f"row_last = {last}"]
            first, last = "row_first", "row_last"
        for t in reversed(rows):
            size = show_factor(as_int(t.axis.size), scope)
            below = show_factor(inner, scope)
            name = self.axis_id(t.axis)
            outermost = t is rows[0]

            def digit(x: str, below: str = below, size: str = size, outermost: bool = outermost) -> str:
                text = x if below == "1" else f"{x} // {below}"
                return text if outermost else f"{text} % {size}"

            if name in self.wanted and name != flat:
                lines.append(f"{name} = {digit(flat)}")
            for a, text in ((t.first, first), (t.last, last)):
                end = self.known_axis(a)
                if end not in self.wanted:
                    continue
                if outermost:
                    lines.append(f"{end} = {digit(text) if single or below != '1' else text}")
                else:
                    # a block that runs over the end of this axis has all of its positions
                    over = f"row_first // ({below} * {size}) != row_last // ({below} * {size})"
                    lines.append(f"{end} = tl.where({over}, {'0' if a is t.first else f'{size} - 1'}, {digit(text)})")
            inner = inner * as_int(t.axis.size)
        return lines

    def whole(self, wide: str) -> list[str]:
        """Index vectors of the axes that are whole in a tile."""
        lines = []
        for d in dict.fromkeys(self.layout.dims.values()):
            tiled = any(t.axis in d.axes and t.block is not None for t in self.k.axes)
            if d is self.layout.row or tiled:
                continue
            for n, piece in enumerate(d.pieces):
                name = self.index_name(d, n)
                if name not in self.wanted:
                    continue
                start = f"{piece.start} + " if piece.start else ""
                lines.append(f"{name} = {start}tl.arange(0, {piece.length}){wide}")
                inner = ONE
                for a in reversed(d.axes if len(d.axes) > 1 else ()):
                    own = self.known_axis(a, f"_{n}" if len(d.pieces) > 1 else "")
                    if own in self.wanted:
                        text = name if inner is ONE else f"{name} // {show_factor(inner, self.scope((), {}))}"
                        outermost = a is d.axes[0]
                        lines.append(
                            f"{own} = {text}"
                            + ("" if outermost else f" % {show_factor(as_int(a.size), self.scope((), {}))}")
                        )
                    inner = inner * as_int(a.size)
        return lines

    def first_and_last(self, axis: Axis, first: str, length: str) -> Iterator[tuple[str, str]]:
        t = self.tile[axis]
        for a, text in ((t.first, first), (t.last, None)):
            name = self.known_axis(a)
            if name in self.wanted:
                extent = show_int(as_int(axis.size), self.scope((), {}))
                yield name, text or f"tl.minimum({first} + {length}, {extent}) - 1"


def _mentions(b: Bound, axes: set[Axis]) -> bool:
    match b:
        case At():
            return bool(set(b.index.axes()) & axes)
        case Down() | Up():
            return _mentions(b.arg, axes)
        case Lowest() | Highest():
            return False
        case Least() | Greatest():
            return any(_mentions(x, axes) for x in b.args)
