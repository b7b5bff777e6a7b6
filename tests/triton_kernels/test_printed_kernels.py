"""Golden printed kernels. ``REDFUSER_UPDATE_GOLDEN=1`` writes them anew."""

import os
from pathlib import Path

import pytest
from compiling import launcher
from planning import regions
from shapes import SHAPES

from redfuser.backends.triton.emit import Form
from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "causal_single": ("causal 128", Schedule(Strategy.SINGLE, row=128, tile=64), "attention"),
    "decode_multi": ("decode", Schedule(Strategy.MULTI, row=16, tile=64, segments=8), "decode"),
    "long_rows_lanes": (
        "long rows",
        Schedule(Strategy.SINGLE, row=1, tile=4096, lanes=128, run=8, warps=4, stages=3),
        "logsumexp",
    ),
    "long_rows_multi": (
        "long rows",
        Schedule(Strategy.MULTI, row=1, tile=4096, segments=8, merge_row=1, lanes=128, run=8, warps=4, stages=3),
        "logsumexp",
    ),
    "routing_whole": ("routing", Schedule(Strategy.WHOLE, row=4), "routing"),
    "softmax_whole": ("softmax", Schedule(Strategy.WHOLE, row=1), "softmax"),
}


@pytest.mark.parametrize("name", CASES)
def test_printed_kernel(name, tmp_path):
    shape, schedule, called = CASES[name]
    (shaped,) = regions(*SHAPES[shape])
    text = launcher(shaped, schedule, tmp_path, Form(), called).source()[0].text
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("REDFUSER_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; REDFUSER_UPDATE_GOLDEN=1 writes it anew"
