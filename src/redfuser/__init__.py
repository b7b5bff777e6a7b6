"""Proves that chains of dependent reductions in plain PyTorch functions fuse into one pass, and fuses them.

import redfuser
attention = redfuser.fuse(attention)          # called like the original
print(redfuser.explain(attention, q, k, v))   # the proof, the loop, what was refused
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_LAZY = {
    "fuse": "api", "analyze": "api", "explain": "api", "assert_fused": "api", "Fused": "api", "Explanation": "api",
    "options": "settings", "Options": "settings",
    "Analysis": "analysis", "Cascade": "analysis", "Reduction": "analysis", "Refusal": "analysis",
    "RefusalKind": "analysis", "Treatment": "analysis",
}  # fmt: skip
__all__ = [*_LAZY, "errors", "__version__"]

if TYPE_CHECKING:
    from redfuser import errors as errors
    from redfuser.analysis import Analysis as Analysis
    from redfuser.analysis import Cascade as Cascade
    from redfuser.analysis import Reduction as Reduction
    from redfuser.analysis import Refusal as Refusal
    from redfuser.analysis import RefusalKind as RefusalKind
    from redfuser.analysis import Treatment as Treatment
    from redfuser.api import Explanation as Explanation
    from redfuser.api import Fused as Fused
    from redfuser.api import analyze as analyze
    from redfuser.api import assert_fused as assert_fused
    from redfuser.api import explain as explain
    from redfuser.api import fuse as fuse
    from redfuser.settings import Options as Options
    from redfuser.settings import options as options


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LAZY:
        value = getattr(importlib.import_module(f"redfuser.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    if name == "errors":
        return importlib.import_module("redfuser.errors")
    raise AttributeError(f"module 'redfuser' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
