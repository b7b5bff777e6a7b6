"""What is computed with a cascade's own reductions: large products that one reduction streams, and lists at the end."""

import pytest
import torch
from stages import record

import redfuser
from redfuser.tile.build import build
from redfuser.tile.nodes import Read, Strategy
from redfuser.tile.strategy import Schedule
from redfuser.tile.uses import every

X = torch.randn(2, 40, 8)


def sigmoid(q, k, v):
    return torch.sigmoid(q @ k.mT) @ v


def test_one_reduction_is_a_cascade_where_it_streams_a_larger_product():
    (found,) = redfuser.analyze(sigmoid, X, torch.randn(2, 90, 8), torch.randn(2, 90, 8)).cascades
    assert len(found.reductions) == 1 and found.passes == 1


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (sigmoid, (X[:, :1], torch.randn(2, 90, 8), torch.randn(2, 90, 8))),  # the product is smaller than the keys
        (sigmoid, (X, torch.randn(2, 90, 8), torch.randn(2, 90, 600))),  # more columns than a program holds
        (lambda x, a, b: x @ a @ b, (torch.randn(64, 32), torch.randn(32, 4), torch.randn(4, 32))),  # of low rank
        (lambda x, a, b: (x @ a, (x @ a) @ b), (X[0], torch.randn(8, 90), torch.randn(90, 8))),  # it is returned
    ],
)
def test_otherwise_it_is_none(fn, args):
    assert not redfuser.analyze(fn, *args).cascades


def test_lists_are_reduced_over_their_slots_at_the_end():
    def weights(x):
        w, at = x.softmax(-1).topk(4, -1)
        return w / w.sum(-1, keepdim=True), at

    (found,) = redfuser.analyze(weights, torch.randn(5, 100)).cascades
    assert [str(r.reducer) for r in found.reductions] == ["max", "sum", "topk"]


def test_a_reduction_along_rows_of_lists_is_not_of_one_list():
    def load(x):
        w, _ = x.softmax(-1).topk(4, -1)
        return w.sum(0)  # over the rows: no program has them all

    (found,) = redfuser.analyze(load, torch.randn(5, 100)).cascades
    assert len(found.reductions) == 3
    x = torch.randn(5, 100)
    torch.testing.assert_close(redfuser.fuse(load, fuse_threshold=0)(x), load(x))


def test_operands_joined_along_features_are_read_in_place():
    def latent(q, c, r):
        return torch.softmax(q @ torch.cat([c, r], -1).mT, -1) @ c

    q, c, r = torch.randn(2, 9, 12), torch.randn(2, 64, 8), torch.randn(2, 64, 4)
    (region,) = record(latent, [q, c, r])
    assert set(region.inputs) == {"q", "c", "r"}
    program = build(region.planned.region, region.planned.derivation, Schedule(Strategy.SINGLE, row=8, tile=16))
    reads = [s.tensor for s in every(program.kernels[0].body) if isinstance(s, Read)]
    assert sorted(reads) == ["c", "q", "q", "r"]  # c is key and value
    torch.testing.assert_close(redfuser.fuse(latent, fuse_threshold=0)(q, c, r), latent(q, c, r))
