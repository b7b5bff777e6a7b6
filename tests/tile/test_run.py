"""Tile programs run by the reference backend against plain torch in float64, for every strategy and many tilings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import cases
import pytest
import torch

from redfuser.backends.reference import run
from redfuser.tile.build import build
from redfuser.tile.nodes import Loop, Read, Strategy
from redfuser.tile.strategy import Schedule, Unsupported

SCHEDULES = [
    Schedule(Strategy.WHOLE, 16),
    *(Schedule(Strategy.SINGLE, r, t) for r, t in ((1, 1), (7, 7), (16, 16), (64, 128))),
    *(Schedule(Strategy.MULTI, 16, t, segments=s) for t, s in ((1, 2), (7, 1), (7, 2), (16, 5), (128, 5))),
]


def check(case: cases.Case, schedule: Schedule, tolerance: float = 2e-6) -> None:
    p = build(case.region, case.derivation, schedule)
    got = run(p, case.inputs, case.sizes)
    want = case.expected(case.inputs)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and a.is_contiguous()
        if not b.dtype.is_floating_point:
            assert torch.equal(a, b)
            continue
        assert torch.equal(torch.isnan(a), torch.isnan(b))
        torch.testing.assert_close(a.double(), b.double(), rtol=tolerance * 4, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize(
    "spoil", [torch.zeros_like, lambda x: x.flip(0), lambda x: x * float("nan"), lambda x: x + 1e-3, lambda x: x[:1]]
)
def test_check_fails(spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
    case = cases.softmax()
    right = case.expected
    case.expected = lambda inputs: [spoil(x) for x in right(inputs)]
    with pytest.raises(AssertionError):
        check(case, Schedule(Strategy.SINGLE, 7, 7))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("mask", ["", "causal", "window", "prefix", "blocks", "rows"])
def test_weighted_sum_with_masks(mask: str, schedule: Schedule) -> None:
    size = {"i": 11, "l": 19} if schedule.tile == 1 else {"i": 37, "l": 53}
    check(cases.attention(b=1, h=2, g=3, mask=mask, probabilities=True, **size), schedule)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_more_rows_than_positions(schedule: Schedule) -> None:
    """A causal mask aligned at the bottom right leaves the first rows without any position: NaN, as in eager."""
    check(cases.attention(b=1, h=1, i=29, l=17, mask="causal"), schedule)


@pytest.mark.parametrize("dtype,tolerance", [("bfloat16", 2e-2), ("float16", 2e-3)])
def test_narrow_floats(dtype: str, tolerance: float) -> None:
    case = cases.attention(dtype=cases.DType(dtype), mask="causal")
    for s in SCHEDULES[2:4]:
        check(case, s, tolerance)


def test_strided_inputs() -> None:
    case = cases.attention(b=2, h=3, g=2, i=23, l=31)
    moved = {n: t.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0) for n, t in case.inputs.items()}
    wide = {n: torch.cat([t, t * 9], -1)[..., : t.shape[-1]] for n, t in case.inputs.items()}
    for inputs in (moved, wide):
        assert any(not t.is_contiguous() for t in inputs.values())
        case.inputs = inputs
        check(case, Schedule(Strategy.SINGLE, 16, 8))


def test_masked_nan_is_skipped_or_propagated_only_in_its_rows() -> None:
    case = cases.attention(b=1, h=1, i=16, l=16, mask="causal")
    case.inputs["v"][0, 0, 12] = float("nan")
    got = run(build(case.region, case.derivation, Schedule(Strategy.SINGLE, 4, 4)), case.inputs, {})[0]
    assert not torch.isnan(got[0, 0, :12]).any() and torch.isnan(got[0, 0, 12:]).all()


MAKERS = [
    cases.softmax,
    cases.two_passes,
    cases.scaled_product,
    cases.gathered,
    cases.reducers,
    cases.chained_producers,
    cases.widened,
    cases.flattened,
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("make", MAKERS)
def test_cascades(make: Callable[[], cases.Case], schedule: Schedule) -> None:
    check(make(), schedule, 1e-5)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_variance_at_an_offset(schedule: Schedule) -> None:
    check(cases.variance(), schedule, 3e-3)  # the inputs themselves have an error of 6e-5


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("kind", ["ties", "nan", "inf", "int"])
def test_lists_and_positions(kind: str, schedule: Schedule) -> None:
    check(cases.top_k(kind=kind, dtype=cases.I64 if kind == "int" else cases.F32), schedule, 0.0)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
@pytest.mark.parametrize("schedule", SCHEDULES[:4] + SCHEDULES[-3:], ids=str)
def test_integers(dtype: str, schedule: Schedule) -> None:
    check(cases.reducers(dtype=cases.DType(dtype)), schedule)


@pytest.mark.parametrize(
    "schedule", [Schedule(Strategy.SINGLE, 8, 16, 4), Schedule(Strategy.MULTI, 8, 16, 8, 3)], ids=str
)
def test_column_blocks(schedule: Schedule) -> None:
    check(cases.scaled_product(), schedule, 1e-5)


def test_keys_that_are_values_are_read_once() -> None:
    case = cases.attention(shared=True, c=8, d=8, g=2)
    p = build(case.region, case.derivation, Schedule(Strategy.SINGLE, 8, 16))
    loop = next(s for s in p.kernels[0].body if isinstance(s, Loop))
    assert [s.tensor for s in loop.body if isinstance(s, Read)] == ["k"]
    for s in SCHEDULES:
        check(case, s)


@pytest.mark.parametrize("mask", ["causal", "window", "blocks"])
def test_lengths_known_only_at_the_call(mask: str) -> None:
    """One program, built with hints, serves other lengths."""
    hint = cases.attention(b=1, h=2, i=64, l=64, mask=mask, probabilities=True, symbolic=True)
    for schedule in (
        Schedule(Strategy.WHOLE, 8),
        Schedule(Strategy.SINGLE, 8, 16),
        Schedule(Strategy.MULTI, 8, 16, segments=3),
    ):
        p = build(hint.region, hint.derivation, schedule)
        for i, l in ((1, 1), (5, 37), (33, 70), (16, 16)):
            case = cases.attention(b=1, h=2, i=i, l=l, mask=mask, probabilities=True, symbolic=True)
            for a, b in zip(run(p, case.inputs, case.sizes), case.expected(case.inputs), strict=True):
                torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=2e-6, equal_nan=True)


def test_wrong_inputs_are_named() -> None:
    case = cases.softmax()
    p = build(case.region, case.derivation, Schedule(Strategy.SINGLE, 8, 16))
    with pytest.raises(ValueError, match=r"x is torch\.float64"):
        run(p, {"x": case.inputs["x"].double()}, {})
    with pytest.raises(ValueError, match=r"\(41, 13\)"):
        run(p, {"x": case.inputs["x"].T}, {})


def test_strided_inputs_of_a_flattened_axis() -> None:
    """A view serves where the strides allow it, a gather where they do not."""
    case = cases.flattened()
    x = case.inputs["x"]
    transposed = x.permute(0, 2, 1).contiguous().permute(0, 2, 1)
    for moved in (x, transposed, torch.cat([x, x], 2)[..., :7], x[:1].expand(5, 6, 7)):
        case.inputs = {"x": moved}
        check(case, Schedule(Strategy.SINGLE, 2, 16), 1e-5)


def test_a_stage_at_another_row_is_refused() -> None:
    case = cases.softmax()
    r = case.region.results[0]
    i, j = r.axes
    moved = replace(r, body=cases.load("m", cases.at(12 - cases.as_int(i)), cases.F32), axes=(i, j))
    region = replace(case.region, results=(moved,))
    with pytest.raises(Unsupported, match="another position of i"):
        build(region, case.derivation, Schedule(Strategy.SINGLE, 8, 16))


def test_same_bits_every_time() -> None:
    case = cases.attention(b=2, h=3, g=2, mask="causal", probabilities=True)
    p = build(case.region, case.derivation, Schedule(Strategy.MULTI, 16, 16, segments=3))
    first = run(p, case.inputs, {})
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run(p, case.inputs, {}), strict=True))


def test_inputs_are_left_alone() -> None:
    for make in (cases.attention, *MAKERS):
        case = make()
        before = {n: t.clone() for n, t in case.inputs.items()}
        run(build(case.region, case.derivation, Schedule(Strategy.SINGLE, 8, 16)), case.inputs, case.sizes)
        assert all(torch.equal(torch.nan_to_num(t), torch.nan_to_num(before[n])) for n, t in case.inputs.items())
