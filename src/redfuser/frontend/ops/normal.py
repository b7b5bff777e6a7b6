"""Normalising operations, written as the reductions that they are."""

from __future__ import annotations

import math
from collections.abc import Callable

from redfuser.frontend.ops.pointwise import elementwise, operand, promoted
from redfuser.frontend.ops.reductions import internal, mean_of, moments, reduce_dims, rounded
from redfuser.frontend.ops.registry import Call, Lowering, Result, lowers
from redfuser.frontend.ops.views import reshaped
from redfuser.frontend.values import Index, Mistaken, NotCovered, Value, scalar_expr
from redfuser.index.build import apply, as_index, cast
from redfuser.index.expr import DType, Expr, Fn, const, position
from redfuser.index.ints import ZERO, Int, as_int, product
from redfuser.index.nodes import Reducer


def exponentials(lo: Lowering, v: Value, d: int) -> tuple[Value, Value, Value, Value]:
    """x - max, the max, exp(x - max) and its sum, along one dimension."""
    c = v.dtype
    top = reduce_dims(lo, Reducer.MAX, v, (d,), True, c, "max")
    shifted = elementwise(lambda x, m: apply(Fn.SUB, (x, m), c), [v, top], v.shape, c, c)
    e = Value(v.shape, c, lambda ix: apply(Fn.EXP, (shifted(ix),), c))
    return shifted, top, e, reduce_dims(lo, Reducer.SUM, e, (d,), True, c, "sum")


def softmax_of(lo: Lowering, v: Value, d: int) -> Value:
    c = v.dtype
    _, _, e, total = exponentials(lo, v, d)
    return elementwise(lambda x, z: apply(Fn.DIV, (x, z), c), [e, total], v.shape, c, c)


@lowers("softmax.int", "_softmax", "special_softmax", "log_softmax.int", "_log_softmax", "special_log_softmax")
def softmax(lo: Lowering, call: Call) -> Result:
    v = internal(call.value("self").cast(call.dtype) if "dtype" in call.args else call.value("self"))
    if not v.dtype.is_float:
        raise Mistaken("softmax of integers")
    if v.rank == 0:
        raise NotCovered("softmax of a scalar")
    d = call.dim()
    if "log" in call.op:
        return rounded(log_softmax_of(lo, v, d), call.dtype)
    return rounded(softmax_of(lo, v, d), call.dtype)


def log_softmax_of(lo: Lowering, v: Value, d: int) -> Value:
    c = v.dtype
    shifted, _, _, total = exponentials(lo, v, d)
    f = lambda x, z: apply(Fn.SUB, (x, apply(Fn.LOG, (z,), c)), c)  # noqa: E731
    return elementwise(f, [shifted, total], v.shape, c, c)


@lowers("logsumexp", "special_logsumexp")
def logsumexp(lo: Lowering, call: Call) -> Result:
    """max + log(sum(exp(x - max))); where the max is infinite it is the answer, as PyTorch has it."""
    v = internal(call.value("self").cast(call.dtype))
    dims, keep, c = call.dims(), bool(call["keepdim"]), v.dtype
    top = reduce_dims(lo, Reducer.MAX, v, dims, True, c, "max")
    e = elementwise(lambda x, m: apply(Fn.EXP, (apply(Fn.SUB, (x, m), c),), c), [v, top], v.shape, c, c)
    total = reduce_dims(lo, Reducer.SUM, e, dims, True, c, "sum")

    def read(m: Expr, z: Expr) -> Expr:
        infinite = apply(Fn.EQ, (apply(Fn.ABS, (m,), c), const(math.inf, c)), DType.BOOL)
        return apply(Fn.WHERE, (infinite, m, apply(Fn.ADD, (m, apply(Fn.LOG, (z,), c)), c)), c)

    out = elementwise(read, [top, total], top.shape, c, c)
    if not keep:
        from redfuser.frontend.ops.views import squeezed

        out = squeezed(out, list(dims))
    return rounded(out, call.dtype)


def _affine(y: Value, weight: Value | None, bias: Value | None, c: DType) -> Value:
    """y * weight + bias, both broadcast over the trailing dimensions."""
    for fn, w in ((Fn.MUL, weight), (Fn.ADD, bias)):
        if w is not None:
            y = elementwise(lambda a, b, fn=fn: apply(fn, (a, b), c), [y, w], y.shape, c, c)
    return y


def _normalised(lo: Lowering, v: Value, dims: tuple[int, ...], eps: object) -> tuple[Value, Value, Value]:
    """(x - mean) * rsqrt(var + eps), with the mean and the reciprocal deviation."""
    c = v.dtype
    variance, mu = moments(lo, v, dims, 0, True)
    e = scalar_expr(eps, c)  # type: ignore[arg-type]
    r = Value(variance.shape, c, lambda ix: apply(Fn.RSQRT, (apply(Fn.ADD, (variance(ix), e), c),), c))
    f = lambda x, m, s: apply(Fn.MUL, (apply(Fn.SUB, (x, m), c), s), c)  # noqa: E731
    return elementwise(f, [v, mu, r], v.shape, c, c), mu, r


@lowers("layer_norm", "native_layer_norm")
def layer_norm(lo: Lowering, call: Call) -> Result:
    v = internal(call.value("input"))
    n = len(call["normalized_shape"])
    dims = tuple(range(v.rank - n, v.rank))
    y, mu, r = _normalised(lo, v, dims, call["eps"])
    y = _affine(y, call.get("weight"), call.get("bias"), v.dtype)
    if call.op == "layer_norm":
        return rounded(y, call.dtype)
    return [rounded(y, call.value("input").dtype), mu, r]


@lowers("rms_norm", "_fused_rms_norm")
def rms_norm(lo: Lowering, call: Call) -> Result:
    v = internal(call.value("input"))
    c, eps = v.dtype, call.get("eps")
    if eps is None:
        import torch

        eps = torch.finfo(getattr(torch, call.value("input").dtype.value)).eps
    dims = tuple(range(v.rank - len(call["normalized_shape"]), v.rank))
    squares = Value(v.shape, c, lambda ix: apply(Fn.MUL, (v(ix), v(ix)), c))
    power = mean_of(lo, squares, dims, True)
    e = scalar_expr(eps, c)
    f = lambda x, p: apply(  # noqa: E731
        Fn.MUL, (x, apply(Fn.RSQRT, (apply(Fn.ADD, (p, e), c),), c)), c
    )
    y = elementwise(f, [v, power], v.shape, c, c)
    y = _affine(y, call.get("weight"), None, c)
    if call.op == "_fused_rms_norm":
        raise NotCovered("rms_norm with saved statistics")
    return rounded(y, call.dtype)


@lowers("group_norm", "instance_norm_")
def group_norm(lo: Lowering, call: Call) -> Result:
    source = call.value("input")
    v, groups = internal(source), call.length("num_groups")
    c = v.dtype
    batch, channels, *space = v.shape
    per = _exact(channels, groups)
    split = reshaped(v, (batch, groups, per, product(space)))
    y, _, _ = _normalised(lo, split, (2, 3), call["eps"])
    y = reshaped(Value(split.shape, c, y), v.shape)
    wide = [as_int(1)] * len(space)

    def per_channel(w: Value | None) -> Value | None:
        return None if w is None else w.view([channels, *wide], lambda ix: (ix[0],))

    return rounded(_affine(y, per_channel(call.get("weight")), per_channel(call.get("bias")), c), call.dtype)


def _exact(a: Int, b: Int) -> Int:
    from redfuser.index.ints import divide_exact

    out = divide_exact(a, b)
    if out is None:
        raise NotCovered("groups that do not divide the channels")
    return out


@lowers("cross_entropy_loss")
def cross_entropy(lo: Lowering, call: Call) -> Result:
    v, target = internal(call.value("self")), call.value("target")
    if call["label_smoothing"] != 0 or target.dtype.is_float:
        raise NotCovered("cross_entropy with smoothing or class probabilities")
    logs = log_softmax_of(lo, v, 1 if v.rank > 1 else 0)
    return rounded(_nll(lo, logs, target, call), call.dtype)


@lowers("nll_loss_nd", "nll_loss", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward")
def nll_loss(lo: Lowering, call: Call) -> Result:
    v = internal(call.value("self"))
    if call.op.endswith("forward"):
        raise NotCovered("nll_loss with its total weight")
    return rounded(_nll(lo, v, call.value("target"), call), call.dtype)


def _nll(lo: Lowering, logs: Value, target: Value, call: Call) -> Value:
    """-weight[t] * logs[t], where the target is not ignored; then its sum, or weighted mean, or as it is."""
    c = logs.dtype
    weight, skip = call.get("weight"), scalar_expr(call["ignore_index"], DType.INT64)
    classes = logs.shape[1 if logs.rank > 1 else 0]
    zero = const(0, c)

    def active(ix: tuple[Int, ...]) -> Expr:
        return apply(Fn.NE, (target(ix), skip), DType.BOOL)

    def class_weight(ix: tuple[Int, ...]) -> Expr:
        return const(1, c) if weight is None else weight([as_index(target(ix), classes)])

    def loss(ix: tuple[Int, ...]) -> Expr:
        at = as_index(target(ix), classes)
        picked = logs((*ix[:1], at, *ix[1:]) if logs.rank > 1 else (at,))
        cost = apply(Fn.NEG, (apply(Fn.MUL, (picked, class_weight(ix)), c),), c)
        return apply(Fn.WHERE, (active(ix), cost, zero), c)

    each = Value(target.shape, c, loss)
    if call["reduction"] == 0:
        return each
    dims = tuple(range(each.rank))
    total = reduce_dims(lo, Reducer.SUM, each, dims, False, c, "loss")
    if call["reduction"] == 2:
        return total
    counted = Value(target.shape, c, lambda ix: apply(Fn.WHERE, (active(ix), class_weight(ix), zero), c))
    weights = reduce_dims(lo, Reducer.SUM, counted, dims, False, c, "weight")
    return Value(total.shape, c, lambda ix: apply(Fn.DIV, (total(ix), weights(ix)), c))


@lowers("scaled_dot_product_attention")
def attention(lo: Lowering, call: Call) -> Result:
    """softmax(q k^T * scale + mask) v as PyTorch defines it; a row without any key gives 0."""
    from redfuser.frontend.ops.contractions import contract

    if call["dropout_p"] != 0:
        raise NotCovered("attention with dropout")
    c = call.dtype.compute
    q, k = (promoted(call.value(n), c) for n in ("query", "key"))
    v = promoted(call.value("value"), call.dtype)
    if call.get("enable_gqa"):
        k, v = (_shared_heads(x, q.shape[-3]) for x in (k, v))
    batch = call.shape[:-2]
    rows, keys = q.shape[-2], k.shape[-2]
    scale = call.get("scale")
    factor = scalar_expr(scale, c) if scale is not None else _default_scale(q.shape[-1], c)
    s = contract(lo, q, k, batch, (rows,), (keys,), c, right=lambda b, n, r: (*b, *n, r), role="scores")
    s = Value(s.shape, c, _scaled(s, factor, c))
    s = _masked(s, call, c)
    _, top, e, total = exponentials(lo, s, s.rank - 1)
    # the weights meet the values in their dtype, as in PyTorch's kernels
    p = rounded(elementwise(lambda x, z: apply(Fn.DIV, (x, z), c), [e, total], s.shape, c, c), call.dtype)
    out = contract(lo, p, v, batch, (rows,), (v.shape[-1],), call.dtype)
    if not (call.get("is_causal") or call.get("attn_mask") is not None):
        return out

    def read(ix: tuple[Int, ...]) -> Expr:
        empty = apply(Fn.EQ, (top((*ix[:-1], ZERO)), const(-math.inf, c)), DType.BOOL)
        return apply(Fn.WHERE, (empty, const(0, c), out(ix)), c)

    return Value(out.shape, call.dtype, read)


def _scaled(s: Value, factor: Expr, c: DType) -> Callable[[Index], Expr]:
    return lambda ix: apply(Fn.MUL, (s(ix), factor), c)


def _default_scale(size: Int, c: DType) -> Expr:
    if size.value is not None:
        return const(1 / math.sqrt(size.value) if size.value else math.inf, c)
    return apply(Fn.RSQRT, (cast(position(size), c),), c)


def _shared_heads(v: Value, heads: Int) -> Value:
    from redfuser.index.ints import floordiv

    group = _exact(heads, v.shape[-3])
    shape = (*v.shape[:-3], heads, *v.shape[-2:])
    return v.view(shape, lambda ix: (*ix[:-3], floordiv(ix[-3], group), *ix[-2:]))


def _masked(s: Value, call: Call, c: DType) -> Value:
    mask: Value | None = call.get("attn_mask")
    low = const(-math.inf, c)
    if call.get("is_causal"):
        return Value(
            s.shape,
            c,
            lambda ix: apply(Fn.WHERE, (apply(Fn.LE, (position(ix[-1]), position(ix[-2])), DType.BOOL), s(ix), low), c),
        )
    if mask is None:
        return s
    if mask.dtype is DType.BOOL:
        test = mask.broadcast(s.shape)
        return Value(s.shape, c, lambda ix: apply(Fn.WHERE, (test(ix), s(ix), low), c))
    bias = operand(mask, s.shape, c)
    return Value(s.shape, c, lambda ix: apply(Fn.ADD, (s(ix), bias(ix)), c))
