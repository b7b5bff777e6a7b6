import itertools
import time
from collections import Counter

import pytest

from benchmarks.ceilings import Ceilings, measure
from benchmarks.timing import Runner, order_of, race


def test_all_take_turns_and_slower_is_slower():
    order = []
    runners = [Runner("fast", [lambda: time.sleep(0.0005)]), Runner("slow", [lambda: time.sleep(0.004)])]
    times = race(runners, rounds=4, burst=0.004, cuda=False, announce=order.append)
    assert [len(times[n].rounds) for n in ("fast", "slow")] == [4, 4]
    assert times["slow"].median > 2 * times["fast"].median > 2 * 400
    assert order == ["fast", "slow", "fast", "slow", "slow", "fast", "slow", "fast", "fast", "slow"]


@pytest.mark.parametrize("count", range(1, 9))
def test_everyone_follows_everyone_else_equally_often(count):
    rounds = [order_of(turn, count) for turn in range(2 * count)]
    assert all(sorted(r) == list(range(count)) for r in rounds)
    follows = Counter(pair for r in rounds for pair in itertools.pairwise(r))
    assert follows == {(a, b): 2 for a in range(count) for b in range(count) if a != b}
    for place in range(count):
        assert Counter(r[place] for r in rounds) == dict.fromkeys(range(count), 2)


def test_calls_rotate_over_the_sets():
    seen = []
    runner = Runner("r", [lambda: seen.append(0), lambda: seen.append(1), lambda: seen.append(2)])
    runner.burst(7)
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def test_no_round_begins_past_the_end_but_three_are_run():
    runner = Runner("r", [lambda: time.sleep(0.001)])
    times = race([runner], rounds=50, burst=0.001, cuda=False, until=time.monotonic())
    assert len(times["r"].rounds) == 3


def test_one_call_may_stand_for_several():
    runner = Runner("r", [lambda: time.sleep(0.002)])
    assert race([runner], 3, 0.002, False, per=10)["r"].median < 1000


def test_floor_is_the_larger_of_work_and_traffic():
    c = Ceilings(flops=1e12, bandwidth=1e11)
    assert c.floor(2e6, 0) == 2.0 and c.floor(0, 1e6) == 10.0 and c.floor(2e6, 1e6) == 10.0


def test_ceilings_are_measured_here():
    c = measure("cpu", quick=True)
    assert 1e8 < c.flops < 1e15 and 1e7 < c.bandwidth < 1e13
