"""Reductions over dimensions: sums, extrema, counts, products, norms, moments, top-k."""

from __future__ import annotations

import math
from collections.abc import Sequence

from redfuser.frontend.ops.pointwise import elementwise, operand
from redfuser.frontend.ops.registry import Call, Lowering, Result, lowers
from redfuser.frontend.ops.views import squeezed
from redfuser.frontend.values import NotCovered, Value, dtype_from_torch, scalar_expr
from redfuser.index.build import apply, cast
from redfuser.index.expr import DType, Expr, Fn, const, position
from redfuser.index.ints import Int, as_int, product
from redfuser.index.nodes import Reducer


def reduce_dims(
    lo: Lowering, reducer: Reducer, v: Value, dims: Sequence[int], keep: bool, dtype: DType, role: str = ""
) -> Value:
    """A reduction of a value over some of its dimensions."""
    kept = [n for n in range(v.rank) if n not in dims]

    def body(ix: tuple[Int, ...], rx: tuple[Int, ...]) -> Expr:
        place = dict(zip(kept, ix, strict=True)) | dict(zip(dims, rx, strict=True))
        return v([place[n] for n in range(v.rank)])

    out = lo.reduce(reducer, [v.shape[n] for n in kept], [v.shape[n] for n in dims], body, dtype, role)
    return with_kept(out, v, dims) if keep else out


def with_kept(out: Value, v: Value, dims: Sequence[int]) -> Value:
    """A result with its reduced dimensions put back, at length 1."""
    kept = [n for n in range(v.rank) if n not in dims]
    shape = [as_int(1) if n in dims else v.shape[n] for n in range(v.rank)]
    return out.view(shape, lambda ix: tuple(ix[n] for n in kept))


def _keepdim(call: Call) -> bool:
    return bool(call.get("keepdim", False))


@lowers("sum", "nansum_")
def sum_(lo: Lowering, call: Call) -> Result:
    v = widened(call.value("self"), call.dtype)
    return reduce_dims(lo, Reducer.SUM, v, call.dims(), _keepdim(call), call.dtype)


def widened(v: Value, dtype: DType) -> Value:
    """What a sum of the given result dtype adds up."""
    return v if v.dtype is dtype else v.cast(dtype)


@lowers("prod.dim_int", "prod.default")
def prod(lo: Lowering, call: Call) -> Result:
    v = widened(call.value("self"), call.dtype)
    return reduce_dims(lo, Reducer.PROD, v, call.dims(), _keepdim(call), call.dtype)


@lowers("amax", "amin", "max.default", "min.default")
def extremum(lo: Lowering, call: Call) -> Result:
    reducer = Reducer.MAX if call.op in ("amax", "max") else Reducer.MIN
    v = call.value("self")
    dims = call.dims() if "dim" in call.args else tuple(range(v.rank))
    return reduce_dims(lo, reducer, v, dims, _keepdim(call), call.dtype)


@lowers("aminmax")
def aminmax(lo: Lowering, call: Call) -> Result:
    v, keep = call.value("self"), _keepdim(call)
    dims = call.dims()
    return [
        reduce_dims(lo, Reducer.MIN, v, dims, keep, v.dtype, "min"),
        reduce_dims(lo, Reducer.MAX, v, dims, keep, v.dtype, "max"),
    ]


@lowers("any", "all")
def any_all(lo: Lowering, call: Call) -> Result:
    reducer = Reducer.ANY if call.op == "any" else Reducer.ALL
    v = call.value("self").cast(DType.BOOL)
    return reduce_dims(lo, reducer, v, call.dims(), _keepdim(call), call.dtype)


@lowers("count_nonzero")
def count_nonzero(lo: Lowering, call: Call) -> Result:
    v = call.value("self").cast(DType.BOOL).cast(DType.INT64)
    return reduce_dims(lo, Reducer.SUM, v, call.dims(), False, call.dtype)


def select_dim(
    lo: Lowering, reducer: Reducer, v: Value, d: int, k: Int | None = None, role: str = ""
) -> tuple[Value, Value]:
    """Values and positions along one dimension; the dimension is gone, or is last and has length k."""
    shape = [n for p, n in enumerate(v.shape) if p != d]

    def body(ix: tuple[Int, ...], rx: tuple[Int, ...]) -> Expr:
        return v((*ix[:d], rx[0], *ix[d:]))

    return lo.select(reducer, shape, v.shape[d], body, v.dtype, k, role)


@lowers("max.dim", "min.dim")
def max_dim(lo: Lowering, call: Call) -> Result:
    """Two results of one operation. Where only the values are used, a plain maximum is what is meant."""
    v, d = call.value("self"), call.dim()
    if v.rank == 0:
        raise NotCovered("max of a scalar")
    keep = bool(call["keepdim"])
    largest = call.op == "max"
    if not _uses_result(call, 1):
        reducer = Reducer.MAX if largest else Reducer.MIN
        return [reduce_dims(lo, reducer, v, (d,), keep, v.dtype), None]
    parts = select_dim(lo, Reducer.ARGMAX if largest else Reducer.ARGMIN, v, d)
    return [with_kept(p, v, (d,)) if keep else p for p in parts]


def _uses_result(call: Call, n: int) -> bool:
    return any(len(u.args) < 2 or u.args[1] == n for u in call.node.users)


@lowers("argmax", "argmin")
def argmax(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    if v.rank == 0:
        raise NotCovered("argmax of a scalar")
    reducer = Reducer.ARGMAX if call.op == "argmax" else Reducer.ARGMIN
    if call.get("dim") is None:
        from redfuser.frontend.ops.views import reshaped

        flat = reshaped(v, (product(v.shape),))
        at = select_dim(lo, reducer, flat, 0)[1]
        return at.view([as_int(1)] * v.rank, lambda ix: ()) if _keepdim(call) else at
    d = call.dim()
    at = select_dim(lo, reducer, v, d)[1]
    return with_kept(at, v, (d,)) if _keepdim(call) else at


@lowers("topk")
def topk(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    if v.rank == 0:
        raise NotCovered("top-k of a scalar")
    d = call.dim()
    largest = bool(call["largest"])
    if call.length("k").value == 1:  # a list of one lies along no axis
        return [with_kept(p, v, (d,)) for p in select_dim(lo, Reducer.ARGMAX if largest else Reducer.BOTTOMK, v, d)]
    found = select_dim(lo, Reducer.TOPK if largest else Reducer.BOTTOMK, v, d, call.length("k"))
    shape = [*v.shape[:d], call.length("k"), *v.shape[d + 1 :]]
    return [p.view(shape, lambda ix: (*ix[:d], *ix[d + 1 :], ix[d])) for p in found]


def count_of(v: Value, dims: Sequence[int]) -> Int:
    return product(v.shape[d] for d in dims)


def divided(v: Value, n: Int, dtype: DType, less: object = 0) -> Value:
    """v / (n - less), where n is a number of elements."""
    if isinstance(less, int):
        by = cast(position(n - less), dtype)
    else:
        by = apply(Fn.SUB, (cast(position(n), dtype), scalar_expr(less, dtype)), dtype)  # type: ignore[arg-type]
    return Value(v.shape, dtype, lambda ix: apply(Fn.DIV, (v(ix), by), dtype))


def rounded(v: Value, dtype: DType) -> Value:
    """A result computed in a wider dtype and rounded once, as PyTorch does inside one operation."""
    return v.cast(dtype)


def internal(v: Value) -> Value:
    """A value in the dtype in which an operation computes inside."""
    return operand(v, v.shape, v.dtype.compute)


def mean_of(lo: Lowering, v: Value, dims: Sequence[int], keep: bool, role: str = "") -> Value:
    total = reduce_dims(lo, Reducer.SUM, v, dims, keep, v.dtype, role)
    return divided(total, count_of(v, dims), v.dtype)


@lowers("mean")
def mean(lo: Lowering, call: Call) -> Result:
    v = call.value("self").cast(call.dtype)
    return rounded(mean_of(lo, internal(v), call.dims(), _keepdim(call), "sum"), call.dtype)


def moments(lo: Lowering, v: Value, dims: Sequence[int], correction: object, keep: bool) -> tuple[Value, Value]:
    """Variance and mean, both in two passes over the elements, as PyTorch defines them."""
    mu = mean_of(lo, v, dims, True, "sum")
    c = v.dtype
    centred = elementwise(lambda x, m: apply(Fn.SUB, (x, m), c), [v, mu], v.shape, c, c)
    squares = Value(v.shape, c, lambda ix: apply(Fn.MUL, (centred(ix), centred(ix)), c))
    total = reduce_dims(lo, Reducer.SUM, squares, dims, keep, c, "squares")
    variance = divided(total, count_of(v, dims), c, correction)
    return variance, mu if keep else squeezed(mu, list(dims))


@lowers("var", "std", "var_mean", "std_mean")
def var(lo: Lowering, call: Call) -> Result:
    v = internal(call.value("self"))
    correction = call.get("correction", 1)
    if "unbiased" in call.args:
        correction = int(bool(call["unbiased"]))
    correction = 1 if correction is None else correction
    if isinstance(correction, float) and correction.is_integer():
        correction = int(correction)
    c = v.dtype
    variance, mu = moments(lo, v, call.dims(), correction, _keepdim(call))
    if call.op.startswith("std"):
        variance = _unary(Fn.SQRT, variance, c)
    target = dtype_from_torch(call.meta[0].dtype if call.op.endswith("_mean") else call.meta.dtype)
    if call.op.endswith("_mean"):
        return [rounded(variance, target), rounded(mu, target)]
    return rounded(variance, target)


def _unary(fn: Fn, v: Value, c: DType) -> Value:
    return Value(v.shape, c, lambda ix: apply(fn, (v(ix),), c))


@lowers("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype")
def norm(lo: Lowering, call: Call) -> Result:
    source = call.value("self").cast(call.dtype)
    order = call.get("ord", call.get("p", 2))
    order = 2 if order is None else order
    if not isinstance(order, int | float):
        raise NotCovered("a norm whose order is not a number")
    v, dims, keep = internal(source), call.dims(), _keepdim(call)
    return rounded(vector_norm(lo, v, float(order), dims, keep), call.dtype)


def vector_norm(lo: Lowering, v: Value, order: float, dims: Sequence[int], keep: bool) -> Value:
    c = v.dtype
    size = _unary(Fn.ABS, v, c)
    if math.isinf(order):
        return reduce_dims(lo, Reducer.MAX if order > 0 else Reducer.MIN, size, dims, keep, c)
    if order == 0:
        hits = Value(v.shape, c, lambda ix: cast(apply(Fn.NE, (v(ix), const(0, c)), DType.BOOL), c))
        return reduce_dims(lo, Reducer.SUM, hits, dims, keep, c)
    if order == 1:
        return reduce_dims(lo, Reducer.SUM, size, dims, keep, c)
    base = v if order == 2 else size
    powers = Value(v.shape, c, lambda ix: apply(Fn.POW, (base(ix), const(order, c)), c))
    total = reduce_dims(lo, Reducer.SUM, powers, dims, keep, c)
    return Value(total.shape, c, lambda ix: apply(Fn.POW, (total(ix), const(1 / order, c)), c))


@lowers("cosine_similarity")
def cosine_similarity(lo: Lowering, call: Call) -> Result:
    c = call.dtype.compute
    d = call.dim(rank=max(call.value("x1").rank, call.value("x2").rank))
    shape = [*call.shape[:d], call.value("x1").shape[d - call.value("x1").rank], *call.shape[d:]]
    x, y = (operand(call[n], tuple(shape), c) for n in ("x1", "x2"))
    eps = scalar_expr(call["eps"], c)

    def unit(v: Value, role: str) -> Value:
        squares = Value(v.shape, c, lambda ix: apply(Fn.MUL, (v(ix), v(ix)), c))
        total = reduce_dims(lo, Reducer.SUM, squares, (d,), True, c, role)
        f = lambda a, n: apply(  # noqa: E731
            Fn.DIV, (a, apply(Fn.MAXIMUM, (apply(Fn.SQRT, (n,), c), eps), c)), c
        )
        return elementwise(f, [v, total], v.shape, c, c)

    a, b = unit(x, "left"), unit(y, "right")
    product_ = Value(a.shape, c, lambda ix: apply(Fn.MUL, (a(ix), b(ix)), c))
    return rounded(reduce_dims(lo, Reducer.SUM, product_, (d,), False, c), call.dtype)
