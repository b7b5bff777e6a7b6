"""The suites, and the entries of each."""

from __future__ import annotations

from benchmarks.entries import cpu, decode, prefill, rows, variants, weights
from benchmarks.entry import Entry

SUITES = ("paper", "memory", "variants", "cpu")


def entries(suite: str, quick: bool = False) -> list[Entry]:
    """The entries of a suite in running order; ``quick`` gives each a tiny shape, to try the machinery."""
    found = {
        "paper": lambda: [*prefill.entries(quick), *decode.entries(quick), *weights.entries(quick)],
        "memory": lambda: rows.entries(quick),
        "variants": lambda: variants.entries(quick),
        "cpu": lambda: cpu.entries(quick),
    }[suite]()
    assert len({e.name for e in found}) == len(found), "two entries of one name"
    return found
