"""Expressions as they stand in sentences for the user: no indices where none are needed, no conversions of sizes."""

from __future__ import annotations

from collections.abc import Container

from redfuser.index.expr import Cast, Const, DType, Expr, Load, Position, const, loads, transform
from redfuser.index.print import show

_LONGEST = 100


def say(e: Expr) -> str:
    """``x - s / L`` for ``x[b, l] - s[b] / f32(L)``; a source that is read at two places keeps its indices."""
    places: dict[str, set[Load]] = {}
    for x in loads(e):
        places.setdefault(x.source, set()).add(x)
    short = {name for name, found in places.items() if len({x.index for x in found}) == 1}

    def leaf(x: Expr) -> Expr | None:
        match x:
            case Load() if x.source in short:
                return Load(x.source, (), x.dtype, x.part)
            case Cast(arg=Position() as size):
                return size
            case Const(value=float(v)) if v.is_integer() and abs(v) < 1e6:
                return const(int(v), DType.INT64)
            case _:
                return None

    text = show(transform(e, leaf))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def results(e: Expr, stages: Container[str]) -> str:
    """The earlier results that an expression reads: ``m and Z``."""
    names = list(dict.fromkeys(x.source for x in loads(e) if x.source in stages))[::-1]
    if not names:
        return "an earlier result"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
