"""Every kind of kernel compiles for GPUs that are not here: a few programs that have them all, and on demand very many."""

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from catalogue import ONE_PASS, SEVERAL
from kinds import kinds
from planning import Shaped, regions
from shapes import Shapes, causal, logsumexp, of
from torch import Tensor

from benchmarks.entries import entries
from redfuser.backends.triton.candidates import candidates
from redfuser.backends.triton.emit import emit
from redfuser.backends.triton.launch import Launcher
from redfuser.backends.triton.printed import Form
from redfuser.backends.triton.resources import machine
from redfuser.tile import lanes
from redfuser.tile.build import build
from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule, Unsupported

on_demand = pytest.mark.skipif(
    not os.environ.get("REDFUSER_TEST_ALL"), reason="takes several minutes: REDFUSER_TEST_ALL=1 runs it"
)
TARGETS = ["cuda:80", "cuda:90", "cuda:100", "hip:gfx942"]
BINARY = {"cuda": "cubin", "hip": "hsaco"}


def chosen(x):
    """Routing to one expert."""
    weight, expert = x.softmax(-1).topk(1, -1)
    return weight, expert


def least_likely(x):
    p = x.softmax(-1)
    return p.min(-1)


def chosen_four(x):
    weights, experts = x.softmax(-1).topk(4, -1)
    return weights, experts


def least_likely_four(x):
    return x.softmax(-1).topk(4, -1, largest=False)


def far(*size: int) -> Tensor:
    """A tensor with elements that 32 bits do not reach."""
    return torch.empty_strided(size, (2**31, *torch.empty(size[1:], device="meta").stride()), device="meta")


MORE = {"chosen": chosen, "least_likely": least_likely, "chosen_four": chosen_four}
SUBJECTS = {c.name: (c.fn, c.inputs, c.options) for c in ONE_PASS + SEVERAL}
SUBJECTS |= {name: (fn, lambda: (of(5, 150),), {}) for name, fn in MORE.items()}
SUBJECTS["far rows"] = logsumexp, lambda: (far(5, 150),), {}
SUBJECTS["far keys"] = causal, lambda: (far(2, 33, 16), far(2, 50, 16), far(2, 50, 16)), {}
PAPER = ("mla-decode-b1", "gqa-decode-32-b1", "route-256-renormalised", "quantise-gemm", "rmsnorm-gemm")
# in bfloat16, with masks by data, heads in groups and weights in e4m3
SUBJECTS |= {
    e.name: (e.fn, lambda e=e: e.inputs(Shapes()), {})
    for suite in ("paper", "variants")
    for e in entries(suite, quick=True)
    if suite == "variants" or e.name in PAPER
}
SUBJECTS["least_likely_four"] = least_likely_four, lambda: (of(5, 150),), {}
NAMES = list(SUBJECTS)
# programs, each with its schedules by number, that have every kind between them; none could be left out
FEW = {
    "normalised_product": [0], "softmax_of_the_chosen": [4], "attention_latent": [0, 1, 2], "far rows": [3],
    "nearest_code": [1], "cross_entropy": [4], "chosen": [6], "least_likely_four": [0], "safe_softmax": [1],
    "soft-cap": [0], "scaled_square_norm": [7], "documents": [5],
}  # fmt: skip


E4M3 = ["amax_fp8_gemm", "amax_fp8_power_of_two", "rmsnorm_amax_quantise_gemm", "quantise-gemm"]

EVERYWHERE = [
    "layer_norm",
    "attention_latent",
    "documents",
]  # what only few are made of: sweeps, renamings, bounds by data


@functools.cache
def shapes_of(name: str) -> list[Shaped]:
    fn, inputs, options = SUBJECTS[name]
    return regions(fn, [x.to("meta") for x in inputs()], **options)


@dataclass(frozen=True)
class Variant:
    """One way to print a region."""

    shaped: Shaped
    schedule: Schedule
    form: Form

    def launcher(self, directory):
        program = build(self.shaped.planned.region, self.shaped.planned.derivation, self.schedule)
        return Launcher(program, self.form, 4, 2, directory)


def variants(name: str, target: str, few: Sequence[int] = ()) -> Iterator[Variant]:
    """A few of the schedules; or they take turns from function to function and from target to target, so that each function
    has them all."""
    place = NAMES.index(name)
    first = place // 4 % 2 * 4
    form = Form(coarse=target.startswith("cuda"), bulk=machine(target).bulk, e4m3=machine(target).e4m3)
    turn = range(first, first + 4) if name in EVERYWHERE else [first + (place + TARGETS.index(target)) % 4]
    for shaped in shapes_of(name) if form.e4m3 or name not in E4M3 else ():
        every = [s for tiled in (False, True) for s in schedules(shaped, tiled)]
        yield from (Variant(shaped, every[n], form) for n in few or turn)


def schedules(shaped: Shaped, tiled: bool) -> list[Schedule]:
    """Small blocks under each strategy, and in lanes where there can be lanes; ``tiled``: columns and runs of lanes too."""
    refused = lanes.refusal(shaped.planned.region, shaped.planned.derivation)
    deal: dict[str, Any] = {} if refused else {"row": 4, "lanes": 4, "run": 2 if tiled else 1}
    blocks: dict[str, Any] = {"row": 16, "tile": 32, "column": 16 if tiled else None}
    return [
        Schedule(Strategy.WHOLE, **blocks),
        Schedule(Strategy.SINGLE, **blocks),
        Schedule(Strategy.MULTI, segments=3, **blocks),
        Schedule(Strategy.SINGLE, **(blocks | deal)),
    ]


@on_demand
@pytest.mark.parametrize("name", NAMES)
def test_compiles(name, tmp_path):
    for target in TARGETS:
        for v in variants(name, target):
            compiles(v, v.launcher(tmp_path), target)


def compiles(v: Variant, launcher: Launcher, target: str):
    kernels = launcher.compile(v.shaped.inputs, {}, target)
    assert all(k.asm[BINARY[target.partition(":")[0]]] for k in kernels)


STATEMENTS = {
    "whole": "Read Map Guard Dot Reduce Select Rename Store",
    "single": "Read Map Guard Dot Reduce Select Rename Store Loop Declare Assign Correct Combine SelectMerge",
    "multi": "Read Map Guard Dot Reduce Select Rename Store Loop Declare Assign Correct Combine SelectMerge",
}
ALL = {f"{s} {strategy}" for strategy, statements in STATEMENTS.items() for s in statements.split()} | {
    "64-bit offsets", "NaN comes last", "bounds by a mask", "bounds by data", "bulk copies", "columns tiled", "gathered reads",
    "joined operands", "lanes in runs", "lanes one by one", "list of a power of two", "list of no power of two",
    "lists mapped", "lists reduced", "max over a tile", "min over a tile", "position of the largest",
    "position of the smallest", "prod over a tile", "ragged tiles", "several dots", "sum over a tile", "sweep",
    "tanh in one instruction", "whole tiles",
}  # fmt: skip
WITHOUT = {"cuda:80": {"bulk copies"}, "hip:gfx942": {"bulk copies", "tanh in one instruction"}}


@pytest.mark.parametrize("target", TARGETS)
def test_a_few_have_every_kind_and_compile(target, tmp_path):
    found = set()
    for v in (v for name, few in FEW.items() for v in variants(name, target, few)):
        launcher = v.launcher(tmp_path)
        found |= kinds(launcher.program, v.schedule, launcher.printed(v.shaped.inputs, {}))
        compiles(v, launcher, target)
    assert found == ALL - WITHOUT.get(target, set())


@on_demand
@pytest.mark.parametrize("target", TARGETS)
def test_every_kind_is_compiled(target):
    found = set()
    for v in (v for name in NAMES for v in variants(name, target)):
        launcher = v.launcher(None)
        found |= kinds(launcher.program, v.schedule, launcher.printed(v.shaped.inputs, {}))
    assert found == ALL - WITHOUT.get(target, set())


@on_demand
@pytest.mark.parametrize("name", E4M3)
def test_e4m3_where_there_is_none(name):
    (shaped,) = shapes_of(name)
    (schedule, *_) = schedules(shaped, False)
    program = build(shaped.planned.region, shaped.planned.derivation, schedule)
    assert emit(program, Form())
    with pytest.raises(Unsupported, match=r"needs a GPU that has it.*8\.9"):
        emit(program, Form(e4m3=False))
    for target in ("cuda:80", "cuda:86", "cuda:89", "cuda:90"):
        found = candidates(shaped.planned.region, shaped.planned.derivation, {}, machine(target))
        assert any(found) is (target in ("cuda:89", "cuda:90"))
