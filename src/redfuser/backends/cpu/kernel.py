"""One kernel of a tile program as a C++ function over points of its grid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from redfuser.backends.cpu.layout import STORED, kind_of
from redfuser.backends.cpu.operations import Operations, held_values, micro_dots
from redfuser.backends.cpu.schedule import Nest, Scheduler, Step, iteration, split
from redfuser.backends.cpu.writer import Arguments, Form, Frame, Slot
from redfuser.index.ints import Axis, as_int
from redfuser.tile.names import Names
from redfuser.tile.nodes import (
    Assign,
    At,
    Bound,
    Declare,
    Dot,
    Down,
    Greatest,
    Highest,
    Kernel,
    Least,
    Loop,
    Lowest,
    Program,
    Read,
    Rename,
    Role,
    Select,
    SelectMerge,
    Statement,
    Store,
    Up,
    Value,
    outputs_of,
)
from redfuser.tile.uses import every, gathered, uses_of


class KernelWriter(Operations):
    """Writes a kernel, block by block."""

    def __init__(self, p: Program, k: Kernel, form: Form, arguments: Arguments, names: Names) -> None:
        super().__init__(p, k, form, arguments, names)
        self.micro = micro_dots(k, self.layout)
        self.held = held_values(k, self.layout, self.micro)
        self.reads = {s.out.name: s for s in every(k.body) if isinstance(s, Read)}
        self.order: list[Step] = []
        self.streams: dict[Axis, int] = {}
        self.later: frozenset[str] = frozenset()
        self.aliases: dict[str, str] = {}
        self.addressed = {
            n for s in every(k.body) if isinstance(s, Store | Read) for i in s.index for n in gathered(i)
        }  # fmt: skip

    # -- blocks --------------------------------------------------------------------------------------------------------
    def body(self, statements: Sequence[Statement], later: frozenset[str]) -> None:
        blocks = split(statements)
        for n, block in enumerate(blocks):
            behind = later.union(*(uses_of(s) for b in blocks[n + 1 :] for s in b))
            if isinstance(block[0], Loop):
                self.loop(block[0], behind)
            else:
                self.block(block, behind)

    def block(self, block: Sequence[Statement], later: frozenset[str]) -> None:
        for s in block:
            for v in outputs_of(s):
                self.values[v.name] = v
        steps = Scheduler(self.layout, self.values, self.micro, later).run(block)
        self.order, self.later = steps, later
        self.ahead = self._ahead(steps)
        self.aliases = self._aliases(block, steps)
        for step in steps:
            if isinstance(step, Nest):  # what was written over its state needs no assignment
                step.statements = [x for x in step.statements if not self._is_done(x)]
            if not isinstance(step, Nest) or step.statements:
                self.step(step)

    def _ahead(self, steps: Sequence[Step]) -> dict[int, list[str]]:
        """By the nest, rows of a tile that it is the last to read, and not the first: while it computes, memory is idle."""
        found: dict[int, list[str]] = {}
        for s in steps:
            if isinstance(s, Read) and self.layout.many(s.out.axes) <= self.streams.keys():
                users = [
                    n for n in steps if isinstance(n, Nest) and any(s.out.name in uses_of(x) for x in n.statements)
                ]
                if len(users) > 1:
                    found.setdefault(id(users[-1]), []).append(s.out.name)
        return found

    def _is_done(self, s: Statement) -> bool:
        return isinstance(s, Assign) and self.aliases.get(s.value) == s.state

    def step(self, s: Step) -> None:
        match s:
            case Nest():
                self.nest(s)
            case Read():
                self.read(s)
            case Dot():
                self.dot(s)
            case Select():
                self.select(s)
            case SelectMerge():
                self.merge_lists(s)
            case Rename():
                self.rename(s)
            case _:
                raise TypeError(s)

    # -- where values lie ----------------------------------------------------------------------------------------------
    def kept_outside(self, name: str, nest: Nest) -> bool:
        """True for a value that something behind its nest reads from memory."""
        made = next(s for s in nest.statements if any(v.name == name for v in outputs_of(s)))
        if isinstance(made, Declare) or name in self.later or name in self.addressed or name in self.aliases:
            return True
        if nest.over and self._is_reduced(made, nest):
            return True
        others = [_statements(step) for step in self.order if step is not nest]
        again = [x for x in others if any(v.name == name for s in x for v in outputs_of(s))]  # it is computed there too
        return any(name in uses_of(s) for x in others if x not in again for s in x)

    def _is_reduced(self, s: Statement, nest: Nest) -> bool:
        return iteration(s, self.layout, self.values) != self.layout.many(outputs_of(s)[0].axes)

    def place_of(self, v: Value) -> Slot:
        """Memory for a value that is about to be made: that of the state it becomes, where nothing still needs that."""
        if v.name in self.aliases:
            return self.slots[self.aliases[v.name]]
        if not self.layout.many(v.axes):
            kind = kind_of(v.dtype)
            return Slot(self.ident(v.name), kind, kind.scalar, {}, variable=True)
        return self.tile(v)

    def _aliases(self, block: Sequence[Statement], steps: Sequence[Step]) -> dict[str, str]:
        """Values that may be written over the state that they become."""
        order = [s for step in steps for s in _statements(step)]
        made = {v.name: n for n, s in enumerate(order) for v in outputs_of(s)}
        out: dict[str, str] = {}

        def fits(name: str, state: str) -> bool:
            a, b = self.values[name], self.values[state]
            if name not in made or self.layout.many(a.axes) != self.layout.many(b.axes) or not self.layout.many(a.axes):
                return False
            return kind_of(a.dtype) is kind_of(b.dtype)

        def free(n: int, state: str) -> bool:
            return not any(state in uses_of(s) for s in order[n + 1 :])

        def take(name: str, state: str) -> None:
            if not fits(name, state):
                return
            n = made[name]
            s = order[n]
            whole = isinstance(s, Dot) and id(s) in self.micro
            if isinstance(s, SelectMerge | Select | Rename | Read) or not free(n, state) or name in out:
                return
            operands = {s.left, s.right} if isinstance(s, Dot) else set()
            if state in operands or (not whole and isinstance(s, Dot)):
                return
            before = s.add if isinstance(s, Dot) else None
            if before is not None and before != state:
                alone = [x for x in order if before in uses_of(x)] == [s] and before not in self.later
                if alone and fits(before, state) and free(made[before], state):
                    take(before, state)
                if before not in out and any(state in uses_of(x) for x in order[n:]):
                    return
            out[name] = state

        for s in block:
            if isinstance(s, Assign) and sum(isinstance(x, Assign) and x.value == s.value for x in block) == 1:
                take(s.value, s.state)
        return out

    # -- loops ---------------------------------------------------------------------------------------------------------
    def loop(self, s: Loop, later: frozenset[str]) -> None:
        start, stop = self.bound(s.start), self.bound(s.stop)
        size = self.number(as_int(s.axis.size))
        if s.note:
            self.line(f"// {s.note}")
        single = s.axis in self.layout.single
        first = self.axis_names[s.axis] if single else self.firsts[s.axis]
        end = self.names.new(f"{self.axis_names[s.axis]}_end")
        self.line(f"const i64 {end} = {stop if stop == size else f'imin({stop}, {size})'};")
        self.open(f"for (i64 {first} = {start}; {first} < {end}; {first} += {s.tile})")
        before = self.exact.get(s.axis, False)
        if not single:
            whole = s.full or (as_int(s.axis.size).value is not None and as_int(s.axis.size).value % s.tile == 0)  # type: ignore[operator]
            count = str(s.tile) if whole else f"imin({s.tile}, {size} - {first})"
            self.line(f"const i64 {self.counts[s.axis]} = {count};")
            self.exact[s.axis] = whole and s.tile % 16 == 0
        self.frames.append(Frame())
        at = len(self.lines)
        slots = dict(self.slots)
        self.streams[s.axis] = s.tile
        reading = later | uses_of(s)
        self.body(s.body, frozenset(reading - {v.name for x in s.body for v in outputs_of(x)}))
        self.slots = slots
        del self.streams[s.axis]
        frame = self.frames.pop()
        if frame.bytes != "0":
            outer = self.arena
            self.lines.insert(at, "  " * self.depth + f"char *m{len(self.frames)} = {outer};")
            self.frames[-1].inside.append(frame.bytes)
        self.exact[s.axis] = before
        self.close()

    def bound(self, b: Bound) -> str:
        match b:
            case At():
                text = self.number(b.index)
                return text[1:-1] if text.startswith("(") and b.index.value is None and text.endswith(")") else text
            case Down():
                return f"({self.bound(b.arg)}) / {b.tile} * {b.tile}"
            case Up():
                return f"cdiv({self.bound(b.arg)}, {b.tile}) * {b.tile}"
            case Lowest() | Highest():
                return self._extreme(b)
            case Least() | Greatest():
                fn = "imin" if isinstance(b, Least) else "imax"
                parts = list(dict.fromkeys(self.bound(x) for x in b.args))
                text = parts[0]
                for p in parts[1:]:
                    text = f"{fn}({text}, {p})"
                return text

    def _extreme(self, b: Lowest | Highest) -> str:
        """The lowest or the highest number of a tile, worked out before the loop."""
        axes = self.layout.order(self.values[b.value].axes)
        if not axes:
            return self.scalar(b.value, lambda a: "0")[0]
        name = self.names.new(f"{self.ident(b.value)}_{'least' if isinstance(b, Lowest) else 'most'}")
        self.line(f"i64 {name} = {self.scalar(b.value, lambda a: '0')[0]};")
        loops = " ".join(
            f"for (i64 {self.axis_names[a]} = 0; {self.axis_names[a]} < {self.length(a)}; {self.axis_names[a]}++)"
            for a in axes
        )
        fn = "imin" if isinstance(b, Lowest) else "imax"
        self.line(f"{loops} {name} = {fn}({name}, {self.scalar(b.value, lambda a: self.axis_names[a])[0]});")
        return name

    # -- the function --------------------------------------------------------------------------------------------------
    def write(self) -> None:
        for t in self.k.inside:
            if t.axis in self.layout.single:
                if t.block is None:
                    self.line(f"const i64 {self.axis_names[t.axis]} = 0;")
            elif t.block is None:
                size = self.number(as_int(t.axis.size))
                self.line(f"const i64 {self.firsts[t.axis]} = 0, {self.counts[t.axis]} = {size};")
                n = as_int(t.axis.size).value
                self.exact[t.axis] = n is not None and n % 16 == 0
        self.line("i64 rest = point; (void)rest;")
        uneven = self._uneven()
        for t in reversed(self.k.grid):
            size, block = self.number(as_int(t.axis.size)), t.block or 1
            tiles = size if block == 1 else f"cdiv({size}, {block})"
            at = f"rest % {tiles}" if size != "1" else "0"
            if t.axis in uneven:
                at = f"{tiles} - 1 - {at}"
            if t.axis in self.layout.single:
                self.line(f"const i64 {self.axis_names[t.axis]} = {at}; rest /= {tiles};")
                continue
            n = as_int(t.axis.size).value
            exact = n is not None and n % block == 0
            count = str(block) if exact else f"imin({block}, {size} - {self.firsts[t.axis]})"
            self.line(
                f"const i64 {self.firsts[t.axis]} = ({at}) * {block}, {self.counts[t.axis]} = {count}; rest /= {tiles};"
            )
            self.exact[t.axis] = exact and block % 16 == 0
        self.body(self.k.body, frozenset())

    def _uneven(self) -> frozenset[Axis]:
        """Grid axes whose later blocks have more to do: they come first, so that no thread ends with a long one."""
        found: set[Axis] = set()
        for s in every(self.k.body):
            if isinstance(s, Loop):
                for b in (s.start, s.stop):
                    found |= {self.ends[a] for a in _axes_of(b) if a in self.ends}
        return frozenset(found & {t.axis for t in self.k.grid if t.role is not Role.SEGMENT})

    def text(self) -> str:
        self.depth = 2
        self.write()
        body = self.lines
        head = [f"// {self.k.note}", f"static void {self.name}(const i64 *a, i64 first, i64 last, char *memory) {{"]
        head += ["  " + line for line in self.declarations()]
        head.append("  for (i64 point = first; point < last; point++) {")
        head.append("    char *m = memory; (void)m;")
        return "\n".join([*head, *body, "  }", "}"]) + "\n"

    def declarations(self) -> list[str]:
        """The arguments that the kernel names."""
        lines = []
        names = {v: k for k, v in self.arguments.names.items()}
        numbers = []
        for n in sorted(self.used, key=self.arguments.place.__getitem__):
            if n in names:
                t = self.tensors[names[n]]
                const = "" if self.is_output(t.name) else "const "
                lines.append(
                    f"{const}{STORED[t.dtype]} *{n} = ({const}{STORED[t.dtype]} *)a[{self.arguments.place[n]}];"
                )
            else:
                numbers.append(f"{n} = a[{self.arguments.place[n]}]")
        for i in range(0, len(numbers), 8):
            lines.append(f"const i64 {', '.join(numbers[i : i + 8])};")
        return lines

    def points(self) -> str:
        """The number of grid points."""
        parts = []
        for t in self.k.grid:
            size, block = self.number(as_int(t.axis.size)), t.block or 1
            parts.append(size if block == 1 else f"cdiv({size}, {block})")
        return " * ".join(parts) or "1"

    @property
    def bytes(self) -> str:
        return self.frames[0].bytes


def _statements(s: Step) -> Sequence[Statement]:
    return s.statements if isinstance(s, Nest) else (s,)


def _axes_of(b: Bound) -> Iterable[Axis]:
    match b:
        case At():
            return b.index.axes()
        case Down() | Up():
            return _axes_of(b.arg)
        case Least() | Greatest():
            return [a for x in b.args for a in _axes_of(x)]
        case _:
            return ()
