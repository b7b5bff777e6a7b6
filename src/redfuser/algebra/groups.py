"""What separation gives, and how it refuses."""

from __future__ import annotations

from dataclasses import dataclass

from redfuser.algebra.poly import Terms
from redfuser.algebra.terms import Term
from redfuser.index.expr import Expr
from redfuser.index.refusals import RefusalKind


class Refused(Exception):
    """Inside the derivation only: this stage cannot run in this pass."""

    def __init__(self, kind: RefusalKind, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.hint = kind, reason, hint


@dataclass(frozen=True, slots=True)
class Options:
    exact_casts: bool = False
    fuse_rounding: bool = False
    apart: frozenset[str] = frozenset()  # stages that run as they are written


@dataclass(frozen=True, slots=True)
class Group:
    """scale * (core / base): ``base`` is the part of the scale that the core still contains.

    ``pin`` is a factor of the scale that may be put back, with the core that contains it; ``notes`` are roundings.
    ``alone`` is set where the group is an earlier result by itself; it is the expression as written.
    """

    scale: Term
    core: Expr
    terms: Terms
    base: Term
    notes: tuple[str, ...] = ()
    pin: tuple[Term, Expr] | None = None
    alone: Expr | None = None
    expanded: bool = False  # put together from parts of different scale: may be a power of a difference written out
