"""Expressions built with the trivial simplifications, so that derived code reads as a person would write it."""

from __future__ import annotations

from redfuser.index.expr import Apply, Cast, Const, DType, Expr, Fn, Ref, children, const, dtype_of
from redfuser.index.print import show


def join(*dtypes: DType) -> DType:
    """The dtype arithmetic on these is done in: float64 over float32 over integers."""
    if DType.FLOAT64 in dtypes:
        return DType.FLOAT64
    return DType.FLOAT32 if any(d.is_float for d in dtypes) else DType.INT64


def is_number(e: Expr, v: float) -> bool:
    return isinstance(e, Const) and not isinstance(e.value, bool) and e.value == v


def binary(fn: Fn, a: Expr, b: Expr) -> Expr:
    return Apply(fn, (a, b), join(dtype_of(a), dtype_of(b)))


def unary(fn: Fn, a: Expr) -> Expr:
    return Apply(fn, (a,), join(dtype_of(a)))


def add(a: Expr, b: Expr) -> Expr:
    if is_number(a, 0):
        return b
    if is_number(b, 0):
        return a
    if isinstance(b, Apply) and b.fn is Fn.NEG:
        return sub(a, b.args[0])
    return binary(Fn.ADD, a, b)


def sub(a: Expr, b: Expr) -> Expr:
    if is_number(b, 0):
        return a
    if is_number(a, 0):
        return neg(b)
    return binary(Fn.SUB, a, b)


def neg(a: Expr) -> Expr:
    if isinstance(a, Const):
        return const(-a.value, a.dtype)
    if isinstance(a, Apply) and a.fn is Fn.NEG:
        return a.args[0]
    if isinstance(a, Apply) and a.fn is Fn.SUB:
        return Apply(Fn.SUB, (a.args[1], a.args[0]), a.dtype)
    return unary(Fn.NEG, a)


def mul(a: Expr, b: Expr) -> Expr:
    """0 * b is 0 here: only for factors that are structurally zero."""
    if is_number(a, 1):
        return b
    if is_number(b, 1):
        return a
    if is_number(a, -1):
        return neg(b)
    if is_number(b, -1):
        return neg(a)
    if is_number(a, 0) or is_number(b, 0):
        return const(0, join(dtype_of(a), dtype_of(b)))
    return binary(Fn.MUL, a, b)


def div(a: Expr, b: Expr) -> Expr:
    return a if is_number(b, 1) else binary(Fn.DIV, a, b)


def power(a: Expr, n: float) -> Expr:
    d = join(dtype_of(a), DType.FLOAT32)
    if n == 1:
        return a
    if n == 0:
        return const(1, d)
    if n == 0.5:
        return Apply(Fn.SQRT, (a,), d)
    if n == -0.5:
        return Apply(Fn.RSQRT, (a,), d)
    if n == -1:
        return Apply(Fn.DIV, (const(1, d), a), d)
    return Apply(Fn.POW, (a, const(n, d)), d)


def exp(a: Expr) -> Expr:
    d = join(dtype_of(a), DType.FLOAT32)
    return const(1, d) if is_number(a, 0) else Apply(Fn.EXP, (a,), d)


def log(a: Expr) -> Expr:
    return Apply(Fn.LOG, (a,), join(dtype_of(a), DType.FLOAT32))


def where(c: Expr, a: Expr, b: Expr) -> Expr:
    if isinstance(c, Const):
        return a if c.value else b
    if a is b:
        return a
    return Apply(Fn.WHERE, (c, a, b), dtype_of(a) if dtype_of(a) is dtype_of(b) else join(dtype_of(a), dtype_of(b)))


def equal(a: Expr, b: Expr) -> Expr:
    return Apply(Fn.EQ, (a, b), DType.BOOL)


def logic(fn: Fn, a: Expr, b: Expr) -> Expr:
    return a if a is b else Apply(fn, (a, b), DType.BOOL)


def negate(c: Expr) -> Expr:
    return c.args[0] if isinstance(c, Apply) and c.fn is Fn.NOT else Apply(Fn.NOT, (c,), DType.BOOL)


def cast(a: Expr, dtype: DType) -> Expr:
    return a if dtype_of(a) is dtype else Cast(a, dtype)


def is_identity(state: Expr, identity: float | int | bool) -> Expr:
    return equal(state, const(identity, dtype_of(state)))


def leading_number(e: Expr) -> tuple[float, Expr]:
    """e as number * rest, for products whose number stands in front or under a minus."""
    if isinstance(e, Const) and not isinstance(e.value, bool):
        return float(e.value), const(1, e.dtype)
    if isinstance(e, Apply) and e.fn is Fn.NEG:
        k, r = leading_number(e.args[0])
        return -k, r
    if isinstance(e, Apply) and e.fn is Fn.MUL:
        k, r = leading_number(e.args[0])
        j, s = leading_number(e.args[1])
        return k * j, mul(r, s)
    if isinstance(e, Apply) and e.fn is Fn.WHERE and is_number(e.args[2], 0):
        k, r = leading_number(e.args[1])
        return k, where(e.args[0], r, e.args[2])
    return 1.0, e


def depends(e: Expr, v: Ref) -> bool:
    return e is v or any(depends(a, v) for a in children(e))


def derivative(e: Expr, v: Ref) -> Expr:
    """d e / d v, for expressions that are polynomials in v. A rounding counts as the identity."""
    if e is v:
        return const(1, v.dtype)
    if not depends(e, v):
        return const(0, join(dtype_of(e), DType.FLOAT32))
    match e:
        case Cast():
            return derivative(e.arg, v)
        case Apply(fn=Fn.ADD):
            return add(derivative(e.args[0], v), derivative(e.args[1], v))
        case Apply(fn=Fn.SUB):
            return sub(derivative(e.args[0], v), derivative(e.args[1], v))
        case Apply(fn=Fn.NEG):
            return neg(derivative(e.args[0], v))
        case Apply(fn=Fn.MUL):
            a, b = e.args
            if a is b:
                return mul(mul(const(2, join(dtype_of(e), DType.FLOAT32)), derivative(a, v)), a)
            return add(mul(derivative(a, v), b), mul(a, derivative(b, v)))
        case Apply(fn=Fn.DIV) if not depends(e.args[1], v):
            return _quotient(derivative(e.args[0], v), e.args[1])
        case Apply(fn=Fn.POW) if isinstance(e.args[1], Const):
            n = float(e.args[1].value)
            inner = derivative(e.args[0], v)
            return mul(mul(const(n, join(dtype_of(e), DType.FLOAT32)), inner), power(e.args[0], n - 1))
        case Apply(fn=Fn.WHERE) if not depends(e.args[0], v):
            zero = const(0, join(dtype_of(e), DType.FLOAT32))
            return where(e.args[0], add(derivative(e.args[1], v), zero), add(derivative(e.args[2], v), zero))
        case _:
            raise NotPolynomial(f"{show(e)} is not a polynomial in {v.name.partition('#')[0]}")


def _quotient(a: Expr, b: Expr) -> Expr:
    return a if is_number(a, 0) else div(a, b)


class NotPolynomial(Exception):
    """The expression is not a polynomial in the coordinate; the stage is then refused."""
