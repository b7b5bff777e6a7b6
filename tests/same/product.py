"""The product's own path: ``fuse`` on CPU tensors runs kernels."""

import math

import pytest
import torch
from catalogue import ONE_PASS, SEVERAL, L, rnd
from helpers import assert_close, double
from torch import nn

import redfuser

CASES = {c.name: c for c in ONE_PASS + SEVERAL}
ROUNDING = 2.0**-23


@pytest.mark.parametrize("strategy", ["auto", "multi", "whole"])
@pytest.mark.parametrize(
    "name",
    ["attention", "attention_sink", "cross_entropy", "layernorm_gemm", "topk_of_softmax", "int8_asymmetric_unrounded",
     "moment_of_inertia"],
)  # fmt: skip
def test_catalogue(fuse, name, strategy, launches):
    case = CASES[name]
    args = case.inputs()
    got = fuse(case.fn, strategy=strategy, **case.options)(*args)
    eager, want = case.fn(*args), case.fn(*double(args))
    error = assert_close(eager, want, tolerance=0.1)
    assert_close(got, want, tolerance=2 * error + L * ROUNDING, like=eager)
    assert launches


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def test_lengths_change(fuse, launches):
    fused = fuse(attention)
    for n in (40, 41, 70, 130):
        q, k, v = rnd(2, 9, 16), rnd(2, n, 16, seed=1), rnd(2, n, 16, seed=2)
        before = len(launches)
        assert_close(fused(q, k, v), attention(*double((q, k, v))))
        assert len(launches) > before, f"{n} keys ran unfused"


def test_gradients(fuse, launches):
    leaves = [t.requires_grad_() for t in (rnd(2, 9, 16), rnd(2, 40, 16, seed=1), rnd(2, 40, 16, seed=2))]
    got = torch.autograd.grad(fuse(attention)(*leaves).square().sum(), leaves)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    assert_close(got, torch.autograd.grad(attention(*wide).square().sum(), wide))
    assert launches


def test_a_module(fuse, launches):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = nn.LayerNorm(32), nn.Linear(32, 24)

        def forward(self, x):
            y = self.norm(x)
            return self.out(attention(y, y, y) + x)

    block, x = Block(), rnd(2, 37, 32)
    with torch.no_grad():
        got = fuse(block)(x)
        assert_close(got, block.double()(x.double()))
    assert launches


def test_a_scalar_tensor_among_the_inputs(fuse, launches):
    def tempered(x, t):
        return torch.softmax(x * t, -1)

    x, t = rnd(5, 60), torch.tensor(0.7)
    assert_close(fuse(tempered)(x, t), tempered(x.double(), t.double()))
    assert launches


def test_results_are_the_callers_own(fuse):
    fused = fuse(attention)
    args = rnd(2, 9, 16), rnd(2, 40, 16, seed=1), rnd(2, 40, 16, seed=2)
    first = fused(*args)
    kept = first.clone()
    fused(args[0] + 1, *args[1:])
    assert torch.equal(first, kept)
    assert torch.equal(fused(*args), kept), "the same call gives the same bits"


def test_nothing_runs_when_asked_what_would(fuse, launches):
    args = rnd(2, 9, 16), rnd(2, 40, 16, seed=1), rnd(2, 40, 16, seed=2)
    text = str(redfuser.explain(fuse(attention), *args))
    assert "softmax" in text or "sum" in text
    assert not launches
