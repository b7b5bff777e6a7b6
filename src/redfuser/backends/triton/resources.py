"""What a tile program asks of a GPU, read off its operations: shared memory, registers, arithmetic and memory traffic.

An estimate, for ruling out and ordering candidates. It decides nothing about correctness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from redfuser.backends.triton.layout import Dim, Layout, power
from redfuser.index.expr import Apply, Fn, walk
from redfuser.index.ints import Int
from redfuser.tile.nodes import Correct, Declare, Dot, Kernel, Loop, Map, Read, Reduce, Role, Select, Statement, Store

_SPECIAL = {Fn.EXP, Fn.EXP2, Fn.LOG, Fn.LOG2, Fn.TANH, Fn.SIGMOID, Fn.ERF, Fn.SIN, Fn.COS, Fn.EXPM1, Fn.LOG1P, Fn.SQRT,
            Fn.RSQRT, Fn.DIV, Fn.POW}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """What the model knows of a GPU. Rates in operations or bytes a microsecond."""

    processors: int
    shared: int  # bytes a program may have
    threads: int  # resident on one processor
    tensor: float  # 16-bit products
    scalar: float  # float32 operations
    special: float  # exponentials and the like
    bandwidth: float
    cache_bandwidth: float
    bulk: bool = False  # it has a bulk copy engine
    e4m3: bool = True  # it has that number format


H200 = Machine(132, 227 * 1024, 2048, 800e6, 50e6, 8e6, 4.3e6, 8e6, True)
# by compute capability or architecture; an unknown one counts as the nearest known before it
MACHINES = {
    "cuda:80": Machine(108, 163 * 1024, 2048, 280e6, 18e6, 4.5e6, 1.7e6, 4e6, e4m3=False),
    "cuda:86": Machine(84, 99 * 1024, 1536, 150e6, 18e6, 4e6, 0.7e6, 3e6, e4m3=False),
    "cuda:89": Machine(142, 99 * 1024, 1536, 360e6, 40e6, 7e6, 0.8e6, 4e6),
    "cuda:90": H200,
    "cuda:100": Machine(148, 227 * 1024, 2048, 1600e6, 60e6, 9e6, 7e6, 12e6, True),
    "cuda:120": Machine(188, 99 * 1024, 1536, 400e6, 55e6, 9e6, 1.6e6, 6e6, True),
    "hip:gfx942": Machine(304, 64 * 1024, 2048, 900e6, 80e6, 10e6, 4.5e6, 9e6),
}


def machine(target: str) -> Machine:
    """What is known of a target; the nearest older one of its kind where it is not listed."""
    if target in MACHINES:
        return MACHINES[target]
    kind = target.partition(":")[0]
    known = sorted(k for k in MACHINES if k.startswith(kind))
    older = [k for k in known if (len(k), k) <= (len(target), target)]
    return MACHINES[older[-1] if older else known[0] if known else "cuda:90"]


@dataclass(frozen=True, slots=True)
class Need:
    """Of one kernel. ``shared`` in bytes and ``registers`` a thread, of one program; the rest over all programs."""

    programs: int
    shared: int
    registers: int
    tensor: float
    scalar: float
    special: float
    bytes: float


class Estimate:
    """Reads the needs of one kernel at given lengths."""

    def __init__(self, k: Kernel, sizes: Mapping[str, int], warps: int, stages: int) -> None:
        self.layout = Layout(k)
        self.sizes, self.warps, self.stages = sizes, warps, stages
        self.k = k
        self.operands = {n for s in self.layout.matrices for n in (s.left, s.right)}
        self.tensor = self.scalar = self.special = self.bytes = 0.0
        self.shared = 0
        self.live = 0

    def number(self, i: Int) -> int:
        return i.evaluate({s: self.sizes.get(s.name, s.hint) for s in i.sizes()})

    def length(self, d: Dim) -> int:
        blocks = {b.name: b.value if b.size is None else power(self.number(b.size)) for b in self.layout.blocks}
        return sum(int(blocks[p.length] or 1) if isinstance(p.length, str) else p.length for p in d.pieces)

    def elements(self, axes: frozenset) -> int:  # type: ignore[type-arg]
        return math.prod(self.length(d) for d in self.layout.of(axes))

    def need(self) -> Need:
        programs = 1
        for t in self.k.grid:
            d = self.layout.dims.get(t.axis)
            if d is None or d is not self.layout.row:
                n = self.number(t.axis.size)
                programs *= n if d is None else -(-n // self.length(d))
        if self.layout.row is not None:
            programs *= -(-self.number(self.layout.row.extent) // self.length(self.layout.row))
        self.block(self.k.body, 1.0, False)
        threads = 32 * self.warps
        registers = 24 + self.live // threads
        return Need(
            programs, self.shared, registers, self.tensor * programs, self.scalar * programs, self.special * programs,
            self.bytes * programs,
        )  # fmt: skip

    def block(self, body: tuple[Statement, ...], times: float, looped: bool) -> None:
        tiles = 0
        held, shared, live = self.live, self.shared, self.live  # loops follow each other in the same room
        for s in body:
            if isinstance(s, Loop):
                outside = self.shared, self.live
                trips = self.number(s.axis.size) / self.elements(frozenset((s.axis,)))
                if any(t.role is Role.SEGMENT and t in self.k.grid for t in self.k.axes):
                    trips /= math.prod(self.number(t.axis.size) for t in self.k.grid if t.role is Role.SEGMENT)
                if (
                    not s.full
                    and sum(isinstance(x, Loop) and x.axis is s.axis for x in body) > 1
                    and "mask" not in s.note
                ):
                    trips = min(trips, 1.0)
                elif "mask cuts" in s.note or ("without a mask" in s.note):
                    trips *= 0.5
                self.block(s.body, times * max(trips, 0.0), True)
                shared, live = max(shared, self.shared), max(live, self.live)
                self.shared, self.live = outside
                continue
            tiles = max(tiles, self.statement(s, times, looped))
        self.shared, self.live = max(shared, self.shared), max(live, self.live)
        self.live += tiles if looped or self.live == held == 0 else 0

    def statement(self, s: Statement, times: float, looped: bool) -> int:
        """Adds what a statement needs; the registers of what it makes."""
        match s:
            case Read():
                n = self.elements(s.out.axes)
                self.bytes += n * s.out.dtype.bytes * times
                if s.out.name in self.operands:
                    self.shared += n * s.out.dtype.bytes * (self.stages if looped else 1)
                    return 0
                if looped and any(a in self.layout.beside for a in s.out.axes):
                    self.shared += n * s.out.dtype.bytes * (self.stages - 1)
                return n if not looped else 2 * n
            case Declare():
                self.live += self.elements(s.state.axes) * max(1, s.state.dtype.bytes // 4)
                return 0
            case Dot():
                products = 2.0 * self.elements(s.out.axes) * self.elements(frozenset(s.over)) * times
                if s in self.layout.matrices:
                    self.tensor += products
                else:
                    self.scalar += products
                return self.elements(s.out.axes) if s.add is None else 0
            case Map() | Correct():
                n = self.elements(s.out.axes)
                for x in walk(s.expr):
                    if isinstance(x, Apply):
                        self.scalar += n * times
                        self.special += n * times * (x.fn in _SPECIAL)
                if isinstance(s, Correct):
                    return 0  # in place
                # an operand is held beside what it is made of
                return n + n * s.out.dtype.bytes // 4 if s.out.name in self.operands else n
            case Reduce():
                self.scalar += self.elements(s.out.axes | {s.over}) * times
                return 0
            case Select():
                self.scalar += 10 * self.elements(s.out.axes | {s.over}) * times
                return self.elements(s.out.axes | {s.over}) * 2
            case Store():
                self.bytes += self.elements(frozenset(s.axes)) * 4 * times
                return 0
            case _:
                return 0


REGISTERS = 240  # that a thread keeps; the model is coarse, and beyond 255 some are spilled
FILE = 65536  # registers of a processor
CROWDED = (
    1.5  # times those that there are for a thread of a large program: the model counts values that are not live at once
)
MOST_REGISTERS = 300  # beyond it most are


def microseconds(n: Need, m: Machine, warps: int) -> float | None:
    """The time a kernel would take; None where a program does not fit."""
    most = min(255, FILE // (32 * warps))
    if n.shared > m.shared or n.registers > min(MOST_REGISTERS, CROWDED * most):
        return None
    registers = min(most, n.registers)
    resident = min(
        m.threads // (32 * warps), FILE // (registers * 32 * warps), m.shared // max(1024, n.shared), 32,
    )  # fmt: skip
    if resident < 1:
        return None
    slots = m.processors * resident
    waves = -(-n.programs // slots)
    full = n.programs / (waves * slots)
    busy = min(1.0, n.programs / m.processors)
    spilled = 1 + max(0, n.registers - REGISTERS) / 100
    work = max(n.tensor / m.tensor, n.scalar / m.scalar, n.special / m.special)
    tail = max(full, 0.5 * busy)
    memory = n.bytes / m.cache_bandwidth / min(1.0, n.programs * warps / (m.processors * 8))
    return 3 + max(work / tail * spilled, memory)
