"""Golden printed tile programs. ``REDFUSER_UPDATE_GOLDEN=1`` writes them anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import cases
import pytest

from redfuser.tile.build import build
from redfuser.tile.nodes import Strategy
from redfuser.tile.print import show_program
from redfuser.tile.strategy import Schedule

GOLDEN = Path(__file__).parent / "golden"
CASES: dict[str, tuple[Callable[[], cases.Case], Schedule]] = {
    "weighted_sum_single": (lambda: cases.attention(mask="causal", g=2), Schedule(Strategy.SINGLE, 16, 16)),
    "weighted_sum_multi": (lambda: cases.attention(g=2), Schedule(Strategy.MULTI, 16, 16, segments=3)),
    "weighted_sum_whole": (lambda: cases.attention(mask="window"), Schedule(Strategy.WHOLE, 16)),
    "softmax_single": (cases.softmax, Schedule(Strategy.SINGLE, 8, 16)),
    "variance_single": (cases.variance, Schedule(Strategy.SINGLE, 8, 16)),
    "two_passes_multi": (cases.two_passes, Schedule(Strategy.MULTI, 8, 16, segments=2)),
    "top_k_single": (cases.top_k, Schedule(Strategy.SINGLE, 8, 16)),
    "scaled_product_single": (cases.scaled_product, Schedule(Strategy.SINGLE, 8, 16, column=8)),
    "gathered_single": (cases.gathered, Schedule(Strategy.SINGLE, 8, 16)),
    "variance_lanes": (cases.variance, Schedule(Strategy.SINGLE, 8, 16, lanes=4, run=2)),
}


@pytest.mark.parametrize("name", CASES)
def test_printed_program(name: str) -> None:
    make, schedule = CASES[name]
    case = make()
    text = show_program(build(case.region, case.derivation, schedule)) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("REDFUSER_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; REDFUSER_UPDATE_GOLDEN=1 writes it anew"
