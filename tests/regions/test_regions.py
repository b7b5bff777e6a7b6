"""Cascades of hand-written index programs: which reductions group, what a tile computes, and the common frame."""

from redfuser.index.expr import Apply, DType, Fn, load
from redfuser.index.ints import Axis, Size, as_int
from redfuser.index.nodes import Input, Map, Output, Program, Reduce, Reducer
from redfuser.index.print import show
from redfuser.index.verify import verify
from redfuser.regions.build import build
from redfuser.regions.find import find

F32 = DType.FLOAT32
LENGTH = Size("L", 128)


def axes(**sizes):
    return tuple(Axis(n, as_int(s)) for n, s in sizes.items())


def read(name, *index):
    return load(name, tuple(as_int(i) for i in index), F32)


def ap(fn, *args):
    return Apply(fn, args, F32)


def weights(s, m, *index):
    """exp(s[..., l] - m[...])"""
    return ap(Fn.EXP, ap(Fn.SUB, read(s, *index), read(m, *index[:-1])))


def grouped_attention(heads=12, kv_heads=4):
    """softmax(q k^T) v with each k, v head shared by heads // kv_heads query heads; the output merges (h, d)."""
    group = as_int(heads // kv_heads)
    inputs = (
        Input("q", axes(b=2, h=heads, i=LENGTH, d=64), F32),
        Input("k", axes(b=2, h=kv_heads, l=LENGTH, d=64), F32),
        Input("v", axes(b=2, h=kv_heads, l=LENGTH, d=64), F32),
    )

    def frame():
        return axes(b=2, h=heads, i=LENGTH, l=LENGTH)

    b, h, i, l = frame()
    (c,) = axes(c=64)
    s = Reduce("s", (b, h, i, l), (c,), Reducer.SUM,
               ap(Fn.MUL, read("q", b, h, i, c), read("k", b, as_int(h) // group, l, c)), F32)  # fmt: skip
    b, h, i, l = frame()
    m = Reduce("m", (b, h, i), (l,), Reducer.MAX, read("s", b, h, i, l), F32)
    b, h, i, l = frame()
    z = Reduce("z", (b, h, i), (l,), Reducer.SUM, weights("s", "m", b, h, i, l), F32)
    b, h, i, l = frame()
    (d,) = axes(d=64)
    p = ap(Fn.DIV, weights("s", "m", b, h, i, l), read("z", b, h, i))
    o = Reduce("o", (b, h, i, d), (l,), Reducer.SUM, ap(Fn.MUL, p, read("v", b, as_int(h) // group, l, d)), F32)
    b, i, e = axes(b=2, i=LENGTH, e=64 * heads)
    out = Map("out", (b, i, e), read("o", b, as_int(e) // as_int(64), i, as_int(e) % as_int(64)), F32)
    return verify(Program(inputs, (s, m, z, o, out), (Output("out"),)))


def test_scores_are_a_producer_and_the_rest_a_cascade():
    (group,) = find(grouped_attention())
    assert group.members == ("m", "z", "o")
    assert group.producers == {"s"}


def test_the_frame_unifies_axes_and_rejoins_a_merged_output_axis():
    program = grouped_attention()
    region = build(program, find(program)[0])
    m, _, o = region.problem.stages
    assert m.axes == o.axes[:3]
    assert show(o.body) == "exp(s[b, h, i, l] - m[b, h, i]) / z[b, h, i] * v[b, (h // 3), l, d]"
    (out,) = region.results
    assert [str(i) for i in out.index] == ["b", "i", "64*h + d"]
    assert region.problem.axis not in out.axes


def two_axis_softmax():
    x = Input("x", axes(n=5, c=3, w=7), F32)

    def frame():
        return axes(n=5, c=3, w=7)

    n, c, w = frame()
    m = Reduce("m", (n,), (c, w), Reducer.MAX, read("x", n, c, w), F32)

    def e(n, c, w):
        return ap(Fn.EXP, ap(Fn.SUB, read("x", n, c, w), read("m", n)))

    n, c, w = frame()
    z = Reduce("z", (n,), (c, w), Reducer.SUM, e(n, c, w), F32)
    n, c, w = frame()
    out = Map("out", (n, c, w), ap(Fn.DIV, e(n, c, w), read("z", n)), F32)
    return verify(Program((x,), (m, z, out), (Output("out"), Output("z"))))


def test_several_reduced_axes_are_flattened_and_an_output_that_keeps_them_is_swept():
    program = two_axis_softmax()
    region = build(program, find(program)[0])
    flat = region.problem.axis
    assert flat.size.value == 21
    swept, z = region.results
    assert flat in swept.axes and flat not in z.axes
    assert [str(i) for i in swept.index] == ["n", f"({flat} // 7)", f"({flat} % 7)"]


def test_a_lone_reduction_is_no_cascade():
    n, l = axes(n=5, l=LENGTH)
    total = Reduce("total", (n,), (l,), Reducer.SUM, read("x", n, l), F32)
    program = Program((Input("x", axes(n=5, l=LENGTH), F32),), (total,), (Output("total"),))
    assert find(program) == ()


def test_what_a_member_streams_may_not_depend_on_another_member():
    """mean -> y = W (x - mean) -> mean of y: the second mean is no part of the first cascade."""

    def frame():
        return axes(n=5, l=64)

    n, l = frame()
    first = Reduce("first", (n,), (l,), Reducer.SUM, read("x", n, l), F32)
    n, e = axes(n=5, e=64)
    (l,) = axes(l=64)
    y = Reduce("y", (n, e), (l,), Reducer.SUM,
               ap(Fn.MUL, ap(Fn.SUB, read("x", n, l), read("first", n)), read("w", e, l)), F32)  # fmt: skip
    n, l = frame()
    second = Reduce("second", (n,), (l,), Reducer.SUM,
                    ap(Fn.MUL, ap(Fn.SUB, read("x", n, l), read("first", n)), read("y", n, l)), F32)  # fmt: skip
    inputs = (Input("x", frame(), F32), Input("w", axes(e=64, l=64), F32))
    program = verify(Program(inputs, (first, y, second), (Output("second"),)))
    assert [g.members for g in find(program)] == [("first", "y")]


def test_a_producer_that_something_else_reads_is_not_recomputed():
    program = grouped_attention()
    b, h, i, l = axes(b=2, h=12, i=LENGTH, l=LENGTH)
    scores = Map("scores", (b, h, i, l), read("s", b, h, i, l), F32)
    program = Program(program.inputs, (*program.definitions, scores), (*program.outputs, Output("scores")))
    assert find(verify(program))[0].producers == frozenset()
