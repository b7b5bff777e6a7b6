"""The command line, run as a user runs it."""

import json
import subprocess
import sys

import pytest

from redfuser.cli import doctor

FILE = """
import torch

def weighted(x, v):
    p = x.softmax(-1)
    return p @ v

def spread(x):
    return (x - x.mean(-1, keepdim=True)).abs().mean(-1)

def fixed(x):
    return (x + torch.zeros(257, 64)).softmax(-1)

def example_inputs():
    return (torch.randn(4, 64),)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def run(*args):
    done = subprocess.run(
        [sys.executable, "-m", "redfuser", *map(str, args)], capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout, done.stderr


def test_explain_with_lengths_by_name(file):
    code, out, err = run("explain", f"{file}:weighted", "--arg", "x=f32[4,L]", "--arg", "v=f32[L,16]")
    assert code == 0, err
    assert "p_max = max of" in out and "checker: accepted" in out and "mine.py:5" in out
    assert "over l<L" in out, "the length has the user's name"


def test_explain_with_an_option_and_a_length_that_the_function_fixes(file):
    code, out, err = run(
        "explain", f"{file}:fixed", "--arg", "x=f32[L,64]", "--option", "strategy=multi", "--option", "segments=2"
    )
    assert code == 0, err
    assert "loop   (multi" in out
    assert "the function fixes L" in err


def test_explain_with_example_inputs_as_json(file):
    code, out, err = run("explain", f"{file}:spread", "--json")
    assert code == 0, err
    data = json.loads(out)
    assert data["cascades"][0]["passes"] == 2
    assert data["refusals"][0]["hint"]


@pytest.mark.parametrize(
    "args, message",
    [
        (["explain", "{file}:wieghted"], "Did you mean 'weighted'"),
        (["explain", "nowhere.py:f"], "no file nowhere.py"),
        (["explain", "weighted"], "not of the form file.py:function"),
        (["explain", "{file}:weighted", "--arg", "x=f33[4]"], "unknown dtype f33. Did you mean 'f32'"),
        (["explain", "{file}:weighted", "--arg", "x:f32[4]"], "not of the form name=dtype[sizes]"),
        (["explain", "{file}:weighted", "--arg", "y=f32[4,8]"], "weighted takes (x, v); you gave y"),
        (
            ["explain", "{file}:weighted", "--arg", "x=f32[4,8]", "--arg", "v=f32[9,8]"],
            "raised RuntimeError on x=f32[4,8]",
        ),
        (["explain", "{file}:spread", "--option", "strategi=single"], "Did you mean 'strategy'"),
    ],
)
def test_mistakes_are_one_line(file, args, message):
    code, out, err = run(*[a.format(file=file) for a in args])
    assert code == 2 and not out
    assert message in err and len(err.strip().splitlines()) == 1


def test_doctor():
    code, out, err = run("doctor")
    assert code == 0, out + err
    assert "capture and algebra" in out and "reference backend" in out and "FAIL" not in out


@pytest.mark.parametrize(
    "interpreted, gpu, said", [("1", False, "interpreter"), ("0", False, "no GPU"), ("0", True, "on A GPU")]
)
def test_doctor_says_where_kernels_run(monkeypatch, interpreted, gpu, said):
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", interpreted)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "A GPU")
    name, works, detail = doctor._triton()
    assert (name, works) == ("triton", True)
    assert triton.__version__ in detail and said in detail


def test_doctor_says_how_triton_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)  # an import of it fails
    monkeypatch.setattr("sys.platform", "linux")
    name, works, detail = doctor._triton()
    assert (name, works) == ("triton", None)
    assert "pip install 'triton>=3.6'" in detail and "reference backend" in detail


@pytest.fixture
def cache(tmp_path, monkeypatch):
    from redfuser.runtime.cache import Cache

    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path / "cache"))
    return Cache(tmp_path / "cache", 2**30)


def test_cache_lists_verifies_and_clears(cache):
    from redfuser.runtime.cache import key_of

    assert run("cache")[:2] == (0, f"0 entries, 0 B of at most 1.0 GiB, in {cache.directory}\n")
    a, b = key_of("a"), key_of("b")
    cache.put(a, b"x" * 2000, "kernel of [p_max, p_sum] for cuda:90")
    cache.put(b, b"y", "choice")
    code, out, err = run("cache", "list")
    assert code == 0, err
    head, titles, *rows = out.splitlines()
    assert head.startswith("2 entries, 2.1 KiB") and titles.split() == ["key", "what", "size", "last", "used"]
    assert [r.split()[0] for r in rows] == [b[:12], a[:12]], "the most recently used first"
    assert "kernel of [p_max, p_sum] for cuda:90" in rows[1] and "2.1 KiB" in rows[1] and "now" in rows[1]

    assert run("cache", "verify")[:2] == (0, f"2 sound, 0 damaged, in {cache.directory}\n")
    path = next(cache.directory.rglob(f"{a}.entry"))
    path.write_bytes(path.read_bytes()[:-1])
    code, out, err = run("cache", "verify")
    assert code == 1 and f"{a[:12]}  its checksum does not match its content: removed" in out
    assert "1 sound, 1 damaged" in out and not path.exists()

    assert run("cache", "clear")[:2] == (0, f"removed 1 entry from {cache.directory}\n")
    assert cache.entries() == []


@pytest.mark.parametrize(
    "number, text", [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2**20 - 1, "1.0 MiB"), (5 * 2**40, "5120.0 GiB")]
)
def test_sizes_for_a_reader(number, text):
    from redfuser.cli.cache import size

    assert size(number) == text


@pytest.mark.parametrize(
    "seconds, text", [(-5, "now"), (59, "now"), (60, "1 min ago"), (7300, "2 h ago"), (2e5, "2 d ago")]
)
def test_ages_for_a_reader(seconds, text):
    from redfuser.cli.cache import ago

    assert ago(seconds) == text
