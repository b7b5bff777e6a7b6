"""Values made from positions, and indices read from data."""

from __future__ import annotations

from redfuser.frontend.ops.registry import Call, Lowering, Result, as_length, lowers
from redfuser.frontend.values import Index, NotCovered, Value, filled, scalar_expr
from redfuser.index.build import apply, as_index, cast
from redfuser.index.expr import DType, Expr, Fn, const, position
from redfuser.index.ints import Int, as_int


@lowers("arange")
def arange(lo: Lowering, call: Call) -> Result:
    start, step = call.get("start", 0), call.get("step", 1)
    if isinstance(start, float) or isinstance(step, float) or not isinstance(start, int | Int):
        raise NotCovered("arange of floats")
    begin, by = as_length(start), as_length(step)
    return Value(call.shape, call.dtype, lambda ix: cast(position(ix[0] * by + begin), call.dtype))


@lowers("full", "new_full", "full_like", "scalar_tensor", "fill")
def full(lo: Lowering, call: Call) -> Result:
    x = call.get("fill_value", call.get("s", call.get("value")))
    if isinstance(x, Value):
        if x.rank:
            raise NotCovered("fill with a tensor")
        v = x.cast(call.dtype)
        return Value(call.shape, call.dtype, lambda ix: v(()))
    return filled(call.shape, scalar_expr(x, call.dtype), call.dtype)


@lowers("zeros", "new_zeros", "zeros_like", "ones", "new_ones", "ones_like")
def zeros(lo: Lowering, call: Call) -> Result:
    return filled(call.shape, const(int("ones" in call.op), call.dtype), call.dtype)


@lowers("empty.memory_format", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
def empty(lo: Lowering, call: Call) -> Result:
    """Any value will do, since a program that reads it has no meaning."""
    return filled(call.shape, const(0, call.dtype), call.dtype)


@lowers("eye")
def eye(lo: Lowering, call: Call) -> Result:
    return Value(
        call.shape,
        call.dtype,
        lambda ix: cast(apply(Fn.EQ, (position(ix[0]), position(ix[1])), DType.BOOL), call.dtype),
    )


@lowers("triu", "tril")
def triangle(lo: Lowering, call: Call) -> Result:
    v, shift = call.value("self"), as_length(call["diagonal"])
    fn, zero = (Fn.GE, const(0, v.dtype)) if call.op == "triu" else (Fn.LE, const(0, v.dtype))
    c = v.dtype.compute

    def at(ix: Index) -> Expr:
        inside = apply(fn, (position(ix[-1] - ix[-2]), position(shift)), DType.BOOL)
        return apply(Fn.WHERE, (inside, v(ix), cast(zero, c)), c)

    return Value(v.shape, v.dtype, at)


@lowers("embedding")
def embedding(lo: Lowering, call: Call) -> Result:
    table, ids = call.value("weight"), call.value("indices")
    return Value(call.shape, call.dtype, lambda ix: table((as_index(ids(ix[:-1]), table.shape[0]), ix[-1])))


@lowers("gather", "take_along_dim")
def gather(lo: Lowering, call: Call) -> Result:
    if call.op == "take_along_dim":
        raise NotCovered("take_along_dim")
    v, ids, d = call.value("self"), call.value("index"), call.dim()
    if v.rank == 0:
        return v
    return Value(call.shape, call.dtype, lambda ix: v((*ix[:d], as_index(ids(ix), v.shape[d]), *ix[d + 1 :])))


@lowers("index_select")
def index_select(lo: Lowering, call: Call) -> Result:
    v, ids, d = call.value("self"), call.value("index"), call.dim()
    if v.rank == 0:
        return v
    return Value(call.shape, call.dtype, lambda ix: v((*ix[:d], as_index(ids((ix[d],)), v.shape[d]), *ix[d + 1 :])))


@lowers("index.Tensor", "_unsafe_index.Tensor")
def index(lo: Lowering, call: Call) -> Result:
    """Advanced indexing: tensors that stand together are broadcast, and take their place."""
    v = call.value("self")
    given: list[Value | None] = list(call["indices"])
    given += [None] * (v.rank - len(given))
    used = [n for n, g in enumerate(given) if g is not None]
    ids = [g for g in given if g is not None]
    if any(g.dtype in (DType.BOOL, DType.UINT8) for g in ids):
        raise NotCovered("indexing with a mask gives a length that depends on data")
    rank = max(g.rank for g in ids)
    together = used == list(range(used[0], used[-1] + 1))
    first = used[0] if together else 0
    shape = call.shape[first : first + rank]
    wide = [g.broadcast(shape) for g in ids]

    def at(ix: Index) -> Expr:
        rest = iter((*ix[:first], *ix[first + rank :]))
        inner = ix[first : first + rank]
        found = iter(wide)
        return v([
            next(rest) if g is None else _element(next(found)(inner), n) for g, n in zip(given, v.shape, strict=True)
        ])  # fmt: skip

    return Value(call.shape, call.dtype, at)


def _element(e: Expr, size: Int) -> Int:
    """An index into an axis; a data-dependent one may be negative, which counts from the end."""
    from redfuser.index.build import index_of

    known = index_of(e)
    if known is not None:
        from redfuser.frontend.ops.views import wrapped

        return wrapped(known, size)
    zero = const(0, DType.INT64)
    wide = cast(e, DType.INT64)
    low = apply(Fn.LT, (wide, zero), DType.BOOL)
    return as_index(apply(Fn.WHERE, (low, apply(Fn.ADD, (wide, position(size)), DType.INT64), wide), DType.INT64), size)


@lowers("cumsum")
def cumsum(lo: Lowering, call: Call) -> Result:
    """Only of what is the same everywhere and known: masks that fold away. A true scan is not a reduction."""
    from redfuser.index.expr import Const
    from redfuser.index.ints import Axis

    v, d = call.value("self"), call.dim()
    probe = v([as_int(Axis("t", n)) for n in v.shape])
    if not isinstance(probe, Const):
        raise NotCovered("cumsum is a scan, not a reduction")
    if not probe.value:
        return filled(call.shape, const(0, call.dtype), call.dtype)
    if call.dtype.is_float:
        raise NotCovered("cumsum of floats")
    step = as_int(int(probe.value))
    return Value(call.shape, call.dtype, lambda ix: cast(position((ix[d] + 1) * step), call.dtype))


@lowers("one_hot")
def one_hot(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    return Value(
        call.shape,
        call.dtype,
        lambda ix: cast(apply(Fn.EQ, (v(ix[:-1]), position(ix[-1])), DType.BOOL), call.dtype),
    )
