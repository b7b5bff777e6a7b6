"""The catalogue through the Triton printer: every kind of schedule against the float64 interpreter, on the CPU.

The bound is the numerical contract, as in test_cascades.py for tiles below 128: twice eager's own error plus n roundings.
Triton's interpreter loses the carry into the exponent when it rounds to e4m3 (1.9726 becomes 1.0, not 2.0), which is
twice the error of a correct rounding and happens on no GPU: cases that round to it are allowed twice their ``cast``.
"""

import pytest
from catalogue import ONE_PASS, SEVERAL, L, draw
from helpers import assert_close
from printed import launch, launcher
from stages import record

import redfuser
from redfuser.tile.lanes import refusal
from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

DRAWS = 6
ROUNDING = 2.0**-23
SCHEDULES = [
    Schedule(Strategy.SINGLE, row=4, tile=32),
    Schedule(Strategy.MULTI, row=4, tile=16, segments=3),
    Schedule(Strategy.WHOLE, row=4),
]


LANES = [
    Schedule(Strategy.SINGLE, row=4, tile=16, lanes=4, run=2),
    Schedule(Strategy.MULTI, row=1, tile=16, segments=3, lanes=2, run=8),
]


def test_kernels_are_interpreted(tmp_path):
    from triton.runtime.interpreter import InterpretedFunction

    source, module = launcher(record(ONE_PASS[0].fn, ONE_PASS[0].inputs())[0], SCHEDULES[0], tmp_path).source(False)
    assert [type(getattr(module, k.name)) for k in source.kernels] == [InterpretedFunction]


@pytest.mark.parametrize("case", ONE_PASS + SEVERAL, ids=lambda c: c.name)
def test_numbers(case, tmp_path):
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
        in_lanes = refusal(same[0].planned.region, same[0].planned.derivation) is None
        for schedule in SCHEDULES + LANES * in_lanes:
            for g, w, e in zip(launch(same[0], schedule, tmp_path), wants[0], eager, strict=True):
                assert_close(g, w, tolerance=2 * e + L * ROUNDING + case.step + 2 * case.cast)
