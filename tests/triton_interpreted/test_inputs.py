"""Shapes, strides, dtypes and values that a kernel must take as they come, under Triton's interpreter."""

import pytest
import torch
from catalogue import rnd
from same.inputs import *  # noqa: F403
from same.inputs import agrees, attention, weighted
from stages import record


def test_offsets_of_64_bits(kernels, schedule):
    text = []
    for r in record(attention, (rnd(2, 5, 16), rnd(2, 40, 16, seed=1), rnd(2, 40, 16, seed=2))):
        agrees(kernels, [r], [schedule], wide=True)
        text += [kernels.launcher(r, schedule).source(w)[0].text for w in (False, True)]
    assert "tl.int64" in text[1] and text[0] != text[1]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_weights_of_eight_bits(kernels, schedule, dtype):
    def function(x, w):
        return weighted(x, w.float())

    agrees(kernels, record(function, (rnd(5, 50), rnd(50, 7, seed=1).to(dtype))), [schedule])
