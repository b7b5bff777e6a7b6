"""What all strategies of a tile program share: the tensors, the running state, and how results are read and written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from redfuser.algebra.nodes import Accumulator, Base, Derivation, Pass, Stage
from redfuser.index.expr import Cast, Const, Expr, Part, Ref, dtype_of, loads, substitute, transform
from redfuser.index.ints import Axis, Int, as_int
from redfuser.index.nodes import Map as Definition
from redfuser.regions.nodes import Region, Result
from redfuser.tile import lanes, roles
from redfuser.tile.identity import NO_POSITION, constant
from redfuser.tile.lower import Lowering, Stored
from redfuser.tile.moderate import moderate
from redfuser.tile.names import Names
from redfuser.tile.nodes import Declare, Kernel, Kind, Lanes, Read, Role, Store, Tensor, TileAxis, Value
from redfuser.tile.strategy import Schedule, Unsupported
from redfuser.tile.uses import every


class Builder:
    def __init__(self, region: Region, derivation: Derivation, schedule: Schedule) -> None:
        self.region, self.derivation, self.schedule = region, derivation, schedule
        self.frame = roles.frame(region, derivation)
        self.axis = self.frame.cascade
        self.grid, self.fixed = roles.blocks(self.frame, schedule)
        self.stages = {s.name: s for s in region.problem.stages}
        self.results = _named_apart([_own_ranks(r, self.stages) for r in region.results])
        self.inputs = {
            i.name: Tensor(i.name, Kind.INPUT, tuple(a.size for a in i.axes), i.dtype) for i in region.program.inputs
        }
        outputs = {r.name: Tensor(r.name, Kind.OUTPUT, r.shape, r.dtype) for r in self.results}
        if outputs.keys() & self.inputs.keys():
            raise ValueError(f"results are named as inputs: {sorted(outputs.keys() & self.inputs.keys())}")
        self.tensors = self.inputs | outputs
        self.scratch: dict[tuple[str, Part], Tensor] = {}
        self.scratch_of: dict[str, dict[Part, Tensor]] = {}
        self.definitions = {d.name: d for d in region.program.definitions if isinstance(d, Definition)}
        self.producers = {p.name: p for p in region.producers}
        self.epilogues = {p.name: p for p in region.epilogues}
        self.wanted = _read_stages(region, derivation)
        self.moderate = moderate(region.problem)

    def lowering(self, fixed: tuple[TileAxis, ...] | None = None) -> Lowering:
        names = frozenset({self.axis, *self.frame.kept, *self.frame.ranks, *self.frame.swept})
        low = Lowering(
            self.inputs | {t.name: t for t in self.scratch.values()},
            self.definitions,
            self.producers,
            self.epilogues,
            names,
            self.tensors,
        )
        low.scratch.update(self.scratch)
        low.inner.update(dict.fromkeys(t.axis for t in (self.fixed if fixed is None else fixed)))
        return low

    def streaming(self) -> Lowering:
        """For a kernel that streams the cascade axis, in lanes where the schedule has them."""
        low = self.lowering()
        s = self.schedule
        if s.lanes:
            why = lanes.refusal(self.region, self.derivation)
            if why is not None:
                raise Unsupported(why)
            low.lanes = Lanes(Axis("lane", as_int(s.lanes)), self.axis, s.run)
            low.tile = s.tile
        return low

    def kernel(
        self,
        low: Lowering,
        name: str,
        note: str,
        grid: Iterable[TileAxis],
        inside: Iterable[TileAxis] = (),
        fixed: tuple[TileAxis, ...] | None = None,
    ) -> Kernel:
        body = low.close()
        fixed = self.fixed if fixed is None else fixed
        here = {t.axis for t in (*fixed, *inside)}
        inner = [roles.tile_axis(a, Role.INNER, None) for a in low.inner if a not in here]
        if low.lanes is not None:
            inner.append(roles.tile_axis(low.lanes.axis, Role.LANE, None))
        kept = {t.name for (n, part), t in self.scratch.items() if n in self.moderate and part is Part.VALUE}
        found = {s.out.name for s in every(body) if isinstance(s, Read) and s.tensor in kept}
        found |= {low.stages[n].value.name for n in self.moderate if n in low.stages}
        inside = (*fixed, *inside, *inner)
        return Kernel(name, note, tuple(grid), inside, body, low.lanes, moderate=frozenset(found))

    def cascade(self, block: int | None) -> TileAxis:
        return roles.tile_axis(self.axis, Role.CASCADE, block)

    def declare(self, low: Lowering, p: Pass) -> list[Value]:
        """The running state of a pass, at its identity."""
        along, word = (frozenset[Axis](), "") if low.lanes is None else (frozenset((low.lanes.axis,)), "_lanes")
        states = []
        start: dict[str, Expr] = {}
        for s in p.steps:
            if isinstance(s, Base):
                start[s.name] = constant(_at(s.value, start))
                v = low.declare(low.new(f"{s.name}{word}", s.dtype, frozenset(s.axes) | along))
                low.add(Declare(v, self.first(low, start[s.name], f"{s.name}_start"), "base"))
            else:
                axes = frozenset((*s.axes, s.k) if s.k is not None else s.axes) | along
                start[s.name] = s.reducer.identity(s.dtype)
                v = low.declare(low.new(f"{s.name}{word}", s.dtype, axes))
                low.add(Declare(v, s.reducer.identity(s.dtype), s.role))
                if s.reducer.has_index:
                    at = low.declare(Value(low.names.new(f"{s.name}_index"), NO_POSITION.dtype, axes))
                    low.add(Declare(at, NO_POSITION, f"positions of {s.name}"))
                    self.bind(low, s.name, at, Part.INDEX)
                    states.append(at)
            self.bind(low, s.name, v, Part.VALUE)
            states.append(v)
        return states

    @staticmethod
    def first(low: Lowering, e: Expr, wish: str) -> Const | str:
        return e if isinstance(e, Const) else low.value(e, wish).name

    @staticmethod
    def bind(low: Lowering, name: str, v: Value, part: Part) -> None:
        low.state[name, False, part] = low.state[name, True, part] = v

    def read(self, low: Lowering, p: Pass) -> None:
        """The results of the stages of a pass, from its final state."""
        reads = [r for r in p.reads if r.stage in self.wanted]
        low.expect(e for r in reads for e in (r.value, r.index) if e is not None)
        for r in reads:
            stage = self.stages[r.stage]
            value = low.value(r.value, r.stage)
            index = None if r.index is None else low.value(r.index, f"{r.stage}_index")
            axes = stage.axes if stage.k is None else (*stage.axes, stage.k)
            low.stages[r.stage] = Stored(value, index, axes)

    def write(self, low: Lowering, results: Iterable[Result]) -> None:
        results = list(results)
        low.expect(r.body for r in results)
        for r in results:
            index = tuple(low.index(i)[0] for i in r.index)
            v = low.value(r.body, r.name, r.dtype)
            low.add(Store(r.name, index, v.name, r.axes), low.level(frozenset(r.axes), low.level_of[v.name]))

    def swept(self, r: Result) -> tuple[Axis, ...]:
        return tuple(a for a in r.axes if a not in self.frame.kept and a not in self.frame.ranks)

    def keep(self, low: Lowering, p: Pass) -> None:
        """Stores the results of a pass for the kernels that follow."""
        for r in p.reads:
            if r.stage not in self.wanted:
                continue
            stored = low.stages[r.stage]
            for part, v in ((Part.VALUE, stored.value), (Part.INDEX, stored.index)):
                if v is None:
                    continue
                name = f"{r.stage}_result" if part is Part.VALUE else f"{r.stage}_index_result"
                t = Tensor(name, Kind.SCRATCH, tuple(a.size for a in stored.axes), v.dtype)
                self.tensors[name] = self.scratch[r.stage, part] = t
                low.add(Store(name, tuple(as_int(a) for a in stored.axes), v.name, stored.axes))


def _read_stages(region: Region, derivation: Derivation) -> frozenset[str]:
    """The stages whose results something reads: a result of the region, or a later pass."""
    exprs = [*(r.body for r in region.results), *(e.body for e in region.epilogues)]
    for p in derivation.passes:
        exprs += [e for r in p.reads for e in (r.value, r.index) if e is not None]
        exprs += [e for s in p.steps for e in bodies(s, {s.name: s.element} if isinstance(s, Accumulator) else {}) if e]
    return frozenset(x.source for e in exprs for x in loads(e))


def bodies(s: Accumulator | Base, elements: dict[str, Expr]) -> tuple[Expr | None, ...]:
    return (s.value,) if isinstance(s, Base) else (s.correction, elements[s.name])


def _at(e: Expr, values: dict[str, Expr]) -> Expr:
    """e with Refs replaced by values: a base before the first tile."""

    def leaf(x: Expr) -> Expr | None:
        if isinstance(x, Ref) and x.name in values:
            v = values[x.name]
            return v if dtype_of(v) is x.dtype else Cast(v, x.dtype)
        return None

    return transform(e, leaf)


def _named_apart(results: list[Result]) -> tuple[Result, ...]:
    """The results under different names: two may be components of one value, or the same value twice."""
    names = Names()
    return tuple(replace(r, name=names.new(r.name)) for r in results)


def _own_ranks(r: Result, stages: dict[str, Stage]) -> Result:
    """A result along a top-k list, with the axis of the list in place of its own."""
    mapping: dict[Axis, Int] = {}
    for x in loads(r.body):
        k = stages[x.source].k if x.source in stages else None
        at = x.index[-1].axis if x.index else None
        if k is not None and at is not None and at is not k and at in r.axes:
            mapping[at] = as_int(k)
    if not mapping:
        return r
    axes = tuple(dict.fromkeys(mapping[a].axis or a if a in mapping else a for a in r.axes))
    index = tuple(i.substitute(mapping) for i in r.index)
    return replace(r, index=index, axes=axes, body=substitute(r.body, mapping))
