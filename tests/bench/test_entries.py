"""Every entry at its tiny shape: the function, its samples, and that each other form computes the same."""

import warnings

import pytest
import torch

from benchmarks.accuracy import Reference, agree
from benchmarks.alternatives import ALTERNATIVES, applicable
from benchmarks.entries import SUITES, entries
from benchmarks.entry import Maker, outputs_of

ALL = [e for suite in SUITES for e in entries(suite, quick=True)]
NAMES = [f"{e.suite}-{e.name}" for e in ALL]


@pytest.mark.parametrize("entry", ALL, ids=NAMES)
def test_eager_is_near_float64_on_the_samples_and_as_a_whole(entry):
    inputs = entry.inputs(Maker("cpu", 0))
    reference = Reference(entry, inputs)
    assert reference.eager.norm < 2e-2
    whole = reference.error(outputs_of(entry.fn(*inputs)))
    assert whole.norm < 2e-2 and whole.max < 5e-2
    assert entry.flops > 0


@pytest.mark.parametrize(
    "entry", [e for e in ALL if e.flex], ids=[n for e, n in zip(ALL, NAMES, strict=True) if e.flex]
)
def test_flex_form_is_the_same_function(entry, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda fn, **_: fn)
    inputs = entry.inputs(Maker("cpu", 1))
    reference = Reference(entry, inputs)
    with warnings.catch_warnings(action="ignore"):  # it asks to be compiled
        outputs = outputs_of(entry.flex(inputs)())
    assert reference.error(outputs).norm <= 2 * reference.eager.norm


@pytest.mark.parametrize("entry", [e for e in ALL if e.sdpa or e.library], ids=lambda e: e.name)
def test_sdpa_and_library_forms_are_the_same_function(entry):
    inputs = entry.inputs(Maker("cpu", 1))
    reference = Reference(entry, inputs)
    outputs = outputs_of((entry.sdpa or entry.library)(*inputs))
    assert reference.error(outputs).norm <= 2 * reference.eager.norm


def test_a_wrong_form_is_seen():
    """What the tests above compare with notices another mask, in the samples and as a whole."""
    by_name = {e.name: e for e in entries("variants", quick=True)}
    entry, other = by_name["window"], by_name["causal"]
    inputs = entry.inputs(Maker("cpu", 1))
    reference = Reference(entry, inputs)
    wrong = outputs_of(other.fn(*inputs))
    assert reference.error(wrong).norm > 10 * reference.eager.norm
    apart = float((wrong[0] - entry.fn(*inputs)).float().norm() / wrong[0].float().norm())
    assert not agree(apart, reference.eager, wrong)


def test_the_shapes_are_those_of_the_suites():
    shapes = {e.name: e.shape for suite in SUITES for e in entries(suite)}
    assert shapes["attention-long"] == "1x32x16384x128"
    assert shapes["gqa-decode-64-b128"] == "128x64/8x1 over 8192x128"
    assert shapes["softmax-1x16777216"] == "1x16777216 bf16"
    assert all(s == "4x32/8x4096x128" for s in (e.shape for e in entries("variants")))


def test_only_what_expresses_the_entry_applies():
    by_name = {e.name: e for suite in SUITES for e in entries(suite)}
    assert "flex" not in applicable(by_name["sigmoid"], ALTERNATIVES)
    assert "sdpa-flash" not in applicable(by_name["bias"], ALTERNATIVES)
    assert "sdpa-cudnn" in applicable(by_name["bias"], ALTERNATIVES)
    assert applicable(by_name["softmax-8192x8192"], ("compile", "redfuser", "flex")) == ["redfuser", "compile"]


def test_same_seed_same_inputs_other_seed_others():
    entry = next(e for e in ALL if e.name == "kl-8192x8192")
    one, again, other = (entry.inputs(Maker("cpu", seed)) for seed in (3, 3, 4))
    assert torch.equal(one[0], again[0]) and not torch.equal(one[0], other[0])
    assert not torch.equal(one[0], one[1])
