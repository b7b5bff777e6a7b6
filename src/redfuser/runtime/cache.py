"""The on-disk cache: bytes by content key, shared by processes, bounded in size. What is damaged counts as missing.

One file per entry, ``<directory>/entries-v1/ab/abcd….entry``: a line of text, then the data:

    redfuser <sha256> <what>\\n<data>

Printed kernels are the exception: Triton reads one from its file, so ``<directory>/kernels/`` has them as they are,
under names that say their content. They are entries in all else.

Nothing locks. A file appears whole (written beside its place, then renamed over it), so readers never see a part of
one, whoever dies when; two writers of one key leave the entry of either. The checksum finds what a crash of the
machine or the disk did.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from redfuser.backends import sources
from redfuser.settings import Options

log = logging.getLogger("redfuser")
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

_FORMAT = 1  # of the files; another format lives in another folder, so that two versions never read each other's
_MAGIC = b"redfuser"
_KERNELS = "kernels"
_KEY = re.compile(r"[0-9a-f]{64}\Z")
_STALE = 600.0  # seconds after which the temporary file of a writer counts as abandoned
_WHAT = 200  # characters of a description


def key_of(*parts: str) -> str:
    """The key of an entry that depends on these texts, in this order. 64 hexadecimal digits.

    >>> key_of("ab", "c") == key_of("a", "bc")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


def bucket(n: int) -> int:
    """The bucket of a length: the next power of two, or the middle before it. One choice serves a whole bucket.

    >>> [bucket(n) for n in (0, 1, 2, 3, 5, 1000, 1025, 1537, 2049)]
    [0, 1, 2, 3, 6, 1024, 1536, 2048, 3072]
    """
    if n < 0:
        raise ValueError(f"a length is not negative: {n}")
    if n <= 2:
        return n
    power = 1 << (n - 1).bit_length()
    middle = power // 4 * 3
    return middle if n <= middle else power


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the cache: its key, what it holds, its bytes on disk, and when it was last used (seconds, epoch)."""

    key: str
    what: str
    size: int
    used: float


@dataclass(frozen=True, slots=True)
class Damaged:
    """An entry that is not what was written, and whether it could be removed."""

    key: str
    reason: str
    removed: bool


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``verify`` found: how many entries are sound, and those that are not."""

    sound: int
    damaged: tuple[Damaged, ...]


class _DamagedError(Exception):
    """The bytes of a file are not those of its entry."""


class Cache:
    """Entries in a folder, at most ``limit`` bytes of them; those that were not used for longest make room.

    A folder that cannot be written works as an empty cache, after one warning. Several processes, and several threads,
    may share a folder. The limit is exact for one process; each further one may exceed it by a sixteenth.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._root = directory / f"entries-v{_FORMAT}"
        self._lock = threading.Lock()
        self._size: int | None = None  # bytes in the folder as far as this process knows; None before the first look
        self._added = 0  # by this process since it looked
        self._warned = False

    def get(self, key: str) -> bytes | None:
        """The data of an entry, now the most recently used; None where there is none. A damaged one is removed."""
        path = self._path(key)
        try:
            data = _data(key, path.read_bytes())
        except OSError:
            return None
        except _DamagedError as why:
            log.info("the cache entry %s is removed: %s", path, why)
            _remove(path)
            return None
        with contextlib.suppress(OSError):  # evicted meanwhile, or a folder that may only be read
            os.utime(path)
        return data

    def put(self, key: str, data: bytes, what: str = "") -> None:
        """Keeps data under a key; ``what`` tells a reader of the list what it is. Replaces what was there."""
        path = self._path(key)
        what = " ".join(what.split())[:_WHAT]
        header = b" ".join((_MAGIC, _checksum(key, what, data).encode(), what.encode())) + b"\n"
        size = len(header) + len(data)
        if size > self.limit:
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # No fsync: what a crash of the machine leaves half on disk, the checksum refuses.
            handle, temporary = tempfile.mkstemp(suffix=".tmp", prefix=f".{key[:16]}-", dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(header)
                    file.write(data)
                os.replace(temporary, path)
            except BaseException:
                _remove(Path(temporary))
                raise
        except OSError as why:
            self._warn(why)
            return
        self._make_room(size, path)

    @property
    def kernels(self) -> Path | None:
        """Where the modules of kernels lie, for ``sources.load``; None where nothing is kept."""
        return self.directory / _KERNELS if self.limit else None

    def added(self, path: Path) -> None:
        """Makes room for a file that somebody else wrote here."""
        with contextlib.suppress(OSError):
            self._make_room(path.stat().st_size, path)

    def get_json(self, key: str) -> Mapping[str, Json] | None:
        """The record that ``put_json`` kept, or None."""
        data = self.get(key)
        if data is None:
            return None
        try:
            record = json.loads(data)
        except ValueError:
            return None
        return record if isinstance(record, dict) else None

    def put_json(self, key: str, record: Mapping[str, Json], what: str = "") -> None:
        """Keeps a record, as one that measured choices are written in."""
        self.put(key, json.dumps(record, sort_keys=True).encode(), what)

    def entries(self) -> list[Entry]:
        """All entries, the most recently used first. Their data is not read, so one may be damaged."""
        found = []
        for path, status in self._files():
            with contextlib.suppress(OSError), path.open("rb") as file:
                line = file.readline(len(_MAGIC) + 66 + 4 * _WHAT).decode(errors="replace").strip()
                if path.suffix == ".py":
                    what = "kernels of " + line.strip('"')
                else:
                    what = line.split(" ", 2)[2] if line.count(" ") > 1 else ""
                found.append(Entry(_key(path), what[:_WHAT], status.st_size, status.st_mtime))
        return sorted(found, key=lambda e: (-e.used, e.key))

    def clear(self) -> int:
        """Removes everything, of other formats too. The number of entries removed."""
        removed = 0
        for pattern in ("entries-v*/??/*.entry", f"{_KERNELS}/*.py"):
            for path in self.directory.glob(pattern):
                removed += _remove(path)
        for pattern in ("entries-v*/??/.*.tmp", f"{_KERNELS}/.*.tmp"):
            for path in self.directory.glob(pattern):
                _remove(path)
        with self._lock:
            self._size, self._added = None, 0
        return removed

    def verify(self) -> Verified:
        """Reads every entry and removes the damaged ones, and what writers abandoned."""
        sound, damaged = 0, []
        for path, _ in self._files():
            try:
                _check(path)
                sound += 1
            except FileNotFoundError:  # evicted meanwhile
                continue
            except OSError as why:
                damaged.append(Damaged(_key(path), f"cannot be read: {why.strerror}", removed=False))
            except _DamagedError as why:
                damaged.append(Damaged(_key(path), str(why), _remove(path)))
        self._remove_abandoned()
        return Verified(sound, tuple(damaged))

    def _path(self, key: str) -> Path:
        if not _KEY.match(key):
            raise ValueError(f"not a key of the cache (see key_of): {key!r}")
        return self._root / key[:2] / f"{key}.entry"

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in sorted([*self._root.glob("??/*.entry"), *self.directory.glob(f"{_KERNELS}/*.py")]):
            if _KEY.match(path.stem) or (path.suffix == ".py" and sources.digest_in(path)):
                with contextlib.suppress(OSError):
                    yield path, path.stat()

    def _make_room(self, size: int, written: Path) -> None:
        """Counts what was written; looks at the folder when this process may have brought it over the limit."""
        with self._lock:
            self._added += size
            if self._size is not None and self._added <= self.limit // 16 and self._size + self._added <= self.limit:
                return
            self._size, self._added = self._evict(written), 0

    def _evict(self, written: Path) -> int:
        """Removes the least recently used until an eighth of the limit is free. The bytes that are left."""
        self._remove_abandoned()
        files = sorted(self._files(), key=lambda f: f[1].st_mtime_ns)
        total = sum(status.st_size for _, status in files)
        if total <= self.limit:
            return total
        for path, status in files:
            if total <= self.limit - self.limit // 8:
                break
            if path == written:
                continue
            try:
                now = path.stat()
            except FileNotFoundError:  # another process makes room too
                total -= status.st_size
                continue
            if now.st_mtime_ns == status.st_mtime_ns and _remove(path):
                total -= status.st_size
        return total

    def _remove_abandoned(self) -> None:
        """Removes the temporary files of writers that died. A writer that is only slow loses its entry, no more."""
        for path in (*self._root.glob("??/.*.tmp"), *self.directory.glob(f"{_KERNELS}/.*.tmp")):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE:
                    _remove(path)

    def _warn(self, why: OSError) -> None:
        with self._lock:
            first, self._warned = not self._warned, True
        if first:
            log.warning(
                "nothing is kept in the cache folder %s (%s): set cache_dir to a folder that can be written",
                self.directory,
                why.strerror or why,
            )


def open_cache(options: Options) -> Cache:
    """The cache that the options name; the same object for the same folder and limit."""
    directory = Path(options.cache_dir).expanduser() if options.cache_dir else default_directory()
    return _opened(directory.absolute(), options.cache_limit)


_opened = functools.cache(Cache)


def default_directory() -> Path:
    """Where this platform keeps caches of a user: $XDG_CACHE_HOME, else ~/.cache on Linux."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # the specification ignores relative ones
        return Path(named) / "redfuser"
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home has nowhere to keep a cache: a folder that cannot be works as none
        return Path(os.devnull) / "redfuser"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "redfuser" / "Cache"
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "redfuser"


def _checksum(key: str, what: str, data: bytes) -> str:
    """Over the key too: a file under another name is not that entry."""
    digest = hashlib.sha256(f"{key}\n{what}\n".encode())
    digest.update(data)
    return digest.hexdigest()


def _data(key: str, raw: bytes) -> bytes:
    """The data of a file. Raises _DamagedError where it is not as it was written."""
    header, newline, data = raw.partition(b"\n")
    fields = header.split(b" ", 2)
    if not newline or len(fields) != 3 or fields[0] != _MAGIC:
        raise _DamagedError("its first line is not that of an entry")
    if _checksum(key, fields[2].decode(errors="replace"), data).encode() != fields[1]:
        raise _DamagedError("its checksum does not match its content")
    return data


def _key(path: Path) -> str:
    return sources.digest_in(path) or path.stem


def _check(path: Path) -> None:
    """Raises _DamagedError where a file is not as it was written."""
    if path.suffix != ".py":
        _data(path.stem, path.read_bytes())
    elif not sources.is_sound(path):
        raise _DamagedError("its name does not match its content")


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
