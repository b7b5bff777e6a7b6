"""Quotients that are printed as products: what is 0, infinite, tiny or not a number comes out as from a division."""

import pytest
import torch
from same.inputs import agrees
from stages import record

from redfuser.tile.nodes import Strategy

ROWS = {
    "ordinary": [1.0, -2.0, 3.0, 0.5, -0.25, 7.0, 0.0, 11.0],
    "zero": [0.0] * 8,
    "denormal": [1e-40, -2e-40, 3e-40, 0.0, 1e-40, 2e-40, 5e-40, 1e-39],
    "just normal": [1.2e-38, 2e-38, 1.5e-38, 0.0, 3e-38, 1e-38, 2e-38, 4e-38],
    "huge": [1e38, -2e38, 3e38, 1.0, 0.0, 2e38, 1e-38, 1e38],
    "infinite": [float("inf"), 1.0, 0.0, -float("inf"), 2.0, 3.0, 4.0, 5.0],
    "not a number": [float("nan"), 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
}


def parts_of_the_largest(x):
    part = x / x.abs().amax(-1, keepdim=True)
    return part.to(torch.float16), part.amax(-1)


@pytest.mark.parametrize("row", ROWS)
def test_parts(kernels, schedule, row):
    x = torch.tensor([ROWS[row], ROWS["ordinary"]]).repeat(1, 5)
    found = record(parts_of_the_largest, (x,))
    agrees(kernels, found, [schedule])
    text = "".join(kernels.launcher(r, schedule).source(False)[0].text for r in found)
    assert schedule.strategy is Strategy.WHOLE or "_inverse" in text
