"""Which tiles masks empty and where they need not be computed: checked against the predicate on every position."""

from __future__ import annotations

import math

import cases
import pytest
import torch

from redfuser.algebra.nodes import Pass
from redfuser.backends import reference
from redfuser.index.expr import Apply, Expr, Fn, Position, const
from redfuser.index.ints import as_int
from redfuser.tile import masks
from redfuser.tile.build import build
from redfuser.tile.nodes import Loop, Map, Strategy
from redfuser.tile.strategy import Schedule

F32, BOOL = cases.F32, cases.BOOL


def visited(case: cases.Case, tile: int, row: int, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], bool]:
    """(first row, first position) of every tile that the loop visits, and whether a mask was computed there."""
    program = build(case.region, case.derivation, Schedule(Strategy.SINGLE, row, tile))
    loops = [s for s in program.kernels[0].body if isinstance(s, Loop)]
    masked = {id(s): any(isinstance(x, Map) and "<" in repr(x) and _compares(x.expr) for x in s.body) for s in loops}
    i = next(t.axis for t in program.kernels[0].grid if t.axis.name == "i")
    seen: dict[tuple[int, int], bool] = {}
    original = reference._Execution.block

    def block(self: reference._Execution, body: tuple[object, ...]) -> None:
        for s in loops:
            if body is s.body:
                seen[self.range[i][0], self.range[s.axis][0]] = masked[id(s)]
        original(self, body)  # type: ignore[arg-type]

    monkeypatch.setattr(reference._Execution, "block", block)
    reference.run(program, case.inputs, case.sizes)
    return seen


def _compares(e: Expr) -> bool:
    from redfuser.index.expr import walk

    return any(isinstance(x, Apply) and any(isinstance(a, Position) for a in x.args) for x in walk(e))


@pytest.mark.parametrize("mask", ["causal", "window", "prefix", "blocks", "either", "later"])
def test_exactly_the_needed_tiles(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    i, l, tile, row = 40, 56, 4, 8
    window = 37 if mask in ("either", "later") else 14
    case = cases.attention(b=1, h=1, i=i, l=l, mask=mask, window=window)
    seen = visited(case, tile, row, monkeypatch)
    rows, positions = torch.arange(i)[:, None], torch.arange(l)[None, :]
    keep = {
        "causal": positions <= rows + l - i,
        "window": (positions <= rows + l - i) & (positions > rows + l - i - window),
        "prefix": (positions >= window).expand(i, l),
        "blocks": positions // window == rows // window,
        "either": (positions <= rows + l - i) | (positions < window),
        "later": (positions >= rows + l - i) | (positions >= window),
    }[mask]
    full = 0
    for r in range(0, i, row):
        for p in range(0, l, tile):
            here = keep[r : r + row, p : p + tile]
            assert ((r, p) in seen) == bool(here.any()), (r, p)
            if (r, p) in seen:
                full += not seen[r, p]
                assert seen[r, p] or bool(here.all()), (r, p)
                assert not seen[r, p] or not bool(here.all()), (r, p)
    assert full > 0


def _conditions(*elements: tuple[str, cases.Reducer, Expr]) -> list[tuple[Expr, bool]]:
    steps = tuple(cases.acc(n, r, e, None, ()) for n, r, e in elements)
    return masks.conditions(Pass(steps, ()), L, frozenset({"earlier"}))


L = cases.axis("l", 32)
INSIDE = cases.test(Fn.LT, Position(as_int(L)), const(9, cases.I64))
X = cases.load("x", cases.at(L), F32)
ZERO, NINF = const(0.0, F32), cases.NINF
MAX, SUM = cases.Reducer.MAX, cases.Reducer.SUM


def test_every_accumulator_must_be_left_alone() -> None:
    hidden = cases.where(INSIDE, X, NINF)
    assert _conditions(("m", MAX, hidden)) == [(INSIDE, True)]
    assert _conditions(("m", MAX, hidden), ("n", SUM, X)) == []
    assert _conditions(("n", SUM, cases.where(INSIDE, X, ZERO))) == [(INSIDE, True)]
    assert _conditions(("n", SUM, hidden)) == []


def test_a_finite_number_is_no_identity() -> None:
    assert _conditions(("m", MAX, cases.where(INSIDE, X, const(-1e9, F32)))) == []


def test_added_masks_and_negated_ones() -> None:
    added = cases.add(X, cases.where(INSIDE, ZERO, NINF))
    assert _conditions(("m", MAX, added)) == [(INSIDE, True)]
    negated = cases.where(Apply(Fn.NOT, (INSIDE,), BOOL), NINF, X)
    assert _conditions(("m", MAX, negated)) == [(INSIDE, True)]
    either = cases.where(Apply(Fn.OR, (INSIDE, cases.test(Fn.GT, X, ZERO)), BOOL), X, NINF)
    assert _conditions(("m", MAX, either)) == []


def test_infinities_are_absorbed_only_by_what_is_finite() -> None:
    hidden = cases.where(INSIDE, X, NINF)
    earlier = cases.load("earlier", (), F32)
    assert _conditions(("n", SUM, cases.exp(cases.sub(hidden, X)))) == [(INSIDE, True)]
    assert _conditions(("n", SUM, cases.exp(cases.sub(hidden, earlier)))) == []
    assert _conditions(("n", SUM, cases.exp(cases.sub(hidden, cases.ref("m", F32))))) == []
    assert _conditions(("n", SUM, cases.exp(cases.sub(hidden, cases.where(INSIDE, X, const(-math.inf, F32)))))) == []
