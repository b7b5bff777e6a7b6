"""The timer of a GPU: what it says is the device's time. Skipped where there is no CUDA or ROCm device."""

import time

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def warm(fn):
    from redfuser.runtime.timers import cuda_timer

    fn()
    torch.cuda.synchronize()
    return cuda_timer(fn)


def test_launching_is_not_in_it():
    x = torch.zeros(1024, device="cuda")

    def slow_to_launch():
        until = time.perf_counter() + 200e-6
        while time.perf_counter() < until:
            pass
        x.add_(1)

    assert warm(slow_to_launch) < 150  # of the 200 that launching takes, on hosts of any speed


def test_twice_the_work_takes_twice_as_long():
    small, large = (torch.empty(n * 2**26, dtype=torch.int32, device="cuda") for n in (1, 2))
    ratio = warm(large.zero_) / warm(small.zero_)
    assert 1.6 < ratio < 2.4


@pytest.mark.parametrize("n", [1024, 4096])
def test_it_agrees_with_a_long_run(n):
    x = torch.randn(n, n, device="cuda")
    one = warm(lambda: x @ x)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(20):
        x @ x
    end.record()
    end.synchronize()
    assert one == pytest.approx(start.elapsed_time(end) * 1000 / 20, rel=0.3)


def test_more_is_flushed_than_the_cache_holds():
    from redfuser.runtime.timers import _flush_buffer

    flush = _flush_buffer()
    assert flush.is_cuda and flush.nbytes >= 2 * torch.cuda.get_device_properties(0).L2_cache_size
