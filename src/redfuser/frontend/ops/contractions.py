"""Matrix products: sums of products over a shared dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from redfuser.frontend.ops.pointwise import elementwise, promoted
from redfuser.frontend.ops.registry import Call, Lowering, Result, lowers
from redfuser.frontend.ops.views import squeezed, unsqueezed
from redfuser.frontend.values import Index, Mistaken, NotCovered, Value, scalar_expr
from redfuser.index.build import apply, cast
from redfuser.index.expr import Apply, Cast, Const, DType, Expr, Fn, Load
from redfuser.index.ints import ZERO, Int
from redfuser.index.nodes import Reducer


def contract(
    lo: Lowering, a: Value, b: Value, batch: Sequence[Int], rows: Sequence[Int], columns: Sequence[Int], dtype: DType,
    right: Callable[[Index, Index, Int], Index] = lambda b, n, r: (*b, r, *n), role: str = "",
) -> Value:  # fmt: skip
    """sum over r of a[batch, rows, r] * b[batch, r, columns]; batch dimensions are broadcast.

    ``right`` places (batch, columns, r) into the indices of b.
    """
    if a.dtype is not b.dtype:
        raise Mistaken(f"a product of {a.dtype.value} and {b.dtype.value}")
    c = dtype.compute
    nb, nr = len(batch), len(rows)
    x, y = promoted(rounded(a), c), promoted(rounded(b), c)

    def aligned(v: Value, ix: Index, own: int) -> Index:
        have = v.rank - own
        return tuple(ZERO if n.value == 1 else i for n, i in zip(v.shape[:have], ix[nb - have : nb], strict=True))

    def body(ix: Index, rx: Index) -> Expr:
        left = (*aligned(x, ix, nr + 1), *ix[nb : nb + nr], rx[0])
        other = right(aligned(y, ix, len(columns) + 1), ix[nb + nr :], rx[0])
        return apply(Fn.AND if c is DType.BOOL else Fn.MUL, (x(left), y(other)), c)

    return lo.reduce(Reducer.SUM, [*batch, *rows, *columns], [a.shape[-1]], body, dtype, role)


def rounded(v: Value) -> Value:
    """An operand in its own dtype: 16-bit products take 16-bit numbers. What was read is that already, but for a scale."""
    if not v.dtype.is_float or v.dtype is v.dtype.compute:
        return v

    def at(ix: Index) -> Expr:
        e = v(ix)
        return e if _scaled_read(e) else cast(e, v.dtype)

    return Value(v.shape, v.dtype, at)


def _scaled_read(e: Expr) -> bool:
    match e:
        case Apply(fn=Fn.MUL | Fn.DIV, args=(a, Const())) | Apply(fn=Fn.MUL, args=(Const(), a)) | Cast(arg=a):
            return _scaled_read(a)
        case _:
            return isinstance(e, Load)


@lowers("matmul", "mm", "bmm", "dot", "mv", "linalg_matmul", "vdot")
def matmul(lo: Lowering, call: Call) -> Result:
    names = [n for n in call.args if n in ("self", "mat2", "other", "tensor", "vec")]
    a, b = (call.value(n) for n in names)
    return _matmul(lo, a, b, call.shape, call.dtype)


def _matmul(lo: Lowering, a: Value, b: Value, shape: tuple[Int, ...], dtype: DType) -> Value:
    vector_a, vector_b = a.rank == 1, b.rank == 1
    if vector_a:
        a = unsqueezed(a, 0)
    if vector_b:
        b = unsqueezed(b, 1)
    nb = max(a.rank, b.rank) - 2
    out = contract(lo, a, b, shape[:nb], (a.shape[-2],), (b.shape[-1],), dtype)
    return squeezed(out, [nb] * vector_a + [nb + 1] * vector_b)


@lowers("linear")
def linear(lo: Lowering, call: Call) -> Result:
    x, w = call.value("input"), call.value("weight")
    columns = w.shape[:-1]
    out = contract(lo, x, w, (), x.shape[:-1], columns, call.dtype, right=lambda b, n, r: (*b, *n, r))
    bias = call.get("bias")
    return out if bias is None else added(out, bias, call)


def added(out: Value, other: Value, call: Call) -> Value:
    c = call.dtype.compute
    return elementwise(lambda x, y: apply(Fn.ADD, (x, y), c), [out, other], call.shape, c, call.dtype)


@lowers("addmm", "baddbmm", "addmv", "addbmm_")
def addmm(lo: Lowering, call: Call) -> Result:
    names = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec")}[call.op]
    out = _matmul(lo, call.value(names[0]), call.value(names[1]), call.shape, call.dtype)
    c = call.dtype.compute
    alpha, beta = call["alpha"], call["beta"]
    if alpha != 1:
        out = _times(out, scalar_expr(alpha, c), c)
    if beta == 0:
        return out
    base = call.value("self")
    return added(out, base if beta == 1 else _times(promoted(base, c), scalar_expr(beta, c), c), call)


def _times(v: Value, factor: Expr, c: DType) -> Value:
    return Value(v.shape, v.dtype, lambda ix: apply(Fn.MUL, (v(ix), factor), c))


@lowers("outer", "ger")
def outer(lo: Lowering, call: Call) -> Result:
    a, b, c = call.value("self"), call.value("vec2"), call.dtype.compute
    x, y = promoted(a, c), promoted(b, c)
    return Value(call.shape, call.dtype, lambda ix: apply(Fn.MUL, (x(ix[:1]), y(ix[1:])), c))


@lowers("einsum")
def einsum(lo: Lowering, call: Call) -> Result:
    """One sum over every letter that the output lacks. Two operands, or one; more go through PyTorch's own order."""
    equation = call["equation"].replace(" ", "")
    operands: list[Value] = call["tensors"]
    if "." in equation or len(operands) > 2:
        raise NotCovered("einsum with an ellipsis or more than two operands")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        letters = "".join(terms)
        right = "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
    sizes: dict[str, Int] = {}
    for term, v in zip(terms, operands, strict=True):
        for letter, n in zip(term, v.shape, strict=True):
            if letter not in sizes or sizes[letter].value == 1:
                sizes[letter] = n
    summed = [x for x in dict.fromkeys("".join(terms)) if x not in right]
    c = call.dtype.compute

    def read(term: str, v: Value, at: dict[str, Int]) -> Expr:
        return v([ZERO if n.value == 1 else at[x] for x, n in zip(term, v.shape, strict=True)])

    factors = [promoted(rounded(v) if len(operands) > 1 else v, c) for v in operands]

    def body(ix: Index, rx: Index) -> Expr:
        at = dict(zip(right, ix, strict=True)) | dict(zip(summed, rx, strict=True))
        found = [read(t, v, at) for t, v in zip(terms, factors, strict=True)]
        return found[0] if len(found) == 1 else apply(Fn.MUL, tuple(found), c)

    if not summed:
        return Value(call.shape, call.dtype, lambda ix: body(ix, ()))
    return lo.reduce(Reducer.SUM, [sizes[x] for x in right], [sizes[x] for x in summed], body, call.dtype)
