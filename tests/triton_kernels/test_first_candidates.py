"""What runs where nothing is measured, for every benchmark at its real shape: it compiles, fits, and keeps to registers."""

import pytest
import torch
from compiling import usage
from planning import regions

from benchmarks.entries import SUITES, entries
from benchmarks.entry import Maker
from redfuser.backends.triton.resources import machine
from redfuser.runtime.engines import engine_for
from redfuser.settings import Options
from redfuser.tile.build import build

TARGET = "cuda:90"
OPTIONS = Options(backend="triton", target=TARGET, tune="off")
ENTRIES = [e for suite in SUITES for e in entries(suite)]
LONE = ("top8", "sigmoid")  # one reduction, or products alone: there is no cascade
# bytes of a thread that some version of Triton spills. Blocks of half the size spill nothing and are slower
SPILLED = {"mla-decode-b1": 136, "mla-decode-b32": 248, "mla-decode-b128": 248, "rmsnorm-gemm": 176}


class Shapes(Maker):
    """Tensors without data."""

    def __init__(self):
        self.device = torch.device("meta")

    def normal(self, *size, dtype=torch.bfloat16, scale=1.0):
        return torch.empty(size, dtype=dtype, device=self.device)

    def integers(self, high, *size):
        return torch.empty(size, dtype=torch.int64, device=self.device)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.suite}-{e.name}")
def test_first_candidate(entry):
    found = regions(entry.fn, entry.inputs(Shapes()))
    assert bool(found) is not entry.name.startswith(LONE)
    engine = engine_for(torch.device("cpu"), OPTIONS)
    for shaped in found:
        region, derivation = shaped.planned.region, shaped.planned.derivation
        schedule = engine.decide(region, derivation, {}, OPTIONS).schedule
        program = build(region, derivation, schedule)
        kernels = engine.launcher(program, schedule).compile(shaped.inputs, {}, TARGET)
        assert len(kernels) == len(program.kernels)
        shared = [k.metadata.shared for k in kernels]
        assert max(shared) <= machine(TARGET).shared, f"{schedule}: {shared} bytes of shared memory"
        uses = [usage(k) for k in kernels]
        assert max(u.stack + u.local for u in uses) <= SPILLED.get(entry.name, 0), f"{schedule}: {uses}"
