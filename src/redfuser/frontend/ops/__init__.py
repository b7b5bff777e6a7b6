"""What each ATen operation means, by family. Importing the package fills the registry."""

from redfuser.frontend.ops import contractions, indexing, normal, pointwise, reductions, structure, views
from redfuser.frontend.ops.registry import OPS, Call, Handler, Lowering

__all__ = [
    "OPS", "Call", "Handler", "Lowering", "contractions", "indexing", "normal", "pointwise", "reductions", "structure",
    "views",
]  # fmt: skip
