"""Integers as text: what Python and C++ write alike."""

from __future__ import annotations

from collections.abc import Callable

from redfuser.index.ints import Atom, Int


def show_sum(i: Int, atom: Callable[[Atom], str]) -> str:
    """An index as a sum of products, in brackets unless it is one term; a negative number is in brackets too."""
    if i.value is not None:
        return str(i.value) if i.value >= 0 else f"({i.value})"
    text = ""
    for monomial, c in i.terms:
        parts = [atom(a) for a, n in monomial for _ in range(n)]
        if abs(c) != 1 or not parts:
            parts.insert(0, str(abs(c)))
        term = " * ".join(parts)
        text = f"{text} {'-' if c < 0 else '+'} {term}" if text else f"-{term}" if c < 0 else term
    return text if len(i.terms) == 1 and i.terms[0][1] >= 0 else f"({text})"
