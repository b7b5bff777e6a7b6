"""The checker: runs a derivation in float64 against the definition of its stages. It shares no code with the deriver.

Every load is replaced by random data of its own, so what is checked is the algebra and not one memory layout. Random
segmentations (empty segments too) are streamed and merged in a random tree; a leading dimension holds the regimes.

A long axis is checked at a short length, which takes the place of the long one wherever a number says it, in the
definition and in the derivation alike (``_shortened``).
"""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from redfuser.algebra.evaluate import Array, Evaluator, Grid, Loop, State, reduce
from redfuser.algebra.nodes import Accumulator, Derivation, Pass, Problem, Stage, Step, Verdict
from redfuser.index.expr import Const, DType, Expr, Load, Part, Position, Ref, const, free_axes, loads, transform, walk
from redfuser.index.ints import Axis, as_int
from redfuser.index.nodes import Reducer

LENGTH = 24
LONG = 1024  # from here on a short length is checked instead; where none can be, fewer regimes and rows are run
TOLERANCE = 1e-7
COMMON = ("ordinary", "positive", "offset", "constant", "zero prefix", "huge scale", "zero parameters")
PER_LOAD = ("masked prefix", "masked at random", "all masked", "zero")


@dataclass(frozen=True, slots=True)
class Found:
    """A verdict, and the first stage that was wrong."""

    verdict: Verdict
    stage: str | None


def check(d: Derivation, *, seed: int = 0, runs: int = 3, tolerance: float = TOLERANCE) -> Verdict:
    """Whether the derivation gives what the stages define, on ``runs`` random segmentations of every regime."""
    return examine(d, seed=seed, runs=runs, tolerance=tolerance).verdict


def examine(d: Derivation, *, seed: int = 0, runs: int = 3, tolerance: float = TOLERANCE) -> Found:
    """As ``check``, with the first stage that was wrong."""
    with np.errstate(all="ignore"):
        return _check(d, seed, runs, tolerance)


# -- the length ------------------------------------------------------------------------------------------------------
def _sized(d: Derivation) -> tuple[Derivation, int]:
    """The derivation as it is checked, and the length at which: a short one, where neither side can tell."""
    n = d.problem.axis.size.value
    if n is None:
        return d, LENGTH
    bodies = [s.body for s in d.problem.stages]
    numbers = _numbers(bodies)
    if n > LONG and not any(_looks_at(e, d.problem.axis) for e in (*bodies, *_derived(d))):
        derived = _numbers(_derived(d)) - numbers
        if all(map(_small, derived)):  # none that came of n, as 2/n and 1/n**2 do
            m = next(m for m in itertools.count(LENGTH) if (numbers | derived).isdisjoint(_written(m)))
            return _shortened(d, n, m), m
    return d, n if n in numbers or 1 / n in numbers else min(n, LENGTH)


def _numbers(exprs: list[Expr]) -> set[float]:
    """Their sizes, signs left out."""
    return {abs(x.value) for e in exprs for x in walk(e) if isinstance(x, Const)}


def _small(v: float) -> bool:
    """A coefficient of an expansion or the exponent of a root: 0, 2, 3/2; or an infinity."""
    if not math.isfinite(v):
        return True
    q = Fraction(v).limit_denominator(LENGTH)
    return q == v and q.numerator < LENGTH


def _looks_at(e: Expr, axis: Axis) -> bool:
    """True where positions along the axis are values, which may be compared with any number."""
    return any(isinstance(x, Position) and axis in x.index.axes() for x in walk(e))


def _shortened(d: Derivation, n: int, m: int) -> Derivation:
    """The derivation for length m: n, 1/n, n - 1 and 1/(n - 1) become m, 1/m, m - 1 and 1/(m - 1), on both sides.

    These stand nowhere before, so what takes another number for the length, or the length for another number, differs
    from its definition at m as it does at n.
    """
    instead = dict(zip(_written(n), _written(m), strict=True))
    memo: dict[Expr, Expr] = {}

    def leaf(x: Expr) -> Expr | None:
        if isinstance(x, Const) and abs(x.value) in instead:
            return const(math.copysign(instead[abs(x.value)], x.value), x.dtype)
        return None

    def at(e: Expr) -> Expr:
        return transform(e, leaf, memo)

    def step(s: Step) -> Step:
        if isinstance(s, Accumulator):
            return replace(s, element=at(s.element), correction=None if s.correction is None else at(s.correction))
        return replace(s, value=at(s.value))

    problem = Problem(d.problem.axis, tuple(replace(s, body=at(s.body)) for s in d.problem.stages))
    passes = tuple(
        Pass(tuple(map(step, p.steps)), tuple(replace(r, value=at(r.value)) for r in p.reads)) for p in d.passes
    )
    return replace(d, problem=problem, passes=passes)


def _written(n: int) -> tuple[float, ...]:
    """The numbers that say a length: in a mean, and in an unbiased variance."""
    return float(n), 1 / n, float(n - 1), 1 / (n - 1)


def _derived(d: Derivation) -> list[Expr]:
    out: list[Expr] = []
    for p in d.passes:
        for s in p.steps:
            exprs = [s.element, s.correction] if isinstance(s, Accumulator) else [s.value]
            out += [e for e in exprs if e is not None]
        out += [r.value for r in p.reads]
    return out


# -- data ------------------------------------------------------------------------------------------------------------
def _grid(d: Derivation, length: int, rng: np.random.Generator) -> tuple[Grid, tuple[str, ...]]:
    p = d.problem
    names = {s.name for s in p.stages}
    own = {s.name: tuple(as_int(a) for a in s.axes) for s in p.stages if s.k is None}
    every: dict[Load, None] = {}  # a result at other indices than its own (or of a list) is data like any other
    for s in p.stages:
        every.update(dict.fromkeys(x for x in loads(s.body) if x.source not in names or own.get(x.source) != x.index))
    for x in itertools.chain(*map(loads, _derived(d))):
        if x.source not in names:
            every.setdefault(x)
    axes: dict[Axis, None] = {}
    for s in p.stages:
        axes.update(dict.fromkeys(a for a in (*s.axes, *_axes(s)) if a is not p.axis))
    for x in every:
        axes.update(dict.fromkeys(a for a in sorted(free_axes(x), key=lambda a: a.serial) if a is not p.axis))
    dims = {a: i + 1 for i, a in enumerate(axes)}
    coordinates = {a: _spread(a, length, 2 if len(axes) < 5 and length <= LONG else 1) for a in axes}
    masked = [x for x in every if p.axis in free_axes(x) and x.dtype.is_float][: 4 if length <= LONG else 1]
    regimes = COMMON + tuple(f"{r} {i}" for i in range(len(masked)) for r in PER_LOAD)
    if length > LONG:
        regimes = tuple(r for r in regimes if r in ("ordinary", "offset", "constant", "masked prefix 0"))
    grid = Grid(p.axis, length, dims, coordinates, length, {}, _lax(d))
    for x in every:
        grid.data[x] = _data(x, grid, regimes, masked, rng)
    return grid, regimes


def _axes(s: Stage) -> list[Axis]:
    return sorted((a for a in free_axes(s.body)), key=lambda a: a.serial)


def _lax(d: Derivation) -> bool:
    return any("rounding" in c for c in d.proof.conditions)


def _spread(a: Axis, length: int, n: int) -> Array:
    size = a.size.value or length
    return np.array([min(size - 1, length - 1), min(size - 1, length // 3)][:n], dtype=np.float64)


def _data(x: Load, g: Grid, regimes: tuple[str, ...], masked: list[Load], rng: np.random.Generator) -> Array:
    axes = free_axes(x)
    shape = [len(regimes)] + [1] * (g.rank - 1)
    for a, i in g.dims.items():
        if a in axes:
            shape[i] = len(g.coordinates[a])
    along = g.axis in axes
    if along:
        shape[-1] = g.length
    if x.dtype is DType.BOOL:
        return np.asarray(rng.random(shape) < 0.6)
    if not x.dtype.is_float:
        return rng.integers(0, 5, shape).astype(np.float64)
    out = rng.standard_normal(shape)
    half = np.arange(shape[-1]) >= (shape[-1] + 1) // 2
    mine = masked.index(x) if x in masked else -1
    for i, r in enumerate(regimes):
        kind, _, which = r.rpartition(" ") if r[-1].isdigit() else (r, "", "")
        v = out[i]
        if which and int(which) != mine:
            continue
        match kind:
            case "positive":
                v[...] = np.abs(v) + 0.1
            case "offset":
                v += 1e3 if along else 0.0
            case "constant":
                v[...] = 3.0
            case "zero prefix" if along:
                v *= half
            case "huge scale" if along:
                v *= 1e2
            case "zero parameters" if not along:
                v[...] = 0.0
            case "masked prefix":
                v[...] = np.where(half, v - 2e3, -np.inf)  # so low that exp(-v) overflows
            case "masked at random":
                v[...] = np.where(rng.random(v.shape) < 0.5, v, -np.inf)
            case "all masked":
                v[...] = -np.inf
            case "zero":
                v[...] = 0.0
    return out


# -- definition against derivation -----------------------------------------------------------------------------------
@dataclass(slots=True)
class Definition:
    """The results stage by stage; the size of what was summed; rows where one of the listed exceptions holds.

    ``excused``: the loop may be finite where the definition is not. ``loose``: products whose factors overflow before
    a zero is met, where the order of the factors decides.
    """

    results: State
    scale: dict[str, Array]
    bodies: dict[str, Array]
    excused: Array
    loose: dict[str, Array] = field(default_factory=dict)  # by stage, later stages included
    noise: dict[str, Array] = field(default_factory=dict)


def _definition(p: Problem, g: Grid, rng: np.random.Generator | None = None) -> Definition:
    """The stages one by one over the whole axis; with ``rng`` each result is moved by one rounding."""
    out = Definition({}, {}, {}, np.zeros((1,) * g.rank, dtype=np.bool_))
    overflow: list[Array] = []
    loose = out.excused
    for s in p.stages:
        e = Evaluator(g, slice(0, g.length), out.results, overflow=overflow)(s.body)
        e = out.bodies[s.name] = np.broadcast_to(e, (*e.shape[:-1], g.length))
        at = np.broadcast_to(np.arange(g.length, dtype=np.float64), e.shape) if s.reducer.has_index else None
        v, i = reduce(s.reducer, [(e, at)], _k(s, g))
        if rng is not None and v.dtype != np.bool_:
            v = v * (1 + 2.0**-52 * rng.integers(-1, 2, v.shape))
        out.results[(s.name, Part.VALUE)] = v
        if i is not None:
            out.results[(s.name, Part.INDEX)] = i
        out.excused = out.excused | _lost_between(s, e)
        if s.reducer is Reducer.PROD:
            factors = np.where((e == 0) | ~np.isfinite(e), 1.0, np.maximum(np.abs(e), 1.0))
            loose = loose | ~np.isfinite(np.prod(factors, axis=-1, keepdims=True))
        out.loose[s.name] = loose
        size = np.abs(np.where(np.isfinite(e), e, 0.0)) if e.dtype != np.bool_ else e.astype(np.float64)
        total = np.sum if s.reducer is Reducer.SUM else np.max
        out.scale[s.name] = np.asarray(total(size, axis=-1, keepdims=True))
    for o in overflow:
        out.excused = out.excused | o
    return out


def _lost_between(s: Stage, e: Array) -> Array:
    """An infinite result against an infinite element is NaN; an extremum that keeps only its key sees it at the extreme
    element alone.
    """
    extremum = s.reducer in (Reducer.MAX, Reducer.MIN) or s.reducer.has_index
    if not extremum or e.dtype == np.bool_:
        return np.zeros((1,) * e.ndim, dtype=np.bool_)
    lost = np.isnan(e)
    return np.asarray(lost.any(-1, keepdims=True) & ~lost.all(-1, keepdims=True))


def _measure_noise(p: Problem, g: Grid, want: Definition, rng: np.random.Generator) -> None:
    """How far the definition moves when data and results move by one rounding, at least one rounding of the data.

    No derivation can be closer to it than that.
    """
    if want.noise:
        return
    peak = np.zeros((1,) * g.rank)
    for v in g.data.values():
        if v.dtype != np.bool_:
            sizes = np.where(np.isfinite(v), np.abs(v), 0.0)
            peak = np.maximum(peak, sizes.max(axis=tuple(range(1, g.rank)), keepdims=True))
    for _ in range(3):
        data = {
            x: v if v.dtype == np.bool_ else v * (1 + 2.0**-52 * rng.integers(-1, 2, v.shape))
            for x, v in g.data.items()
        }
        moved = _definition(p, replace(g, data=data), rng).results
        for s in p.stages:
            key = (s.name, Part.VALUE)
            if want.results[key].dtype != np.bool_:
                gap = np.nan_to_num(np.abs(moved[key] - want.results[key]), nan=0.0, posinf=0.0)
                want.noise[s.name] = np.maximum(want.noise.get(s.name, 2.0**-52 * peak), gap)


def _k(s: Stage, g: Grid) -> int:
    return 1 if s.k is None else g.slots(s.k)


def _run(d: Derivation, g: Grid, rng: np.random.Generator) -> State:
    """The passes on a random segmentation, merged in a random tree."""
    results: State = {}
    ks = {s.name: _k(s, g) for s in d.problem.stages}
    for p in d.passes:
        sizes = {s.name: ks[s.stage] for s in p.steps if isinstance(s, Accumulator) and s.k is not None}
        loop = Loop(g, p, results, sizes)
        cuts = [0, *sorted(int(c) for c in rng.integers(0, g.length + 1, 4)), g.length]
        parts = []
        for a, b in itertools.pairwise(cuts):
            state = loop.start()
            middle = int(rng.integers(a, b + 1))
            state = loop.update(state, slice(a, middle))
            parts.append(loop.update(state, slice(middle, b)) if middle < b or rng.random() < 0.5 else state)
        while len(parts) > 1:
            i = int(rng.integers(0, len(parts) - 1))
            parts[i : i + 2] = [loop.merge(parts[i], parts[i + 1])]
        results = {**results, **loop.read(parts[0])}
    return results


def _check(d: Derivation, seed: int, runs: int, tolerance: float) -> Found:
    rng = np.random.default_rng(seed + zlib.crc32(",".join(s.name for s in d.problem.stages).encode()))
    structure = _structure(d)
    if structure is not None:
        return Found(Verdict(False, 0, float("inf"), structure), None)
    d, length = _sized(d)
    g, regimes = _grid(d, length, rng)
    if g.length > LONG:
        runs = 1
    want = _definition(d.problem, g)
    worst, done = 0.0, 0
    for _ in range(runs):
        got = _run(d, g, rng)
        done += 1
        seen = replace(want)
        for name, part in want.results:
            result = got.get((name, part))
            error, detail = _compare(result, seen, name, part, regimes)
            if not detail and not error <= tolerance:
                _measure_noise(d.problem, g, want, rng)
                seen.noise = want.noise
                error, detail = _compare(result, seen, name, part, regimes)
            worst = max(worst, error)
            if detail or not error <= tolerance:
                where = f"{name}{' (positions)' if part is Part.INDEX else ''}: {detail or f'error {error:.1e}'}"
                return Found(Verdict(False, done * len(regimes), worst, where), name)
            if result is not None:
                seen.excused = seen.excused | _other_infinity(result, want.results[(name, part)])
    blind = [name for (name, _), w in want.results.items() if not np.isfinite(w).any()]
    if blind:
        detail = f"{blind[0]}: no regime gives a finite result, so nothing was compared"
        return Found(Verdict(False, done * len(regimes), worst, detail), blind[0])
    n = d.problem.axis.size.value
    detail = f"{len(regimes)} regimes, {done} segmentations of {g.length} elements"
    if n is not None and n != g.length:
        detail += f" for {n}"
    return Found(Verdict(True, done * len(regimes), worst, detail), None)


def _other_infinity(got: Array, want: Array) -> Array:
    """NaN on one side and an infinity on the other: both say that the row is lost, and what follows may differ."""
    if got.dtype == np.bool_ or want.dtype == np.bool_:
        return np.zeros((1,) * want.ndim, dtype=np.bool_)
    differs = ~np.isfinite(got) & ~np.isfinite(want) & (np.isnan(got) != np.isnan(want))
    return np.asarray(differs.any(-1, keepdims=True))


def _compare(
    got: Array | None, definition: Definition, name: str, part: Part, regimes: tuple[str, ...]
) -> tuple[float, str]:
    """The worst error relative to the scale, and what is wrong beyond it."""
    if got is None:
        return np.inf, "no value"
    want, scale = definition.results[(name, part)], definition.scale[name]
    shape = np.broadcast_shapes(got.shape, want.shape, scale.shape)
    got, want = np.broadcast_to(got, shape), np.broadcast_to(want, shape)
    if want.dtype == np.bool_ or got.dtype == np.bool_ or part is Part.INDEX:
        wrong = got.astype(np.float64) != want.astype(np.float64)
        if part is Part.INDEX and wrong.any():
            wrong = (
                wrong
                & ~_tied(got, want, definition, name, regimes)
                & np.isfinite(definition.results[(name, Part.VALUE)])
            )
        return (np.inf, f"differs in regime {_regime(wrong, regimes)}") if wrong.any() else (0.0, "")
    loose = definition.loose[name]
    fin = np.isfinite(want) & ~loose
    lost = fin & ~np.isfinite(got)
    if lost.any():
        return np.inf, f"non-finite in regime {_regime(lost, regimes)} where the definition is finite"
    hidden = ~np.isfinite(want) & np.isfinite(got) & ~definition.excused & ~loose
    if hidden.any():
        return np.inf, f"finite in regime {_regime(hidden, regimes)} where the definition is not"
    size = np.broadcast_to(scale, shape) + np.abs(np.where(fin, want, 0.0)) + 1e-12
    error = np.abs(np.where(fin, got, 0.0) - np.where(fin, want, 0.0))
    if name in definition.noise:
        error = np.maximum(error - 100 * definition.noise[name], 0.0)
    error = np.where(fin, error / size, 0.0)
    return float(error.max(initial=0.0)), ""


def _tied(got: Array, want: Array, definition: Definition, name: str, regimes: tuple[str, ...]) -> Array:
    """Where the definition's values at both positions are equal, rounding having made a tie that the keys do not have.

    Not on constant data: there the keys tie too, and the lowest position must win.
    """
    body = definition.bodies[name]
    body = np.broadcast_to(body, (*got.shape[:-1], body.shape[-1]))
    here, there = (
        np.take_along_axis(body, np.clip(at, 0, body.shape[-1] - 1).astype(np.int64), -1) for at in (got, want)
    )
    equal = np.asarray(here == there)
    if len(equal) == len(regimes):
        equal = equal.copy()
        equal[regimes.index("constant")] = False
    return equal


def _regime(wrong: Array, regimes: tuple[str, ...]) -> str:
    rows = np.flatnonzero(wrong.reshape(wrong.shape[0], -1).any(1))
    return repr(regimes[int(rows[0])]) if wrong.shape[0] == len(regimes) else "of all"


def _structure(d: Derivation) -> str | None:
    """What is wrong with the form of the derivation: a value used before it exists, or a stage without a read."""
    known: set[str] = set()
    for p in d.passes:
        old = {s.name for s in p.steps}
        if len(old) != len(p.steps):
            return "two steps share a name"
        new: set[str] = set()
        for s in p.steps:
            exprs = (
                [s.element, *([s.correction] if s.correction is not None else [])]
                if isinstance(s, Accumulator)
                else [s.value]
            )
            for e in exprs:
                for x in walk(e):
                    if isinstance(x, Ref) and x.name not in (old if x.old else new):
                        return f"{s.name} uses {x.name} before it exists"
                    if isinstance(x, Load) and x.source in {t.name for t in d.problem.stages} - known:
                        return f"{s.name} reads the result {x.source} before its pass is over"
            new.add(s.name)
        known |= {r.stage for r in p.reads}
    missing = {s.name for s in d.problem.stages} - known
    return f"{sorted(missing)} have no value" if missing else None
