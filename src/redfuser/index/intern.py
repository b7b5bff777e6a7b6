"""Interned nodes: two structurally equal nodes are one object, so equality and hashing cost O(1) on shared graphs."""

from __future__ import annotations

import threading
from typing import Any, ClassVar
from weakref import WeakValueDictionary


class Interned(type):
    """Metaclass whose classes return the existing instance when called with the arguments of a live one.

    The classes are frozen dataclasses with ``eq=False`` and a weak-reference slot; positional arguments only.
    """

    _table: ClassVar[WeakValueDictionary[Any, Any]] = WeakValueDictionary()
    _lock = threading.Lock()

    def __call__(cls, *args: Any) -> Any:
        # Constants need their types in the key: 1, 1.0 and True are equal in Python, 0.0 and -0.0 too.
        key = (cls, tuple((type(a), repr(a)) if isinstance(a, float) else (type(a), a) for a in args))
        node = Interned._table.get(key)
        if node is None:
            with Interned._lock:
                node = Interned._table.get(key)
                if node is None:
                    node = super().__call__(*args)
                    Interned._table[key] = node
        return node


class Node:
    """Base of interned nodes: pickling and copying go through the constructor, so copies stay interned."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        fields = [f for f in self.__dataclass_fields__.values() if f.init]  # type: ignore[attr-defined]
        return (type(self), tuple(getattr(self, f.name) for f in fields))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self
