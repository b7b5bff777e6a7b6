"""The command line, run as a user runs it."""

import json
import subprocess
import sys

import pytest

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
