"""What ``analyze`` and ``explain`` return: cascades, their reductions, their proofs, and what was refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from redfuser.algebra.nodes import Proof, Treatment
from redfuser.backends.listing import Listing
from redfuser.index.nodes import Name, Program, Reducer, Where
from redfuser.index.refusals import Refusal, RefusalKind

__all__ = ["Analysis", "Cascade", "Decided", "Decision", "Reduction", "Refusal", "RefusalKind", "Treatment"]


@dataclass(frozen=True, slots=True)
class Reduction:
    """One reduction of a cascade, in the user's names.

    ``body`` is F as text, ``treatment`` how its running value follows when an earlier result moves, ``update`` and
    ``merge`` the statements for one tile and for two partial states, ``state`` the accumulators it added, ``in_pass`` the
    loop it runs in (from 1), ``where`` the user's line.
    """

    name: str
    reducer: Reducer
    body: str
    treatment: frozenset[Treatment]
    update: str
    merge: str
    state: tuple[str, ...]
    in_pass: int
    where: Where | None


class Decided(Name):
    """On what ground a cascade was fused or left."""

    COST = "cost"
    FORCED = "forced"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class Decision:
    """What runs and why: the strategy's name, the ground, and a sentence with its figures."""

    strategy: str
    ground: Decided
    reason: str

    def __str__(self) -> str:
        return f"{self.strategy}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Cascade:
    """Two or more reductions over one axis, tied by dependence.

    ``passes`` is the number of loops over the axis that the reductions need (1: all in one); ``sweeps`` counts further
    loops that only write results which keep the axis. ``loop`` is the loop as readable pseudo-Python, ``listing`` what
    ``source`` is printed from.
    """

    reductions: tuple[Reduction, ...]
    axes: tuple[tuple[str, str], ...]
    passes: int
    sweeps: int
    fused: bool
    decision: Decision
    proof: Proof
    refusals: tuple[Refusal, ...]
    loop: str
    listing: Listing | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        return " -> ".join(r.name for r in self.reductions)

    @property
    def source(self) -> str:
        """A complete file: kernels, launch and a check against eager. Empty where the backend prints no kernel."""
        return _source([self])


@dataclass(frozen=True, slots=True, repr=False)
class Analysis:
    """All cascades of a call in program order, all refusals, and the index programs (one per captured graph).

    Printed, it is a line for each cascade and refusal; ``explain`` shows all of it.
    """

    function: str
    cascades: tuple[Cascade, ...]
    refusals: tuple[Refusal, ...]
    graphs: tuple[Program, ...]

    @property
    def source(self) -> str:
        """One file for all cascades: kernels, launches and checks. Empty where the backend prints no kernel."""
        return _source(self.cascades)

    def __repr__(self) -> str:
        lines = [f"Analysis of {self.function}: cascades: {len(self.cascades)}, refusals: {len(self.refusals)}"]
        lines += [f"  {c.name}   passes: {c.passes}, runs {c.decision.strategy}" for c in self.cascades]
        lines += [f"  refused: {' '.join(str(r).split())[:160]}" for r in self.refusals]
        return "\n".join(lines)


def _source(cascades: Sequence[Cascade]) -> str:
    listings = [c.listing for c in cascades if c.listing is not None]
    return listings[0].together(listings) if listings else ""
