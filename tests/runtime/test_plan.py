"""Plans with an engine and a timer that the test makes up: what is measured when, what is remembered, what runs."""

import json
import threading

import pytest
import torch
from catalogue import rnd
from helpers import assert_close
from stages import record

import redfuser
from redfuser.backends import reference
from redfuser.runtime import choice, plan
from redfuser.runtime.cache import Cache, open_cache
from redfuser.runtime.plan import Plan
from redfuser.settings import Options
from redfuser.tile.cost import Decision, cost
from redfuser.tile.nodes import Kind, Strategy
from redfuser.tile.strategy import Schedule

A, B, C = (Schedule(Strategy.SINGLE, row=4, tile=t) for t in (16, 32, 64))
SPLIT = Schedule(Strategy.MULTI, row=4, tile=16, segments=3)
UNFUSED = None


def softmax(x):
    return torch.softmax(x, -1)


class Engine:
    """Schedules with the microseconds that they take; an exception in place of them is raised when it is prepared."""

    idle = True
    mode = ""

    def __init__(self, times, identity="made up"):
        self.times, self.name = times, identity
        self.asked, self.warmed, self.prepared, self.measured = 0, [], [], []
        self.ran = "nothing"

    @property
    def identity(self):
        return self.name + self.mode

    def decide(self, region, derivation, sizes, options):
        first = next(s for s in self.times if s is not UNFUSED)
        return Decision(first.strategy, first, cost(region, sizes), "the model's first choice")

    def candidates(self, region, derivation, sizes, options):
        self.asked += 1
        return [s for s in self.times if s is not UNFUSED]

    def warm(self, programs, sizes, inputs):
        self.warmed += [s for _, s in programs]

    def prepare(self, program, schedule, sizes):
        self.prepared.append(schedule)
        if isinstance(self.times[schedule], Exception):
            raise self.times[schedule]
        names, lengths = [t.name for t in program.of(Kind.INPUT)], dict(sizes)

        def run(inputs):
            self.ran = schedule
            return reference.run(program, dict(zip(names, inputs, strict=True)), lengths)

        return run

    def listing(self, program, schedule, why, subject):
        return None

    def timer(self, fn):
        fn()
        self.measured.append(self.ran)
        return self.times[self.ran]


class Graph:
    """What the plan stands for; the engine is told when it runs."""

    def __init__(self, cut, engine):
        self.cut, self.engine = cut, engine
        self.out_of_memory = self.is_lean = False

    def examples(self, sizes):
        if self.out_of_memory:
            raise torch.OutOfMemoryError("too much")
        return self.cut.examples(sizes)

    def lean(self, inputs):
        return self.is_lean

    def unfused(self, inputs, sizes):
        self.engine.ran = UNFUSED
        return self.cut.unfused(inputs, sizes)


@pytest.fixture
def planned():
    """Softmax with an open length."""
    x = rnd(5, 1000)
    torch._dynamo.mark_dynamic(x, 1)
    return record(softmax, (x,))[0]


@pytest.fixture
def make(planned, tmp_path):
    def plan_of(times, engine=None, **options):
        engine = engine or Engine(times)
        chosen = Options(cache_dir=str(tmp_path), strict=True).replace(**options)
        p = planned.planned
        return Plan(p.region, p.derivation, chosen, engine, Graph(p.cut, engine)), engine

    return plan_of


def call(p, length=1000):
    x = rnd(5, length)
    (name,) = p._names
    got = p([x], {name: length})
    if got is not None:
        assert_close(got, [softmax(x.double())])
    return got


def entries(directory):
    return list(Cache(directory, 2**30).entries())


def test_the_fastest_is_measured_and_runs(make):
    p, engine = make({A: 12.0, B: 10.0, C: 11.0, UNFUSED: 30.0})
    assert call(p) is not None and engine.ran == B
    assert engine.warmed == [A, B, C], "all are compiled before one is measured"
    assert set(engine.measured) == {A, B, C, UNFUSED}
    decision = p.decide({})
    assert decision.measured and decision.schedule == B
    assert decision.reason.startswith("measured: single (4x32, 4 warps, 2 stages) 10.0 µs; single (4x64")
    assert "unfused 30.0 µs" in decision.reason


def test_a_second_call_measures_nothing(make):
    p, engine = make({A: 12.0, B: 10.0})
    call(p)
    before = list(engine.measured), list(engine.prepared)
    call(p)
    assert (engine.measured, engine.prepared) == before


def test_another_plan_takes_the_choice_from_disk(make, tmp_path):
    first, _ = make({A: 12.0, B: 10.0, UNFUSED: 30.0})
    call(first)
    (entry,) = entries(tmp_path)
    assert "max" in entry.what and "sum" in entry.what
    second, engine = make({A: 1.0, B: 10.0, UNFUSED: 30.0})
    assert call(second) is not None and engine.ran == B
    assert not engine.measured and not engine.warmed and engine.prepared == [B] and not engine.asked
    assert second.decide({}) == first.decide({})


@pytest.mark.parametrize("winner", [SPLIT, UNFUSED], ids=["multi", "unfused"])
def test_every_kind_of_choice_is_kept(make, winner):
    times = {A: 12.0, SPLIT: 11.0, UNFUSED: 13.0} | {winner: 5.0}
    first, _ = make(times)
    call(first)
    second, engine = make(times)
    call(second)
    assert second.decide({}).schedule == winner and not engine.measured


def test_another_length_of_the_bucket_builds_and_measures_nothing(make, monkeypatch):
    built = []
    build = plan.build
    monkeypatch.setattr(plan, "build", lambda *given: built.append(given[-1]) or build(*given))
    p, engine = make({A: 12.0, B: 10.0, UNFUSED: 30.0})
    call(p, 1000)
    before = len(built), len(engine.measured), engine.asked, len(engine.warmed)
    for length in (1001, 1024, 800):
        assert call(p, length) is not None and engine.ran == B
    assert (len(built), len(engine.measured), engine.asked, len(engine.warmed)) == before
    call(p, 1025)
    assert len(engine.measured) > before[1], "the next bucket is measured"
    assert len(built) == before[0], "its programs are those that are there"


def damage_bytes(path):
    path.write_bytes(path.read_bytes()[:-3] + b"???")


def other_content(record):
    def damage(path):
        cache = Cache(path.parents[2], 2**30)
        cache.put_json(path.stem, record, "choice")
        assert cache.get_json(path.stem) == record

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        damage_bytes,
        lambda path: path.write_bytes(b""),
        other_content({}),
        other_content({"schedule": {}, "reason": ""}),
        other_content({"schedule": {"strategy": "sideways"}, "reason": ""}),
        other_content({"schedule": {"strategy": "single", "colour": 3}, "reason": ""}),
        other_content({"schedule": [1, 2], "reason": ""}),
    ],
    ids=["bytes", "nothing", "no fields", "no strategy", "no such strategy", "another field", "a list"],
)
def test_a_damaged_record_is_measured_again(make, tmp_path, damage):
    first, _ = make({A: 12.0, B: 10.0})
    call(first)
    (path,) = tmp_path.rglob("*.entry")
    damage(path)
    second, engine = make({A: 9.0, B: 10.0})
    assert call(second) is not None and engine.ran == A and engine.measured
    third, engine = make({A: 9.0, B: 10.0})
    call(third)
    assert engine.ran == A and not engine.measured, "and is written anew"


@pytest.mark.parametrize("options", [{"deterministic": True}, {"tune": "off"}], ids=str)
def test_nothing_is_measured_where_the_options_say_so(make, tmp_path, options):
    call(make({A: 12.0, B: 10.0})[0])
    p, engine = make({A: 12.0, B: 10.0, UNFUSED: 1.0}, **options)
    assert call(p) is not None and engine.ran == A, "the model's choice, not the measured one on disk"
    assert not engine.measured and not engine.warmed and not engine.asked
    assert not p.decide({}).measured
    assert len(entries(tmp_path)) == 1


def test_unfused_wins_when_it_is_faster(make):
    p, engine = make({A: 12.0, B: 10.0, UNFUSED: 6.0})
    assert call(p) is None
    assert p.decide({}).strategy is Strategy.UNFUSED
    before = len(engine.measured)
    assert call(p) is None and len(engine.measured) == before


def test_a_forced_strategy_does_not_compete_with_the_unfused_code(make):
    p, engine = make({A: 12.0, B: 10.0, UNFUSED: 6.0}, strategy="single")
    assert call(p) is not None and engine.ran == B
    assert UNFUSED not in engine.measured


def test_what_does_not_run_is_skipped(make):
    p, engine = make({A: RuntimeError("out of resource: shared memory"), B: 10.0, C: ValueError("no"), UNFUSED: 30.0})
    assert call(p) is not None and engine.ran == B
    assert p.decide({}).reason.endswith("; 2 did not run")


def test_nothing_runs_but_the_unfused_code(make):
    p, _ = make({A: RuntimeError("no"), B: RuntimeError("no"), UNFUSED: 30.0})
    assert call(p) is None
    assert p.decide({}).strategy is Strategy.UNFUSED


def test_nothing_can_be_measured(make, tmp_path, caplog):
    """The model's choice is tried all the same; it says what is wrong, or the call runs unfused with a warning."""
    times = {A: RuntimeError("no such machine"), UNFUSED: 1.0}
    with pytest.raises(RuntimeError, match="no such machine"):
        call(make(times, strategy="single")[0])
    p, _ = make(times, strategy="single", strict=False)
    assert call(p) is None and "runs unfused from now on" in caplog.text
    assert not entries(tmp_path)


def test_unfused_code_without_intermediates_competes_at_any_length(make, monkeypatch):
    monkeypatch.setattr(choice, "MOST_BESIDE", -1)
    p, engine = make({A: 12.0, UNFUSED: 10.0})
    assert call(p) is not None and UNFUSED not in engine.measured
    p, engine = make({A: 12.0, UNFUSED: 10.0}, tile=64)
    p._replaced.is_lean = True
    assert call(p) is None and UNFUSED in engine.measured


def test_without_memory_for_examples_the_model_decides(make, tmp_path):
    p, engine = make({A: 12.0, B: 10.0})
    p._replaced.out_of_memory = True
    assert call(p) is not None and engine.ran == A
    assert not engine.measured and not entries(tmp_path)


def test_what_ran_out_of_time_is_not_remembered(make, tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "LIMITS", dict.fromkeys(choice.LIMITS, (8, 0.0)))
    p, engine = make({A: 12.0, B: 10.0, UNFUSED: 30.0})
    assert call(p) is not None and engine.ran == A and engine.measured == [A, UNFUSED]
    assert not entries(tmp_path)


def test_nothing_slower_than_the_unfused_code_runs_however_little_time_there_is(make, monkeypatch):
    monkeypatch.setattr(choice, "LIMITS", dict.fromkeys(choice.LIMITS, (8, 0.0)))
    p, engine = make({A: 12.0, B: 10.0, UNFUSED: 6.0})
    assert call(p) is None and engine.measured == [A, UNFUSED]


def test_the_unfused_code_is_compiled_before_the_time_for_measuring_begins(make):
    """Its first call compiles it."""
    p, engine = make({A: 12.0, B: 10.0, UNFUSED: 30.0})
    unfused, prepared = p._replaced.unfused, []

    def noted(inputs, sizes):
        prepared.append(list(engine.prepared))
        return unfused(inputs, sizes)

    p._replaced.unfused = noted
    call(p)
    assert prepared[0] == [] and prepared[1] == [A], "then it is measured second"


@pytest.mark.parametrize("tune, most", [("fast", 8), ("full", 64)])
def test_so_many_are_measured(make, tune, most):
    many = {Schedule(Strategy.SINGLE, row=4, tile=16, warps=w): 100.0 - w for w in range(1, 81)}
    p, engine = make({**many, UNFUSED: 200.0}, tune=tune)
    call(p)
    assert len(set(engine.measured)) == most and UNFUSED in engine.measured
    assert len(engine.warmed) == most - 1, "no more are compiled than are measured"


@pytest.mark.parametrize(
    "changed", [{"exact_casts": True}, {"tune": "full"}, {"strategy": "single"}, {"rest": "eager"}], ids=str
)
def test_a_choice_holds_for_its_options(make, tmp_path, changed):
    call(make({A: 12.0, B: 10.0, UNFUSED: 30.0})[0])
    p, engine = make({A: 9.0, B: 10.0, UNFUSED: 30.0}, **changed)
    call(p)
    assert engine.ran == A and engine.measured and len(entries(tmp_path)) == 2


def test_a_choice_holds_for_its_machine(make, tmp_path):
    call(make({A: 12.0, B: 10.0})[0])
    other = Engine({A: 9.0, B: 10.0}, identity="another card")
    call(make({}, other)[0])
    assert other.ran == A and other.measured and len(entries(tmp_path)) == 2


def test_a_choice_holds_for_a_mode(make, tmp_path):
    """A setting of PyTorch that changes takes effect in the next call; the earlier choice holds when it is back."""
    p, engine = make({A: 12.0, B: 10.0})
    call(p)
    engine.mode, engine.times = "tf32", {A: 9.0, B: 10.0}
    assert call(p) is not None and engine.ran == A and p.decide({}).schedule == A and len(entries(tmp_path)) == 2
    measured = len(engine.measured)
    engine.mode = ""
    assert call(p) is not None and engine.ran == B and p.decide({}).schedule == B
    assert len(engine.measured) == measured


def test_a_cache_that_keeps_nothing(make, tmp_path):
    p, engine = make({A: 12.0, B: 10.0}, cache_limit=0)
    assert call(p) is not None and engine.ran == B
    assert not entries(tmp_path)


def test_the_record_is_readable(make, tmp_path):
    p, _ = make({A: 12.0, B: 10.0})
    call(p)
    (entry,) = entries(tmp_path)
    record = json.loads(open_cache(p.options).get(entry.key))
    assert record["schedule"]["strategy"] == "single" and record["schedule"]["tile"] == 32
    assert record["reason"] == p.decide({}).reason


def test_asking_what_would_run_measures_nothing(make):
    p, engine = make({A: 12.0, B: 10.0, UNFUSED: 6.0})
    assert p.decide({}).schedule == A and p.shown == A and p.worthwhile
    assert p.program(p.shown).kernels
    assert not engine.measured and not engine.warmed and not engine.prepared
    call(p)
    assert p.decide({}).strategy is Strategy.UNFUSED, "afterwards it is what was measured"
    assert p.shown.strategy is Strategy.SINGLE


def test_analyze_and_explain_measure_nothing(monkeypatch, tmp_path):
    """With the same engine a call does measure."""
    engine = Engine({A: 12.0, B: 10.0, UNFUSED: 30.0})
    monkeypatch.setattr("redfuser.pipeline.engine_for", lambda device, options: engine)
    fused = redfuser.fuse(softmax, rest="eager", tune="fast", strict=True, cache_dir=tmp_path)
    x = rnd(5, 200)
    fused.analyze(x)
    assert str(fused.explain(x)) and fused.explain(x).to_dict()
    redfuser.assert_fused(fused, x)
    assert not engine.measured and not engine.warmed and not engine.prepared
    assert_close(fused(x), softmax(x.double()))
    assert engine.measured and engine.ran == B


def test_threads_meet_at_a_first_call(make):
    p, _engine = make({A: 12.0, B: 12.0})
    results, failures = [], []
    start = threading.Barrier(4)

    def run():
        start.wait()
        try:
            results.append(call(p))
        except Exception as why:
            failures.append(why)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures and len(results) == 4 and None not in results


def test_nothing_is_measured_while_the_engine_is_not_idle(make):
    """As while launches are captured into a graph, where waiting for the device is an error."""
    p, engine = make({A: 12.0, B: 10.0})
    engine.idle = False
    assert call(p) is not None and engine.ran == A and engine.measured == []
