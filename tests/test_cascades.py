"""The catalogue through every stage: what is found, how it is treated, and the numbers at every tiling.

Each fused region is run by the reference backend at tiles of 1, 7, 16 and 128 elements, in 1, 2 and 5 segments, and
whole (the tails are ragged; with few tiles some segments are empty), and in lanes where it has no dots and no lists. It
is compared with the float64 interpreter of its index program; the whole function is compared with eager in float64.

The bound is the numerical contract. At tiles of 128 and more: twice eager's own error plus one rounding; below: twice
eager's plus n roundings. Eager's error is the worst of several draws, since a single one may be lucky.
"""

import time
from functools import cache

import pytest
import torch
from catalogue import ONE_PASS, SEVERAL, L, draw
from helpers import assert_close, double
from stages import fused_runs, record

import redfuser
from redfuser.algebra.checked import derive_checked
from redfuser.tile.lanes import refusal
from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

pytestmark = pytest.mark.usefixtures("quick_kernels")
ALL = ONE_PASS + SEVERAL
DRAWS = 6
ROUNDING = 2.0**-23
SCHEDULES = [
    Schedule(Strategy.SINGLE if segments == 1 else Strategy.MULTI, row=4, tile=tile, segments=segments)
    for tile in (1, 7, 16, 128)
    for segments in (1, 2, 5)
] + [Schedule(Strategy.WHOLE, row=4, tile=128, segments=1)]
LANES = [
    Schedule(Strategy.SINGLE, row=4, tile=16, lanes=4, run=2),
    Schedule(Strategy.SINGLE, row=4, tile=128, lanes=8, run=4),
    Schedule(Strategy.MULTI, row=4, tile=16, segments=5, lanes=3, run=8),
]


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


def in_lanes(r):
    return refusal(r.planned.region, r.planned.derivation) is None


@cache
def regions_of_all():
    """The regions of every function of the catalogue by its name, for tests of one xdist_group."""
    found = {}
    for case in ALL:
        with redfuser.options(**case.options):
            found[case.name] = record(case.fn, case.inputs())
    return found


@pytest.mark.xdist_group("regions_of_all")
def test_cascades_in_lanes():
    """All but those with a dot or a list: more than half of the catalogue."""
    found = {name: all(map(in_lanes, regions)) for name, regions in regions_of_all().items()}
    assert found["variance"] and found["kl_divergence"] and found["softmax_of_softmax"]
    assert not found["attention"] and not found["topk_of_softmax"]
    assert sum(found.values()) > len(ALL) / 2


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_numbers_at_every_tiling(case):
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
        for schedule in SCHEDULES + LANES * in_lanes(same[0]):
            allowed = ROUNDING if schedule.tile >= 128 else L * ROUNDING
            for r, want in zip(same, wants, strict=True):
                for g, w, e in zip(r.scheduled(schedule), want, eager, strict=True):
                    assert_close(g, w, tolerance=2 * e + allowed + case.step)


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_whole_function_against_eager(case):
    args = case.inputs()
    fused = redfuser.fuse(case.fn, rest="eager", strategy="single", tile=16, strict=True, **case.options)
    with fused_runs() as runs:
        got = fused(*args)
    eager, want = case.fn(*args), case.fn(*double(args))
    error = assert_close(eager, want, tolerance=0.1)
    assert_close(got, want, tolerance=2 * error + L * ROUNDING + case.step + case.cast, like=eager)
    assert runs, "nothing was fused"


def scaled_by_the_mean(x, w):
    scale = 448 / x.abs().mean(-1, keepdim=True)
    return (x * scale).to(torch.float8_e4m3fn).to(x.dtype) @ w / scale


def test_a_cast_that_cuts_off_what_the_last_scale_would_not():
    """After 16 elements the scale is six times the final one, and the 4 among them is beyond the largest number."""
    x, w = torch.full((2, 64), 8.0), torch.ones(64, 3)
    x[:, :15], x[:, 15] = 1.0, 4.0
    fused = redfuser.fuse(scaled_by_the_mean, backend="reference", strategy="single", tile=16, rest="eager")
    assert_close(fused(x, w), scaled_by_the_mean(x, w))
    (refusal,) = fused.analyze(x, w).refusals
    assert refusal.kind == "rounding" and "may be larger than 448" in refusal.reason


@pytest.mark.xdist_group("regions_of_all")
def test_deriving_and_checking_is_fast():
    times = []
    for case in ALL:
        for r in regions_of_all()[case.name]:
            start = time.process_time()
            derive_checked(r.planned.region.problem, fuse_rounding=bool(case.options))
            times.append(time.process_time() - start)
    times.sort()
    assert times[len(times) // 2] < 0.050, f"median {times[len(times) // 2] * 1e3:.0f} ms"
    assert times[-1] < 0.500, f"worst {times[-1] * 1e3:.0f} ms"
