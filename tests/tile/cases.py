"""Cascades built by hand for the tests of tile programs: a region, its derivation, inputs, and the plain torch result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from redfuser.algebra.nodes import Accumulator, Base, Derivation, Pass, Problem, Proof, Read, Stage
from redfuser.index.expr import Apply, Cast, Const, DType, Expr, Fn, Part, Position, const, dtype_of, load, ref
from redfuser.index.ints import Axis, Int, as_int
from redfuser.index.nodes import Input, Output, Program, Reduce, Reducer
from redfuser.regions.nodes import Region, Result

F32, I64, BOOL = DType.FLOAT32, DType.INT64, DType.BOOL
NINF = const(-math.inf, F32)


@dataclass
class Case:
    region: Region
    derivation: Derivation
    inputs: dict[str, Tensor]
    expected: Callable[[dict[str, Tensor]], list[Tensor]]
    sizes: dict[str, int]


def ap(fn: Fn, *args: Expr, dtype: DType | None = None) -> Expr:
    return Apply(fn, args, dtype or dtype_of(args[-1]))


def add(a: Expr, b: Expr) -> Expr:
    return ap(Fn.ADD, a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return ap(Fn.SUB, a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return ap(Fn.MUL, a, b)


def exp(a: Expr) -> Expr:
    return ap(Fn.EXP, a)


def where(c: Expr, a: Expr, b: Expr) -> Expr:
    return Apply(Fn.WHERE, (c, a, b), dtype_of(a))


def test(fn: Fn, a: Expr, b: Expr) -> Expr:
    return Apply(fn, (a, b), BOOL)


def at(*axes: Axis | Int | int) -> tuple[Int, ...]:
    return tuple(as_int(a) for a in axes)


def axis(name: str, n: int | Int) -> Axis:
    return Axis(name, as_int(n))


def acc(name: str, reducer: Reducer, element: Expr, correction: Expr | None, axes: tuple[Axis, ...], k: Axis | None = None,
        dtype: DType | None = None) -> Accumulator:
    return Accumulator(name, reducer, element, correction, axes, dtype or dtype_of(element), k, name, "")


def derivation(problem: Problem, *passes: Pass) -> Derivation:
    return Derivation(problem, passes, (), (), Proof((), (), None))


def region(inputs: list[Input], problem: Problem, results: list[Result], producers: tuple[Reduce, ...] = ()) -> Region:
    return Region(Program(tuple(inputs), (), ()), problem, producers, tuple(results))


def guarded(m: Expr) -> Expr:
    """A finite base: the maximum, or 0 where nothing finite was seen."""
    infinite = test(Fn.EQ, ap(Fn.ABS, m), const(math.inf, F32))
    return where(infinite, const(0.0, F32), m)


def softmax_steps(s: Expr, rows: tuple[Axis, ...], more: list[tuple[str, Expr, tuple[Axis, ...]]]) -> tuple[list, Expr, Expr]:
    """The steps of sums weighted by exp(s - max s)."""
    m, b, b_old = ref("m", F32), ref("b", F32), ref("b", F32, True)
    moved = exp(sub(b_old, b))
    unset = test(Fn.EQ, ref("m", F32, True), NINF)
    steps: list = [acc("m", Reducer.MAX, s, None, rows), Base("b", guarded(m), rows, F32, "m")]
    weight = exp(sub(s, b))
    for name, factor, axes in more:
        old = ref(name, F32, True)
        element = weight if factor is None else mul(weight, factor)
        steps.append(acc(name, Reducer.SUM, element, where(unset, old, mul(old, moved)), axes))
    return steps, m, b


def attention(
    b: int = 2, h: int = 3, g: int = 1, i: int = 37, l: int = 53, c: int = 8, d: int = 5, mask: str = "", window: int = 7,
    dtype: DType = F32, seed: int = 0, scale: float = 0.3, probabilities: bool = False, shared: bool = False,
) -> Case:
    B, H, G, I, L, C, D = (axis(n, s) for n, s in zip("bhgilcd", (b, h, g, i, l, c, d), strict=True))
    q_in = Input("q", (axis("b", b), axis("hq", h * g), axis("i", i), axis("c", c)), dtype)
    k_in = Input("k", (axis("b", b), axis("h", h), axis("l", l), axis("c", c)), dtype)
    v_in = Input("v", (axis("b", b), axis("h", h), axis("l", l), axis("d", d)), dtype)
    formal = {n: axis(n, s) for n, s in zip("bhgil", (b, h, g, i, l), strict=True)}
    fb, fh, fg, fi, fl = formal.values()
    qk = mul(Cast(load("q", at(fb, as_int(fh) * g + fg, fi, C), dtype), F32), Cast(load("k", at(fb, fh, fl, C), dtype), F32))
    if dtype is F32:
        qk = mul(load("q", at(fb, as_int(fh) * g + fg, fi, C), dtype), load("k", at(fb, fh, fl, C), dtype))
    producer = Reduce("s", (fb, fh, fg, fi, fl), (C,), Reducer.SUM, qk, F32)
    s = mul(load("s", at(B, H, G, I, L), F32), const(scale, F32))
    off = l - i
    inside = None
    li, ii = Position(as_int(L)), Position(as_int(I) + off)
    if mask == "causal":
        inside = test(Fn.LE, li, ii)
    elif mask == "window":
        inside = Apply(Fn.AND, (test(Fn.LE, li, ii), test(Fn.GT, li, Position(as_int(I) + off - window))), BOOL)
    elif mask == "prefix":
        inside = test(Fn.GE, li, const(window, I64))
    elif mask == "blocks":
        inside = test(Fn.EQ, Position(as_int(L) // as_int(window)), Position(as_int(I) // as_int(window)))
    elif mask == "rows":
        inside = test(Fn.GE, Position(as_int(I)), const(3, I64))
    if inside is not None:
        s = where(inside, s, NINF)
    rows = (B, H, G, I)
    v = load("k" if shared else "v", at(B, H, L, D), dtype)
    value = v if dtype is F32 else Cast(v, F32)
    m_l, z_l = load("m", at(*rows), F32), load("z", at(*rows), F32)
    p = exp(sub(s, m_l))
    stages = [
        Stage("m", Reducer.MAX, rows, s, F32),
        Stage("z", Reducer.SUM, rows, p, F32),
        Stage("o", Reducer.SUM, (*rows, D), mul(ap(Fn.DIV, p, z_l), value), F32),
    ]
    problem = Problem(L, tuple(stages))
    steps, m, base = softmax_steps(s, rows, [("z", None, rows), ("o", value, (*rows, D))])
    z = ref("z", F32)
    safe = where(test(Fn.EQ, ref("m", F32), NINF), const(math.nan, F32), ap(Fn.DIV, ref("o", F32), z))
    d_ = derivation(problem, Pass(tuple(steps), (Read("m", m, None), Read("z", z, None), Read("o", safe, None))))
    results = [Result("out", (as_int(b), as_int(h * g), as_int(i), as_int(d)), at(B, as_int(H) * g + G, I, D), (*rows, D),
                      load("o", at(*rows, D), F32) if dtype is F32 else Cast(load("o", at(*rows, D), F32), dtype), dtype)]
    if probabilities:
        results.append(Result("w", at(b, h * g, i, l), at(B, as_int(H) * g + G, I, L), (*rows, L), ap(Fn.DIV, p, z_l), F32))
    gen = torch.Generator().manual_seed(seed)
    kinds = {F32: torch.float32, DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16, DType.FLOAT64: torch.float64}
    make = lambda *n: torch.randn(*n, generator=gen).to(kinds[dtype])  # noqa: E731
    inputs = {"q": make(b, h * g, i, c), "k": make(b, h, l, c), "v": make(b, h, l, d)}

    def expected(x: dict[str, Tensor]) -> list[Tensor]:
        q, k, v = (x[n].double() for n in "qkv")
        v = k if shared else v
        k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
        s = q @ k.transpose(-1, -2) * scale
        jj, pp = torch.arange(l)[None, :], torch.arange(i)[:, None]
        keep = {
            "": torch.ones(i, l, dtype=torch.bool), "causal": jj <= pp + off, "window": (jj <= pp + off) & (jj > pp + off - window),
            "prefix": (jj >= window).expand(i, l), "blocks": jj // window == pp // window, "rows": (pp >= 3).expand(i, l),
        }[mask]  # fmt: skip
        w = torch.softmax(s.masked_fill(~keep, -math.inf), -1)
        return [w @ v, w] if probabilities else [w @ v]

    return Case(region([q_in, k_in, v_in], problem, results, (producer,)), d_, inputs, expected, {})
