"""Running state in lanes: who has it, what the programs mean, and what the verifier refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import cases
import pytest
import torch
from test_verify import changed

from redfuser.backends import reference
from redfuser.index.expr import Apply, Cast, DType, Fn, ref
from redfuser.index.ints import Axis, as_int
from redfuser.index.nodes import Reducer
from redfuser.tile.build import build
from redfuser.tile.lanes import refusal, share
from redfuser.tile.nodes import (
    At,
    Declare,
    Dot,
    Kernel,
    Kind,
    Lanes,
    Loop,
    Map,
    Program,
    Read,
    Reduce,
    Role,
    Statement,
    Store,
    Strategy,
    Tensor,
    Value,
)
from redfuser.tile.roles import tile_axis
from redfuser.tile.strategy import Schedule, Unsupported
from redfuser.tile.verify import InvalidTileProgram, problems, verify

F32 = DType.FLOAT32
SCHEDULE = Schedule(Strategy.SINGLE, 8, 16, lanes=4, run=2)


def program() -> Program:
    case = cases.variance()
    return build(case.region, case.derivation, SCHEDULE)


def test_no_loop_reduces_into_a_value_without_lanes() -> None:
    (kernel,) = program().kernels
    assert kernel.lanes is not None
    loops = [s for s in kernel.body if isinstance(s, Loop)]
    inside = [s for loop in loops for s in loop.body if isinstance(s, Reduce)]
    assert inside and all(kernel.lanes.axis in s.out.axes for s in inside)
    states = [s for s in kernel.body if isinstance(s, Declare)]
    assert states and all(kernel.lanes.axis in s.state.axes for s in states)
    joins = [s for s in kernel.body if isinstance(s, Reduce)]
    assert joins and all(s.over is kernel.lanes.axis for s in joins)


def test_partial_states_of_segments_have_no_lanes() -> None:
    case = cases.variance()
    parts = [
        build(case.region, case.derivation, replace(s, strategy=Strategy.MULTI, segments=2))
        for s in (SCHEDULE, replace(SCHEDULE, lanes=0))
    ]
    first, *rest = parts[0].kernels
    assert first.lanes is not None and all(k.lanes is None for k in rest)
    a, b = ([(t.name, len(t.shape)) for t in p.of(Kind.SCRATCH)] for p in parts)
    assert a == b


@pytest.mark.parametrize("make, why", [(cases.attention, "a dot sums"), (cases.top_k, "keeps positions")])
def test_refused(make: Callable[[], cases.Case], why: str) -> None:
    case = make()
    found = refusal(case.region, case.derivation)
    assert found is not None and why in found
    with pytest.raises(Unsupported, match=why):
        build(case.region, case.derivation, SCHEDULE)


# -- what they mean --------------------------------------------------------------------------------------------------
def dealt(n: int, tile: int, count: int, run: int, apart: bool) -> Program:
    """out[l] = x[l] * (the sum of x over the tile of l; ``apart``: over the positions of its lane)."""
    l, lane = Axis("l", as_int(n)), Axis("lane", as_int(count))
    along, x = tile_axis(l, Role.CASCADE, tile), Value("x_tile", F32, frozenset((l,)))
    total = Value("total", F32, frozenset((lane,)) if apart else frozenset())
    product = Value("product", F32, frozenset((l,)))
    body: tuple[Statement, ...] = (
        Read(x, "x", (as_int(l),), (False,)),
        Reduce(total, "x_tile", Reducer.SUM, l),
        Map(product, Apply(Fn.MUL, (ref("x_tile", F32), ref("total", F32)), F32)),
        Store("out", (as_int(l),), "product", (l,)),
    )
    loop = Loop(l, tile, At(as_int(0)), At(as_int(n)), body, "")
    tensors = tuple(Tensor(name, kind, (as_int(n),), F32) for name, kind in (("x", Kind.INPUT), ("out", Kind.OUTPUT)))
    kernel = Kernel("one", "", (), (along, tile_axis(lane, Role.LANE, None)), (loop,), Lanes(lane, l, run))
    return verify(Program("dealt", tensors, (kernel,)))


@pytest.mark.parametrize(
    "n, tile, count, run", [(8, 8, 3, 2), (11, 8, 3, 2), (5, 16, 4, 2), (32, 16, 4, 2), (7, 7, 1, 3)]
)
@pytest.mark.parametrize("apart", [True, False])
def test_meaning(n: int, tile: int, count: int, run: int, apart: bool) -> None:
    x = torch.arange(1.0, n + 1)
    want = torch.empty(n)
    for at in range(n):
        here = range(at - at % tile, min(n, at - at % tile + tile))
        mine = [p for p in here if not apart or p % tile // run % count == at % tile // run % count]
        want[at] = x[at] * x[mine].sum()
    (got,) = reference.run(dealt(n, tile, count, run, apart), {"x": x}, {})
    assert torch.equal(got, want)


@pytest.mark.parametrize("count, run", [(1, 1), (1, 3), (4, 1), (3, 2), (4, 8)])
def test_share(count: int, run: int) -> None:
    """How many positions each lane has, as a kernel finds it."""
    lane = Axis("lane", as_int(count))
    lanes = Lanes(lane, Axis("l", as_int(1)), run)
    for n in range(2 * count * run + 2):
        out = Value("n", F32, frozenset((lane,)))
        number = Cast(share(lanes, as_int(n)), F32)
        body = (Map(out, number), Store("out", (as_int(lane),), "n", (lane,)))
        tensors = (Tensor("out", Kind.OUTPUT, (as_int(count),), F32),)
        kernel = Kernel("one", "", (), (tile_axis(lane, Role.INNER, None),), body)
        (got,) = reference.run(Program("share", tensors, (kernel,)), {}, {})
        want = [sum(p // run % count == k for p in range(n)) for k in range(count)]
        assert got.tolist() == want, n


# -- wrong programs --------------------------------------------------------------------------------------------------
def kernel_with(change: Callable[[Kernel, Lanes], Kernel]) -> Program:
    p = program()
    (k,) = p.kernels
    assert k.lanes is not None
    return replace(p, kernels=(change(k, k.lanes),))


def statement_with(kind: type, change: Callable[..., list[Statement]]) -> Program:
    """The first statement of a kind changed; ``change`` gets the lanes too."""
    p = program()
    lanes = p.kernels[0].lanes
    return changed(p, kind, lambda s: change(s, lanes))


def contracted(s: Reduce, lanes: Lanes) -> list[Statement]:
    return [Dot(s.out, s.arg, s.arg, (lanes.of,), None)]


BROKEN: dict[str, tuple[Callable[[], Program], str]] = {
    "a lane's value that is stored": (
        lambda: statement_with(Store, lambda s, x: [replace(s, value="m2_lanes")]),
        "the lanes must be joined before",
    ),
    "a store for every lane": (
        lambda: statement_with(Store, lambda s, x: [replace(s, axes=(*s.axes, x.axis))]),
        "the lanes must be joined before",
    ),
    "a lane's part in a state of the whole": (
        lambda: statement_with(
            Declare, lambda s, x: [replace(s, state=replace(s.state, axes=s.state.axes - {x.axis}))]
        ),
        "which the state c_lanes does not",
    ),
    "a value that spans positions and lanes": (
        lambda: statement_with(Read, lambda s, x: [replace(s, out=replace(s.out, axes=s.out.axes | {x.axis}))]),
        "declared {i, l, lane}",
    ),
    "a sum over lanes that keeps them": (
        lambda: kernel_with(lambda k, x: replace(k, body=tuple(kept(s, x) for s in k.body))),
        "declared {i, lane}",
    ),
    "a dot over positions of lanes": (lambda: statement_with(Reduce, contracted), "has no form in lanes"),
    "lanes of no axis": (lambda: kernel_with(lambda k, x: replace(k, lanes=None)), "has lanes of no axis"),
    "lanes that are no axis of the tile": (
        lambda: kernel_with(lambda k, x: replace(k, inside=tuple(t for t in k.inside if t.role is not Role.LANE))),
        "are not one whole axis of the tile",
    ),
    "lanes of an axis without tiles": (
        lambda: kernel_with(lambda k, x: replace(k, lanes=replace(x, of=k.grid[0].axis))),
        "i cannot be dealt",
    ),
    "no positions at a time": (
        lambda: kernel_with(lambda k, x: replace(k, lanes=replace(x, run=0))),
        "l cannot be dealt to lanes, 0 positions at a time",
    ),
}


def kept(s: Statement, x: Lanes) -> Statement:
    if isinstance(s, Reduce) and s.over is x.axis:
        return replace(s, out=replace(s.out, axes=s.out.axes | {x.axis}))
    return s


def test_what_is_built_is_valid() -> None:
    assert list(problems(program())) == []


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str) -> None:
    make, text = BROKEN[name]
    with pytest.raises(InvalidTileProgram) as e:
        verify(make())
    assert text in str(e.value)
