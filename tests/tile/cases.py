# ruff: noqa: E501
"""Cascades built by hand for tests of tile programs: a region, its derivation, inputs, and the plain torch result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from redfuser.algebra.nodes import Accumulator, Base, Derivation, Pass, Problem, Proof, Read, Stage
from redfuser.index.expr import Apply, Cast, DType, Expr, Fn, Part, Position, const, dtype_of, load, ref
from redfuser.index.ints import Axis, Gather, Int, Size, as_int
from redfuser.index.nodes import Input, Program, Reduce, Reducer
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


def acc(
    name: str,
    reducer: Reducer,
    element: Expr,
    correction: Expr | None,
    axes: tuple[Axis, ...],
    k: Axis | None = None,
    dtype: DType | None = None,
) -> Accumulator:
    return Accumulator(name, reducer, element, correction, axes, dtype or dtype_of(element), k, name, "")


def derivation(problem: Problem, *passes: Pass) -> Derivation:
    return Derivation(problem, passes, (), (), Proof((), (), None))


def region(inputs: list[Input], problem: Problem, results: list[Result], producers: tuple[Reduce, ...] = ()) -> Region:
    return Region(Program(tuple(inputs), (), ()), problem, producers, tuple(results))


def guarded(m: Expr) -> Expr:
    """A finite base: the maximum, or 0 where nothing finite was seen."""
    infinite = test(Fn.EQ, ap(Fn.ABS, m), const(math.inf, F32))
    return where(infinite, const(0.0, F32), m)


def softmax_steps(
    s: Expr, rows: tuple[Axis, ...], more: list[tuple[str, Expr, tuple[Axis, ...]]]
) -> tuple[list, Expr, Expr]:
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
    b: int = 2,
    h: int = 3,
    g: int = 1,
    i: int = 37,
    l: int = 53,
    c: int = 8,
    d: int = 5,
    mask: str = "",
    window: int = 7,
    dtype: DType = F32,
    seed: int = 0,
    scale: float = 0.3,
    probabilities: bool = False,
    shared: bool = False,
    symbolic: bool = False,
) -> Case:
    ni, nl = (as_int(Size("rows", i)), as_int(Size("length", l))) if symbolic else (as_int(i), as_int(l))
    B, H, G, I, L, C, D = (axis(n, s) for n, s in zip("bhgilcd", (b, h, g, ni, nl, c, d), strict=True))
    q_in = Input("q", (axis("b", b), axis("hq", h * g), axis("i", ni), axis("c", c)), dtype)
    k_in = Input("k", (axis("b", b), axis("h", h), axis("l", nl), axis("c", c)), dtype)
    v_in = Input("v", (axis("b", b), axis("h", h), axis("l", nl), axis("d", d)), dtype)
    formal = {n: axis(n, s) for n, s in zip("bhgil", (b, h, g, ni, nl), strict=True)}
    fb, fh, fg, fi, fl = formal.values()
    qk = mul(
        Cast(load("q", at(fb, as_int(fh) * g + fg, fi, C), dtype), F32), Cast(load("k", at(fb, fh, fl, C), dtype), F32)
    )
    if dtype is F32:
        qk = mul(load("q", at(fb, as_int(fh) * g + fg, fi, C), dtype), load("k", at(fb, fh, fl, C), dtype))
    producer = Reduce("s", (fb, fh, fg, fi, fl), (C,), Reducer.SUM, qk, F32)
    s = mul(load("s", at(B, H, G, I, L), F32), const(scale, F32))
    off, shift = nl - ni, l - i
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
    elif mask == "either":
        late = Apply(Fn.AND, (test(Fn.GT, li, ii), test(Fn.GE, li, const(window, I64))), BOOL)
        inside = Apply(Fn.NOT, (late,), BOOL)
    elif mask == "later":
        inside = Apply(Fn.OR, (test(Fn.GE, li, ii), test(Fn.GE, li, const(window, I64))), BOOL)
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
    steps, m, _ = softmax_steps(s, rows, [("z", None, rows), ("o", value, (*rows, D))])
    z = ref("z", F32)
    safe = where(test(Fn.EQ, ref("m", F32), NINF), const(math.nan, F32), ap(Fn.DIV, ref("o", F32), z))
    d_ = derivation(problem, Pass(tuple(steps), (Read("m", m, None), Read("z", z, None), Read("o", safe, None))))
    results = [
        Result(
            "out",
            (as_int(b), as_int(h * g), ni, as_int(d)),
            at(B, as_int(H) * g + G, I, D),
            (*rows, D),
            load("o", at(*rows, D), F32) if dtype is F32 else Cast(load("o", at(*rows, D), F32), dtype),
            dtype,
        )
    ]
    if probabilities:
        results.append(
            Result("w", at(b, h * g, ni, nl), at(B, as_int(H) * g + G, I, L), (*rows, L), ap(Fn.DIV, p, z_l), F32)
        )
    gen = torch.Generator().manual_seed(seed)
    kinds = {
        F32: torch.float32,
        DType.BFLOAT16: torch.bfloat16,
        DType.FLOAT16: torch.float16,
        DType.FLOAT64: torch.float64,
    }
    make = lambda *n: torch.randn(*n, generator=gen).to(kinds[dtype])  # noqa: E731
    inputs = {"q": make(b, h * g, i, c), "k": make(b, h, l, c), "v": make(b, h, l, d)}

    def expected(x: dict[str, Tensor]) -> list[Tensor]:
        q, k, v = (x[n].double() for n in "qkv")
        v = k if shared else v
        k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
        s = q @ k.transpose(-1, -2) * scale
        jj, pp = torch.arange(l)[None, :], torch.arange(i)[:, None]
        keep = {
            "": torch.ones(i, l, dtype=torch.bool), "causal": jj <= pp + shift, "window": (jj <= pp + shift) & (jj > pp + shift - window),
            "prefix": (jj >= window).expand(i, l), "blocks": jj // window == pp // window, "rows": (pp >= 3).expand(i, l),
            "either": (jj <= pp + shift) | (jj < window), "later": (jj >= pp + shift) | (jj >= window),
        }[mask]  # fmt: skip
        w = torch.softmax(s.masked_fill(~keep, -math.inf), -1)
        return [w @ v, w] if probabilities else [w @ v]

    return Case(
        region([q_in, k_in, v_in], problem, results, (producer,)),
        d_,
        inputs,
        expected,
        {"rows": i, "length": l} if symbolic else {},
    )


def rows_input(n: int, l: int, dtype: DType = F32) -> tuple[Input, Axis, Axis]:
    return Input("x", (axis("i", n), axis("l", l)), dtype), axis("i", n), axis("l", l)


def softmax(n: int = 13, l: int = 41, seed: int = 1) -> Case:
    """Results that keep the cascade axis: written by a sweep."""
    x_in, I, L = rows_input(n, l)
    x = load("x", at(I, L), F32)
    m, z = load("m", at(I), F32), load("z", at(I), F32)
    stages = (Stage("m", Reducer.MAX, (I,), x, F32), Stage("z", Reducer.SUM, (I,), exp(sub(x, m)), F32))
    problem = Problem(L, stages)
    steps, m_ref, _ = softmax_steps(x, (I,), [("z", None, (I,))])
    d = derivation(problem, Pass(tuple(steps), (Read("m", m_ref, None), Read("z", ref("z", F32), None))))
    body = ap(Fn.DIV, exp(sub(x, m)), z)
    # written transposed: the index of a result is any expression
    results = [
        Result("w", at(n, l), at(I, L), (I, L), body, F32),
        Result("t", at(l * n), at(as_int(L) * n + I), (I, L), body, F32),
    ]
    data = torch.randn(n, l, generator=torch.Generator().manual_seed(seed)) * 8
    return Case(
        region([x_in], problem, results),
        d,
        {"x": data},
        lambda v: [(w := torch.softmax(v["x"].double(), -1)), w.T.reshape(-1)],
        {},
    )


def variance(n: int = 9, l: int = 45, offset: float = 1e3) -> Case:
    """Mean and centred second moment, rebased: M2 <- M2 + 2 d M1 + n d^2 with d = old base - new base."""
    x_in, I, L = rows_input(n, l)
    x = load("x", at(I, L), F32)
    mean = load("mean", at(I), F32)
    inv = const(1.0 / l, F32)
    stages = (
        Stage("mean", Reducer.SUM, (I,), mul(x, inv), F32),
        Stage("var", Reducer.SUM, (I,), mul(mul(sub(x, mean), sub(x, mean)), inv), F32),
    )
    problem = Problem(L, stages)
    c, s = ref("c", F32), ref("s", F32)
    base = ref("base", F32)
    delta = sub(ref("base", F32, True), base)
    old1, old2, oldc = ref("m1", F32, True), ref("m2", F32, True), ref("c", F32, True)
    dx = sub(x, base)
    steps = (
        acc("c", Reducer.SUM, const(1.0, F32), None, (I,)),
        acc("s", Reducer.SUM, x, None, (I,)),
        Base("base", where(test(Fn.EQ, c, const(0.0, F32)), const(0.0, F32), ap(Fn.DIV, s, c)), (I,), F32, "mean"),
        acc("m1", Reducer.SUM, dx, add(old1, mul(delta, oldc)), (I,)),
        acc(
            "m2",
            Reducer.SUM,
            mul(dx, dx),
            add(add(old2, mul(const(2.0, F32), mul(delta, old1))), mul(mul(delta, delta), oldc)),
            (I,),
        ),
    )
    m1, m2 = ref("m1", F32), ref("m2", F32)
    var = mul(sub(m2, ap(Fn.DIV, mul(m1, m1), c)), inv)
    d = derivation(problem, Pass(steps, (Read("mean", mul(s, inv), None), Read("var", var, None))))
    results = [Result("var_out", at(n), at(I), (I,), load("var", at(I), F32), F32)]
    data = torch.randn(n, l, generator=torch.Generator().manual_seed(2)) + offset
    return Case(region([x_in], problem, results), d, {"x": data}, lambda v: [v["x"].double().var(-1, correction=0)], {})


def two_passes(n: int = 9, l: int = 45) -> Case:
    """Passes one after the other: the mean, then a sum of exp of what is centred, with a sweep that reads both."""
    x_in, I, L = rows_input(n, l)
    x = load("x", at(I, L), F32)
    mean, e = load("mean", at(I), F32), load("e", at(I), F32)
    inv = const(1.0 / l, F32)
    centred = exp(sub(x, mean))
    problem = Problem(
        L, (Stage("mean", Reducer.SUM, (I,), mul(x, inv), F32), Stage("e", Reducer.SUM, (I,), centred, F32))
    )
    first = Pass((acc("total", Reducer.SUM, x, None, (I,)),), (Read("mean", mul(ref("total", F32), inv), None),))
    second = Pass((acc("grown", Reducer.SUM, centred, None, (I,)),), (Read("e", ref("grown", F32), None),))
    results = [
        Result("e_out", at(n), at(I), (I,), e, F32),
        Result("y", at(n, l), at(I, L), (I, L), add(mul(centred, e), mean), F32),
    ]
    data = torch.randn(n, l, generator=torch.Generator().manual_seed(3))

    def expected(v: dict[str, Tensor]) -> list[Tensor]:
        x = v["x"].double()
        m = x.mean(-1, keepdim=True)
        c = torch.exp(x - m)
        return [c.sum(-1), c * c.sum(-1, keepdim=True) + m]

    return Case(region([x_in], problem, results), derivation(problem, first, second), {"x": data}, expected, {})


def top_k(n: int = 7, l: int = 61, k: int = 5, kind: str = "ties", dtype: DType = F32) -> Case:
    """The best k with their positions, and the sum of exp(x - best)."""
    x_in, I, L = rows_input(n, l, dtype)
    K = axis("k", k)
    x = load("x", at(I, L), dtype)
    problem = Problem(
        L,
        (
            Stage("best", Reducer.TOPK, (I,), x, dtype, K),
            Stage("top", Reducer.ARGMAX, (I,), x, dtype),
            Stage("low", Reducer.ARGMIN, (I,), x, dtype),
        ),
    )
    steps = (
        acc("best", Reducer.TOPK, x, None, (I,), K),
        acc("top", Reducer.ARGMAX, x, None, (I,)),
        acc("low", Reducer.ARGMIN, x, None, (I,)),
    )
    reads = tuple(Read(s, ref(s, dtype), ref(s, I64, part=Part.INDEX)) for s in ("best", "top", "low"))
    mine = axis("j", k)
    results = [
        Result("values", at(n, k), at(I, mine), (I, mine), load("best", at(I, mine), dtype), dtype),
        Result("indices", at(n, k), at(I, mine), (I, mine), load("best", at(I, mine), I64, Part.INDEX), I64),
        Result("second", at(n), at(I), (I,), load("best", at(I, 1), I64, Part.INDEX), I64),
        Result("argmax", at(n), at(I), (I,), load("top", at(I), I64, Part.INDEX), I64),
        Result("argmin", at(n), at(I), (I,), load("low", at(I), I64, Part.INDEX), I64),
    ]
    gen = torch.Generator().manual_seed(4)
    data = torch.randint(0, 6, (n, l), generator=gen)
    if dtype is not I64:
        data = data.float()
        if kind == "nan":
            data[torch.rand(n, l, generator=gen) < 0.05] = math.nan
        if kind == "inf":
            data[torch.rand(n, l, generator=gen) < 0.95] = -math.inf

    def expected(v: dict[str, Tensor]) -> list[Tensor]:
        values, order = torch.sort(v["x"], dim=-1, descending=True, stable=True)
        return [
            values[:, :k].double() if dtype is F32 else values[:, :k],
            order[:, :k],
            order[:, 1],
            torch.argmax(v["x"], -1),
            torch.argmin(v["x"], -1),
        ]

    return Case(region([x_in], problem, results), derivation(problem, Pass(steps, reads)), {"x": data}, expected, {})


def reducers(n: int = 6, l: int = 40, dtype: DType = F32) -> Case:
    """Independent reductions of every kind, in one pass."""
    x_in, I, L = rows_input(n, l, dtype)
    x = load("x", at(I, L), dtype)
    positive = test(Fn.GT, x, const(0, dtype))
    kinds: list[tuple[str, Reducer, Expr, DType]] = [
        ("total", Reducer.SUM, x, dtype.accumulator), ("high", Reducer.MAX, x, dtype), ("least", Reducer.MIN, x, dtype),
        ("some", Reducer.ANY, positive, BOOL), ("every", Reducer.ALL, positive, BOOL), ("count", Reducer.SUM, positive, I64),
    ]  # fmt: skip
    if dtype.is_float:
        kinds += [("lse", Reducer.LOGSUMEXP, x, dtype), ("times", Reducer.PROD, x, dtype)]
    problem = Problem(L, tuple(Stage(name, r, (I,), e, t) for name, r, e, t in kinds))
    steps = tuple(acc(name, r, e, None, (I,), dtype=t) for name, r, e, t in kinds)
    d = derivation(problem, Pass(steps, tuple(Read(name, ref(name, t), None) for name, _, _, t in kinds)))
    results = [Result(f"{name}_out", at(n), at(I), (I,), load(name, at(I), t), t) for name, _, _, t in kinds]
    gen = torch.Generator().manual_seed(5)
    data = torch.randn(n, l, generator=gen) if dtype.is_float else torch.randint(-9, 250, (n, l), generator=gen)
    if dtype.is_float:
        data[0] = -math.inf
        data[1, 3] = math.inf
        data[2, 30] = math.nan
        data[3] = data[3].abs()
    else:
        data = data.to({DType.UINT8: torch.uint8, DType.INT32: torch.int32, I64: torch.int64}[dtype])

    def expected(v: dict[str, Tensor]) -> list[Tensor]:
        x = v["x"].double() if dtype.is_float else v["x"]
        out = [x.sum(-1), x.amax(-1), x.amin(-1), (x > 0).any(-1), (x > 0).all(-1), (x > 0).sum(-1)]
        return [*out, torch.logsumexp(x, -1), x.prod(-1)] if dtype.is_float else out

    return Case(region([x_in], problem, results), d, {"x": data}, expected, {})


def scaled_product(m: int = 19, k: int = 50, n: int = 23) -> Case:
    """sum_k x[m,k] w[k,n], divided by the norm of the row: a column axis. The lengths of m and k are symbols."""
    sm, sk = Size("m", m), Size("k", k)
    ms, ks = as_int(sm), as_int(sk)
    x_in = Input("x", (Axis("m", ms), Axis("k", ks)), F32)
    w_in = Input("w", (Axis("k", ks), axis("n", n)), F32)
    M, K, N = Axis("m", ms), Axis("k", ks), axis("n", n)
    x, w = load("x", at(M, K), F32), load("w", at(K, N), F32)
    q = load("q", at(M), F32)
    problem = Problem(
        K,
        (
            Stage("q", Reducer.SUM, (M,), mul(x, x), F32),
            Stage("y", Reducer.SUM, (M, N), mul(mul(x, ap(Fn.RSQRT, q)), w), F32),
        ),
    )
    steps = (acc("q", Reducer.SUM, mul(x, x), None, (M,)), acc("y", Reducer.SUM, mul(x, w), None, (M, N)))
    reads = (Read("q", ref("q", F32), None), Read("y", mul(ref("y", F32), ap(Fn.RSQRT, ref("q", F32))), None))
    results = [Result("out", (ms, as_int(n)), at(M, N), (M, N), load("y", at(M, N), F32), F32)]
    gen = torch.Generator().manual_seed(6)
    inputs = {"x": torch.randn(m, k, generator=gen), "w": torch.randn(k, n, generator=gen)}

    def expected(v: dict[str, Tensor]) -> list[Tensor]:
        x, w = v["x"].double(), v["w"].double()
        return [x / x.square().sum(-1, keepdim=True).sqrt() @ w]

    return Case(
        region([x_in, w_in], problem, results),
        derivation(problem, Pass(steps, reads)),
        inputs,
        expected,
        {"m": m, "k": k},
    )


def gathered(n: int = 8, l: int = 30, rows: int = 12) -> Case:
    """An index read from data, a read in a branch not taken, and a shifted one."""
    t_in = Input("table", (axis("r", rows), axis("l", l)), F32)
    ids_in = Input("ids", (axis("i", n),), I64)
    I, L = axis("i", n), axis("l", l)
    row = as_int(Gather(load("ids", at(I), I64), as_int(rows)))
    here = load("table", at(row, L), F32)
    before = where(
        test(Fn.GE, Position(as_int(L)), const(3, I64)), load("table", at(row, as_int(L) - 3), F32), const(0.0, F32)
    )
    back = load("table", at(row, l - 1 - as_int(L)), F32)
    halves = load("table", at(as_int(I) // as_int(2), (as_int(L) * 7) % as_int(l)), F32)
    e = add(add(here, mul(before, back)), halves)
    problem = Problem(L, (Stage("a", Reducer.SUM, (I,), e, F32), Stage("b", Reducer.MAX, (I,), e, F32)))
    steps = (acc("a", Reducer.SUM, e, None, (I,)), acc("b", Reducer.MAX, e, None, (I,)))
    d = derivation(problem, Pass(steps, (Read("a", ref("a", F32), None), Read("b", ref("b", F32), None))))
    results = [Result(f"{s}_out", at(n), at(I), (I,), load(s, at(I), F32), F32) for s in "ab"]
    gen = torch.Generator().manual_seed(7)
    inputs = {"table": torch.randn(rows, l, generator=gen), "ids": torch.randint(0, rows, (n,), generator=gen)}

    def expected(v: dict[str, Tensor]) -> list[Tensor]:
        t = v["table"].double()
        x = t[v["ids"]]
        before = torch.cat([torch.zeros(n, 3).double(), x[:, :-3]], -1)
        y = x + before * x.flip(-1) + t[torch.arange(n) // 2][:, torch.arange(l) * 7 % l]
        return [y.sum(-1), y.amax(-1)]

    return Case(region([t_in, ids_in], problem, results), d, inputs, expected, {})


def chained_producers(b: int = 2, i: int = 21, l: int = 34, x: int = 6, c: int = 7, d: int = 5) -> Case:
    """Scores from a product of a product, and a distance that is no dot: sum over c of |p[i, c] - k[l, c]|."""
    xs, cs = axis("x", x), axis("c", c)
    q_in = Input("q", (axis("b", b), axis("i", i), axis("x", x)), F32)
    w_in = Input("w", (axis("x", x), axis("c", c)), F32)
    k_in = Input("k", (axis("b", b), axis("l", l), axis("c", c)), F32)
    v_in = Input("v", (axis("b", b), axis("l", l), axis("d", d)), F32)
    B, I, L, D = axis("b", b), axis("i", i), axis("l", l), axis("d", d)
    pb, pi, pc = axis("b", b), axis("i", i), axis("c", c)
    p = Reduce(
        "p", (pb, pi, pc), (xs,), Reducer.SUM, mul(load("q", at(pb, pi, xs), F32), load("w", at(xs, pc), F32)), F32
    )
    sb, si, sl = axis("b", b), axis("i", i), axis("l", l)
    pk = load("p", at(sb, si, cs), F32), load("k", at(sb, sl, cs), F32)
    s = Reduce("s", (sb, si, sl), (cs,), Reducer.SUM, mul(*pk), F32)
    t = Reduce("t", (sb, si, sl), (cs,), Reducer.SUM, ap(Fn.ABS, sub(*pk)), F32)
    score = sub(load("s", at(B, I, L), F32), load("t", at(B, I, L), F32))
    rows = (B, I)
    v = load("v", at(B, L, D), F32)
    weight = exp(sub(score, load("m", at(*rows), F32)))
    stages = (
        Stage("m", Reducer.MAX, rows, score, F32),
        Stage("z", Reducer.SUM, rows, weight, F32),
        Stage("o", Reducer.SUM, (*rows, D), mul(weight, v), F32),
    )
    problem = Problem(L, stages)
    steps, m, _ = softmax_steps(score, rows, [("z", None, rows), ("o", v, (*rows, D))])
    reads = (Read("m", m, None), Read("z", ref("z", F32), None), Read("o", ref("o", F32), None))
    body = ap(Fn.DIV, load("o", at(*rows, D), F32), load("z", at(*rows), F32))
    results = [Result("out", at(b, i, d), at(*rows, D), (*rows, D), body, F32)]
    gen = torch.Generator().manual_seed(8)
    inputs = {
        n: torch.randn(*shape, generator=gen)
        for n, shape in {"q": (b, i, x), "w": (x, c), "k": (b, l, c), "v": (b, l, d)}.items()
    }

    def expected(y: dict[str, Tensor]) -> list[Tensor]:
        q, w, k, v = (y[n].double() for n in "qwkv")
        p = q @ w
        s = p @ k.transpose(-1, -2) - (p[:, :, None] - k[:, None]).abs().sum(-1)
        return [torch.softmax(s, -1) @ v]

    return Case(
        region([q_in, w_in, k_in, v_in], problem, results, (p, s, t)),
        derivation(problem, Pass(tuple(steps), reads)),
        inputs,
        expected,
        {},
    )


def widened(n: int = 9, l: int = 40, e: int = 11) -> Case:
    """Results along an axis that no stage has, alone and with the cascade axis."""
    x_in, I, L = rows_input(n, l)
    y_in = Input("y", (axis("e", e),), F32)
    E = axis("e", e)
    x, y, m = load("x", at(I, L), F32), load("y", at(E), F32), load("m", at(I), F32)
    problem = Problem(L, (Stage("m", Reducer.MAX, (I,), x, F32),))
    d = derivation(problem, Pass((acc("m", Reducer.MAX, x, None, (I,)),), (Read("m", ref("m", F32), None),)))
    results = [
        Result("outer", at(n, e), at(I, E), (I, E), mul(m, y), F32),
        Result("cube", at(e, n, l), at(E, I, L), (I, L, E), mul(sub(x, m), y), F32),
    ]
    gen = torch.Generator().manual_seed(9)
    inputs = {"x": torch.randn(n, l, generator=gen), "y": torch.randn(e, generator=gen)}

    def expected(v: dict[str, Tensor]) -> list[Tensor]:
        x, y = v["x"].double(), v["y"].double()
        m = x.amax(-1, keepdim=True)
        return [m * y, (x - m) * y[:, None, None]]

    return Case(region([x_in, y_in], problem, results), d, inputs, expected, {})


def flattened(n: int = 5, h: int = 6, w: int = 7) -> Case:
    """Two axes streamed as one: the index divides."""
    x_in = Input("x", (axis("i", n), axis("h", h), axis("w", w)), F32)
    I, L = axis("i", n), axis("l", h * w)
    x = load("x", at(I, as_int(L) // as_int(w), as_int(L) % as_int(w)), F32)
    problem = Problem(L, (Stage("m", Reducer.MAX, (I,), x, F32), Stage("s", Reducer.SUM, (I,), x, F32)))
    steps = (acc("m", Reducer.MAX, x, None, (I,)), acc("s", Reducer.SUM, x, None, (I,)))
    d = derivation(problem, Pass(steps, (Read("m", ref("m", F32), None), Read("s", ref("s", F32), None))))
    y = add(sub(x, load("m", at(I), F32)), load("s", at(I), F32))
    results = [Result("y", at(n, h, w), at(I, as_int(L) // as_int(w), as_int(L) % as_int(w)), (I, L), y, F32)]
    data = torch.randn(n, h, w, generator=torch.Generator().manual_seed(10))

    def expected(v: dict[str, Tensor]) -> list[Tensor]:
        x = v["x"].double()
        return [x - x.amax((1, 2), keepdim=True) + x.sum((1, 2), keepdim=True)]

    return Case(region([x_in], problem, results), d, {"x": data}, expected, {})
