"""Operations that join pieces: cat, stack, padding, scatter into slices."""

from __future__ import annotations

from redfuser.frontend.ops.pointwise import elementwise, operand
from redfuser.frontend.ops.registry import Call, Lowering, Result, as_length, lowers
from redfuser.frontend.ops.views import slice_start, unsqueezed, wrapped
from redfuser.frontend.values import Index, NotCovered, Value, dimension, scalar_expr
from redfuser.index.build import apply, compare
from redfuser.index.expr import DType, Expr, Fn, position
from redfuser.index.ints import ZERO, Int
from redfuser.index.nodes import Reducer


def joined(pieces: list[Value], d: int, shape: tuple[Int, ...], dtype: DType) -> Value:
    """Concatenation: a branch on the position, folded away where the position is known."""
    c = dtype.compute
    parts = [operand(p, p.shape, c) for p in pieces]
    ends: list[Int] = []
    begin = ZERO
    for p in parts:
        begin = begin + p.shape[d]
        ends.append(begin)

    def at(ix: Index) -> Expr:
        starts = [ZERO, *ends[:-1]]
        out: Expr | None = None
        for n in reversed(range(len(parts))):
            if out is not None and compare(Fn.LT, ix[d], ends[n]) is False:
                continue
            if n and compare(Fn.LT, ix[d], starts[n]) is True:
                continue
            piece = parts[n]((*ix[:d], ix[d] - starts[n], *ix[d + 1 :]))
            here = apply(Fn.LT, (position(ix[d]), position(ends[n])), DType.BOOL)
            out = piece if out is None else apply(Fn.WHERE, (here, piece, out), c)
        assert out is not None
        return out

    return Value(shape, dtype, at)


@lowers("cat", "concat", "concatenate")
def cat(lo: Lowering, call: Call) -> Result:
    pieces: list[Value] = call["tensors"]
    rank = len(call.shape)
    kept = [p for p in pieces if p.rank == rank and p.shape[call.dim(rank=rank)].value != 0]
    if not kept:
        return pieces[0].view(call.shape, lambda ix: ix[: pieces[0].rank])
    return joined(kept, call.dim(rank=rank), call.shape, call.dtype)


@lowers("stack")
def stack(lo: Lowering, call: Call) -> Result:
    d = call.dim(rank=len(call.shape))
    return joined([unsqueezed(p, d) for p in call["tensors"]], d, call.shape, call.dtype)


@lowers("slice_scatter")
def slice_scatter(lo: Lowering, call: Call) -> Result:
    base, src, d = call.value("self"), call.value("src"), call.dim()
    if call.get("step", 1) != 1:
        raise NotCovered("slice_scatter with a step")
    begin = slice_start(call.get("start"), base.shape[d], src.shape[d])
    end = begin + src.shape[d]

    def at(ix: Index) -> Expr:
        inner = _when(ix[d], end, src((*ix[:d], ix[d] - begin, *ix[d + 1 :])), base(ix), base.dtype)
        return _when(ix[d], begin, base(ix), inner, base.dtype)

    return Value(base.shape, base.dtype, at)


def _when(i: Int, end: Int, yes: Expr, no: Expr, dtype: DType) -> Expr:
    """``yes`` where i < end."""
    return apply(Fn.WHERE, (apply(Fn.LT, (position(i), position(end)), DType.BOOL), yes, no), dtype.compute)


@lowers("select_scatter")
def select_scatter(lo: Lowering, call: Call) -> Result:
    base, src, d = call.value("self"), call.value("src"), call.dim()
    at = wrapped(call.length("index"), base.shape[d])
    c = base.dtype.compute

    def read(ix: Index) -> Expr:
        here = apply(Fn.EQ, (position(ix[d]), position(at)), DType.BOOL)
        return apply(Fn.WHERE, (here, src((*ix[:d], *ix[d + 1 :])), base(ix)), c)

    return Value(base.shape, base.dtype, read)


@lowers("constant_pad_nd", "pad")
def pad(lo: Lowering, call: Call) -> Result:
    v, c = call.value("self"), call.dtype.compute
    if call.op == "pad" and call["mode"] != "constant":
        raise NotCovered("padding that is not constant")
    amounts = [as_length(a) for a in call["pad"]]
    before = {v.rank - 1 - n // 2: amounts[n] for n in range(0, len(amounts), 2)}
    fill = scalar_expr(0 if call.get("value") is None else call["value"], c)

    def at(ix: Index) -> Expr:
        moved = tuple(i - before.get(n, ZERO) for n, i in enumerate(ix))
        out = operand(v, v.shape, c)(moved)
        for n in before:
            out = _when(moved[n], v.shape[n], out, fill, c)
            out = _when(moved[n], ZERO, fill, out, c)
        return out

    return Value(call.shape, call.dtype, at)


@lowers("roll")
def roll(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    shifts, dims = call["shifts"], call["dims"]
    shifts = shifts if isinstance(shifts, list) else [shifts]
    dims = dims if isinstance(dims, list) else [dims]
    if not dims:
        raise NotCovered("roll of a flattened tensor")
    move = {dimension(d, v.rank): as_length(s) for d, s in zip(dims, shifts, strict=True)}
    return v.view(v.shape, lambda ix: tuple((i - move[n]) % v.shape[n] if n in move else i for n, i in enumerate(ix)))


@lowers("diff")
def diff(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    d = call.dim()
    if call["n"] != 1:
        raise NotCovered("differences of a higher order")
    pieces = [p for p in (call.get("prepend"), v, call.get("append")) if p is not None]
    size = sum((p.shape[d] for p in pieces), ZERO)
    whole = joined(pieces, d, (*v.shape[:d], size, *v.shape[d + 1 :]), v.dtype)
    c = v.dtype.compute

    def at(ix: Index) -> Expr:
        ahead = whole((*ix[:d], ix[d] + 1, *ix[d + 1 :]))
        if c is DType.BOOL:
            return apply(Fn.NE, (ahead, whole(ix)), c)
        return apply(Fn.SUB, (ahead, whole(ix)), c)

    return Value(call.shape, call.dtype, at)


@lowers("scatter.value")
def scatter_value(lo: Lowering, call: Call) -> Result:
    """A constant scattered along one dimension: it stands where any index points."""
    base, ids, d = call.value("self"), call.value("index"), call.dim()
    if any(a is not b for n, (a, b) in enumerate(zip(base.shape, ids.shape, strict=True)) if n != d):
        raise NotCovered("scatter of indices that do not cover the other dimensions")
    c = base.dtype.compute
    fill = scalar_expr(call["value"], c)

    def hit(ix: Index, rx: Index) -> Expr:
        return apply(Fn.EQ, (position(ix[d]), ids((*ix[:d], rx[0], *ix[d + 1 :]))), DType.BOOL)

    found = lo.reduce(Reducer.ANY, base.shape, [ids.shape[d]], hit, DType.BOOL, "hit")
    return Value(base.shape, base.dtype, lambda ix: apply(Fn.WHERE, (found(ix), fill, base(ix)), c))


@lowers("dropout", "native_dropout_", "feature_dropout", "alpha_dropout")
def dropout(lo: Lowering, call: Call) -> Result:
    if call["train"] and call["p"] != 0:
        raise NotCovered("dropout draws random numbers")
    return call.value("input")


@lowers("glu")
def glu(lo: Lowering, call: Call) -> Result:
    v, d, c = call.value("self"), call.dim(), call.dtype.compute
    half = call.shape[d]
    gate = v.view(call.shape, lambda ix: (*ix[:d], ix[d] + half, *ix[d + 1 :]))
    value = v.view(call.shape, lambda ix: ix)
    return elementwise(
        lambda x, g: apply(Fn.MUL, (x, apply(Fn.SIGMOID, (g,), c)), c), [value, gate], call.shape, c, call.dtype
    )
