"""What the printer chooses beside the schedule, in the compiled code: formats, copies, functions."""

import re

import pytest
from catalogue import ONE_PASS, SEVERAL
from compiling import compiled
from planning import regions
from shapes import SHAPES
from triton.compiler.errors import CompilationError

from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

CASES = {c.name: c for c in ONE_PASS + SEVERAL}
SINGLE = Schedule(Strategy.SINGLE, row=16, tile=32)


def kernels(case, directory, target, schedule=SINGLE):
    return [
        k
        for shaped in regions(case.fn, case.inputs(), **case.options)
        for k in compiled(shaped, schedule, directory, target)
    ]


def test_partial_states_are_joined_by_the_last_program(tmp_path):
    """One launch: what the other programs have stored is seen by the one that comes last."""
    segments = Schedule(Strategy.MULTI, row=16, tile=32, segments=3)
    (ptx,) = [k.asm["ptx"] for k in kernels(CASES["variance"], tmp_path, "cuda:90", segments)]
    assert re.search(r"atom\.global\.gpu\.acq_rel\.add", ptx)
    before, _, after = ptx.partition("atom.global.gpu.acq_rel.add")
    assert "st.global" in before and "bar.sync" in before[before.rindex("st.global") :] and "ld.global" in after


def test_e4m3_needs_compute_capability_89(tmp_path):
    assert kernels(CASES["amax_fp8_gemm"], tmp_path, "cuda:90")
    with pytest.raises(CompilationError, match="to_e4m3") as raised:
        kernels(CASES["amax_fp8_gemm"], tmp_path, "cuda:80")
    causes = [raised.value]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    assert "fp8e4nv" in str(causes[-1])


def test_bulk_copies(tmp_path):
    fn, args = SHAPES["causal 64"]
    (shaped,) = regions(fn, args)
    schedule = Schedule(Strategy.SINGLE, row=128, tile=64)
    plain, bulk = (compiled(shaped, schedule, tmp_path, "cuda:90", bulk=b)[0] for b in (False, True))
    assert "cp.async.bulk.tensor" in bulk.asm["ptx"] and "cp.async.bulk.tensor" not in plain.asm["ptx"]


def test_coarse_functions(tmp_path):
    case = CASES["attention_softcap"]
    (shaped,) = regions(case.fn, [x.bfloat16() for x in case.inputs()])
    plain, coarse = (compiled(shaped, SINGLE, tmp_path, "cuda:90", coarse=c)[0] for c in (False, True))
    assert "tanh.approx" in coarse.asm["ptx"] and "tanh.approx" not in plain.asm["ptx"]
