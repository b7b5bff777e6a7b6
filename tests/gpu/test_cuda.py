"""The reference backend on a CUDA device: the same catalogue, the same contract. Skipped where there is none."""

import pytest
import torch
from catalogue import ONE_PASS, SEVERAL
from helpers import assert_close, double

import redfuser

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("strategy", ["single", "multi", "whole"])
@pytest.mark.parametrize("case", ONE_PASS + SEVERAL, ids=lambda c: c.name)
def test_catalogue(case, strategy):
    args = [a.cuda() for a in case.inputs()]
    with torch.device("cuda"):
        fused = redfuser.fuse(
            case.fn,
            backend="reference",
            rest="eager",
            strategy=strategy,
            tile=16,
            segments=3,
            strict=True,
            **case.options,
        )
        got, like = fused(*args), case.fn(*args)
        want = case.fn(*double(args))
    assert_close(got, want, tolerance=max(case.step, case.cast, 1e-4), like=like)


def test_long_rows_take_little_memory():
    def attention(q, k, v):
        return torch.softmax(q @ k.mT / 8.0, -1) @ v

    fused = redfuser.fuse(attention, backend="reference", rest="eager")
    q, k, v = (torch.randn(1, 32768, 64, device="cuda") for _ in range(3))
    with torch.no_grad():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = fused(q, k, v)
        extra = torch.cuda.max_memory_allocated() - before
        rows = torch.randperm(32768, device="cuda")[:64]
        want = attention(q[:, rows].double(), k.double(), v.double())
    assert extra < 400e6
    assert_close(out[:, rows], want, tolerance=1e-4)
