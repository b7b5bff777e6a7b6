"""What fusing saves, what is chosen, and that the chosen schedule keeps to its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cases
import torch

from redfuser.backends.reference import run
from redfuser.tile.build import build
from redfuser.tile.cost import choose, cost
from redfuser.tile.nodes import Strategy


def test_saved_bytes_of_a_weighted_sum() -> None:
    c = cost(cases.attention(b=2, h=3, g=2, i=16, l=32, c=8, d=8).region, {})
    assert c.saved == 4 * (2 * 3 * 2 * 16 * 32) * 4  # scores, scaled, their exp, divided: all rows x positions
    assert c.read == 4 * 2 * (3 * 2 * 16 * 8 + 2 * 3 * 32 * 8)
    assert c.written == 4 * 2 * 3 * 2 * 16 * 8


def test_lengths_of_the_call_count_not_the_hints() -> None:
    region = cases.scaled_product().region
    assert cost(region, {"m": 1000, "k": 1000}).saved > 1000 * cost(region, {}).saved


def test_small_is_not_fused_and_the_option_forces() -> None:
    small, big = cases.attention(), cases.attention(b=1, h=1, i=16384, l=16384)
    d = choose(small.region, small.derivation)
    assert d.strategy == "unfused" and d.schedule is None and "threshold" in d.reason
    assert choose(small.region, small.derivation, threshold=0).strategy == "whole"
    assert choose(big.region, big.derivation).strategy == "single"
    assert choose(big.region, big.derivation, strategy=Strategy.UNFUSED).schedule is None
    forced = choose(small.region, small.derivation, strategy=Strategy.MULTI, segments=3, tile=16)
    assert forced.schedule is not None and (forced.schedule.segments, forced.schedule.tile) == (3, 16)
    for strategy in (Strategy.WHOLE, Strategy.SINGLE, Strategy.MULTI):
        s = choose(small.region, small.derivation, strategy=strategy).schedule
        assert s is not None
        got = run(build(small.region, small.derivation, s), small.inputs, {})[0]
        torch.testing.assert_close(got.double(), small.expected(small.inputs)[0], rtol=1e-5, atol=1e-5)


MEMORY = """
import resource, sys, torch
sys.path.insert(0, {here!r})
import cases
from redfuser.backends.reference import run
from redfuser.tile.build import build
from redfuser.tile.cost import choose

def one(n):
    case = cases.attention(b=1, h=1, i=n, l=n, c=64, d=64)
    s = choose(case.region, case.derivation, threshold=0).schedule
    return run(build(case.region, case.derivation, s), case.inputs, {{}})[0]

one(64)
torch.full((2**24,), 1.0)  # 64 MB: pages that the allocator has seen
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
one(8192)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_memory_of_a_long_one() -> None:
    """8,192 rows and positions, head size 64: eager would need 512 MB for the scores and their exp."""
    here = str(Path(__file__).parent)
    out = subprocess.run([sys.executable, "-c", MEMORY.format(here=here)], capture_output=True, text=True, check=True)
    assert float(out.stdout) < 100
