"""A comparison that cannot fail is worse than none: each is shown to fail."""

import pytest
import torch
from helpers import assert_close

WANT = torch.randn(6, 6, dtype=torch.float64) + 3


@pytest.mark.parametrize(
    "got",
    [
        torch.zeros_like(WANT),
        WANT.T.clone(),
        torch.full_like(WANT, float("nan")),
        WANT.index_fill(0, torch.tensor(2), float("nan")),
        WANT[:5],
        WANT + 1e-3,
        WANT.index_fill(1, torch.tensor(0), float("inf")),
    ],
    ids=["zeros", "transposed", "nan", "one nan row", "short", "off", "inf"],
)
def test_assert_close_fails(got):
    with pytest.raises(AssertionError):
        assert_close(got, WANT)


def test_assert_close_fails_on_integers():
    with pytest.raises(AssertionError):
        assert_close(torch.tensor([1, 2, 4]), torch.tensor([1, 2, 3]))


def test_assert_close_fails_when_a_nan_is_lost():
    want = WANT.clone()
    want[0] = float("nan")
    with pytest.raises(AssertionError):
        assert_close(WANT, want)


def test_assert_close_fails_on_dtype():
    with pytest.raises(AssertionError):
        assert_close(WANT.float(), WANT, like=WANT)


def test_assert_close_passes():
    assert assert_close(WANT.float(), WANT) < 1e-6
