"""Tuning with candidates, timers and a clock that the test makes up: what is chosen, and what is said of the others."""

import io
import sys
import threading

import pytest

from redfuser.runtime.tune import ROUNDS, progress_bar, tune


class Bench:
    """Candidates are names; each takes the microseconds given, or raises. Building and measuring advance a clock."""

    def __init__(self, times, build_seconds=0.0, timer_seconds=0.0):
        self.times, self.build_seconds, self.timer_seconds = times, build_seconds, timer_seconds
        self.now, self.built, self.measured, self.current = 0.0, [], [], None

    def build(self, name):
        self.built.append(name)
        self.now += self.build_seconds
        if self.times[name] == "no build":
            raise RuntimeError("out of resource: shared memory\nRequired: 300000")

        def run():
            self.current = name
            if self.times[name] == "no run":
                raise ValueError("")

        return run

    def timer(self, run):
        run()
        self.measured.append(self.current)
        self.now += self.timer_seconds
        taken = self.times[self.current]
        if isinstance(taken, list):
            taken = taken[min(self.measured.count(self.current), len(taken)) - 1]
        if isinstance(taken, BaseException):
            raise taken
        return taken

    def tune(self, at_most=8, seconds=10.0, **more):
        return tune(
            list(self.times), self.build, self.timer, at_most=at_most, seconds=seconds, clock=lambda: self.now, **more
        )


def said(outcome):
    return {r.candidate: (r.microseconds, r.reason) for r in outcome.rows}


def test_the_fastest_wins():
    bench = Bench({"a": 12.0, "b": 10.0, "c": 14.0})
    outcome = bench.tune()
    assert outcome.best == "b" and outcome.in_time
    assert said(outcome) == {"a": (12.0, ""), "b": (10.0, ""), "c": (14.0, "")}


def test_a_handicap_counts_for_the_choice_alone():
    bench = Bench({"a": 12.0, "b": 11.4})
    outcome = bench.tune(handicap=lambda c: 1.0 if c == "b" else 0.0)
    assert outcome.best == "a"
    assert said(outcome) == {"a": (12.0, ""), "b": (11.4, "")}
    assert Bench({"a": 12.0, "b": 10.8}).tune(handicap=lambda c: 1.0 if c == "b" else 0.0).best == "b"


def test_they_take_turns():
    bench = Bench({"a": 12.0, "b": 10.0})
    bench.tune()
    assert bench.measured == ["a", "b"] * ROUNDS


def test_who_fails_is_left_out_with_the_reason():
    bench = Bench({"a": "no build", "b": "no run", "c": [8.0, RuntimeError("CUDA error")], "d": 9.0, "e": float("nan")})
    outcome = bench.tune()
    assert outcome.best == "d"
    assert said(outcome) == {
        "a": (None, "RuntimeError: out of resource: shared memory"),
        "b": (None, "ValueError"),
        "c": (None, "RuntimeError: CUDA error"),
        "d": (9.0, ""),
        "e": (None, "ValueError: the timer says nan µs"),
    }


def test_nothing_runs():
    outcome = Bench({"a": "no build", "b": "no run"}).tune()
    assert outcome.best is None and len(outcome.rows) == 2
    assert tune([], None, None, at_most=8, seconds=1.0).best is None


def test_an_interrupt_is_no_failure():
    with pytest.raises(KeyboardInterrupt):
        Bench({"a": 3.0, "b": [KeyboardInterrupt()]}).tune()


def test_slow_ones_are_measured_once():
    bench = Bench({"a": 30.0, "b": 10.0, "c": 15.1, "d": 14.9})
    outcome = bench.tune()
    assert [bench.measured.count(x) for x in "abcd"] == [1, ROUNDS, 1, ROUNDS]
    assert outcome.best == "b"
    assert said(outcome)["a"] == (30.0, "dropped after the first round: 3.0 times as long as the best")
    assert said(outcome)["d"] == (14.9, "")


def test_one_survivor_needs_no_further_round():
    bench = Bench({"a": 30.0, "b": 10.0})
    assert bench.tune().best == "b" and bench.measured == ["a", "b"]


def test_dropped_ones_are_there_when_the_others_break():
    outcome = Bench({"a": 30.0, "b": [10.0, RuntimeError("late")], "c": [11.0, RuntimeError("late")]}).tune()
    assert outcome.best == "a"


@pytest.mark.parametrize("first, best", [(10.0, "a"), (10.09, "a"), (10.11, "b")])
def test_of_equals_the_earlier_one_wins(first, best):
    assert Bench({"slower": 11.0, "a": first, "b": 10.0}).tune().best == best


def test_one_disturbed_turn_decides_nothing():
    assert Bench({"a": [10.0, 500.0, 10.0], "b": 12.0}).tune().best == "a"
    assert Bench({"a": [12.0, 1.0, 12.0], "b": 10.0}).tune().best == "b"


def test_long_ones_are_heated_and_then_judged_hot():
    cold_and_hot = {"a": [1000.0, 1000.0, 1300.0], "b": [1100.0, 1100.0, 1200.0], "slow": 1800.0}
    bench = Bench(cold_and_hot, timer_seconds=0.5)
    outcome = bench.tune(heat=0.8)
    assert outcome.best == "b" and bench.measured[:5] == ["a", "b", "slow", "a", "b"]
    assert said(outcome)["a"] == (1300.0, "") and said(outcome)["b"] == (1200.0, "")
    assert Bench(cold_and_hot, timer_seconds=0.5).tune(heat=0.8, seconds=2.0).best == "a", "no time for a hot turn"


def test_short_ones_and_single_ones_are_not_heated():
    bench = Bench({"a": 10.0, "b": 9.0}, timer_seconds=0.1)
    bench.tune(heat=0.8)
    assert bench.measured.count("a") == ROUNDS
    assert Bench({"a": 1000.0}, timer_seconds=0.1).tune(heat=0.8).best == "a"


def test_at_most_counts_those_that_run():
    bench = Bench({"x": "no build", "a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0})
    assert bench.tune(at_most=2).best == "b"
    assert bench.built == ["x", "a", "b"]


def test_the_time_limit_while_building():
    bench = Bench({"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}, build_seconds=4.0)
    outcome = bench.tune(seconds=10.0)
    assert bench.built == ["a", "b", "c"] and outcome.best == "c"
    assert not outcome.in_time and outcome.seconds == 12.0
    assert bench.measured == ["a", "b", "c"], "the rounds are what time is saved at"


def test_the_time_limit_within_a_round():
    bench = Bench({"a": [10.0, 1.0], "b": 9.0}, timer_seconds=1.0)
    outcome = bench.tune(seconds=3.0)
    assert bench.measured == ["a", "b", "a"]
    assert outcome.best == "b" and said(outcome)["a"] == (10.0, ""), "a turn that b did not get does not count for a"


def test_the_time_limit_waits_for_one_that_runs():
    bench = Bench({"a": "no build", "b": "no build", "c": 5.0, "d": 1.0}, build_seconds=20.0)
    outcome = bench.tune(seconds=10.0)
    assert outcome.best == "c" and bench.built == ["a", "b", "c"] and not outcome.in_time


def test_the_same_times_choose_the_same():
    times = {str(n): 10.0 + (7 * n % 5) / 20 for n in range(9)}
    assert len({Bench(times).tune().best for _ in range(5)}) == 1


def test_progress_is_told():
    told = []
    Bench({"x": "no build", "a": 4.0, "b": 3.0, "c": 2.0}).tune(at_most=2, progress=lambda *step: told.append(step))
    assert told == [(0, 2, None), (1, 3, None), (2, 3, 4.0), (3, 3, 3.0)]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    "stream, seconds, drawn", [(Terminal, 2.0, True), (Terminal, 0.5, False), (io.StringIO, 2.0, False)]
)
def test_the_bar_is_drawn_on_a_terminal_when_it_takes_long(monkeypatch, stream, seconds, drawn):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream())
    before, now = threading.active_count(), [0.0]
    with progress_bar("tuning a region", clock=lambda: now[0]) as progress:
        progress(0, 8, None)
        now[0] = seconds
        progress(3, 8, 12.5)
        assert threading.active_count() == before
    text = sys.stderr.getvalue()
    assert ("tuning a region" in text and "3/8" in text and "best 12.5 µs" in text) is drawn
    assert drawn or not text
    assert threading.active_count() == before


def test_the_bar_goes_when_tuning_raises(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(KeyboardInterrupt), progress_bar("tuning", after=0.0) as progress:
        progress(0, 8, None)
        raise KeyboardInterrupt
    assert sys.stderr.getvalue().endswith("\x1b[2K"), "the line is erased"


def test_the_time_limit_waits_for_as_many_as_are_asked_for():
    bench = Bench({"a": 12.0, "broken": "no run", "b": 10.0, "c": 1.0}, timer_seconds=100.0)
    outcome = bench.tune(at_least=2)
    assert outcome.best == "b" and not outcome.in_time
    assert bench.measured[:2] == ["a", "b"] and "c" not in bench.measured
