"""Runs tile programs with torch operations, tile by tile, on any device: the meaning of a tile program.

Every value is a tensor with one dimension for each axis of the kernel, of length 1 where it does not span the axis; so
values meet by axis. Batch axes are taken several positions at a time, so that Python's overhead stays small while each
value of a tile stays within ``BUDGET`` bytes: what a core's cache holds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redfuser.backends import select
from redfuser.backends.memory import Place, last_uses, passing_guards, read_once
from redfuser.backends.torch_expr import TORCH, Owned, evaluate
from redfuser.index.expr import Const, Ref
from redfuser.index.ints import ZERO, Atom, Axis, FloorDiv, Gather, Int, Mod, Size, as_int
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
    Kernel,
    Kind,
    Least,
    Loop,
    Lowest,
    Map,
    Program,
    Read,
    Reduce,
    Rename,
    Role,
    Select,
    SelectMerge,
    Statement,
    Store,
    Up,
    outputs_of,
)
from redfuser.tile.uses import every

BUDGET = 3 * 2**20


def run(program: Program, inputs: Mapping[str, Tensor], sizes: Mapping[str, int]) -> list[Tensor]:
    """The outputs of a tile program. ``inputs`` by name, with any strides; ``sizes``: the symbolic lengths by name."""
    with torch.no_grad():
        numbers = _Numbers(sizes)
        tensors = {t.name: inputs[t.name].detach() for t in program.of(Kind.INPUT) if t.name in inputs}
        device = next((t.device for t in tensors.values()), torch.device("cpu"))
        for t in program.of(Kind.INPUT):
            shape = tuple(numbers(i) for i in t.shape)
            if t.name in tensors and (tensors[t.name].shape != shape or tensors[t.name].dtype is not TORCH[t.dtype]):
                x = tensors[t.name]
                raise ValueError(f"{t.name} is {x.dtype} {tuple(x.shape)}, the program takes {t.dtype.value} {shape}")
        for t in program.tensors:
            if t.kind is not Kind.INPUT:
                shape = tuple(numbers(i) for i in t.shape)
                tensors[t.name] = torch.empty(shape, dtype=TORCH[t.dtype], device=device)
        for k in program.kernels:
            _Execution(k, tensors, numbers, device).run()
        return [tensors[t.name] for t in program.of(Kind.OUTPUT)]


class _Numbers:
    """Integer expressions over sizes as numbers."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._known: dict[Int, int] = {}

    def __call__(self, i: Int) -> int:
        n = self._known.get(i)
        if n is None:
            env: dict[Atom, int] = {s: self._sizes[s.name] for s in i.sizes()}
            n = self._known[i] = i.evaluate(env)
        return n

    def sized(self, i: Int) -> Int:
        """The expression with numbers in place of sizes, simplified again."""
        total = ZERO
        for monomial, c in i.terms:
            term = as_int(c)
            for a, n in monomial:
                match a:
                    case Size():
                        new = as_int(self._sizes[a.name])
                    case FloorDiv():
                        new = self.sized(a.num) // self.sized(a.den)
                    case Mod():
                        new = self.sized(a.num) % self.sized(a.den)
                    case _:
                        new = as_int(a)
                for _ in range(n):
                    term = term * new
            total = total + term
        return total

    def size(self, s: Size) -> int:
        return self._sizes[s.name]


@dataclass(frozen=True, slots=True)
class _DotPlan:
    """How two operands become a batched matrix product: the dimensions of each group."""

    batch: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    over: tuple[int, ...]
    back: tuple[int, ...]


class _Execution:
    """One kernel: its grid, and the values at the grid point at hand."""

    def __init__(self, k: Kernel, tensors: dict[str, Tensor], numbers: _Numbers, device: torch.device) -> None:
        self.kernel, self.tensors, self.numbers, self.device = k, tensors, numbers, device
        self.dim = {t.axis: n for n, t in enumerate(k.axes)}
        self.rank = len(self.dim)
        self.size = {t.axis: numbers(as_int(t.axis.size)) for t in k.axes}
        self.tile = {t.axis: t for t in k.axes}
        self.range: dict[Axis, tuple[int, int]] = {}
        self.values: dict[str, Tensor] = {}
        self.owned: set[str] = set()
        self.dying: frozenset[str] = frozenset()
        self.free: frozenset[str] = frozenset()
        self.into: frozenset[Axis] = frozenset()
        self.once: dict[int, frozenset[str]] = {}
        self.ends = last_uses(k.body)
        self.passing = passing_guards(k.body)
        self.spans = {v.name: v.axes for s in every(k.body) for v in outputs_of(s)}
        self.places: dict[int, Place | None] = {}
        self.plans: dict[int, _DotPlan] = {}

    # -- grid --------------------------------------------------------------------------------------------------------
    def run(self) -> None:
        for t in self.kernel.inside:
            if t.block is None:
                self.set(t.axis, 0, self.size[t.axis])
        steps = self.steps()
        spans = [range(0, self.size[t.axis], steps[t.axis]) for t in self.kernel.grid]
        for starts in itertools.product(*spans):
            for t, at in zip(self.kernel.grid, starts, strict=True):
                self.set(t.axis, at, min(at + steps[t.axis], self.size[t.axis]))
            self.values.clear()
            self.owned.clear()
            self.block(self.kernel.body)

    def set(self, axis: Axis, start: int, stop: int) -> None:
        t = self.tile[axis]
        self.range[axis] = (start, stop)
        self.range[t.first] = (start, start + 1)
        self.range[t.last] = (stop - 1, stop)

    def steps(self) -> dict[Axis, int]:
        """Positions of each grid axis taken at a time: its block, and as many of a batch axis as the budget allows."""
        steps = {t.axis: min(t.block or 1, self.size[t.axis]) for t in self.kernel.grid}
        fixed = {a for s in every(self.kernel.body) if isinstance(s, Loop) for a in self.placed(s)}
        room = max(1, BUDGET // max(1, self.footprint()))
        for t in reversed(self.kernel.grid):
            if t.role is Role.BATCH and not {t.first, t.last} & fixed:
                steps[t.axis] = max(1, min(room, self.size[t.axis]))
                room = max(1, room // steps[t.axis])
        return steps

    def placed(self, s: Loop) -> Iterator[Axis]:
        """The placeholders that the bounds of a loop depend on."""
        stack: list[Bound] = [s.start, s.stop]
        while stack:
            match stack.pop():
                case At(index=i):
                    yield from i.axes()
                case Down(arg=b) | Up(arg=b):
                    stack.append(b)
                case Least(args=bs) | Greatest(args=bs):
                    stack += bs
                case Lowest(value=name) | Highest(value=name):
                    yield from self.firsts(self.spans[name])

    def firsts(self, axes: frozenset[Axis]) -> Iterator[Axis]:
        """The placeholders of axes, for a bound that is a number of theirs."""
        yield from (self.tile[a].first for a in axes)

    def footprint(self) -> int:
        """Bytes of the largest value of one grid point."""
        sizes = []
        for s in every(self.kernel.body):
            for v in outputs_of(s):
                n = max(4, v.dtype.bytes)
                for a in v.axes:
                    block = self.tile[a].block
                    n *= min(block, self.size[a]) if block is not None else self.size[a]
                sizes.append(n)
        return max(sizes, default=1)

    # -- statements --------------------------------------------------------------------------------------------------
    def block(self, body: tuple[Statement, ...]) -> None:
        for s in body:
            self.dying = ends = self.ends[id(s)]
            self.statement(s)
            for name in ends:
                self.values.pop(name, None)
                self.owned.discard(name)

    def statement(self, s: Statement) -> None:
        match s:
            case Read():
                self.values[s.out.name] = self.read(s)
            case Map() | Correct():
                once = self.once.get(id(s))
                if once is None:
                    once = self.once[id(s)] = read_once(s.expr) & self.dying
                self.free, self.into = once, s.out.axes
                x, own = evaluate(s.expr, self)
                self.put(s.out.name, x if x.dim() == self.rank else x.reshape((1,) * self.rank), own)
            case Guard():
                self.guard(s)
            case Dot():
                self.put(s.out.name, self.dot(s), True)
            case Reduce():
                self.put(s.out.name, self.reduce(s), True)
            case Combine():
                x = select.combine(s.reducer, self.met(s.left, s.out.axes), self.met(s.right, s.out.axes))
                self.put(s.out.name, x, True)
            case Select():
                k = None if s.k is None else (self.dim[s.k], self.size[s.k])
                found = select.best(self.values[s.arg], self.dim[s.over], self.range[s.over][0], s.reducer, k)
                self.values[s.out.name], self.values[s.index.name] = found
            case SelectMerge():
                left = self.values[s.left], self.values[s.left_index]
                right = self.values[s.right], self.values[s.right_index]
                k = None if s.k is None else (self.dim[s.k], self.size[s.k])
                self.values[s.out.name], self.values[s.index.name] = select.merge(left, right, s.reducer, k)
            case Rename():
                x = self.values[s.arg]
                for a, b in s.axes:
                    x = x.transpose(self.dim[a], self.dim[b])
                self.values[s.out.name] = x
            case Declare():
                self.values[s.state.name] = self.initial(s.init)
            case Assign():
                self.values[s.state] = self.values[s.value]
            case Store():
                self.store(s)
            case Loop():
                self.loop(s)

    def put(self, name: str, x: Tensor, own: bool) -> None:
        self.values[name] = x
        if own:
            self.owned.add(name)

    def initial(self, init: Const | str) -> Tensor:
        if isinstance(init, str):
            return self.values[init]
        return torch.full((1,) * self.rank, init.value, dtype=TORCH[init.dtype], device=self.device)

    def guard(self, s: Guard) -> None:
        """Tiles are cut at the end of the axis, so nothing lies beyond; only a missing axis has to appear."""
        x, d = self.met(s.arg, s.out.axes), self.dim[s.axis]
        start, stop = self.range[s.axis]
        if x.shape[d] == stop - start:
            own = s.arg in self.owned and s.arg in self.dying
            if id(s) not in self.passing:
                self.owned.discard(s.arg)
            self.put(s.out.name, x, own)
        else:
            shape = list(x.shape)
            shape[d] = stop - start
            self.values[s.out.name] = x.expand(shape)

    def loop(self, s: Loop) -> None:
        start, stop = self.bound(s.start), min(self.bound(s.stop), self.size[s.axis])
        for at in range(start, stop, s.tile):
            self.set(s.axis, at, min(at + s.tile, self.size[s.axis]))
            self.block(s.body)

    def bound(self, b: Bound) -> int:
        match b:
            case At():
                return self.number(b.index)
            case Down():
                return self.bound(b.arg) // b.tile * b.tile
            case Up():
                return -(-self.bound(b.arg) // b.tile) * b.tile
            case Least():
                return min(self.bound(x) for x in b.args)
            case Greatest():
                return max(self.bound(x) for x in b.args)
            case Lowest():
                return int(self.values[b.value].min())
            case Highest():
                return int(self.values[b.value].max())

    def number(self, i: Int) -> int:
        """An expression over sizes and placeholders."""
        env: dict[Atom, int] = {s: self.numbers.size(s) for s in i.sizes()}
        env.update((a, self.range[a][0]) for a in i.axes())
        return i.evaluate(env)

    # -- the scope of expressions ------------------------------------------------------------------------------------
    def value(self, name: str) -> Owned:
        x = self.met(name, self.into)
        return x, x is not self.values[name] or (name in self.owned and name in self.free)

    def position(self, index: Int) -> Tensor:
        x = self.indices(index)
        if isinstance(x, int):
            return torch.tensor(x, dtype=torch.int64, device=self.device)
        return x

    def indices(self, i: Int) -> Tensor | int:
        """An index at all positions of the tile."""
        total: Tensor | int = 0
        for monomial, c in i.terms:
            term: Tensor | int = c
            for a, n in monomial:
                x = self.atom(a)
                for _ in range(n):
                    term = term * x
            total = total + term
        return total

    def atom(self, a: Atom) -> Tensor | int:
        match a:
            case Size():
                return self.numbers.size(a)
            case Axis():
                start, stop = self.range[a]
                if a not in self.dim:
                    return start
                shape = [1] * self.rank
                shape[self.dim[a]] = stop - start
                return torch.arange(start, stop, device=self.device).reshape(shape)
            case Gather():
                assert isinstance(a.value, Ref)
                return self.values[a.value.name].to(torch.int64)
            case FloorDiv() | Mod():
                n, d = self.indices(a.num), self.indices(a.den)
                if isinstance(n, int) and isinstance(d, int):
                    return n // d if isinstance(a, FloorDiv) else n % d
                n = n if isinstance(n, Tensor) else torch.tensor(n, device=self.device)
                return torch.div(n, d, rounding_mode="floor") if isinstance(a, FloorDiv) else torch.remainder(n, d)

    # -- memory ------------------------------------------------------------------------------------------------------
    def place(self, s: Read | Store, t: Tensor, axes: Sequence[Axis]) -> Tensor | None:
        """A view of the tile's elements, when the index is affine in the axes and stays inside the tensor."""
        key = id(s)
        if key not in self.places:
            clip = s.clip if isinstance(s, Read) else (False,) * len(s.index)
            self.places[key] = Place.of(s.index, clip, t, axes, self.dim, self.numbers.sized)
        p = self.places[key]
        return None if p is None else p.view(t, self.range, self.rank)

    def read(self, s: Read) -> Tensor:
        t = self.tensors[s.tensor]
        view = self.place(s, t, [a for a in self.dim if a in s.out.axes])
        if view is not None:
            return view
        index = []
        for i, n in zip(s.index, t.shape, strict=True):
            x = self.indices(i)
            x = x if isinstance(x, Tensor) else torch.tensor(x, device=self.device)
            index.append(x.clamp(0, n - 1).reshape((1,) * (self.rank - x.dim()) + x.shape))
        return t[tuple(index)]

    def store(self, s: Store) -> None:
        t, x = self.tensors[s.tensor], self.values[s.value]
        view = self.place(s, t, s.axes)
        if view is not None:
            view.copy_(x)
            return
        shape = [1] * self.rank
        for a in s.axes:
            shape[self.dim[a]] = self.range[a][1] - self.range[a][0]
        index = []
        for i in s.index:
            at = self.indices(i)
            at = at if isinstance(at, Tensor) else torch.tensor(at, device=self.device)
            index.append(at.expand(shape))
        t[tuple(index)] = x.expand(shape)

    # -- lanes -------------------------------------------------------------------------------------------------------
    def met(self, name: str, axes: frozenset[Axis]) -> Tensor:
        """A value where it meets others in one that spans ``axes``: at each position that of the position's lane."""
        x, lanes = self.values[name], self.kernel.lanes
        if lanes is None or lanes.of not in axes or x.shape[self.dim[lanes.axis]] == 1:
            return x
        start, stop = self.range[lanes.of]
        lane = torch.arange(stop - start, device=self.device) // lanes.run % self.size[lanes.axis]
        return x.index_select(self.dim[lanes.axis], lane).transpose(self.dim[lanes.axis], self.dim[lanes.of])

    def reduce(self, s: Reduce) -> Tensor:
        lanes, d = self.kernel.lanes, self.dim[s.over]
        if lanes is None:
            return select.reduce(self.values[s.arg], d, s.reducer, s.out.dtype)
        x = self.spanning(s.arg)
        if s.over is lanes.of and lanes.axis in s.out.axes:
            axis = self.dim[lanes.axis]
            x = select.dealt(x, d, axis, self.size[lanes.axis], lanes.run, s.reducer, s.out.dtype)
        return select.reduce(x, d, s.reducer, s.out.dtype)

    # -- arithmetic --------------------------------------------------------------------------------------------------
    def dot(self, s: Dot) -> Tensor:
        dtype = TORCH[s.out.dtype]
        left, right = self.spanning(s.left).to(dtype), self.spanning(s.right).to(dtype)
        p = self.plans.get(id(s))
        if p is None:
            p = self.plans[id(s)] = self.dot_plan(s, left, right)
        a = _matrix(left, p.batch, p.left, p.over)
        b = _matrix(right, p.batch, p.over, p.right)
        shape = [left.shape[d] for d in p.batch] + [left.shape[d] for d in p.left] + [right.shape[d] for d in p.right]
        full = [*shape, *(1 for _ in range(self.rank - len(shape)))]
        if s.add is None:
            return torch.bmm(a, b).view(full).permute(p.back)
        add = self.values[s.add].to(dtype)
        target = [max(m, n) for m, n in zip(add.shape, [full[d] for d in p.back], strict=True)]
        order = (*p.batch, *p.left, *p.right)
        rest = [d for d in range(self.rank) if d not in order]
        c = add.expand(target).permute(*order, *rest).reshape(*a.shape[:2], b.shape[2])
        return torch.baddbmm(c, a, b).view(full).permute(p.back)

    def spanning(self, name: str) -> Tensor:
        """A value as long as the tile along every axis that it spans: a choice between constants may be shorter."""
        x = self.values[name]
        shape = list(x.shape)
        for a in self.spans[name]:
            start, stop = self.range[a]
            shape[self.dim[a]] = stop - start
        return x if list(x.shape) == shape else x.expand(shape)

    def dot_plan(self, s: Dot, left: Tensor, right: Tensor) -> _DotPlan:
        over = tuple(self.dim[a] for a in s.over)
        axes_l = {self.dim[a] for a in self.spans[s.left]} - set(over)
        axes_r = {self.dim[a] for a in self.spans[s.right]} - set(over)
        batch = tuple(sorted(axes_l & axes_r))
        m, n = tuple(sorted(axes_l - axes_r)), tuple(sorted(axes_r - axes_l))
        order = [*batch, *m, *n]
        order += [d for d in range(self.rank) if d not in order]
        back = tuple(order.index(d) for d in range(self.rank))
        return _DotPlan(batch, m, n, over, back)


def _matrix(x: Tensor, batch: tuple[int, ...], rows: tuple[int, ...], columns: tuple[int, ...]) -> Tensor:
    """x as (batch, rows, columns); the other dimensions have length 1."""
    order = (*batch, *rows, *columns)
    rest = [d for d in range(x.dim()) if d not in order]
    shape = [x.shape[d] for d in order]
    count = [math.prod(shape[: len(batch)]), math.prod(shape[len(batch) : len(batch) + len(rows)])]
    return x.permute(*order, *rest).reshape(*count, math.prod(shape[len(batch) + len(rows) :]))
