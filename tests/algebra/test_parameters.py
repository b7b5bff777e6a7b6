"""Parameters that are 0, and masks of the lowest number, against eager at every tiling."""

import pytest
import torch
from helpers import assert_close
from stages import record

from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

LOWEST = torch.finfo(torch.float32).min
SCHEDULES = [Schedule(Strategy.SINGLE, row=2, tile=16), Schedule(Strategy.MULTI, row=2, tile=16, segments=3)]
ZERO = {
    "size": lambda x, t: torch.exp(t.abs() * (x - x.amax(-1, keepdim=True))).sum(-1),
    "exponential": lambda x, t: torch.exp(t.exp() * (x - x.amax(-1, keepdim=True))).sum(-1),
    "softmax": lambda x, t: ((x - x.amax(-1, keepdim=True)) * t.exp()).softmax(-1).square().sum(-1),
    "smallest": lambda x, t: torch.exp(-(x - x.amin(-1, keepdim=True)) * t.abs()).sum(-1),
}


def entropy(x):
    log_p = x.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("name", ZERO)
def test_a_parameter_is_zero(name):
    x, t = torch.randn(3, 150), torch.tensor([[0.0], [-300.0], [0.5]])
    for region in record(ZERO[name], [x, t]):
        for schedule in SCHEDULES:
            assert_close(region.scheduled(schedule), region.oracle())


@pytest.mark.parametrize("where", [slice(0, 70), slice(80, 150), slice(20, 130), slice(0, 150)])
def test_entropy_under_a_mask_of_the_lowest_number(where):
    x = torch.randn(2, 150)
    x[0, where] = LOWEST
    (region,) = record(entropy, [x])
    for schedule in SCHEDULES:
        assert_close(region.scheduled(schedule), [entropy(x.double())], tolerance=1e-5)
