"""The timer of the CPU. Those of a GPU are in tests/gpu."""

import time

from redfuser.runtime import timers
from redfuser.runtime.timers import cpu_timer


def test_it_measures_the_median_call(monkeypatch):
    now = [0]
    monkeypatch.setattr(timers.time, "perf_counter_ns", lambda: now[0])
    calls = []

    def fn():
        calls.append(1)
        now[0] += 90_000 if len(calls) == 2 else 5_000

    assert cpu_timer(fn) == 5.0
    assert len(calls) == timers.MOST


def test_long_calls_get_few_samples():
    calls = []

    def fn():
        calls.append(1)
        time.sleep(0.02)

    assert 20_000 <= cpu_timer(fn) < 200_000
    assert len(calls) == timers.FEWEST


def test_very_long_calls_are_measured_once(monkeypatch):
    now, calls = [0], []
    monkeypatch.setattr(timers.time, "perf_counter_ns", lambda: now[0])

    def fn():
        calls.append(1)
        now[0] += 2_000_000_000

    assert cpu_timer(fn) == 2e6 and len(calls) == 1
