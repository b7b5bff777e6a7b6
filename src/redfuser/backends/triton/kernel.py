"""One kernel of a tile program as a ``@triton.jit`` function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from redfuser.backends.tidy import tidy
from redfuser.backends.triton.expr import TL, Scope, show, show_const, show_int
from redfuser.backends.triton.layout import Block
from redfuser.backends.triton.places import Places
from redfuser.backends.triton.printed import Counters, Length, Place, Pointer, Printed, Stride
from redfuser.backends.triton.writer import Lines, unbracketed
from redfuser.index.expr import Const, Position, Ref
from redfuser.index.expr import walk as expression_nodes
from redfuser.index.ints import Axis
from redfuser.tile.nodes import (
    Assign,
    At,
    Bound,
    Combine,
    Correct,
    Declare,
    Dot,
    Down,
    Greatest,
    Guard,
    Highest,
    Least,
    Loop,
    Lowest,
    Map,
    Read,
    Reduce,
    Rename,
    Role,
    Select,
    SelectMerge,
    Statement,
    Store,
    Up,
)

NAMED = 32  # characters of a loop's bound from which on it has a name


class KernelWriter(Places):
    """Writes a kernel, statement by statement."""

    def statement(self, s: Statement) -> None:
        match s:
            case Read():
                self.read(s)
            case Map() | Correct():
                dims = self.define(s.out)
                if self.is_coarse(s.expr):
                    self.coarse.add(s.out.name)
                for at in self.everywhere(dims):
                    text = show(s.expr, self.scope(dims, at), s.out.dtype)
                    if not any(isinstance(x, Ref | Position) for x in expression_nodes(s.expr)):
                        text = f"tl.full([], {text}, {TL[s.out.dtype]})"
                    self.set(s.out, dims, at, unbracketed(text))
            case Guard():
                self.guard(s)
            case Dot():
                self.dot(s)
            case Reduce():
                self.reduce(s)
            case Combine():
                dims = self.define(s.out, s.out.dtype.compute)
                for at in self.everywhere(dims):
                    pair = [self.get(n, dims, at, s.out.dtype.compute) for n in (s.left, s.right)]
                    self.set(s.out, dims, at, self.joined(s.reducer, s.out.dtype, *pair))
            case Select():
                self.select(s)
            case SelectMerge():
                self.merge_lists(s)
            case Rename():
                self.rename(s)
            case Declare():
                self.declare(s)
            case Assign():
                dims = self.layout.of(self.values[s.state].axes)
                for at in self.everywhere(dims):
                    text = self.get(s.value, dims, at, self.values[s.state].dtype.compute)
                    own = self.layout.of(self.values[s.value].axes)
                    if own != dims:
                        text = f"tl.broadcast_to({text}, {self.shape(dims, at)})"
                    self.set(self.values[s.state], dims, at, text)
            case Store():
                self.store(s)
            case Loop():
                self.loop(s)

    def declare(self, s: Declare) -> None:
        kept = s.state.dtype.compute
        dims = self.define(s.state, kept)
        for at in self.everywhere(dims):
            if isinstance(s.init, Const):
                text = f"tl.full({self.shape(dims, at)}, {show_const(s.init)}, {TL[kept]})"
            else:
                text = self.get(s.init, dims, at, kept)
                if self.layout.of(self.values[s.init].axes) != dims:
                    text = f"tl.broadcast_to({text}, {self.shape(dims, at)})"
            note = "" if s.role in ("result", "") else s.role
            self.set(s.state, dims, at, text, note)

    # -- loops -------------------------------------------------------------------------------------------------------
    def loop(self, s: Loop) -> None:
        start, stop = self.end(s.axis, s.start, "from"), self.end(s.axis, s.stop, "to")
        d = self.layout.dims.get(s.axis)
        self.blocks.append(Lines())
        before, self.full[s.axis] = self.full.get(s.axis, False), s.full or (d is None)
        last, self.last_use = self.last_use, self.last_use or s.backwards
        for inner in s.body:
            self.statement(inner)
        body = self.blocks.pop().lines
        self.full[s.axis], self.last_use = before, last
        if s.note:
            self.line(f"# {s.note}")
        if d is None:
            name = counter = self.axis_id(s.axis)
            head = []
            if self.form.wide:
                counter = self.axis_id(s.axis, "_place")
                head = [f"{name} = tl.full([], 0, tl.int64) + {counter}"]
            self.line(f"for {counter} in tl.range({start}, {stop}):")
        else:
            piece = d.pieces[0]
            first = self.axis_id(s.axis, "_start")
            dealt = s.axis in self.layout.beside
            step = str(s.tile if dealt else piece.length)
            ahead = f", num_stages={self.form.stages}" if dealt and s.full and self.form.stages > 1 else ""
            counter, head = first, []
            if s.backwards:  # counted upwards: of a counter that falls Triton does not know what divides it
                counter = self.axis_id(s.axis, "_back")
                head = [f"{first} = ({stop} - 1) // {step} * {step} - {counter}"]
            self.line(f"for {counter} in tl.range({start}, {stop}, {step}{ahead}):")
            head += self.positions(s.axis, first)
            for a, text in self.first_and_last(s.axis, first, step):
                head.append(f"{a} = {text}")
        self.blocks[-1].lines += [f"    {line}" for line in (*head, *body)]

    def positions(self, axis: Axis, first: str) -> Iterator[str]:
        """The index vectors of a tile that begins at ``first``, one for each piece."""
        d, lanes = self.layout.dims[axis], self.k.lanes
        dims = self.layout.of(frozenset((axis,)))
        scope = self.scope(dims, {})
        for n, piece in enumerate(d.pieces):
            wide = ".to(tl.int64)" * self.form.wide
            own = scope.spread(f"tl.arange(0, {piece.length}){wide}", (d,))
            if lanes is not None and axis in self.layout.beside:
                (lane,) = self.layout.beside[axis]
                count = lane.pieces[0].length
                mine = scope.spread(f"tl.arange(0, {count})", (lane,))
                start = f"{piece.start} + " if piece.start else ""
                own = f"{mine} + {own} * {count}" if lanes.run == 1 else f"{start}{mine} * {lanes.run} + {own}"
            yield f"{self.index_name(d, n)} = {first} + {own}"

    def end(self, axis: Axis, b: Bound, word: str) -> str:
        """A bound of a loop; a long one has a name, by which later loops know it."""
        text = self.bound(b, self.scope((), {}))
        if len(text) > NAMED and len(self.blocks) == 1:
            name = self.named[b] = self.names.new(f"{self.layout.names[axis]}_{word}")
            self.line(f"{name} = {text}")
            return name
        return text

    def bound(self, b: Bound, s: Scope) -> str:
        if b in self.named:
            return self.named[b]
        match b:
            case At():
                text = show_int(b.index, s)
                return text[1:-1] if text.startswith("(") and b.index.value is None and text.endswith(")") else text
            case Down():
                n = self.step(b.tile)
                inner = self.bound(b.arg, s)
                if inner.isdigit() and n.isdigit():
                    return str(int(inner) // int(n) * int(n))
                return f"({inner}) // {n} * {n}"
            case Up():
                n = self.step(b.tile)
                return f"tl.cdiv({self.bound(b.arg, s)}, {n}) * {n}"
            case Lowest() | Highest():
                dims = self.layout.of(self.values[b.value].axes)
                at = dict.fromkeys(dims, 0)
                text = self.get(b.value, dims, at)
                inside = self.mask(dims, at) if isinstance(b, Lowest) else None
                if inside is not None:  # rows that do not exist were read as 0
                    text = f"tl.where({inside}, {text}, 0x7FFFFFFF)"
                text = f"tl.{'min' if isinstance(b, Lowest) else 'max'}({text})" if dims else text
                return text if self.form.wide else f"{text}.to(tl.int32)"
            case Least() | Greatest():
                fn = "tl.minimum" if isinstance(b, Least) else "tl.maximum"
                parts = list(dict.fromkeys(self.bound(x, s) for x in b.args))
                numbers = [int(p) for p in parts if p.isdigit()]
                if len(numbers) > 1:
                    one = min(numbers) if isinstance(b, Least) else max(numbers)
                    parts = [p for p in parts if not p.isdigit()] + [str(one)]
                text = parts[0]
                for p in parts[1:]:
                    text = f"{fn}({text}, {p})"
                return text

    def step(self, tile: int) -> str:
        """A tile's length: the constexpr of the cascade axis."""
        d = next(
            (x for x in self.layout.dims.values() if x.role is Role.CASCADE and x.pieces[0].length == "TILE"), None
        )
        return "TILE" if d is not None else str(tile)

    def kernel(self, last: Printed | None = None) -> Printed:
        """The function that a launch enters. ``last`` is what the last program of those that meet goes on with."""
        body = self.body()
        head, grid = self.prologue()
        note, meeting = self.k.note, None
        if last is not None:
            meeting = tuple(p for p in grid if p.axis is None or self.tile[p.axis].role is not Role.SEGMENT)
            body += self.meet(grid, meeting, last)
            note += "; the last one to come joins the partial states"
        return self.function([*head, *body], note, [], grid, last, meeting)

    def told(self) -> Printed:
        """A function that is told the place of its program, for a kernel to call."""
        body = self.body()
        head, grid = self.prologue(told=True)
        return self.function([*head, *body], self.k.note, [p.name for p in grid], grid)

    def body(self) -> list[str]:
        for s in self.k.body:
            self.statement(s)
        return self.blocks[0].lines

    def meet(self, grid: Sequence[Place], meeting: Sequence[Place], last: Printed) -> list[str]:
        """Counts the programs that have come to the end, and lets the last one go on.

        A barrier stands between what the threads of a program have stored and the number that says so; the number is
        read and raised with the memory order that shows its reader all of that. What is computed does not depend on
        which program is the last.
        """
        apart = [self.count(p) for p in grid if p not in meeting]
        index = ""
        for p in reversed(meeting):
            index = (
                f"({index}) * {self.count(p)} + {p.name}"
                if "+" in index
                else (f"{index} * {self.count(p)} + {p.name}" if index else p.name)
            )
        arrived = self.id("note", "arrived")
        counter = self.argument("arrived_ptr", Counters())
        counter = f"{counter} + {index}" if index else counter
        told = [self.own(p, grid) for p in last.grid]
        given = [self.argument(name, a) for name, a in last.arguments]
        blocks = [f"{b.name}={self.constant(b)}" for b in last.blocks]
        return [
            "tl.debug_barrier()",
            f"{arrived} = tl.atomic_add({counter}, 1)",
            f"if {arrived} == {' * '.join(apart)} - 1:",
            f"    tl.store({counter}, 0)  # for the next launch",
            f"    {last.name}({', '.join([*told, *given, *blocks])})",
        ]

    @staticmethod
    def own(place: Place, grid: Sequence[Place]) -> str:
        return next(p.name for p in grid if p.axis is place.axis)

    def constant(self, b: Block) -> str:
        """A constexpr of another function among those of this one."""
        known = next((x for x in self.layout.blocks if x == b), None)
        if known is None:
            known = replace(b, name=self.names.new(b.name))
            self.layout.blocks.append(known)
        return known.name

    def function(
        self, body: Sequence[str], note: str, told: Sequence[str], grid: Sequence[Place],
        last: Printed | None = None, meeting: tuple[Place, ...] | None = None,
    ) -> Printed:  # fmt: skip
        lines = [f'"""{note[:1].upper()}{note[1:]}."""', *body]
        blocks = list(self.layout.blocks)
        order = {Pointer: 0, Counters: 1, Stride: 2, Length: 3}
        self.arguments = dict(sorted(self.arguments.items(), key=lambda x: order[type(x[1])]))
        names = [*told, *self.arguments, *(f"{b.name}: tl.constexpr" for b in blocks)]
        lengths = [n for n, a in self.arguments.items() if isinstance(a, Length)]
        decorator = f"@triton.jit(do_not_specialize={lengths!r})" if lengths else "@triton.jit"
        signature = f"def {self.name}({', '.join(names)}):"
        if len(signature) > 110:
            signature = f"def {self.name}(\n    {_wrapped(names)},\n):"
        lines = [tidied for line in lines for tidied in tidy(f"    {line}")]
        text = "\n".join([decorator, signature, *lines]) + "\n"
        if last is not None:
            text = f"{last.text}\n\n{text}"
        return Printed(
            self.name,
            text,
            tuple(self.arguments.items()),
            tuple(blocks),
            tuple(grid),
            tuple(self.bulk.values()),
            meeting,
        )


def _wrapped(names: Sequence[str]) -> str:
    lines, line = [], ""
    for n in names:
        if line and len(line) + len(n) > 104:
            lines.append(line)
            line = ""
        line = f"{line}, {n}" if line else n
    return ",\n    ".join([*lines, line])
