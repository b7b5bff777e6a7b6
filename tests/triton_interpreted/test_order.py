"""Lists of the best and their positions, under Triton's interpreter."""

import pytest
import torch
from catalogue import rnd
from same.order import *  # noqa: F403
from stages import record

from redfuser.tile.strategy import Unsupported


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_what_does_not_fit_one_integer_with_its_position(kernels, schedule, dtype):
    x = (rnd(6, 50) * 1000).to(dtype)
    (r,) = record(lambda x: torch.topk(x * (x > 0).any(-1, keepdim=True), 5, dim=-1), (x,))
    with pytest.raises(Unsupported, match="do not fit one integer"):
        kernels.launch(r, schedule)
