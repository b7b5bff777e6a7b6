"""The comparison helper fails on zeros, on a transposed result, on NaN and on a wrong shape."""

import numpy as np
import pytest
import torch
from lowering import assert_close

GOOD = torch.randn(5, 5, dtype=torch.float64)


@pytest.mark.parametrize(
    "bad", [np.zeros((5, 5)), GOOD.T.numpy(), np.full((5, 5), np.nan), GOOD[:4].numpy(), GOOD.numpy() + 1e-3]
)
def test_fails(bad: np.ndarray) -> None:
    with pytest.raises(AssertionError):
        assert_close(bad, GOOD, 1e-9)


def test_passes() -> None:
    assert_close(GOOD.numpy(), GOOD, 1e-9)
