"""The float64 interpreter: rounding as PyTorch rounds, wraparound, ties, NaN and empty reductions."""

import math

import numpy as np
import pytest
import torch

from redfuser.index.eval import evaluate, round_to
from redfuser.index.expr import Apply, Cast, DType, Expr, Fn, Part, const, load, position
from redfuser.index.ints import Axis, Gather, Int, Size, as_int
from redfuser.index.nodes import Input, Map, Output, Program, Reduce, Reducer
from redfuser.index.verify import verify

NARROW = [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3, DType.FLOAT8_E5M2, DType.FLOAT32]


@pytest.mark.parametrize("dtype", NARROW)
def test_rounding_is_torchs(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([
        rng.standard_normal(4000) * 10.0 ** rng.integers(-12, 6, 4000), rng.integers(-500, 500, 500) / 32,
        [0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 465.0, 57344.0, 61440.0, 65504.0, 65520.0, 1e-45, 2.0**-149],
    ])  # fmt: skip
    if dtype is DType.FLOAT8_E4M3:
        x = x[~(np.abs(x) > 464)]  # beyond it torch's versions differ
    want = torch.from_numpy(x).to(getattr(torch, dtype.value)).double().numpy()
    np.testing.assert_array_equal(round_to(x, dtype), want)


def reduced(reducer: Reducer, x: np.ndarray, dtype: DType = DType.FLOAT32, k: int | None = None) -> list[np.ndarray]:
    """The components of a reduction of the last dimension."""
    i, j = Axis("i", as_int(x.shape[0])), Axis("l", as_int(x.shape[1]))
    body = load("x", (as_int(i), as_int(j)), dtype)
    slots = None if k is None else Axis("k", as_int(k))
    result = DType.BOOL if reducer in (Reducer.ANY, Reducer.ALL) else dtype
    r = Reduce("r", (i,), (j,), reducer, body, result, None, slots)
    parts = [Part.VALUE, Part.INDEX] if reducer.has_index else [Part.VALUE]
    program = verify(Program((Input("x", (i, j), dtype),), (r,), tuple(Output("r", p) for p in parts)))
    return evaluate(program, {"x": x}, {})


VALUES = np.array([[1.0, 3.0, 3.0, -2.0], [np.nan, 1.0, np.nan, 0.0], [-np.inf] * 4, [np.inf, 1.0, -np.inf, np.inf]])


@pytest.mark.parametrize(
    "reducer, torchs",
    [
        (Reducer.SUM, lambda x: x.sum(-1)),
        (Reducer.MAX, lambda x: x.amax(-1)),
        (Reducer.MIN, lambda x: x.amin(-1)),
        (Reducer.PROD, lambda x: x.prod(-1)),
        (Reducer.LOGSUMEXP, lambda x: x.logsumexp(-1)),
    ],
)
def test_values(reducer: Reducer, torchs: object) -> None:
    want = torchs(torch.from_numpy(VALUES)).numpy()  # type: ignore[operator]
    np.testing.assert_allclose(reduced(reducer, VALUES)[0], want, equal_nan=True)


@pytest.mark.parametrize("reducer, name", [(Reducer.ARGMAX, "max"), (Reducer.ARGMIN, "min")])
def test_positions(reducer: Reducer, name: str) -> None:
    want = getattr(torch.from_numpy(VALUES), name)(-1)
    values, index = reduced(reducer, VALUES)
    np.testing.assert_array_equal(values, want.values)
    np.testing.assert_array_equal(index, want.indices)


def test_topk_takes_nan_first_and_the_lowest_position_among_equals() -> None:
    values, index = reduced(Reducer.TOPK, VALUES, k=3)
    np.testing.assert_array_equal(index, [[1, 2, 0], [0, 2, 1], [0, 1, 2], [0, 3, 1]])
    np.testing.assert_array_equal(values, np.take_along_axis(VALUES, index, -1))


def test_bottomk_takes_nan_last_and_the_lowest_position_among_equals() -> None:
    for k in (1, 3, VALUES.shape[-1]):
        values, index = reduced(Reducer.BOTTOMK, VALUES, k=k)
        want = torch.sort(torch.from_numpy(VALUES), dim=-1, stable=True)
        np.testing.assert_array_equal(index, want.indices[:, :k])
        np.testing.assert_array_equal(values, want.values[:, :k])
    values, index = reduced(Reducer.BOTTOMK, VALUES)
    np.testing.assert_array_equal(values, want.values[:, 0])
    np.testing.assert_array_equal(index, want.indices[:, 0])


def test_lists_of_integers() -> None:
    x = np.array([[5, -7, 5, 120]], np.int8)
    assert reduced(Reducer.TOPK, x, DType.INT8, 2)[1].tolist() == [[3, 0]]
    assert reduced(Reducer.BOTTOMK, x, DType.INT8, 2)[1].tolist() == [[1, 0]]


@pytest.mark.parametrize(
    "reducer, identity",
    [
        (Reducer.SUM, 0), (Reducer.MAX, -math.inf), (Reducer.MIN, math.inf), (Reducer.PROD, 1), (Reducer.ANY, False),
        (Reducer.ALL, True), (Reducer.LOGSUMEXP, -math.inf),
    ],
)  # fmt: skip
def test_empty(reducer: Reducer, identity: float) -> None:
    assert reduced(reducer, np.zeros((2, 0)))[0].tolist() == [identity] * 2


def value(e: Expr, n: int = 4, **inputs: np.ndarray) -> np.ndarray:
    """An expression over one axis ``i`` of length n."""
    program = Program(
        tuple(Input(name, (I,), DType.FLOAT32) for name in inputs),
        (Map("y", (I,), e, e.dtype if hasattr(e, "dtype") else DType.INT64),), (Output("y"),),
    )  # fmt: skip
    return evaluate(program, inputs, {"n": n}, rounded=True)[0]


I = Axis("i", as_int(Size("n", 4)))


@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8, DType.INT16, DType.INT32])
def test_integers_wrap(dtype: DType) -> None:
    kind = getattr(torch, dtype.value)
    x = torch.arange(4).to(kind) * 50 + 100
    e = Cast(position(as_int(I)), dtype)
    for fn, op in ((Fn.MUL, torch.mul), (Fn.ADD, torch.add), (Fn.SUB, torch.sub)):
        scaled = Apply(Fn.ADD, (Apply(Fn.MUL, (e, const(50, dtype)), dtype), const(100, dtype)), dtype)
        found = value(Apply(fn, (scaled, scaled if fn is not Fn.SUB else const(120, dtype)), dtype))
        want = op(x, x if fn is not Fn.SUB else torch.tensor(120).to(kind))
        np.testing.assert_array_equal(found, want.numpy())


def test_symbolic_sizes() -> None:
    assert value(position(as_int(I) * Int(as_int(I.size).terms)), 3).tolist() == [0, 3, 6]


def test_loads_out_of_range_are_clipped() -> None:
    e = load("x", (as_int(I) + 2,), DType.FLOAT32)
    assert value(e, x=np.arange(4.0)).tolist() == [2, 3, 3, 3]


def test_gathered_index() -> None:
    at = as_int(Gather(Cast(load("x", (as_int(I),), DType.FLOAT32), DType.INT64), I.size))
    assert value(load("x", (at,), DType.FLOAT32), x=np.array([2.0, 0, 1, 3])).tolist() == [1, 2, 0, 3]


def test_where_does_not_mix_branches() -> None:
    x = load("x", (as_int(I),), DType.FLOAT32)
    low = Apply(Fn.LT, (position(as_int(I)), const(2, DType.INT64)), DType.BOOL)
    e = Apply(Fn.WHERE, (low, x, const(0.0, DType.FLOAT32)), DType.FLOAT32)
    assert value(e, x=np.array([1.0, 2.0, np.nan, np.inf])).tolist() == [1, 2, 0, 0]


def test_exact_mode_ignores_float_casts_only() -> None:
    x = load("x", (as_int(I),), DType.FLOAT32)
    e = Cast(Cast(x, DType.BFLOAT16), DType.FLOAT32)
    program = Program((Input("x", (I,), DType.FLOAT32),), (Map("y", (I,), e, DType.FLOAT32),), (Output("y"),))
    data = {"x": np.array([1.001, 2.0, 3.0, 4.0])}
    assert evaluate(program, data, {"n": 4})[0][0] == 1.001
    assert evaluate(program, data, {"n": 4}, rounded=True)[0][0] == 1.0
    whole = Program(program.inputs, (Map("y", (I,), Cast(x, DType.INT32), DType.INT32),), (Output("y"),))
    assert evaluate(whole, data, {"n": 4})[0].tolist() == [1, 2, 3, 4]
