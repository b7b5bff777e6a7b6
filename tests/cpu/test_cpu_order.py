"""Lists of the best and their positions, by compiled C++."""

import pytest
import torch
from catalogue import rnd
from same.order import *  # noqa: F403
from same.order import exact


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32], ids=str)
def test_numbers_of_other_types(kernels, schedule, dtype):
    x = (rnd(6, 50) * 1000).to(dtype)
    exact(kernels, lambda x: torch.topk(x * (x > 0).any(-1, keepdim=True), 5, dim=-1), x, schedule)
