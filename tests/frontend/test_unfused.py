"""The code that a region replaces, compiled by Inductor."""

import pytest
import torch
from helpers import assert_close
from stages import record

from redfuser.frontend.backend import has_compiler
from redfuser.frontend.unfused import Unfused


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / 4.0, -1) @ v


def soft_capped(q, k, v):
    return torch.softmax(30.0 * torch.tanh(q @ k.transpose(-1, -2) / 30.0), -1) @ v


@pytest.mark.skipif(not has_compiler(), reason="Inductor has no C++ compiler")
@pytest.mark.parametrize("fn, lean", [(attention, True), (soft_capped, False)])
def test_lean_where_a_fused_attention_kernel_takes_its_place(fn, lean):
    args = [torch.randn(2, 4, 40, 16) for _ in range(3)]
    (region,) = record(fn, args)
    inputs = list(region.inputs.values())
    unfused = Unfused(region.planned.cut.module, compiled=True)
    assert unfused.lean(inputs) is lean and unfused.lean(inputs) is lean
    assert_close(unfused(inputs, []), [fn(*(x.double() for x in args))])
    assert not Unfused(region.planned.cut.module, compiled=False).lean(inputs)
