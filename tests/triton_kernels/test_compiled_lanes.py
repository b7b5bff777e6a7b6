"""Loops over lanes: their threads do not wait for each other. Read off what is compiled."""

import re

import pytest
import torch
from compiling import compiled, usage
from planning import regions
from shapes import logsumexp, of, variance

from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

TARGETS = ["cuda:80", "cuda:90", "cuda:100", "hip:gfx942"]
EXCHANGES = ("shfl.sync", "bar.sync", "redux.sync")
ROWS = {
    "bfloat16": (logsumexp, of(64, 131072), 8),
    "float32": (variance, of(64, 131072, dtype=torch.float32), 4),
    "not aligned": (logsumexp, of(64, 131070), 1),
}


def kernel(name, lanes, directory, target, **more):
    fn, x, run = ROWS[name]
    (shaped,) = regions(fn, [x])
    schedule = Schedule(Strategy.SINGLE, row=1, tile=4096, lanes=lanes, run=run if lanes else 1, warps=4, **more)
    return compiled(shaped, schedule, directory, target)[0]


def loop_of(ptx):
    """The text of the first loop: from its label to the last jump back to it."""
    for label in re.finditer(r"^(\$L__BB\d+_\d+):", ptx, re.M):
        back = [
            m.end() for m in re.finditer(rf"bra(?:\.uni)?\s+{re.escape(label[1])};", ptx) if m.start() > label.end()
        ]
        if back:
            return ptx[label.end() : back[-1]]
    raise AssertionError("no loop")


@pytest.mark.parametrize("name", ROWS)
def test_the_loop_exchanges_nothing(name, tmp_path):
    plain, lanes = (loop_of(kernel(name, n, tmp_path, "cuda:90", stages=1).asm["ptx"]) for n in (0, 128))
    assert any(x in plain for x in EXCHANGES)
    assert not any(x in lanes for x in EXCHANGES) and "st.shared" not in lanes
    assert ("ld.global.v4" in lanes) is (name != "not aligned")


def test_tiles_are_loaded_ahead(tmp_path):
    ptx = loop_of(kernel("bfloat16", 128, tmp_path, "cuda:90", stages=3).asm["ptx"])
    assert "cp.async.cg" in ptx and "ld.global" not in ptx and "shfl.sync" not in ptx


@pytest.mark.parametrize("target", TARGETS)
def test_targets(target, tmp_path):
    made = kernel("bfloat16", 128, tmp_path, target, stages=2)
    assert made.asm["hsaco" if target.startswith("hip") else "cubin"]


def test_a_sweep_from_the_end_moves_whole_vectors(tmp_path):
    (shaped,) = regions(lambda x: x.softmax(-1), [of(64, 131072)])
    schedule = Schedule(Strategy.SINGLE, row=1, tile=32768, lanes=1024, run=8, warps=32, stages=1)
    (made,) = compiled(shaped, schedule, tmp_path, "cuda:90")
    moved = re.findall(r"(?:ld|st)\.global\S*", made.asm["ptx"])
    assert moved and all(".v4." in m for m in moved)
    assert any("evict_last" in m for m in moved) and any("evict_first" in m for m in moved)
    assert not usage(made).spills
