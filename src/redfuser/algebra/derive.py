"""The derivation: a problem becomes passes, each a list of accumulators and bases with everything needed to run it."""

from __future__ import annotations

from redfuser.algebra import place as placing
from redfuser.algebra.groups import Options, Refused
from redfuser.algebra.nodes import Derivation, Pass, Problem, Proof, Rule, Stage, StageReport, Treatment
from redfuser.algebra.reader import cancelled, reads_of
from redfuser.algebra.say import say
from redfuser.algebra.state import Notes, State
from redfuser.algebra.text import report
from redfuser.index.expr import load, loads
from redfuser.index.ints import as_int
from redfuser.index.nodes import Reducer
from redfuser.index.refusals import Refusal, RefusalKind


def derive(
    problem: Problem, *, exact_casts: bool = False, fuse_rounding: bool = False, apart: frozenset[str] = frozenset()
) -> Derivation:
    """Passes over the axis for the stages of a problem, as few as the algebra allows.

    A stage that cannot run in the pass of the results it reads moves to the next one, where they are parameters; each
    such stage has a refusal that says why. With ``exact_casts`` no rounding may move past a scale; with
    ``fuse_rounding`` a rounding to integers may. The stages named in ``apart`` run after everything they read, as they
    are written.
    """
    options = Options(exact_casts, fuse_rounding, apart)
    todo = list(problem.stages)
    passes: list[Pass] = []
    reports: list[StageReport] = []
    refusals: dict[str, Refusal] = {}
    rules: list[Rule] = []
    conditions: list[str] = []
    while todo:
        state, left = _pass(problem, todo, options, refusals)
        done = Pass(tuple(state.steps), tuple(state.reads))
        placed = [s for s in todo if s not in left]
        assert placed, "a stage that reads no earlier result always has a place"
        for s in placed:
            notes = state.notes[s.name]
            reports.append(report(s, done, notes, len(passes)))
            rules += notes.rules
            conditions += [f"{s.name}: {c}" for c in notes.conditions]
        passes.append(done)
        todo = left
    order = {s.name: i for i, s in enumerate(problem.stages)}
    reports.sort(key=lambda r: order[r.stage])
    return Derivation(
        problem, tuple(passes), tuple(reports), tuple(refusals.values()), Proof(tuple(rules), tuple(conditions), None)
    )


def _remember(state: State, done: list[Stage]) -> None:
    """In a later pass the results of earlier ones are parameters that are still extrema of their elements."""
    state.later = bool(done)
    t, term = state.t, state.reader.term
    for s in done:
        if s.reducer in (Reducer.MAX, Reducer.MIN, Reducer.ARGMAX, Reducer.ARGMIN):
            d, f = term(load(s.name, tuple(as_int(a) for a in s.axes), s.dtype)), term(s.body)
            state.facts.learn(t.sub(d, f) if s.reducer in (Reducer.MAX, Reducer.ARGMAX) else t.sub(f, d))


def _refuse_cancelled(problem: Problem, s: Stage) -> None:
    """A value that cancels out would take its NaN with it."""
    gone = cancelled(problem, s)
    if gone:
        raise Refused(
            RefusalKind.UNSUPPORTED,
            f"{say(gone[0])} cancels out of {say(s.body)}; where it is NaN or infinite, a loop without it would not be",
            f"write it without {gone[0].source}",
        )


def _pass(
    problem: Problem, todo: list[Stage], options: Options, refusals: dict[str, Refusal]
) -> tuple[State, list[Stage]]:
    """As many of the stages as fit into one pass, and those that are left."""
    stages = {s.name: s for s in todo}
    taken = {x.source for s in problem.stages for x in loads(s.body)} - set(stages)
    state = State(problem, stages, options, taken)
    _remember(state, [s for s in problem.stages if s.name not in stages])
    left: list[Stage] = []
    missing: set[str] = set()
    for s in todo:
        needs = reads_of(s.body, stages)
        if needs & missing or (s.name in options.apart and needs):
            left.append(s)
            missing.add(s.name)
            continue
        state.notes[s.name] = Notes()
        mark = state.snapshot()
        try:
            if needs:
                _refuse_cancelled(problem, s)
            placing.place(state, s)
        except Refused as x:
            state.restore(mark)
            left.append(s)
            missing.add(s.name)
            where = s.origin.where if s.origin else None
            refusals.setdefault(s.name, Refusal(s.name, x.kind, x.reason, x.hint, where))
    for s in todo:
        if s not in left and not state.notes[s.name].treatments:
            state.notes[s.name].treatments.add(Treatment.PLAIN)
    return state, left
