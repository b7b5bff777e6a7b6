"""What happens when the checker rejects a derivation: the stage moves, the reason is told, the result is right."""

from __future__ import annotations

from redfuser.algebra import checked
from redfuser.algebra.check import check
from redfuser.algebra.checked import derive_checked
from redfuser.algebra.derive import derive as honest

from .cascades import BY_NAME
from .mutate import mutants


def _wrong(problem, *, apart=frozenset(), **options):
    """A deriver that gets O wrong unless it is told to run it apart."""
    d = honest(problem, apart=apart, **options)
    if "O" in apart:
        return d
    return next(m for what, m in mutants(d) if what == "correction of O" and not check(m).accepted)


def test_a_rejected_stage_moves_and_says_so(monkeypatch):
    monkeypatch.setattr(checked, "derive", _wrong)
    d = derive_checked(BY_NAME["attention"].problem())
    assert len(d.passes) == 2
    assert [str(r.kind) for r in d.refusals] == ["check_failed"]
    assert d.refusals[0].subject == "O"
    assert d.proof.verdict.accepted
    assert {r.stage: r.passed for r in d.reports} == {"m": 0, "Z": 0, "O": 1}


def _hopeless(problem, *, apart=frozenset(), **options):
    d = honest(problem, apart=apart, **options)
    if len(apart) == len(problem.stages):
        return d
    return next(m for what, m in mutants(d) if not check(m).accepted)


def test_the_worst_case_is_the_definition(monkeypatch):
    monkeypatch.setattr(checked, "derive", _hopeless)
    d = derive_checked(BY_NAME["attention"].problem())
    assert len(d.passes) == 3
    assert {r.subject for r in d.refusals} == {"Z", "O"}
    assert d.proof.verdict.accepted


def test_apart_is_as_written():
    p = BY_NAME["unsafe_softmax"].problem()
    d = honest(p, apart=frozenset({"Z", "O"}))
    assert [s.element for q in d.passes for s in q.steps] == [s.body for s in p.stages]
