"""Streams derivations in float32 on ordinary and adversarial data, against a float64 evaluation of the definition."""

from __future__ import annotations

import itertools

import numpy as np

from redfuser.algebra.evaluate import Evaluator, Grid, Loop, reduce
from redfuser.algebra.nodes import Accumulator
from redfuser.index.expr import Load, Part, free_axes, loads
from redfuser.index.nodes import Reducer

REGIMES = (
    "normal",
    "offset",
    "big offset",
    "constant",
    "ascending",
    "descending",
    "zero prefix",
    "zeros",
    "wide",
    "step",
    "masked prefix",
    "masked half",
    "all masked",
)
SHIFTED = ("x", "y", "z")  # the loads that get the adversarial values; weights, targets and columns stay ordinary
ROWS = 3


def grid(problem, length, seed=0, lax=True):
    """Random float32 data for every load that is not a result; three rows, two columns, all regimes at once."""
    rng = np.random.default_rng(seed)
    names = {s.name for s in problem.stages}
    every = dict.fromkeys(x for s in problem.stages for x in loads(s.body) if x.source not in names)
    axes = sorted(
        {a for x in every for a in free_axes(x)} | {a for s in problem.stages for a in free_axes(s.body)},
        key=lambda a: a.serial,
    )
    kept = [a for a in axes if a is not problem.axis]
    coords = {a: np.arange(min(a.size.value or ROWS, ROWS), dtype=np.float64) for a in kept}
    g = Grid(problem.axis, length, {a: i + 1 for i, a in enumerate(kept)}, coords, length, {}, lax)
    for x in every:
        g.data[x] = _data(g, x, rng)
    return g


def _data(g, x: Load, rng):
    axes = free_axes(x)
    shape = [len(REGIMES)] + [1] * (g.rank - 1)
    for a, i in g.dims.items():
        if a in axes:
            shape[i] = len(g.coordinates[a])
    n = shape[-1] = g.length if g.axis in axes else 1
    if x.dtype.value == "bool":
        return rng.random(shape) < 0.6
    if not x.dtype.is_float:
        return rng.integers(0, 5, shape).astype(np.float64)
    v = rng.standard_normal(shape)
    if x.source in SHIFTED and n > 1:
        half = np.arange(n) >= n // 2
        for i, r in enumerate(REGIMES):
            z = v[i]
            v[i] = {
                "offset": z + 1e4, "big offset": z + 3e5, "constant": np.full_like(z, 3.7),
                "ascending": np.sort(z * 50, -1),
                "descending": -np.sort(-z * 50, -1), "zero prefix": z * half, "zeros": z * 0, "wide": z * 1e3,
                "step": z * 1e-3 + np.where(half, 500.0, -500.0), "masked prefix": np.where(half, z, -np.inf),
                "masked half": np.where(rng.random(z.shape) < 0.5, z * 20, -np.inf), "all masked": np.full_like(z,
                -np.inf),
            }.get(r, z)  # fmt: skip
    return v.astype(np.float32).astype(np.float64)


def in_precision(g: Grid, real):
    """The same grid, computing in another precision."""
    data = {x: v if v.dtype == np.bool_ else v.astype(real) for x, v in g.data.items()}
    return Grid(g.axis, g.length, g.dims, g.coordinates, g.symbol, data, g.lax, real)


def definition(problem, g: Grid, sequential=False, rng=None):
    """The stages one by one over the whole axis: results, and sum |F|.

    ``sequential`` sums element by element; with ``rng`` every result is moved by one float32 rounding.
    """
    out, size = {}, {}
    for s in problem.stages:
        e = Evaluator(g, slice(0, g.length), out)(s.body)
        e = np.broadcast_to(e, (*e.shape[:-1], g.length))
        at = np.broadcast_to(np.arange(g.length, dtype=np.float64), e.shape) if s.reducer.has_index else None
        k = min(s.k.size.value, g.length) if s.k is not None else 1
        v, i = reduce(s.reducer, [(e, at)], k)
        if sequential and s.reducer is Reducer.SUM and e.dtype != np.bool_:
            v = np.cumsum(e, -1, dtype=e.dtype)[..., -1:]
        if rng is not None and s.reducer in (Reducer.SUM, Reducer.PROD, Reducer.LOGSUMEXP):
            v = v * (1 + 1.2e-7 * rng.choice([-1.0, 0.0, 1.0], v.shape))
        out[(s.name, Part.VALUE)] = v
        if i is not None:
            out[(s.name, Part.INDEX)] = i
        a = np.abs(np.where(np.isfinite(e), e, 0)).astype(np.float64)
        size[s.name] = a.sum(-1, keepdims=True) if s.reducer is Reducer.SUM else a.max(-1, keepdims=True)
    return out, size


def stream(d, g: Grid, tile: int, cuts=()):
    """The derived passes at a tile size, in segments that end at ``cuts`` (two equal cuts make an empty one)."""
    results = {}
    ks = {s.name: min(s.k.size.value, g.length) for s in d.problem.stages if s.k is not None}
    for p in d.passes:
        sizes = {s.name: ks[s.stage] for s in p.steps if isinstance(s, Accumulator) and s.k is not None}
        loop = Loop(g, p, results, sizes)
        parts = []
        edges = [0, *cuts, g.length]
        for a, b in itertools.pairwise(edges):
            state = loop.start()
            for i in range(a, b, tile):
                state = loop.update(state, slice(i, min(i + tile, b)))
            parts.append(state)
        state = parts[0]
        for other in parts[1:]:
            state = loop.merge(state, other)
        results = {**results, **loop.read(state)}
    return results


def perturbed(problem, g: Grid, seed):
    """The definition on data (or, for odd seeds, results) moved by one float32 rounding: how the problem
    amplifies errors.
    """
    rng = np.random.default_rng(seed)
    if seed % 2:
        return definition(problem, g, rng=rng)[0]
    data = {
        x: v
        if v.dtype == np.bool_ or not x.dtype.is_float
        else v * (1 + 1.2e-7 * rng.choice([-1.0, 0.0, 1.0], v.shape))
        for x, v in g.data.items()
    }
    return definition(problem, Grid(g.axis, g.length, g.dims, g.coordinates, g.symbol, data, g.lax))[0]


def worst(got, want, eagers, moved, size):
    """The largest error over its allowance, and where.

    Non-finite where both references are finite counts as infinite, and so does finite where they are NaN though nothing
    overflowed: in a row of which every element is masked.
    """
    out, where = 0.0, ""
    for key, w in want.items():
        name, part = key
        shape = np.broadcast_shapes(got[key].shape, w.shape, size[name].shape)
        a, w, *fs = (np.broadcast_to(x, shape).astype(np.float64) for x in (got[key], w, *(f[key] for f in eagers)))
        fine = np.isfinite(w) & np.all([np.isfinite(f) for f in fs], axis=0)
        off = np.max([np.abs(f - w) for f in fs], axis=0)
        if part is Part.INDEX:
            continue
        back = np.max([np.abs(np.broadcast_to(m[key], shape).astype(np.float64) - w) for m in moved], axis=0)
        allow = 1e-5 * np.broadcast_to(size[name], shape) + 30 * np.nan_to_num(back, posinf=0.0) + 4 * off + 1e-12
        ratio = np.where(fine, np.where(np.isfinite(a), np.abs(a - w) / allow, np.inf), 0.0)
        if len(ratio) == len(REGIMES):
            masked = REGIMES.index("all masked")
            lost = np.all([np.isnan(f[masked]) for f in (w, *fs)], axis=0)
            ratio[masked] = np.where(lost & np.isfinite(a[masked]), np.inf, ratio[masked])
        if ratio.max(initial=0.0) > out:
            out = float(ratio.max())
            i = int(np.argmax(ratio.reshape(len(ratio), -1).max(1)))
            where = f"{name} in regime {REGIMES[i] if len(ratio) == len(REGIMES) else '?'}"
    return out, where
