"""The catalogue through every stage: what is found, how it is treated, and the numbers at every tiling.

Each fused region is run by the reference backend at tiles of 1, 7, 16 and 128 elements and in 1, 2 and 5 segments
(the tails are ragged; with few tiles some segments are empty) and compared with the float64 interpreter of its index
program; the whole function is compared with eager in float64.
"""

import time

import pytest
from catalogue import ONE_PASS, SEVERAL
from helpers import assert_close, double
from stages import fused_runs, record

import redfuser
from redfuser.algebra.checked import derive_checked

ALL = ONE_PASS + SEVERAL
SCHEDULES = [(tile, segments) for tile in (1, 7, 16, 128) for segments in (1, 2, 5)]


@pytest.mark.parametrize("case", ONE_PASS, ids=lambda c: c.name)
def test_fuses_in_one_pass(case):
    with redfuser.options(**case.options):
        analysis = redfuser.assert_fused(case.fn, *case.inputs())
    assert all(c.proof.verdict.accepted for c in analysis.cascades)
    if case.last:
        treatments = {str(t) for t in analysis.cascades[-1].reductions[-1].treatment}
        assert case.last <= treatments, f"{analysis.cascades[-1].reductions[-1].name}: {treatments}"


@pytest.mark.parametrize("case", SEVERAL, ids=lambda c: c.name)
def test_is_refused_in_one_pass_and_planned_in_several(case):
    analysis = redfuser.analyze(case.fn, *case.inputs())
    worst = max(analysis.cascades, key=lambda c: c.passes)
    assert worst.passes == case.passes
    assert worst.refusals
    for r in worst.refusals:
        assert r.reason and r.hint and r.where is not None and r.where.file.endswith("catalogue.py")
    if case.kinds:
        assert case.kinds & {str(r.kind) for r in worst.refusals}
    with pytest.raises(redfuser.errors.NotFusedError, match="passes"):
        redfuser.assert_fused(case.fn, *case.inputs())


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_numbers_at_every_tiling(case):
    with redfuser.options(**case.options):
        regions = record(case.fn, case.inputs())
    assert regions
    for r in regions:
        want = r.oracle()
        for tile, segments in SCHEDULES:
            assert_close(r.run(tile, segments), want, tolerance=max(case.tolerance, 2e-4))


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_whole_function_against_eager(case):
    args = case.inputs()
    fused = redfuser.fuse(case.fn, rest="eager", strategy="single", tile=16, strict=True, **case.options)
    with fused_runs() as runs:
        got = fused(*args)
    assert_close(got, case.fn(*double(args)), tolerance=case.tolerance, like=case.fn(*args))
    assert runs, "nothing was fused"


def test_deriving_and_checking_is_fast():
    times = []
    for case in ALL:
        with redfuser.options(**case.options):
            regions = record(case.fn, case.inputs())
        for r in regions:
            start = time.process_time()
            derive_checked(r.planned.region.problem, fuse_rounding=bool(case.options))
            times.append(time.process_time() - start)
    times.sort()
    assert times[len(times) // 2] < 0.050, f"median {times[len(times) // 2] * 1e3:.0f} ms"
    assert times[-1] < 0.500, f"worst {times[-1] * 1e3:.0f} ms"
