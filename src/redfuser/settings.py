"""All settings, each declared once, with its type and what it does.

``REDFUSER_<NAME>`` environment variables mirror them; ``options(...)`` sets them for a block.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from redfuser.errors import UnknownOptionError, suggestion
from redfuser.index.nodes import Name
from redfuser.tile.nodes import Strategy


class Rest(Name):
    """What runs the part of a graph that is not fused."""

    INDUCTOR = "inductor"
    EAGER = "eager"


class Backend(Name):
    """What runs the tile program of a cascade."""

    AUTO = "auto"
    TRITON = "triton"
    CPU = "cpu"
    REFERENCE = "reference"


class Tune(Name):
    """How much is measured before one of several tile programs is chosen."""

    OFF = "off"
    FAST = "fast"
    FULL = "full"


_BACKEND = (
    "what runs a fused cascade: `triton` prints kernels for a GPU, `cpu` prints C++ and compiles it, `reference` runs tile "
    "by tile with PyTorch's operations on any device; `auto` takes the first on GPUs and the second on CPUs, and the last "
    "where what they need is not installed"
)
_TARGET = (
    "the machine that is compiled for: empty or `native` for the one at hand, `cuda:90` for a compute capability, "
    "`hip:gfx942` for an architecture of AMD, `cpu:x86-64-v3` for a CPU that the C++ compiler knows by that name. "
    "Kernels for another machine are printed, not run"
)
_TUNE = (
    "what is measured before a choice: `off` trusts the cost model, `fast` measures at most 8 candidates within 10 s, "
    "`full` measures all that the model does not rule out"
)
_STRATEGY = (
    "how a cascade runs: `auto` lets the cost decide, the others force: `whole` (the axis in one tile), `single` (one "
    "segment streams it), `multi` (segments joined by a merge), `unfused`"
)


@dataclass(frozen=True)
class Options:
    """The settings of one fused function. Unknown names and values raise ``UnknownOptionError``."""

    strategy: Annotated[Strategy, _STRATEGY] = Strategy.AUTO
    backend: Annotated[Backend, _BACKEND] = Backend.AUTO
    target: Annotated[str, _TARGET] = ""
    tune: Annotated[Tune, _TUNE] = Tune.FAST
    deterministic: Annotated[bool, "choose without looking at timings, so that every run chooses the same"] = False
    segments: Annotated[
        int, "segments of the axis; more than 1 makes `auto` choose `multi`; 0 lets the cost decide"
    ] = 0
    tile: Annotated[int, "length of a tile of the cascade axis; 0 lets the cost decide"] = 0
    fuse_threshold: Annotated[
        int, "bytes of intermediates that fusing must save before the reference backend fuses"
    ] = 2**30
    exact_casts: Annotated[bool, "refuse to move a rounding to a float format through a scale"] = False
    fuse_rounding: Annotated[bool, "fuse through rounding to integers; results may differ by one step"] = False
    rest: Annotated[Rest, "what runs the part of the graph that is not fused"] = Rest.INDUCTOR
    recompile_limit: Annotated[int, "compilations of one function before it runs unfused"] = 64
    cache_dir: Annotated[
        str, "folder of tuned choices and compiled kernels; empty for `redfuser` in the user's cache folder"
    ] = ""
    cache_limit: Annotated[int, "bytes the cache folder may take; 0 keeps nothing"] = 2**30
    strict: Annotated[bool, "raise internal errors instead of running unfused with a warning"] = False
    enabled: Annotated[bool, "False runs the function as it was written"] = True

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, _coerce(f.name, getattr(self, f.name), type(f.default)))
        object.__setattr__(self, "target", _target(self.target))

    def replace(self, **overrides: object) -> Options:
        """A copy with some settings changed.

        >>> Options().replace(strategy="multi", segments=4).segments
        4
        """
        _check_names(overrides)
        return dataclasses.replace(self, **overrides)  # type: ignore[arg-type]


def _coerce(name: str, value: object, kind: type) -> object:
    if issubclass(kind, Enum):
        if isinstance(value, kind):
            return value
        for member in kind:
            if isinstance(value, str) and member.value == value.lower():
                return member
        allowed = [m.value for m in kind]
        hint = suggestion(str(value), allowed)
        raise UnknownOptionError(f"{name}={value!r}: expected one of {', '.join(allowed)}.{hint}")
    if kind is str:
        if isinstance(value, str | os.PathLike):
            return os.fspath(value)
        raise UnknownOptionError(f"{name}={value!r}: expected a text.")
    if kind is bool:
        if isinstance(value, str) and value.lower() in ("0", "1", "true", "false"):
            return value.lower() in ("1", "true")
        if isinstance(value, bool):
            return value
        raise UnknownOptionError(f"{name}={value!r}: expected True or False.")
    if isinstance(value, bool):
        raise UnknownOptionError(f"{name}={value!r}: expected a whole number.")
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise UnknownOptionError(f"{name}={value!r}: expected a whole number.") from None
    if number < 0:
        raise UnknownOptionError(f"{name}={value!r}: expected a number that is not negative.")
    return number


def _target(value: str) -> str:
    name = value.strip().lower()
    if name and not re.fullmatch(r"native|cuda:[1-9]\d{1,2}|hip:gfx[0-9a-f]{3,4}|cpu:[a-z0-9][a-z0-9._+-]*", name):
        hint = suggestion(name, _TARGETS)
        raise UnknownOptionError(
            f"target={value!r}: expected cuda:<compute capability>, hip:<architecture> or cpu:<name of a machine>, such as "
            f"{' or '.join(_TARGETS)}, or native for the machine at hand.{hint}"
        )
    return name


_TARGETS = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942", "cpu:x86-64-v3")


def _check_names(given: Mapping[str, object]) -> None:
    known = [f.name for f in dataclasses.fields(Options)]
    for name in given:
        if name not in known:
            raise UnknownOptionError(
                f"there is no option {name!r}.{suggestion(name, known)} Known: {', '.join(known)}."
            )


def from_environment() -> Options:
    """Options with every ``REDFUSER_<NAME>`` that is set. A name that is no option raises."""
    named = {k.removeprefix("REDFUSER_").lower(): v for k, v in os.environ.items() if k.startswith("REDFUSER_")}
    named.pop("update_golden", None)  # of the test suite
    return Options().replace(**named)


_current: ContextVar[Options | None] = ContextVar("redfuser_options", default=None)


def current() -> Options:
    """The settings in force here: those of the innermost ``options(...)`` block, else of the environment."""
    return _current.get() or from_environment()


@contextmanager
def options(**overrides: object) -> Iterator[Options]:
    """Settings for what is fused inside a block: ``with redfuser.options(strategy="single"): ...``."""
    token = _current.set(current().replace(**overrides))
    try:
        yield current()
    finally:
        _current.reset(token)
