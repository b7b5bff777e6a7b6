"""Long axes of a fixed length: a short one is checked instead, and what is wrong at the long one is still found."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from redfuser.algebra.check import check
from redfuser.algebra.checked import derive_checked
from redfuser.algebra.derive import derive
from redfuser.algebra.nodes import Accumulator
from redfuser.index.expr import Const, Ref, const, transform

from .dsl import Cascade, exp, where
from .mutate import mutants, with_step

LONGEST, LONG, SHORT = 1 << 24, 1 << 17, 1 << 9  # planned; run as it is in a moment too; run as it is


def over_a_number(c, n):
    x = c.x()
    c.sum("M2", (x - c.sum("s", x) / n) ** 2.0)


def times_a_number(c, n):
    x = c.x()
    c.sum("M2", (x - c.sum("s", x) * (1 / n)) ** 2.0)


def unbiased(c, n):
    """The greatest distance from the mean, in standard deviations."""
    x = c.x()
    mean = c.sum("s", x) / n
    squares = c.sum("M2", (x - mean) ** 2.0)
    c.max("z", (x - mean) / (squares / (n - 1)) ** 0.5)


def expanded(c, n):
    x = c.x()
    mean = c.sum("s", x) / n
    c.sum("M2", x * x - 2.0 * x * mean + mean * mean)


BUILDS = [over_a_number, times_a_number, unbiased, expanded]


def problem(build, n):
    c = Cascade(build.__name__, n)
    build(c, float(n))
    return c.problem


@pytest.mark.parametrize("build", BUILDS)
def test_a_long_axis_is_checked_in_a_moment(build):
    start = time.process_time()
    d = derive_checked(problem(build, LONGEST))
    assert time.process_time() - start < 0.5
    assert len(d.passes) == 1
    assert d.proof.verdict.accepted and d.proof.verdict.detail.endswith(f"of 24 elements for {LONGEST}")


@pytest.mark.parametrize("build", BUILDS)
def test_what_is_wrong_at_a_short_length_is_found_at_a_long_one(build):
    long, short = (list(faults(derive(problem(build, n)), n)) for n in (LONG, SHORT))
    verdicts = [(what, check(d).accepted, check(at).accepted) for (what, d), (_, at) in zip(long, short, strict=True)]
    assert sum(not at_long for _, at_long, _ in verdicts) > 20
    assert any(what.startswith("number") and not at_long for what, at_long, _ in verdicts)
    assert [what for what, at_long, at_short in verdicts if at_long and not at_short] == []


def of_the_first(c, n):
    """A body that compares positions with a number."""
    x = where(c.at(c.l) < 3000.0, c.x(), 0.0)
    c.sum("M2", (x - c.sum("s", x) / n) ** 2.0)


def of_weights(c, n):
    """The derivation computes with the length, and has 2/n and 1/n**2."""
    x = c.x()
    m, z = c.softmax(x)
    p = exp(x - m) / z
    mean = c.sum("s", p) / n
    c.sum("M2", (p - mean) * (p - mean))


@pytest.mark.parametrize("build", [of_the_first, of_weights])
def test_what_may_depend_on_the_length_is_checked_at_it(build):
    assert check(derive(problem(build, 5000))).detail.endswith("of 5000 elements")


def faults(d, n):
    """Derivations with one change; among them, numbers (the length, or one off it) for counts of what was seen."""
    yield from mutants(d)
    counts = {s.name for p in d.passes for s in p.steps if isinstance(s, Accumulator) and isinstance(s.element, Const)}
    for off in (0, -1, 1):

        def leaf(x, number=n + off):
            return const(number, x.dtype) if isinstance(x, Ref) and x.name in counts else None

        for i, p in enumerate(d.passes):
            for j, s in enumerate(p.steps):
                if isinstance(s, Accumulator):
                    new = replace(s, correction=s.correction and transform(s.correction, leaf))
                else:
                    new = replace(s, value=transform(s.value, leaf))
                if new != s:
                    yield f"number {off} in {s.name}", with_step(d, i, j, new)
            for j, r in enumerate(p.reads):
                reads = (*p.reads[:j], replace(r, value=transform(r.value, leaf)), *p.reads[j + 1 :])
                if reads != p.reads:
                    passes = (*d.passes[:i], replace(p, reads=reads), *d.passes[i + 1 :])
                    yield f"number {off} in the read of {r.stage}", replace(d, passes=passes)
