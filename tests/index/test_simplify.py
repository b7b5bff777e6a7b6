"""Each rewrite keeps the meaning of the program, and has a twin that it must leave alone."""

from collections.abc import Callable

import numpy as np
import pytest

from redfuser.index import simplify as passes
from redfuser.index.build import apply
from redfuser.index.eval import evaluate
from redfuser.index.expr import DType, Expr, Fn, const, load, position
from redfuser.index.ints import Axis, Int, as_int
from redfuser.index.nodes import Definition, Input, Map, Output, Program, Reduce, Reducer
from redfuser.index.verify import verify

F = DType.FLOAT32
N, L = 6, 5


def axes(*sizes: int) -> list[Axis]:
    return [Axis("abcd"[n], as_int(s)) for n, s in enumerate(sizes)]


def x_at(i: Int, j: Int, name: str = "x") -> Expr:
    return load(name, (i, j), F)


def program(make: Callable[[], list[Definition]]) -> Program:
    a, b = axes(N, L)
    definitions = make()
    (out,) = axes(N)
    total: Expr = const(0.0, F)
    for d in definitions:
        total = apply(Fn.ADD, (total, load(d.name, (as_int(out),), F)), F)
    last = Map("out", (out,), total, F)
    inputs = Input("x", (a, b), F), Input("y", (a,), F)
    return verify(Program(inputs, (*definitions, last), (Output("out"),)))


def assert_same_meaning(before: Program, after: Program) -> None:
    verify(after)
    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal((N, L)), "y": rng.standard_normal(N)}
    for a, b in zip(evaluate(before, data, {}), evaluate(after, data, {}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def row_sum(name: str, f: Callable[[Int, Int], Expr], length: int = L, reducer: Reducer = Reducer.SUM) -> Reduce:
    i, l = axes(N, length)
    return Reduce(name, (i,), (l,), reducer, f(as_int(i), as_int(l)), F)


def names(p: Program) -> list[str]:
    return [d.name for d in p.definitions]


def test_equal_definitions_merge() -> None:
    p = program(lambda: [row_sum("s", x_at), row_sum("t", x_at)])
    after, renamed = passes.merge_equal(p)
    assert names(after) == ["s", "out"] and renamed == {"t": "s"}
    assert_same_meaning(p, after)


@pytest.mark.parametrize(
    "other",
    [
        row_sum("t", x_at, reducer=Reducer.MAX),
        row_sum("t", x_at, length=L - 1),
        row_sum("t", lambda i, j: apply(Fn.NEG, (x_at(i, j),), F)),
    ],
)
def test_different_definitions_do_not_merge(other: Reduce) -> None:
    p = program(lambda: [row_sum("s", x_at), other])
    assert names(passes.merge_equal(p)[0]) == ["s", "t", "out"]


def shifted(i: Int, j: Int, by: str = "m") -> Expr:
    return apply(Fn.SUB, (x_at(i, j), load(by, (i,), F)), F)


def twice(i: Int, j: Int) -> Expr:
    return apply(Fn.EXP, (apply(Fn.SUB, (shifted(i, j), load("n", (i,), F)), F),), F)


def test_a_second_shift_goes() -> None:
    top = row_sum("m", x_at, reducer=Reducer.MAX)
    p = program(lambda: [top, row_sum("n", shifted, reducer=Reducer.MAX), row_sum("s", twice)])
    p = Program(p.inputs, (*p.definitions[:-1], _only_last(p)), p.outputs)
    after, _ = passes.drop_second_shift(p)
    assert names(after) == ["m", "s", "out"]
    assert_same_meaning(p, after)


def test_a_shift_by_something_else_stays() -> None:
    mean = row_sum("m", x_at)
    p = program(lambda: [mean, row_sum("n", shifted, reducer=Reducer.MAX), row_sum("s", twice)])
    assert passes.drop_second_shift(p)[0] is p


def _only_last(p: Program) -> Map:
    (i,) = axes(N)
    return Map("out", (i,), load("s", (as_int(i),), F), F)


def appended(i: Int, j: Int) -> Expr:
    before = apply(Fn.LT, (position(j), position(as_int(L))), DType.BOOL)
    return apply(Fn.WHERE, (before, x_at(i, j), load("y", (i,), F)), F)


@pytest.mark.parametrize("reducer", [Reducer.SUM, Reducer.MAX, Reducer.MIN, Reducer.PROD])
def test_an_appended_element_is_taken_out(reducer: Reducer) -> None:
    p = program(lambda: [row_sum("s", appended, L + 1, reducer)])
    after, _ = passes.split_off_single_elements(p)
    (s,) = after.reductions
    assert s.over[0].size.value == L
    assert not [e for e in passes.walk(s.body) if getattr(e, "fn", None) is Fn.WHERE]
    assert_same_meaning(p, after)


def test_a_longer_piece_stays() -> None:
    p = program(lambda: [row_sum("s", appended, L + 3)])
    (s,) = passes.split_off_single_elements(p)[0].reductions
    assert s.over[0].size.value == L + 3


def test_a_grouped_axis_is_split() -> None:
    def shared(i: Int, j: Int) -> Expr:
        return apply(Fn.MUL, (x_at(i, j), x_at(i // 2, j)), F)

    def scaled(i: Int, j: Int) -> Expr:
        return apply(Fn.MUL, (x_at(i, j), load("s", (i,), F)), F)

    p = program(lambda: [row_sum("s", shared), row_sum("t", scaled)])
    after, _ = passes.split_grouped_axes(p)
    s, t = after.reductions
    assert [a.size.value for a in s.axes] == [3, 2]
    assert [a.size.value for a in t.axes] == [3, 2]
    assert_same_meaning(p, after)


def test_an_axis_that_is_not_grouped_evenly_stays() -> None:
    p = program(lambda: [row_sum("s", lambda i, j: apply(Fn.MUL, (x_at(i, j), x_at(i // 4, j)), F))])
    assert len(next(passes.split_grouped_axes(p)[0].reductions).axes) == 1
