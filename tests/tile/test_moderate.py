"""Results that an inverse may be taken of."""

import pytest
from catalogue import rnd
from stages import record

from redfuser.tile.moderate import moderate


def softmax(x):
    return x.softmax(-1)


def masked(x):
    return x.masked_fill(x > 0, float("-inf")).softmax(-1)


def without_maximum(x):
    e = x.exp()
    return e / e.sum(-1, keepdim=True)


def of_another_maximum(x):
    e = (x - (2 * x).amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def normalised(x):
    return x / x.abs().amax(-1, keepdim=True), x.abs().sum(-1)


@pytest.mark.parametrize(
    ("fn", "found"), [(softmax, 1), (masked, 1), (without_maximum, 0), (of_another_maximum, 0), (normalised, 0)]
)
def test_moderate(fn, found):
    problems = [r.planned.region.problem for r in record(fn, (rnd(3, 20),))]
    assert sum(len(moderate(p)) for p in problems) == found
