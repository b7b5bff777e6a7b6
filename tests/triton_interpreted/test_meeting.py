"""Programs that meet in counters: the last one to come joins what all of them have stored."""

import pytest
import torch
from helpers import assert_close
from stages import record

from redfuser.backends.triton import launch
from redfuser.backends.triton.launch import Launcher
from redfuser.backends.triton.printed import Form
from redfuser.tile.build import build
from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

FUNCTIONS = {
    "one row": (lambda x: x.var(-1), (1, 101)),
    "rows": (lambda x: x.logsumexp(-1), (7, 101)),
    "rows of two axes": (lambda x: x.logsumexp(-1), (3, 5, 101)),
    "two passes": (lambda x: (x.softmax(-1) * 3).softmax(-1).amax(-1), (7, 101)),
}


@pytest.mark.parametrize("row", [1, 4])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_counters_are_zeros_again(name, row, tmp_path, monkeypatch):
    fn, shape = FUNCTIONS[name]
    (region,) = record(fn, [torch.randn(shape)])
    schedule = Schedule(Strategy.MULTI, row=row, tile=16, segments=3)
    program = build(region.planned.region, region.planned.derivation, schedule)
    given = []
    first = launch._Launch.first

    def kept(self, tensors):
        given.append(tensors[-1])
        first(self, tensors)

    monkeypatch.setattr(launch._Launch, "first", kept)
    launcher = Launcher(program, Form(), 1, 1, tmp_path)
    run = launcher.prepare(region.sizes)
    printed = launcher.source()[0].kernels
    assert len(printed) < len(program.kernels) and any(k.meeting is not None for k in printed)
    for _ in range(2):
        assert_close(run(list(region.inputs.values())), region.oracle())
    counters = [x for x in given if x.dtype is torch.int32]
    assert counters and all(len(x) and not x.any() for x in counters)


def test_blocks_of_another_size_are_joined_by_a_launch_of_their_own(tmp_path):
    (region,) = record(lambda x: x.logsumexp(-1), [torch.randn(7, 101)])
    schedule = Schedule(Strategy.MULTI, row=4, tile=16, segments=3, merge_row=1)
    program = build(region.planned.region, region.planned.derivation, schedule)
    launcher = Launcher(program, Form(), 1, 1, tmp_path)
    assert [k.meeting for k in launcher.source()[0].kernels] == [None, None]
    assert_close(launcher.prepare(region.sizes)(list(region.inputs.values())), region.oracle())
