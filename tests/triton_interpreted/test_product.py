"""The product's own path with kernels: ``fuse`` on CPU tensors, under Triton's interpreter."""

import pytest
import torch
from catalogue import rnd
from same.product import *  # noqa: F403
from same.product import attention

from redfuser.backends.triton.launch import Launcher
from redfuser.runtime.engines import TritonEngine


def test_the_precision_of_dots_changes(fuse, monkeypatch):
    """The user's setting takes effect in the next call."""
    seen = []
    bind = Launcher.bind

    def noted(self, inputs, sizes):
        seen.append(self.form.precision)
        return bind(self, inputs, sizes)

    monkeypatch.setattr(Launcher, "bind", noted)
    fused, args = fuse(attention), (rnd(2, 9, 16), rnd(2, 40, 16, seed=1), rnd(2, 40, 16, seed=2))
    for mode in ("ieee", "tf32", "ieee", "tf32"):
        monkeypatch.setattr(TritonEngine, "mode", mode)
        fused(*args)
    assert seen == ["ieee", "tf32"], "each is made ready once"


def best_of_positive(x):
    return torch.topk(x * (x > 0).any(-1, keepdim=True), 3, dim=-1)


def last_of_scaled(x):
    return (x * (x > 0).any(-1, keepdim=True)).argmin(-1)


@pytest.mark.parametrize("strategy", ["auto", "single"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("fn", [best_of_positive, last_of_scaled])
def test_what_has_no_form_in_a_kernel_runs_unfused(fuse, fn, dtype, strategy, launches):
    fused = fuse(fn, strategy=strategy)
    for n in (50, 51, 200):
        x = (rnd(6, n) * 1000).to(dtype)
        for got, want in zip(fused(x), fn(x), strict=True):
            assert torch.equal(got, want)
    assert not launches
    (cascade,) = fused.analyze(x).cascades
    assert not cascade.fused and "no tile program runs on cuda:90: " in cascade.decision.reason
    assert "fit one integer" in cascade.decision.reason or "selected outside" in cascade.decision.reason
    assert "def " not in fused.explain(x).source
