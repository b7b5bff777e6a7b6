"""Names that differ."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """The wished name, else the first free one with a number."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def new(self, wish: str) -> str:
        name, n = wish, 2
        while name in self._taken:
            name, n = f"{wish}_{n}", n + 1
        self._taken.add(name)
        return name

    def release(self, names: Iterable[str]) -> None:
        self._taken.difference_update(names)
