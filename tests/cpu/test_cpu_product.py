"""The product's own path: ``fuse`` on CPU tensors runs compiled C++."""

import torch
from catalogue import rnd
from helpers import assert_close
from same.product import *  # noqa: F403


def test_the_choice_is_measured_and_told(fuse, launches, tmp_path):
    """The unfused code among the candidates; another process would find the same on disk."""
    x = rnd(64, 3000)
    fused = fuse(lambda x: x.logsumexp(-1), tune="fast", cache_dir=tmp_path)
    assert_close(fused(x), x.double().logsumexp(-1))
    assert launches
    (cascade,) = fused.analyze(x).cascades
    assert cascade.decision.reason.startswith("measured: ")
    assert "unfused" in cascade.decision.reason and "cascade in lanes" in cascade.decision.reason


def test_what_has_no_form_runs_unfused(fuse, launches):
    """Long lists are better found by sorting."""

    def best(x):
        return x.softmax(-1).topk(100, -1)

    x = rnd(3, 400)
    assert torch.equal(fuse(best)(x)[0], best(x)[0]) and not launches
    (cascade,) = fuse(best).analyze(x).cascades
    assert not cascade.fused and "no form in C++" in cascade.decision.reason
