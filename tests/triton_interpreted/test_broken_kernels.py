"""What once went wrong in printed kernels, each as the program that showed it."""

import torch
from helpers import assert_close, double

import redfuser

FORCED = {"backend": "triton", "tune": "off", "rest": "eager", "strict": True, "tile": 16}
LOWEST = torch.finfo(torch.float32).min


def check(fn, *args, strategies=("single", "multi", "whole")):
    for strategy in strategies:
        with torch.no_grad():
            got = redfuser.fuse(fn, strategy=strategy, **FORCED)(*args)
        assert_close(got, fn(*double(args)), tolerance=2e-5, like=fn(*args))


def test_a_length_that_is_a_product_divides_as_a_whole():
    x = torch.randn(2, 9, 7)
    for d in range(3):
        torch._dynamo.mark_dynamic(x, d)
    check(lambda x: x.reshape(-1).logsumexp(0), x)


def test_masks_filled_with_the_lowest_number():
    """Times log2 e it is an infinity: rows whose first tile is masked were NaN."""
    q, k, v = (torch.randn(1, 1, 37, 16) for _ in range(3))
    ids = torch.tensor([[0] * 10 + [1] * 20 + [2] * 7])

    def f(q, k, v, ids):
        apart = ids[:, None, :, None] != ids[:, None, None, :]
        return torch.softmax((q @ k.mT / 4).masked_fill(apart, torch.finfo(torch.float32).min), -1) @ v

    check(f, q, k, v, ids)


def test_added_masks_with_the_lowest_number_and_rows_without_a_key():
    q, k, v = (torch.randn(1, 1, 37, 16) for _ in range(3))
    mask = torch.zeros(37, 37)
    mask[:, :20] = LOWEST
    mask[5] = LOWEST
    for strategy in ("single", "multi", "whole"):
        with torch.no_grad():
            fused = redfuser.fuse(
                lambda q, k, v, m: torch.softmax(q @ k.mT / 4 + m, -1) @ v, strategy=strategy, **FORCED
            )
            # in float64 the lowest number does not absorb the scores, so eager in float32 is what is right here
            assert_close(fused(q, k, v, mask), (torch.softmax(q @ k.mT / 4 + mask, -1) @ v).double(), tolerance=2e-5)
