"""The verifier accepts what is built and names each way of breaking it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import cases
import pytest

from redfuser.index.expr import DType, const
from redfuser.tile.build import build
from redfuser.tile.nodes import (
    Assign,
    Combine,
    Declare,
    Dot,
    Guard,
    Kind,
    Loop,
    Map,
    Program,
    Read,
    Reduce,
    Statement,
    Store,
    Strategy,
)
from redfuser.tile.strategy import Schedule
from redfuser.tile.verify import InvalidTileProgram, problems, verify

Change = Callable[[Statement], list[Statement]]


def program() -> Program:
    case = cases.attention(mask="")
    return build(case.region, case.derivation, Schedule(Strategy.SINGLE, 8, 16))


def changed(p: Program, kind: type, change: Callable[..., list[Statement]]) -> Program:
    """The program with the first statement of a kind changed."""
    done = False

    def block(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        nonlocal done
        out: list[Statement] = []
        for s in body:
            if isinstance(s, kind) and not done:
                done = True
                out += change(s)
            elif isinstance(s, Loop):
                out.append(replace(s, body=block(s.body)))
            else:
                out.append(s)
        return tuple(out)

    k = p.kernels[0]
    out = replace(p, kernels=(replace(k, body=block(k.body)), *p.kernels[1:]))
    assert done
    return out


def no_axes(s: Statement) -> list[Statement]:
    return [replace(s, out=replace(s.out, axes=frozenset()))]  # type: ignore[union-attr, call-arg]


def float64(s: Statement) -> list[Statement]:
    return [replace(s, out=replace(s.out, dtype=DType.FLOAT64))]  # type: ignore[union-attr, call-arg]


BROKEN: list[tuple[str, type, Change, str]] = [
    ("a value used before it is computed", Dot, lambda s: [], "before it is computed"),
    ("a name defined twice", Read, lambda s: [s, s], "defined twice"),
    ("axes that do not follow", Dot, no_axes, "declared {}"),
    ("axes of a read that do not follow", Read, no_axes, "declared {}"),
    ("a dtype that does not follow", Read, float64, "declared float64"),
    ("a dtype that does not follow from an expression", Map, float64, "declared float64"),
    ("a dot over an axis that an operand lacks", Dot, lambda s: [replace(s, over=(cases.axis("z", 3),))], "lacks"),
    ("a reduction of an axis that is not there", Reduce, lambda s: [replace(s, over=cases.axis("z", 3))], "lacks"),
    ("a guard that fills with another dtype", Guard, lambda s: [replace(s, fill=const(0, DType.INT64))], "filled with"),
    ("a tensor that does not exist", Read, lambda s: [replace(s, tensor="nothing")], "before a kernel has stored it"),
    ("an index of the wrong length", Read, lambda s: [replace(s, index=s.index[1:], clip=s.clip[1:])], "indices"),
    ("an assignment to what is no state", Assign, lambda s: [replace(s, state=s.value)], "not running state"),
    ("an assignment of the wrong axes", Assign, lambda s: [replace(s, value="s_tile")], "which the state"),
    ("combining what does not fit", Combine, lambda s: [replace(s, right="nothing")], "before it is computed"),
    ("state that starts as something else", Declare, lambda s: [replace(s, init=const(0, DType.INT64))], "starts as"),
    ("a store to an input", Store, lambda s: [replace(s, tensor="q")], "cannot be stored to"),
    ("a missing store", Store, lambda s: [], "never stored"),
    ("a store of too many axes", Store, lambda s: [replace(s, axes=s.axes[1:])], "which the store"),
    ("a loop with another tile than its axis", Loop, lambda s: [replace(s, tile=s.tile + 1)], "has tiles of"),
    (
        "a loop over an axis of no tile",
        Loop,
        lambda s: [replace(s, axis=cases.axis("z", 3))],
        "not an axis of the kernel",
    ),
]


def test_what_is_built_is_valid() -> None:
    assert list(problems(program())) == []


@pytest.mark.parametrize("kind,change,text", [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_broken(kind: type, change: Change, text: str) -> None:
    with pytest.raises(InvalidTileProgram, match=None) as e:
        verify(changed(program(), kind, change))
    assert text in str(e.value)


def test_a_tiled_axis_without_a_loop() -> None:
    p = program()
    kernel = replace(p.kernels[0], body=tuple(s for s in p.kernels[0].body if not isinstance(s, Loop)))
    assert any("have no loop" in text for text in problems(replace(p, kernels=(kernel,))))


def test_scratch_is_read_only_after_it_is_stored() -> None:
    case = cases.attention(mask="")
    p = build(case.region, case.derivation, Schedule(Strategy.MULTI, 8, 16, segments=2))
    assert any(t.kind is Kind.SCRATCH for t in p.tensors)
    with pytest.raises(InvalidTileProgram, match="before a kernel has stored it"):
        verify(replace(p, kernels=p.kernels[::-1]))
