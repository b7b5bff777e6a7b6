"""The catalogue as compiled C++: every kind of schedule and of lanes against the float64 interpreter.

The bound is the numerical contract, as in test_cascades.py for tiles below 128: twice eager's own error plus n roundings.
"""

import os

import pytest
from catalogue import ONE_PASS, SEVERAL, L, draw
from helpers import assert_close
from native import launch
from stages import record

import redfuser
from redfuser.tile.nodes import Role, Strategy
from redfuser.tile.strategy import Schedule

DRAWS = 4
ROUNDING = 2.0**-23
SCHEDULES = [
    Schedule(Strategy.SINGLE, row=4, tile=32),
    Schedule(Strategy.SINGLE, row=16, tile=16, vector=Role.ROW),
    Schedule(Strategy.MULTI, row=4, tile=16, segments=3),
    Schedule(Strategy.MULTI, row=1, tile=7, segments=2, vector=Role.CASCADE),
    Schedule(Strategy.WHOLE, row=4),
]
CASES = ONE_PASS + SEVERAL


def schedules(case):
    """All of them with REDFUSER_TEST_ALL=1, since each is compiled; else one, in turn."""
    return SCHEDULES if os.environ.get("REDFUSER_TEST_ALL") else [SCHEDULES[CASES.index(case) % 5]]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_numbers(case):
    calls = []
    for n in range(DRAWS):
        with draw(n):
            calls.append(case.inputs())
    with redfuser.options(**case.options):
        regions = record(case.fn, *calls)
    assert regions and len(regions) % DRAWS == 0
    for first in range(len(regions) // DRAWS):
        same = regions[first :: len(regions) // DRAWS]
        wants = [r.oracle() for r in same]
        eager = [
            max(assert_close(e, w, tolerance=0.1) for e, w in zip(es, ws, strict=True))
            for es, ws in zip(zip(*[r.eager() for r in same], strict=True), zip(*wants, strict=True), strict=True)
        ]
        for schedule in schedules(case):
            for g, w, e in zip(launch(same[0], schedule), wants[0], eager, strict=True):
                assert_close(g, w, tolerance=2 * e + L * ROUNDING + case.step + case.cast)
