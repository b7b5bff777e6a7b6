"""The comparison of streamed results fails on zeros, on a reversed result, on NaN and on a finite value for a lost row."""

from __future__ import annotations

import numpy as np
import pytest

from redfuser.algebra.derive import derive
from redfuser.index.expr import Part

from .cascades import BY_NAME
from .numerics import REGIMES, definition, grid, in_precision, perturbed, stream, worst

KEY = ("O", Part.VALUE)


def error(spoil) -> float:
    p = BY_NAME["attention"].problem()
    with np.errstate(all="ignore"):
        g = grid(p, 33)
        narrow = in_precision(g, np.float32)
        want, size = definition(p, g)
        got = stream(derive(p), narrow, 8, (9,))
        got[KEY] = spoil(got[KEY].copy())
        return worst(got, want, [definition(p, narrow)[0]], [perturbed(p, g, s) for s in range(4)], size)[0]


def found(v):
    """A number in the row in which everything is masked."""
    v[REGIMES.index("all masked")] = 0.0
    return v


def test_passes():
    assert error(lambda v: v) <= 1.5


@pytest.mark.parametrize(
    "spoil",
    [np.zeros_like, lambda v: v[..., ::-1, :], lambda v: v[:, ::-1], lambda v: v * np.nan, lambda v: v + 1e-2, found],
    ids=["zeros", "columns reversed", "rows reversed", "nan", "off", "found"],
)
def test_fails(spoil):
    assert error(spoil) > 1.5
