"""What did not fuse and why, as data. Every stage that can refuse returns these; none is an exception."""

from __future__ import annotations

from dataclasses import dataclass

from redfuser.index.nodes import Name, Where


class RefusalKind(Name):
    """Why a reduction moved to a later pass, or why a chain was cut."""

    NONLINEAR = "nonlinear"  # a nonlinear function of an element and an earlier result together
    PRODUCT_IN_EXP = "product_in_exp"  # an exponent with a product of an element and an earlier result
    DATA_BRANCH = "data_branch"  # a branch or count whose condition compares an element with an earlier result
    ORDER = "order"  # a max/min/top-k whose order of elements depends on an earlier result
    ILL_CONDITIONED = "ill_conditioned"  # separable, but the running value would not be safe on every prefix
    ROUNDING = "rounding"  # a rounding stands between, and the options do not allow moving it
    CHECK_FAILED = "check_failed"  # the derived loop disagreed with the definition when it was run
    OPAQUE_OP = "opaque_op"  # an operation that is not covered
    GRAPH_BREAK = "graph_break"  # the function was split before it reached the compiler
    UNSUPPORTED = "unsupported"  # understood, but there is no tile program for it yet


@dataclass(frozen=True, slots=True)
class Refusal:
    """``subject`` is the reduction or operation in the user's names; ``reason`` and ``hint`` are sentences."""

    subject: str
    kind: RefusalKind
    reason: str
    hint: str
    where: Where | None

    def __str__(self) -> str:
        at = f" ({self.where}: {self.where.text})" if self.where else ""
        return f"{self.subject}: {self.reason}{at}\n  hint: {self.hint}"
