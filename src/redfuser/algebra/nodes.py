"""What the algebra is given (a Problem) and what it returns (a Derivation). All expressions are index expressions.

A problem is a cascade in a common frame: its reductions run over one axis, and they name their kept axes by the same
objects, so that ``max1[b, i]`` in a later body is the earlier result of the same row.

A derivation is a list of passes. A pass is a list of steps that run in order for every tile of the axis:

    Accumulator A   A <- correction(A) (+) reduce over the tile of element         (+) is its reducer
    Base b          b <- value

Before the first tile every accumulator is its reducer's identity and every base its value on those identities.
``Ref(x, old=True)`` is x before this tile, ``Ref(x)`` after this tile's step for x. An accumulator whose correction is
None is only combined. Merging two partial states a, b is the same list of steps: with ``a``'s and then ``b``'s values
as the old ones, A <- correction(A of a) (+) correction(A of b); bases are recomputed. After the last tile the reads
give the results of the stages from accumulators, bases and loads that do not depend on the axis. A stage of an
earlier pass is an ordinary Load of its name in a later pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from redfuser.index.expr import DType, Expr
from redfuser.index.ints import Axis
from redfuser.index.nodes import Name, Origin, Reducer
from redfuser.index.refusals import Refusal


class Treatment(Name):
    """How the old state follows when an earlier result moves."""

    PLAIN = "plain"  # it does not depend on an earlier result
    RESCALE = "rescale"  # multiplied by a ratio, or shifted in the exponent
    DEFER = "defer"  # a factor is left out and applied at read-out
    REBASE = "rebase"  # Taylor shift of a polynomial core
    ORDER = "order"  # a monotone map is left out and applied at read-out


@dataclass(frozen=True, slots=True)
class Stage:
    """name[axes] = reducer over the problem's axis of body.

    In the body a Load of another stage's name is an earlier result; a Load whose index contains the problem's axis is
    an element; every other Load is a parameter, fixed along the axis. ``k`` is the axis of a top-k result.
    """

    name: str
    reducer: Reducer
    axes: tuple[Axis, ...]
    body: Expr
    dtype: DType
    k: Axis | None = None
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    axis: Axis
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A running value over ``axes`` (a subset of the stage's), kept in ``dtype``; top-k keeps ``k`` of them, sorted.

    ``role`` says in a few words what it is for; ``stage`` is the reduction that needed it first.
    """

    name: str
    reducer: Reducer
    element: Expr
    correction: Expr | None
    axes: tuple[Axis, ...]
    dtype: DType
    k: Axis | None
    stage: str
    role: str


@dataclass(frozen=True, slots=True)
class Base:
    """A finite value, computed from the accumulators, at which later accumulators of the same pass sit."""

    name: str
    value: Expr
    axes: tuple[Axis, ...]
    dtype: DType
    stage: str


Step = Union[Accumulator, Base]


@dataclass(frozen=True, slots=True)
class Read:
    """The result of a stage after the last tile: its value and, for top-k and argmax, its position."""

    stage: str
    value: Expr
    index: Expr | None


@dataclass(frozen=True, slots=True)
class Pass:
    steps: tuple[Step, ...]
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One step of a proof: what was rewritten, by which rule, under which side conditions (sentences)."""

    stage: str
    rule: str
    before: str
    after: str
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checker found: how many regimes and segmentations it ran, and the worst error relative to sum |F|."""

    accepted: bool
    runs: int
    worst: float
    detail: str


@dataclass(frozen=True, slots=True)
class Proof:
    rules: tuple[Rule, ...]
    conditions: tuple[str, ...]
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class StageReport:
    """For one stage: its treatments and the update, merge and state as text."""

    stage: str
    treatments: frozenset[Treatment]
    update: str
    merge: str
    state: tuple[str, ...]
    passed: int  # the pass it runs in, from 0


@dataclass(frozen=True, slots=True)
class Derivation:
    problem: Problem
    passes: tuple[Pass, ...]
    reports: tuple[StageReport, ...]
    refusals: tuple[Refusal, ...]
    proof: Proof
