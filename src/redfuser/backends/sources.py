"""Printed modules as files: Triton reads a kernel from its file. A file's name says its content."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

_NAME = re.compile(r"redfuser_kernel_([0-9a-f]{24})\.py\Z")


def load(text: str, directory: Path | None, written: Callable[[Path], None] | None = None) -> ModuleType:
    """The module of a source text, from its file in the directory; ``written`` is told of a file that is new there.

    Without a directory, or where it cannot be written, the file lies in a temporary one as long as the process lives.
    """
    name = f"redfuser_kernel_{_digest(text.encode())}"
    if name in sys.modules:
        return sys.modules[name]
    path, new = _kept(text, f"{name}.py", directory)
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(text, path, "exec"), module.__dict__)
    if new and written is not None:
        written(path)
    return module


def digest_in(path: Path) -> str | None:
    """What its name says of its content; None for a file that is no module of ours."""
    found = _NAME.match(path.name)
    return found.group(1) if found else None


def is_sound(path: Path) -> bool:
    """True where the file's content is what its name says."""
    return digest_in(path) == _digest(path.read_bytes())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def _kept(text: str, name: str, directory: Path | None) -> tuple[Path, bool]:
    """The file with this text, and whether it is new in the directory."""
    if directory is not None:
        path = directory / name
        try:
            if path.exists() and is_sound(path):
                os.utime(path)
                return path, False
            return _written(text, path), True
        except OSError:
            pass
    return _written(text, _of_this_process() / name), False


def _written(text: str, path: Path) -> Path:
    """The file with this text; it appears whole, and a damaged one is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    with os.fdopen(handle, "wb") as f:
        f.write(text.encode())
    os.replace(temporary, path)
    return path


@functools.cache
def _of_this_process() -> Path:
    directory = tempfile.TemporaryDirectory(prefix="redfuser-")
    atexit.register(directory.cleanup)
    return Path(directory.name)
