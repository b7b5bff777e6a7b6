"""The comparison helpers fail on zeros, on a transposed result, on NaN, on a wrong shape and on a wrong gradient."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fusing import Fuser, assert_same
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


class Spoiled(Fuser):
    """What it compiles gives something else."""

    def __init__(self, spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.spoil = spoil

    def compile(self, fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda x: self.spoil(fn(x))


class TwiceTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:
        return 2 * g


@pytest.mark.parametrize(
    "spoil",
    [lambda y: y * 0, lambda y: y.mT, lambda y: y * torch.nan, lambda y: y[:4], torch.detach, TwiceTheGradient.apply],
    ids=["zeros", "transposed", "nan", "short", "no gradient", "twice the gradient"],
)
def test_assert_same_fails(spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(AssertionError):
        assert_same(Spoiled(spoil), torch.tanh, (GOOD.float(),))


def test_assert_same_passes() -> None:
    assert_same(Spoiled(lambda y: y), torch.tanh, (GOOD.float(),))
