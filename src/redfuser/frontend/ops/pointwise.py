"""Elementwise operations, with PyTorch's type promotion: narrow floats are computed in float32."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from redfuser.frontend.ops.registry import Call, Lowering, Result, lowers
from redfuser.frontend.values import NotCovered, Scalar, Value, dtype_from_torch, filled, scalar_expr
from redfuser.index.build import FALSE, apply
from redfuser.index.expr import DType, Expr, Fn, const
from redfuser.index.ints import Int

Elementwise = Callable[..., Expr]


def operand(x: Value | Scalar, shape: tuple[Int, ...], dtype: DType) -> Value:
    """An argument broadcast to the shape of the result, in the dtype in which it is computed."""
    if not isinstance(x, Value):
        return filled(shape, scalar_expr(x, dtype), dtype)
    return promoted(x.broadcast(shape), dtype)


def promoted(v: Value, dtype: DType) -> Value:
    """Widening of floats is implicit; everything else is a Cast."""
    if v.dtype is dtype or (v.dtype.is_float and v.dtype.compute is dtype):
        return Value(v.shape, dtype, v)
    return v.cast(dtype)


def elementwise(
    f: Elementwise, args: list[Value | Scalar], shape: tuple[Int, ...], compute: DType, result: DType
) -> Value:
    given = [operand(a, shape, compute) for a in args]
    return Value(shape, result, lambda ix: f(*(g(ix) for g in given)))


def promoted_dtype(call: Call, names: tuple[str, ...]) -> DType:
    """The dtype in which PyTorch compares or combines these arguments."""
    raw = []
    from torch.fx.node import map_aggregate

    assert isinstance(call.node.target, torch._ops.OpOverload)
    schema = call.node.target._schema
    arguments = dict(zip((a.name for a in schema.arguments), call.node.args, strict=False)) | dict(call.node.kwargs)
    for n in names:
        x = map_aggregate(arguments[n], lambda y: y.meta["val"] if isinstance(y, torch.fx.Node) else y)
        raw.append(x)
    _, d = elementwise_dtypes(*raw, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
    return dtype_from_torch(d)


def _simple(fn: Fn) -> Callable[[Lowering, Call], Result]:
    def lower(lo: Lowering, call: Call) -> Result:
        compute = call.dtype.compute
        return elementwise(lambda x: apply(fn, (x,), compute), [call["self"]], call.shape, compute, call.dtype)

    return lower


for _fn in (
    Fn.NEG, Fn.ABS, Fn.SIGN, Fn.EXP, Fn.EXP2, Fn.EXPM1, Fn.LOG, Fn.LOG2, Fn.LOG1P, Fn.SQRT, Fn.RSQRT, Fn.SIN, Fn.COS,
    Fn.TANH, Fn.SIGMOID, Fn.ERF, Fn.FLOOR, Fn.CEIL, Fn.TRUNC,
):  # fmt: skip
    lowers(_fn.value)(_simple(_fn))
lowers("round.default")(_simple(Fn.ROUND))


@lowers("add", "sub", "rsub")
def add(lo: Lowering, call: Call) -> Result:
    compute = call.dtype.compute
    fn = Fn.ADD if call.op == "add" else Fn.SUB
    a, b = call["self"], call["other"]
    alpha = call.get("alpha", 1)

    def f(x: Expr, y: Expr) -> Expr:
        if call.op == "rsub":
            return apply(fn, (y, scaled(x)), compute)
        return apply(fn, (x, scaled(y)), compute)

    def scaled(x: Expr) -> Expr:
        return x if alpha == 1 else apply(Fn.MUL, (x, scalar_expr(alpha, compute)), compute)

    if compute is DType.BOOL:
        return elementwise(lambda x, y: apply(Fn.OR, (x, y), compute), [a, b], call.shape, compute, call.dtype)
    return elementwise(f, [a, b], call.shape, compute, call.dtype)


@lowers("mul", "multiply")
def mul(lo: Lowering, call: Call) -> Result:
    compute = call.dtype.compute
    fn = Fn.AND if compute is DType.BOOL else Fn.MUL
    return _binary(fn, call, compute)


def _binary(fn: Fn, call: Call, compute: DType) -> Value:
    a, b = call["self"], call["other"] if "other" in call.args else call["exponent"]
    return elementwise(lambda x, y: apply(fn, (x, y), compute), [a, b], call.shape, compute, call.dtype)


@lowers("div", "divide", "true_divide")
def div(lo: Lowering, call: Call) -> Result:
    compute, mode = call.dtype.compute, call.get("rounding_mode")
    if mode is None:
        return _binary(Fn.DIV, call, compute)
    if mode == "floor":
        return _floor_divide(call)
    if not compute.is_float:
        raise NotCovered("integer division that truncates")
    f = lambda x, y: apply(Fn.TRUNC, (apply(Fn.DIV, (x, y), compute),), compute)  # noqa: E731
    return elementwise(f, [call["self"], call["other"]], call.shape, compute, call.dtype)


@lowers("floor_divide")
def floor_divide(lo: Lowering, call: Call) -> Result:
    return _floor_divide(call)


def _floor_divide(call: Call) -> Value:
    return _binary(Fn.FLOORDIV, call, call.dtype.compute)


@lowers("remainder")
def remainder(lo: Lowering, call: Call) -> Result:
    return _binary(Fn.REMAINDER, call, call.dtype.compute)


@lowers("pow")
def pow_(lo: Lowering, call: Call) -> Result:
    if not call.dtype.is_float and call["exponent"] == 2:
        return elementwise(
            lambda x: apply(Fn.MUL, (x, x), call.dtype), [call["self"]], call.shape, call.dtype, call.dtype
        )
    return _binary(Fn.POW, call, call.dtype.compute)


@lowers("square")
def square(lo: Lowering, call: Call) -> Result:
    c = call.dtype.compute
    return elementwise(lambda x: apply(Fn.MUL, (x, x), c), [call["self"]], call.shape, c, call.dtype)


@lowers("reciprocal")
def reciprocal(lo: Lowering, call: Call) -> Result:
    c = call.dtype.compute
    return elementwise(lambda x: apply(Fn.DIV, (const(1, c), x), c), [call["self"]], call.shape, c, call.dtype)


@lowers("maximum", "max.other", "fmax_")
def maximum(lo: Lowering, call: Call) -> Result:
    return _binary(Fn.MAXIMUM, call, call.dtype.compute)


@lowers("minimum", "min.other", "fmin_")
def minimum(lo: Lowering, call: Call) -> Result:
    return _binary(Fn.MINIMUM, call, call.dtype.compute)


@lowers("clamp", "clamp_min", "clamp_max", "clip", "hardtanh", "relu")
def clamp(lo: Lowering, call: Call) -> Result:
    low = 0 if call.op == "relu" else call.get("min", call.get("min_val"))
    high = call.get("max", call.get("max_val"))
    c = call.dtype.compute
    v = operand(call["self"], call.shape, c)
    out: Value = Value(v.shape, call.dtype, v)
    for fn, bound in ((Fn.MAXIMUM, low), (Fn.MINIMUM, high)):
        if bound is not None:
            out = _bounded(fn, out, operand(bound, call.shape, c), c)
    return out


def _bounded(fn: Fn, v: Value, bound: Value, compute: DType) -> Value:
    return Value(v.shape, v.dtype, lambda ix: apply(fn, (v(ix), bound(ix)), compute))


for _name, _fn in (
    ("lt", Fn.LT), ("le", Fn.LE), ("gt", Fn.GT), ("ge", Fn.GE), ("eq", Fn.EQ), ("ne", Fn.NE), ("less", Fn.LT),
    ("less_equal", Fn.LE), ("greater", Fn.GT), ("greater_equal", Fn.GE), ("not_equal", Fn.NE),
):  # fmt: skip

    def _compare(lo: Lowering, call: Call, fn: Fn = _fn) -> Result:
        compute = promoted_dtype(call, ("self", "other")).compute
        a, b = call["self"], call["other"]
        return elementwise(lambda x, y: apply(fn, (x, y), DType.BOOL), [a, b], call.shape, compute, DType.BOOL)

    lowers(_name)(_compare)


@lowers("logical_and", "logical_or", "logical_xor", "logical_not")
def logical(lo: Lowering, call: Call) -> Result:
    fn = Fn(call.op.removeprefix("logical_"))
    args = [call[n] for n in ("self", "other") if n in call.args]
    return elementwise(lambda *x: apply(fn, x, DType.BOOL), args, call.shape, DType.BOOL, DType.BOOL)


@lowers("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "__and__", "__or__", "__xor__")
def bitwise(lo: Lowering, call: Call) -> Result:
    fn = Fn(call.op.removeprefix("bitwise_").strip("_"))
    args = [call[n] for n in ("self", "other") if n in call.args]
    return elementwise(lambda *x: apply(fn, x, call.dtype), args, call.shape, call.dtype, call.dtype)


@lowers("isnan")
def isnan(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    if not v.dtype.is_float:
        return filled(v.shape, FALSE, DType.BOOL)
    return Value(v.shape, DType.BOOL, lambda ix: apply(Fn.ISNAN, (v(ix),), DType.BOOL))


@lowers("isinf", "isfinite")
def isinf(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    c = v.dtype.compute
    if not c.is_float:
        return filled(v.shape, const(call.op == "isfinite", DType.BOOL), DType.BOOL)
    fn = Fn.EQ if call.op == "isinf" else Fn.LT
    limit = const(math.inf, c)
    return Value(v.shape, DType.BOOL, lambda ix: apply(fn, (apply(Fn.ABS, (v(ix),), c), limit), DType.BOOL))


@lowers("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(lo: Lowering, call: Call) -> Result:
    c = call.dtype.compute
    test = operand(call["condition"], call.shape, DType.BOOL)
    a, b = operand(call["self"], call.shape, c), operand(call["other"], call.shape, c)
    return Value(call.shape, call.dtype, lambda ix: apply(Fn.WHERE, (test(ix), a(ix), b(ix)), c))


@lowers("masked_fill")
def masked_fill(lo: Lowering, call: Call) -> Result:
    c = call.dtype.compute
    test = operand(call["mask"], call.shape, DType.BOOL)
    kept, fill = operand(call["self"], call.shape, c), operand(call["value"], call.shape, c)
    return Value(call.shape, call.dtype, lambda ix: apply(Fn.WHERE, (test(ix), fill(ix), kept(ix)), c))


@lowers("silu", "gelu", "leaky_relu", "softplus_")
def activation(lo: Lowering, call: Call) -> Result:
    c = call.dtype.compute
    f: Elementwise
    match call.op:
        case "silu":
            f = lambda x: apply(Fn.MUL, (x, apply(Fn.SIGMOID, (x,), c)), c)  # noqa: E731
        case "gelu":
            f = _gelu_tanh(c) if call.get("approximate") == "tanh" else _gelu(c)
        case _:
            slope = scalar_expr(call.get("negative_slope", 0.01), c)
            zero = const(0, c)
            f = lambda x: apply(  # noqa: E731
                Fn.WHERE, (apply(Fn.GT, (x, zero), DType.BOOL), x, apply(Fn.MUL, (x, slope), c)), c
            )
    return elementwise(f, [call["self"]], call.shape, c, call.dtype)


def _gelu(c: DType) -> Elementwise:
    def f(x: Expr) -> Expr:
        e = apply(Fn.ERF, (apply(Fn.MUL, (x, const(math.sqrt(0.5), c)), c),), c)
        return apply(Fn.MUL, (apply(Fn.MUL, (x, const(0.5, c)), c), apply(Fn.ADD, (e, const(1, c)), c)), c)

    return f


def _gelu_tanh(c: DType) -> Elementwise:
    def f(x: Expr) -> Expr:
        cube = apply(Fn.MUL, (apply(Fn.MUL, (x, x), c), x), c)
        inner = apply(Fn.ADD, (x, apply(Fn.MUL, (cube, const(0.044715, c)), c)), c)
        t = apply(Fn.TANH, (apply(Fn.MUL, (inner, const(math.sqrt(2 / math.pi), c)), c),), c)
        return apply(Fn.MUL, (apply(Fn.MUL, (x, const(0.5, c)), c), apply(Fn.ADD, (t, const(1, c)), c)), c)

    return f


@lowers("_to_copy", "to", "type_as", "_cast_Float", "convert_element_type")
def to_dtype(lo: Lowering, call: Call) -> Result:
    return call.value(call.first).cast(call.dtype)


@lowers("addcmul", "addcdiv", "lerp")
def ternary(lo: Lowering, call: Call) -> Result:
    c = call.dtype.compute
    if call.op == "lerp":
        args = [call["self"], call["end"], call["weight"]]
        f = lambda a, b, w: apply(  # noqa: E731
            Fn.ADD, (a, apply(Fn.MUL, (w, apply(Fn.SUB, (b, a), c)), c)), c
        )
        return elementwise(f, args, call.shape, c, call.dtype)
    fn = Fn.MUL if call.op == "addcmul" else Fn.DIV
    scale = scalar_expr(call.get("value", 1), c)
    g = lambda a, b, d: apply(  # noqa: E731
        Fn.ADD, (a, apply(Fn.MUL, (apply(fn, (b, d), c), scale), c)), c
    )
    return elementwise(g, [call["self"], call["tensor1"], call["tensor2"]], call.shape, c, call.dtype)
