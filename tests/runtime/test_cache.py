"""The disk cache: what comes back is what was put, or nothing; whatever happens to files, folders and processes."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from redfuser.backends import sources
from redfuser.runtime import cache as module
from redfuser.runtime.cache import Cache, bucket, default_directory, key_of, open_cache
from redfuser.settings import Options

A, B, C, D = (key_of(x) for x in "abcd")
LARGE = 2**30


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "c", LARGE)


def files(cache):
    return sorted(p for p in cache.directory.rglob("*") if p.is_file())


def set_age(cache, key, seconds):
    then = time.time() - seconds
    os.utime(cache._path(key), (then, then))


# -- what is kept


@pytest.mark.parametrize("data", [b"", b"x", b"line\nline\n", bytes(range(256)) * 1000])
def test_what_was_put_comes_back(cache, data):
    assert cache.get(A) is None
    cache.put(A, data, "some kernel")
    assert cache.get(A) == data
    assert cache.get(B) is None
    cache.put(A, data + b"!")
    assert cache.get(A) == data + b"!", "the later one replaces"


def test_records(cache):
    record = {"choice": [1, 2, {"tile": 64}], "microseconds": 1.5, "note": None}
    cache.put_json(A, record, "a choice")
    assert cache.get_json(A) == record
    assert cache.get_json(B) is None
    cache.put(C, b"no json")
    cache.put_json(D, record)
    cache.put(D, json.dumps([1]).encode())
    assert cache.get_json(C) is None and cache.get_json(D) is None, "a record is an object"


def test_entries_say_what_they_hold(cache):
    cache.put(A, b"12345", "a kernel\nof two lines  µ " + "y" * 500)
    cache.put(B, b"")
    set_age(cache, B, 100)
    first, second = cache.entries()
    assert first.key == A and first.what.startswith("a kernel of two lines µ yyy") and len(first.what) == 200
    assert second.key == B and second.what == ""
    assert [first.size, second.size] == [cache._path(k).stat().st_size for k in (A, B)]
    assert 99 < time.time() - second.used < 110
    assert cache.get(A) == b"12345", "a description that was cut is part of the checksum as it was cut"


def test_clear_leaves_nothing_of_any_format_and_nothing_else(cache):
    cache.put(A, b"1")
    cache.put(B, b"2")
    old = cache.directory / "entries-v0" / "ab" / "abc.entry"
    mine = cache.directory / "notes.txt"
    for path in (old, mine, cache._path(A).parent / ".x.tmp"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    assert cache.clear() == 3
    assert files(cache) == [mine]
    assert cache.entries() == [] and cache.clear() == 0
    cache.put(A, b"1")
    assert cache.get(A) == b"1"


def test_two_formats_never_mix(cache, monkeypatch):
    cache.put(A, b"old")
    monkeypatch.setattr(module, "_FORMAT", 2)
    newer = Cache(cache.directory, LARGE)
    assert newer.get(A) is None
    newer.put(A, b"new")
    assert newer.get(A) == b"new" and cache.get(A) == b"old"


# -- keys


def test_keys_depend_on_every_part_and_where_it_ends():
    keys = [
        key_of(),
        key_of(""),
        key_of("", ""),
        key_of("ab", "c"),
        key_of("a", "bc"),
        key_of("abc"),
        key_of("c", "ab"),
    ]
    assert len(set(keys)) == len(keys)
    assert key_of("ab", "c") == key_of("ab", "c") and len(key_of("é")) == 64


@pytest.mark.parametrize("key", ["", "short", "../" * 20 + "abcd", A.upper(), A + "\n", A + "0"])
def test_a_key_that_is_none_is_refused(cache, key):
    for use in (cache.get, lambda k: cache.put(k, b"")):
        with pytest.raises(ValueError, match="key_of"):
            use(key)


def test_buckets():
    assert [bucket(n) for n in range(10)] == [0, 1, 2, 3, 4, 6, 6, 8, 8, 12]
    assert [bucket(n) for n in (1024, 1025, 1536, 1537, 2048, 2049)] == [1024, 1536, 1536, 2048, 2048, 3072]
    for n in range(3, 5000):
        b = bucket(n)
        assert n <= b < 1.5 * n and bucket(b) == b and bucket(n - 1) <= b
    with pytest.raises(ValueError, match="not negative"):
        bucket(-1)


# -- damage


def cut(raw):
    return raw[:-1]


def flip(raw):
    return raw[:-2] + bytes([raw[-2] ^ 4]) + raw[-1:]


@pytest.mark.parametrize(
    "harm",
    [
        cut,
        flip,
        lambda raw: b"",
        lambda raw: raw[:20],
        lambda raw: raw + b"\0",
        lambda raw: b"\0" * len(raw),
        lambda raw: raw.replace(b"kernel", b"kernal"),
        lambda raw: raw.replace(b"redfuser", b"bedfuser"),
    ],
)
def test_a_damaged_entry_is_removed_and_counts_as_missing(cache, harm):
    cache.put(A, b"some data", "kernel")
    cache.put(B, b"other data", "kernel")
    path = cache._path(A)
    sound = path.read_bytes()
    path.write_bytes(harm(sound))
    found = cache.verify()
    assert [(d.key, d.removed) for d in found.damaged] == [(A, True)] and found.sound == 1
    assert cache.verify().damaged == ()
    path.write_bytes(harm(sound))
    assert cache.get(A) is None
    assert not path.exists()
    cache.put(A, b"some data")
    assert cache.get(A) == b"some data" and cache.get(B) == b"other data"


def test_an_entry_under_another_name_is_damaged(cache):
    cache.put(A, b"data")
    path = cache._path(B)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(cache._path(A).read_bytes())
    assert cache.get(B) is None and cache.get(A) == b"data"


def test_verifying_is_no_use(cache):
    cache.put(A, b"data")
    set_age(cache, A, 1000)
    cache.verify()
    assert time.time() - cache.entries()[0].used > 900


# -- the limit


def test_the_least_recently_used_make_room(tmp_path):
    cache = Cache(tmp_path, 4500)
    for age, key in zip((400, 300, 200, 100), (A, B, C, D), strict=True):
        cache.put(key, b"x" * 1000)
        set_age(cache, key, age)
    assert cache.get(A) is not None, "a read counts as use"
    new = key_of("new")
    cache.put(new, b"x" * 1000)
    kept = {e.key for e in cache.entries()}
    assert kept == {A, D, new}
    assert sum(e.size for e in cache.entries()) <= 4500 * 7 // 8


def test_an_entry_that_never_fits_does_not_cost_the_others(tmp_path):
    cache = Cache(tmp_path, 3000)
    cache.put(A, b"x" * 1000)
    cache.put(B, b"x" * 3000)
    assert cache.get(B) is None and cache.get(A) is not None
    cache.put(C, b"x" * 2800)
    assert cache.get(C) is not None, "the newest stays, although it fills more than what is kept free"
    assert cache.get(A) is None


def test_no_limit_no_cache(tmp_path):
    cache = Cache(tmp_path / "c", 0)
    cache.put(A, b"")
    assert cache.get(A) is None and not (tmp_path / "c").exists()


def test_one_process_never_exceeds_the_limit(tmp_path):
    cache = Cache(tmp_path, 20_000)
    for n in range(200):
        cache.put(key_of(str(n)), b"x" * (37 * n % 900))
        assert sum(p.stat().st_size for p in files(cache)) <= 20_000
    assert len(cache.entries()) > 10


def test_what_dead_writers_left_is_cleaned_when_it_is_old(cache):
    cache.put(A, b"1")
    folder = cache._path(A).parent
    old, young = folder / ".old.tmp", folder / ".young.tmp"
    for path in (old, young):
        path.write_bytes(b"half")
    then = time.time() - 3600
    os.utime(old, (then, then))
    Cache(cache.directory, LARGE).put(B, b"2")  # the first write of a process looks
    assert not old.exists() and young.exists()
    assert cache.get(A) == b"1"


# -- folders that are none


def unwritable(tmp_path):
    """A folder below a file: nobody, root included, can write there."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "cache"


def test_a_folder_that_cannot_be_works_as_no_cache(tmp_path, caplog):
    cache = Cache(unwritable(tmp_path), LARGE)
    with caplog.at_level(logging.WARNING, logger="redfuser"):
        for key in (A, B):
            cache.put(key, b"data")
            assert cache.get(key) is None
    assert cache.entries() == [] and cache.clear() == 0 and cache.verify().damaged == ()
    (record,) = caplog.records
    assert str(tmp_path) in record.getMessage() and "cache_dir" in record.getMessage()


def test_a_full_disk_leaves_nothing_behind(cache, monkeypatch, caplog):
    cache.put(A, b"old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "replace", full)
    cache.put(A, b"new")
    cache.put(B, b"new")
    assert cache.get(A) == b"old" and cache.get(B) is None
    assert files(cache) == [cache._path(A)]
    assert len(caplog.records) == 1 and "No space left" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_only_be_read_is_read(cache):
    cache.put(A, b"data")
    folders = [cache.directory, cache._root, cache._path(A).parent]
    for folder in folders:
        folder.chmod(0o500)
    try:
        assert cache.get(A) == b"data"
        cache.put(B, b"data")
        assert cache.get(B) is None and cache.clear() == 0
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_a_folder_that_may_only_be_read_is_read_by_root_too(cache, monkeypatch):
    cache.put(A, b"data")
    cache.put(B, b"data")
    cache._path(B).write_bytes(b"damaged")

    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    for name in ("utime", "replace"):
        monkeypatch.setattr(module.os, name, denied)
    monkeypatch.setattr(module.tempfile, "mkstemp", denied)
    monkeypatch.setattr(Path, "unlink", denied)
    assert cache.get(A) == b"data" and cache.get(B) is None
    cache.put(A, b"new")
    assert cache.get(A) == b"data"
    (damaged,) = cache.verify().damaged
    assert damaged.key == B and not damaged.removed


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "redfuser"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if sys.platform.startswith("linux"):
        assert default_directory() == tmp_path / "home" / ".cache" / "redfuser"
        assert open_cache(Options(cache_dir="~/mine")).directory == tmp_path / "home" / "mine"
    opened = open_cache(Options(cache_dir=tmp_path / "x", cache_limit=5))
    assert (opened.directory, opened.limit) == (tmp_path / "x", 5)
    assert open_cache(Options(cache_dir=str(tmp_path / "x"), cache_limit=5)) is opened


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    cache = Cache(default_directory(), LARGE)
    cache.put(A, b"data")
    assert cache.get(A) is None


# -- several processes

HAMMER = """
import hashlib, random, sys
from pathlib import Path
from redfuser.runtime.cache import Cache, key_of

folder, limit, seed, rounds = Path(sys.argv[1]), *map(int, sys.argv[2:])
cache, rng = Cache(folder, limit), random.Random(seed)
hits = 0
print("ready", flush=True)
for _ in range(rounds):
    n = rng.randrange(12)
    key = key_of(str(n))
    got = cache.get(key)
    if got is not None:
        hits += 1
        version, body = got[:1], got[1:]
        assert body == hashlib.sha256(version + key.encode()).digest() * 500 * (n + 1), "a mixed or cut entry"
    version = bytes([rng.randrange(256)])
    cache.put(key, version + hashlib.sha256(version + key.encode()).digest() * 500 * (n + 1), f"{n}")
    if rng.random() < 0.01:
        assert not cache.verify().damaged
    if rng.random() < 0.003:
        cache.clear()
print(hits, flush=True)
"""


def start(code, *args):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, text=True)


def test_processes_hammer_the_same_keys_and_some_are_killed(tmp_path):
    limit = 600_000  # of about 1.2 MB, so that they evict as well
    readers = [start(HAMMER, tmp_path, limit, n, 400) for n in range(3)]
    killed = [start(HAMMER, tmp_path, limit, 10 + n, 10**9) for n in range(3)]
    for n, process in enumerate(killed):
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1 + 0.07 * n)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    for process in readers:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert int(out.split()[-1]) > 20, "entries were there to be read"
    cache = Cache(tmp_path, limit)
    assert cache.verify().damaged == ()
    for n in range(12):  # and everything still works
        cache.put(key_of(str(n)), b"x" * 1000)
        assert cache.get(key_of(str(n))) == b"x" * 1000
    assert sum(e.size for e in cache.entries()) <= limit


DIES = """
import os, signal, sys, time
from pathlib import Path
from redfuser.runtime import cache as module

real = os.{call}
def dies(*args, **kwargs):
    if {before}:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
class Half:
    def __init__(self, file): self.file, self.writes = file, 0
    def __enter__(self): return self
    def __exit__(self, *exc): self.file.close()
    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        self.writes += 1
        if self.writes == 2:
            os.kill(os.getpid(), signal.SIGKILL)
if "{call}" == "fdopen":
    module.os.fdopen = lambda handle, mode: Half(real(handle, mode))
else:
    module.os.{call} = dies
module.Cache(Path(sys.argv[1]), 2**30).put(sys.argv[2], b"new" * 100000)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 here")
@pytest.mark.parametrize(
    "call, before, left", [("fdopen", True, b"old"), ("replace", True, b"old"), ("replace", False, b"new" * 100000)]
)
def test_kill_9_in_the_middle_of_a_write(cache, call, before, left):
    cache.put(A, b"old")
    process = start(DIES.format(call=call, before=before), cache.directory, A)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert cache.get(A) == left
    assert cache.verify().sound == 1
    abandoned = [p for p in files(cache) if p.suffix == ".tmp"]
    assert len(abandoned) == (left == b"old")
    for path in abandoned:
        os.utime(path, (0, 0))
    cache.verify()
    assert files(cache) == [cache._path(A)]


def test_threads_share_one_object(tmp_path):
    cache, wrong = Cache(tmp_path, 30_000), []

    def work(seed):
        for n in range(60):
            key = key_of(str((n * seed) % 7))
            cache.put(key, key.encode() * 40)
            got = cache.get(key)
            if got not in (None, key.encode() * 40):
                wrong.append(got)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and cache.verify().damaged == ()


# -- modules of kernels, which lie as they are


def kernel(cache, n, size=1000):
    """A module of about so many bytes; it is forgotten at once, as by a process that ends."""
    loaded = sources.load(f'"""attention: loop {n}.\n"""\n\nN = {n}\n' + "#" * size, cache.kernels, cache.added)
    del sys.modules[loaded.__name__]
    assert n == loaded.N
    return Path(loaded.__file__)


def test_kernels_are_listed_with_what_they_are(cache):
    path = kernel(cache, 1)
    cache.put(A, b"x", "a choice")
    choice, listed = sorted(cache.entries(), key=lambda e: e.size)
    assert choice.key == A
    assert listed.what == "kernels of attention: loop 1." and listed.size == path.stat().st_size
    assert listed.key in path.name


def test_kernels_are_cleared(cache):
    path = kernel(cache, 1)
    left = path.with_name(".half.tmp")
    left.write_text("half")
    mine = path.with_name("notes.txt")
    mine.write_text("mine")
    assert cache.clear() == 1
    assert files(cache) == [mine]


def test_kernels_are_verified(cache):
    path, other = kernel(cache, 1), kernel(cache, 2)
    path.write_text("N = 3\n")
    (damaged,) = (found := cache.verify()).damaged
    assert found.sound == 1 and damaged.key in path.name and damaged.removed
    assert not path.exists() and other.exists()


def test_a_damaged_kernel_is_written_anew(cache):
    path = kernel(cache, 1)
    text = path.read_text()
    path.write_text("N = 3\n")
    assert kernel(cache, 1) == path and path.read_text() == text


def test_kernels_count_for_the_limit(tmp_path):
    """Those that were not loaded for longest make room, for each other and for other entries."""
    cache = Cache(tmp_path / "c", 10_000)
    first, second = kernel(cache, 1, 3000), kernel(cache, 2, 3000)
    for n, path in enumerate((first, second)):
        os.utime(path, (1000 + n, 1000 + n))
    kernel(cache, 1, 3000)
    third = kernel(cache, 3, 5000)
    assert first.exists() and not second.exists() and third.exists()
    os.utime(first, (1000, 1000))
    cache.put(A, b"x" * 3000)
    assert not first.exists() and third.exists() and cache.get(A)


def test_where_nothing_is_kept_kernels_last_as_long_as_the_process(tmp_path):
    path = kernel(Cache(tmp_path / "c", 0), 1)
    assert path.exists() and not (tmp_path / "c").exists()
