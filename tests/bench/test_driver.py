"""Limits and faults of the worker process."""

import time

import pytest
import workers

from benchmarks.compare import How
from benchmarks.driver import Driver
from benchmarks.entries import entries
from benchmarks.record import Record

HOW = How("cpu", ("redfuser", "eager"), quick=True)
ENTRY = entries("paper", quick=True)[0]


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        (workers.dies, "exit code 7"),
        (workers.hangs, "longer than the limit"),
        (workers.loses_the_device, "illegal memory access"),
        (workers.stumbles, "out of memory"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_the_entry_is_measured_without_what_broke_it(worker, reason):
    with Driver(HOW, limit=2.0, target=worker) as driver:
        record = driver.compare(ENTRY, lambda text: None)
        assert isinstance(record, Record)
        assert reason in record.alternatives[workers.BROKEN].reason
        assert isinstance(driver.compare(ENTRY, lambda text: None), Record)


def test_a_worker_that_never_starts_is_a_sentence():
    with Driver(HOW, limit=2.0, target=workers.never_starts) as driver:
        outcome = driver.compare(ENTRY, lambda text: None)
    assert isinstance(outcome, str) and "exit code 9" in outcome


def test_the_deadline_ends_a_comparison():
    start = time.monotonic()
    with Driver(HOW, limit=60.0, deadline=start + 8.0, target=workers.hangs) as driver:
        assert driver.compare(ENTRY, lambda text: None) is None
    assert time.monotonic() - start < 20.0
