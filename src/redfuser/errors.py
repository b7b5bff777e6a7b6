"""Every error that redfuser raises on its own account. The user's own mistakes raise what eager PyTorch raises."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RedfuserError(Exception):
    """Base of all errors raised by redfuser."""


class UnknownOptionError(RedfuserError, TypeError):
    """An option that does not exist, or a value it cannot take. The message says what is allowed."""


class BackendError(RedfuserError):
    """The backend that an option asks for is not installed or does not run here; the text says what would help."""


class NotFusedError(RedfuserError, AssertionError):
    """``assert_fused`` found reductions that need more passes than allowed; the refusals are in the text."""


class TargetNotFoundError(RedfuserError):
    """The file, function or example inputs named on the command line do not exist."""


class TargetFailedError(RedfuserError):
    """The user's file or function raised an error of its own when it was imported or traced; the text names it."""


class InputSpecError(RedfuserError, ValueError):
    """An ``--arg`` on the command line is not of the form name=dtype[sizes]."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' for the nearest known name, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
