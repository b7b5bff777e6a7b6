"""Comparisons. Each of them is shown to fail on zeros, on a transposed result and on NaN in test_helpers.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

EPS = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-23, torch.float64: 2.0**-52}


def double(tree: Any) -> Any:
    """Every floating-point tensor of a pytree in float64."""
    return tree_map(lambda t: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t, tree)


def tensors(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def assert_close(got: Any, want: Any, tolerance: float = 2e-5, like: Any = None) -> float:
    """Every tensor of ``got`` against float64 ``want``; returns the worst error relative to the scale.

    Shapes must agree, dtypes too when ``like`` (eager's result) is given. Integers are exact. Where ``want`` is finite
    ``got`` must be finite and within ``tolerance`` of the largest magnitude in ``want``; where it is not, it must not be.
    """
    a, b = tensors(got), tensors(want)
    assert len(a) == len(b), f"{len(a)} results, expected {len(b)}"
    if like is not None:
        assert [t.dtype for t in a] == [t.dtype for t in tensors(like)], "dtypes differ from eager"
    worst = 0.0
    for n, (g, w) in enumerate(zip(a, b, strict=True)):
        assert g.shape == w.shape, f"result {n}: shape {tuple(g.shape)}, expected {tuple(w.shape)}"
        if not w.is_floating_point():
            assert torch.equal(g.to(w.dtype), w), f"result {n}: integers differ in {int((g != w).sum())} places"
            continue
        g, w = g.double(), w.double()
        finite = w.isfinite()
        assert bool(g.isfinite()[finite].all()), f"result {n}: {int((~g.isfinite() & finite).sum())} not finite"
        kept = (~g.isfinite())[~finite]
        assert bool(kept.all()), f"result {n}: {int((~kept).sum())} finite where the reference is not"
        infinite = w.isinf()
        assert torch.equal(g[infinite], w[infinite]), f"result {n}: an infinity became something else"
        if not bool(finite.any()):
            continue
        scale = max(float(w[finite].abs().max()), 1e-30)
        error = float((g[finite] - w[finite]).abs().max()) / scale
        assert error <= tolerance, f"result {n}: error {error:.2e} of the scale {scale:.2e}, allowed {tolerance:.1e}"
        worst = max(worst, error)
    return worst
