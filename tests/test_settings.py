"""Settings of each kind: what they accept, what they make of it, and what they say of the rest."""

from pathlib import Path

import pytest

import redfuser
from redfuser.errors import UnknownOptionError
from redfuser.settings import Backend, Options, Tune


@pytest.mark.parametrize(
    "given, kept",
    [
        ({"backend": "Triton"}, {"backend": Backend.TRITON}),
        ({"tune": "off"}, {"tune": Tune.OFF}),
        ({"deterministic": "1"}, {"deterministic": True}),
        ({"target": " CUDA:90"}, {"target": "cuda:90"}),
        ({"target": "hip:gfx90a"}, {"target": "hip:gfx90a"}),
        ({"cache_dir": Path("/x/y")}, {"cache_dir": "/x/y"}),
        ({"cache_limit": "1000"}, {"cache_limit": 1000}),
        ({}, {"backend": Backend.AUTO, "tune": Tune.FAST, "target": "", "cache_dir": "", "cache_limit": 2**30}),
    ],
)
def test_values(given, kept):
    options = Options(**given)
    assert {name: getattr(options, name) for name in kept} == kept


@pytest.mark.parametrize(
    "given, said",
    [
        ({"backend": "tritn"}, "Did you mean 'triton'"),
        ({"tune": "fats"}, "Did you mean 'fast'"),
        ({"target": "cuda90"}, "Did you mean 'cuda:90'"),
        ({"target": "cuda:9.0"}, "cuda:<compute capability>"),
        ({"target": "gfx942"}, "Did you mean 'hip:gfx942'"),
        ({"target": 90}, "expected a text"),
        ({"cache_dir": 3}, "expected a text"),
        ({"cache_dir": b"/x"}, "expected a text"),
        ({"cache_limit": -1}, "not negative"),
        ({"cache_limit": "1GB"}, "whole number"),
        ({"deterministic": "maybe"}, "True or False"),
    ],
)
def test_mistakes(given, said):
    with pytest.raises(UnknownOptionError, match=said):
        Options(**given)


def test_the_environment(monkeypatch):
    monkeypatch.setenv("REDFUSER_TARGET", "cuda:80")
    monkeypatch.setenv("REDFUSER_CACHE_DIR", "/x")
    with redfuser.options(tune="full") as options:
        assert (options.target, options.cache_dir, options.tune) == ("cuda:80", "/x", Tune.FULL)
