"""Shapes, strides, dtypes and values that compiled C++ must take as they come."""

import pytest
import torch
from catalogue import rnd
from same.inputs import *  # noqa: F403
from same.inputs import agrees, attention, test_squares_that_underflow, test_weights_that_underflow
from stages import record

from redfuser.tile.nodes import Role, Strategy
from redfuser.tile.strategy import Schedule


def test_rows_that_both_operands_have(kernels, schedule):
    """The batch is a row axis where a producer lacks it, and in both operands of the product that follows."""

    def scored(x, w):
        return torch.softmax(x @ w, -1) @ x.mT

    agrees(
        kernels,
        record(scored, (rnd(2, 30, 16), rnd(16, 16, seed=1))),
        [schedule, Schedule(Strategy.SINGLE, row=30, tile=16)],
    )


def test_positions_of_64_bits(kernels, schedule):
    text = []
    for r in record(attention, (rnd(2, 5, 16), rnd(2, 40, 16, seed=1), rnd(2, 40, 16, seed=2))):
        agrees(kernels, [r], [schedule], wide=True)
        text += [kernels.launcher(r, schedule).source(w).text for w in (False, True)]
    assert "#define WIDE" in text[1] and text[0] != text[1]


@pytest.mark.parametrize(
    "alone",
    [
        Schedule(Strategy.SINGLE, row=1, tile=16, vector=Role.CASCADE),
        Schedule(Strategy.MULTI, row=1, tile=7, segments=2, vector=Role.CASCADE),
        Schedule(Strategy.WHOLE, row=1, vector=Role.CASCADE),
    ],
    ids=lambda s: s.strategy.value,
)
def test_numbers_of_one_row_have_the_range_of_its_elements(kernels, alone):
    """Single numbers are computed in double."""
    test_squares_that_underflow(kernels, alone)
    test_weights_that_underflow(kernels, alone)


def test_rounded_numbers_beside_others(kernels, schedule):
    """A result that is rounded to 16 bits may stand in any function of results: the rounding leaves a double."""

    def smoothed(x, keep):
        weight = keep.to(x.dtype)
        weight = weight / weight.sum(-1, keepdim=True).clamp(min=1)
        return -(weight * x.log_softmax(-1)).sum(-1)

    for dtype in (torch.bfloat16, torch.float16):
        agrees(kernels, record(smoothed, (rnd(4, 40).to(dtype), torch.arange(40) % 3 > 0)), [schedule])
