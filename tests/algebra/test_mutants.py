"""The checker against wrong derivations: what it accepts must be right on data it has not seen."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from redfuser.algebra.check import check
from redfuser.algebra.derive import derive
from redfuser.index.expr import Part

from .cascades import ALL, BY_NAME
from .mutate import mutants
from .numerics import definition, grid, stream

PER_CASE = 4


def right_on_fresh_data(d, case) -> bool:
    p = d.problem
    with np.errstate(all="ignore"):
        g = grid(p, case.length or 24, seed=11)
        want, size = definition(p, g)
        got, noise = stream(d, g, 5, (4, 4, 17)), rounding(p, g, want)
        for key, w in want.items():
            if key[1] is Part.INDEX:
                continue  # fresh data has ties made by underflow
            a, w2, s = np.broadcast_arrays(got[key], w, size[key[0]])
            ok = np.isfinite(w2)
            if w.dtype == np.bool_:
                if (a != w2).any():
                    return False
            elif not (
                np.abs(np.where(ok, a - w2, 0)) <= 1e-5 * (s + np.abs(np.where(ok, w2, 0))) + noise[key] + 1e-9
            ).all():
                return False
    return True


def rounding(p, g, want):
    """How far the results move, a hundred times over, when the data move by one rounding: no base is closer to them."""
    rng = np.random.default_rng(7)
    data = {
        x: v if v.dtype == np.bool_ else v * (1 + 2.0**-52 * rng.integers(-1, 2, v.shape)) for x, v in g.data.items()
    }
    moved, _ = definition(p, replace(g, data=data))
    return {k: 0 if w.dtype == np.bool_ else 100 * np.nan_to_num(np.abs(moved[k] - w)) for k, w in want.items()}


def test_accepted_mutants_are_equivalent():
    rng = random.Random(1)
    total, accepted, wrong = 0, 0, []
    for case in ALL:
        d = derive(case.problem(), **case.options)
        every = list(mutants(d))
        for what, m in rng.sample(every, min(PER_CASE, len(every))):
            total += 1
            if check(m).accepted:
                accepted += 1
                if not right_on_fresh_data(m, case):
                    wrong.append((case.name, what))
    assert not wrong
    assert total > 300
    assert accepted < 0.3 * total  # changes that change nothing: a zero moment, a factor that is 1


def test_dropped_corrections_are_caught():
    """Without its correction no accumulator of these survives."""
    for name in (
        "attention", "variance", "cross_entropy", "scaled_norm", "scaled_product", "kurtosis", "shifted_logsumexp"
    ):  # fmt: skip
        d = derive(BY_NAME[name].problem(), **BY_NAME[name].options)
        dropped = [m for what, m in mutants(d) if what.startswith("correction") and _lost(d, m)]
        assert dropped, name
        assert not any(check(m).accepted for m in dropped), name


def _lost(d, m) -> bool:
    pairs = [
        (a, b) for p, q in zip(d.passes, m.passes, strict=True) for a, b in zip(p.steps, q.steps, strict=True) if a != b
    ]
    main = {s.name for s in d.problem.stages}
    return any(
        b.correction is None and a.correction is not None and a.name in main
        for a, b in pairs
        if hasattr(b, "correction")
    )
