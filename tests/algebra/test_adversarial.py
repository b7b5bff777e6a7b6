"""Rows that break naive loops, and the form of what is emitted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from redfuser.algebra.checked import derive_checked
from redfuser.algebra.derive import derive
from redfuser.algebra.nodes import Accumulator, Base, Problem, Stage
from redfuser.index.expr import Apply, Const, DType, Fn, Load, Part, Ref, free_axes, load, walk
from redfuser.index.ints import Axis, Size, as_int
from redfuser.index.nodes import Reducer
from redfuser.index.print import show

from .cascades import ALL, BY_NAME
from .dsl import Cascade, V, exp
from .numerics import REGIMES, definition, grid, in_precision, stream


def run(name, tile=16, cuts=(), real=np.float32, edit=None, length=130):
    """Results of a cascade in float32, and the definition's in float64."""
    case = BY_NAME[name]
    p = case.problem()
    with np.errstate(all="ignore"):
        g = grid(p, length)
        for x, v in g.data.items():
            if edit is not None:
                edit(x, v)
        want, _ = definition(p, g)
        got = stream(derive(p, **case.options), in_precision(g, real), tile, cuts)
    return got, want


def row(a, regime):
    return a[REGIMES.index(regime)] if a.shape[0] == len(REGIMES) else a[0]


@pytest.mark.parametrize("cuts", [(), (16,), (0, 40, 40, 129)])
def test_fully_masked_rows(cuts):
    got, _ = run("attention", cuts=cuts)
    assert np.isnan(row(got[("Z", Part.VALUE)], "all masked")).all()
    assert np.isnan(row(got[("O", Part.VALUE)], "all masked")).all()
    got, _ = run("attention_zero_where_masked", cuts=cuts)
    assert (row(got[("O", Part.VALUE)], "all masked") == 0).all()
    got, _ = run("attention_gated", cuts=cuts)
    assert (row(got[("O", Part.VALUE)], "all masked") == 0).all()


def test_a_kept_infinity_is_told_from_a_masked_element():
    """max of where(keep, max(x - m, -1), -inf) with x = -inf: -1 where any element is kept, -inf where none is."""

    def spoil(x, v):
        if x.source == "x":
            v[REGIMES.index("normal")] = -np.inf
        if x.source == "keep":
            v[:, 0] = False

    got, want = run("largest_clamped_kept_deviation", 7, cuts=(40,), edit=spoil)
    a, b = row(got[("C", Part.VALUE)], "normal"), row(want[("C", Part.VALUE)], "normal")
    assert (a == b).all()
    assert a.ravel().tolist() == [-np.inf, -1, -1]


def test_exponentials_of_infinity_stay_infinite():
    """exp(x).sum() with x = inf is inf, as in eager, although the loop subtracts a maximum."""

    def spoil(x, v):
        if x.source == "x":
            v[0, :, ..., 5] = np.inf

    got, want = run("unsafe_softmax", 16, cuts=(3,), edit=spoil)
    assert (row(got[("Z", Part.VALUE)], "normal") == np.inf).all()
    assert np.isnan(row(want[("O", Part.VALUE)], "normal")).all()
    assert np.isnan(row(got[("O", Part.VALUE)], "normal")).all()


def test_what_cancels_out_keeps_its_pass():
    """x - (x - m) is m, and NaN where x is infinite: the loop that would not read x is not used."""
    c = Cascade("cancels")
    x = c.x()
    m = c.max("m", c.x("y"))
    c.sum("S", x - (x - m))
    d = derive_checked(c.problem)
    assert len(d.passes) == 2
    assert "cancels out of x - (x - m)" in d.refusals[0].reason


@pytest.mark.parametrize("tile", [1, 7, 16, 128])
def test_masked_prefix_changes_nothing(tile):
    got, want = run("attention", tile)
    a, b = row(got[("O", Part.VALUE)], "masked prefix"), row(want[("O", Part.VALUE)], "masked prefix")
    assert np.isfinite(a).all()
    assert np.abs(a - b).max() < 1e-5


def test_low_values_after_a_masked_prefix():
    """exp(0 - m) overflows here: a state at its identity must not be corrected."""

    def low(x, v):
        if x.source == "x":
            v[REGIMES.index("masked prefix")] -= 1e3

    for name in ("attention", "softmax_through_logsumexp", "entropy", "shifted_logsumexp"):
        got, want = run(name, edit=low)
        compared = 0
        for key, w in want.items():
            fine = np.isfinite(row(w, "masked prefix"))
            compared += int(fine.any())
            assert np.isfinite(row(got[key], "masked prefix"))[fine].all(), (name, key)
        assert compared, name


def test_plus_infinity_and_nan_stay_in_their_rows():
    def spoil(x, v):
        if x.source == "x":
            v[0, 0, ..., 5] = np.inf
            v[0, 1, ..., 7] = np.nan

    for name in ("attention", "variance", "layer_norm_gemm", "cross_entropy", "amax_scaled_gemm_fp8"):
        got, want = run(name, edit=spoil)
        for key, w in want.items():
            a, b = got[key][0], w[0]
            if b.shape[0] == 3:
                assert (np.isfinite(a) == np.isfinite(b)).all(), (name, key)
                assert np.isfinite(a[2]).all()


def test_zero_rows():
    got, _ = run("amax_scaled_gemm_fp8_bare")
    assert np.isnan(row(got[("O", Part.VALUE)], "zeros")).all()  # x * (448 / 0)
    assert np.isfinite(row(got[("O", Part.VALUE)], "zero prefix")).all()
    got, _ = run("amax_scaled_gemm_fp8")
    assert (row(got[("O", Part.VALUE)], "zeros") == 0).all()
    got, _ = run("scaled_norm")
    assert np.isfinite(row(got[("q", Part.VALUE)], "zero prefix")).all()


@pytest.mark.parametrize(
    "name",
    [
        "variance", "variance_expanded", "variance_expanded_over_a_number", "variance_expanded_about_twice_half_the_mean",
        "weighted_variance_expanded", "variance_divided_inside", "variance_divided_inside_by_a_number", "covariance",
        "covariance_expanded", "weighted_variance",
    ],
)  # fmt: skip
@pytest.mark.parametrize("tile", [16, 128])
def test_shifted_data(name, tile):
    """At offset 1e4 the relative error of second moments stays near the rounding of the data."""
    got, want = run(name, tile, cuts=(40,))
    last = BY_NAME[name].problem().stages[-1].name
    a, b = row(got[(last, Part.VALUE)], "offset"), row(want[(last, Part.VALUE)], "offset")
    scale = 130.0
    assert (np.abs(a - b) / scale).max() < 1e-5


def test_unsafe_exponentials_become_safe():
    got, _ = run("unsafe_softmax")
    assert np.isfinite(row(got[("O", Part.VALUE)], "offset")).all()
    got, _ = run("mean_shift_softmax")
    assert np.isfinite(row(got[("O", Part.VALUE)], "step")).all()


def test_no_big_numbers():
    """-inf stands for nothing seen; no finite number plays that part."""
    for case in ALL:
        d = derive(case.problem(), **case.options)
        own = {x.value for s in d.problem.stages for x in walk(s.body) if isinstance(x, Const)}
        for p in d.passes:
            for s in p.steps:
                for e in (s.element, s.correction) if isinstance(s, Accumulator) else (s.value,):
                    for x in walk(e) if e is not None else ():
                        if isinstance(x, Const) and isinstance(x.value, float) and math.isfinite(x.value):
                            assert abs(x.value) < 1e4 or x.value in own


def test_a_contraction_stays_a_product():
    """exp(s - base)[b, l] * v[l, d]: factors of their own axes, for a matrix product in the tile."""
    d = derive(BY_NAME["attention"].problem())
    o = next(s for s in d.passes[0].steps if s.name == "O")
    assert isinstance(o.element, Apply) and o.element.fn is Fn.MUL
    left, right = ({a.name for a in free_axes(x)} for x in o.element.args)
    assert left == {"b", "l"} and right == {"l", "d"}
    d = derive(BY_NAME["layer_norm_gemm"].problem())
    o = next(s for s in d.passes[0].steps if s.name == "O")
    assert isinstance(o.element, Apply) and o.element.fn is Fn.MUL
    assert isinstance(o.element.args[1], Load)


def test_narrow_elements_are_summed_as_they_are():
    d = derive(BY_NAME["layer_norm_gemm_bf16"].problem())
    o = next(s for s in d.passes[0].steps if s.name == "O")
    assert show(o.element) == "bf16(x[b, l]) * v[l, d]"
    assert o.correction is None


def test_elements_are_as_written():
    c = Cascade("scaled")
    x = c.x()
    m = c.max("m", x)
    Z = c.sum("Z", exp((x - m) * 0.3))
    c.sum("O", exp(0.3 * (x - m)) / Z * c.col())
    d = derive(c.problem)
    elements = {s.name: show(s.element) for s in d.passes[0].steps if isinstance(s, Accumulator)}
    assert elements["Z"] == "exp((x[b, l] - m_base) * 0.3)"
    assert elements["O"] == "exp(0.3 * (x[b, l] - m_base)) * v[l, d]"


def test_later_passes_run_the_body_as_written():
    for case in ALL:
        if case.passes != 2:
            continue
        p = case.problem()
        d = derive(p, **case.options)
        placed = {s.name for q in d.passes[:1] for s in q.steps}
        for r in d.refusals:
            stage = next(s for s in p.stages if s.name == r.subject)
            late = next(s for s in d.passes[1].steps if s.name == r.subject)
            assert isinstance(late, Accumulator) and late.element is stage.body and r.subject not in placed


def test_results_of_other_rows_wait_for_the_next_pass():
    """cov[i, j] needs the mean of row i and of row j: a running state is read at its own row only."""
    n = Axis("l", as_int(Size("L", 64)))
    i, j = Axis("i", as_int(3)), Axis("j", as_int(3))

    def at(name, *axes):
        return load(name, tuple(as_int(a) for a in axes), DType.FLOAT32)

    mean = Stage("s", Reducer.SUM, (i,), at("x", i, n), DType.FLOAT32)
    body = (V(at("x", i, n)) - V(at("s", i)) / 64.0) * (V(at("x", j, n)) - V(at("s", j)) / 64.0)
    p = Problem(n, (mean, Stage("C", Reducer.SUM, (i, j), body.e, DType.FLOAT32)))
    d = derive_checked(p)
    assert len(d.passes) == 2
    assert [str(r.kind) for r in d.refusals] == ["unsupported"]


def test_names_and_axes():
    for case in ALL:
        d = derive(case.problem(), **case.options)
        for p in d.passes:
            names = [s.name for s in p.steps]
            assert len(set(names)) == len(names)
            axes = {s.name: set(s.axes) for s in p.steps}
            for s in p.steps:
                exprs = [s.value] if isinstance(s, Base) else [s.element, s.correction]
                for e in (e for e in exprs if e is not None):
                    assert free_axes(e) - {d.problem.axis} <= axes[s.name]
                    for x in walk(e):
                        if isinstance(x, Ref):
                            assert axes[x.name] <= axes[s.name]
            assert all(d.problem.axis not in s.axes for s in p.steps)
