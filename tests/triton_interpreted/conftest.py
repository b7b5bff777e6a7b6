"""These tests run kernels under Triton's interpreter, which must be asked for before anything imports triton.

``TRITON_INTERPRET=1 pytest tests/triton_interpreted``, a process of its own; anywhere else they are skipped.
"""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from stages import Recorded

import redfuser
from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

SCHEDULES = {
    "single": Schedule(Strategy.SINGLE, row=4, tile=16),
    "multi": Schedule(Strategy.MULTI, row=4, tile=16, segments=3),
    "whole": Schedule(Strategy.WHOLE, row=4),
}


def _reason() -> str:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if os.environ.get("TRITON_INTERPRET") != "1":
        return "needs a process of its own: TRITON_INTERPRET=1 pytest tests/triton_interpreted"
    return ""


collect_ignore_glob = ["test_*.py"] if importlib.util.find_spec("triton") is None else []


def pytest_collection_modifyitems(items):
    reason = _reason()
    for item in items:
        if reason and "triton_interpreted" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason=reason))
        # numpy computes the branches that a select does not take too
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*"))


@pytest.fixture(autouse=True)
def _numbers_of_bfloat16(monkeypatch):
    """The interpreter keeps bfloat16 as bits in a uint16 and computes with those: operations are given float32."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    dot, binary = builder.create_dot, builder.binary_op

    def widened(x):
        bits = np.asarray(x.data).view(np.uint16).astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def is_narrow(x):
        return x.dtype.scalar == tl.bfloat16

    def create_dot(self, a, b, *more):
        a, b = (widened(x) if is_narrow(x) else x for x in (a, b))
        return dot(self, a, b, *more)

    def binary_op(self, a, b, op):
        if not is_narrow(a):
            return binary(self, a, b, op)
        out = binary(self, widened(a), widened(b), op)
        return self.create_fp_trunc(out, a.dtype) if out.data.dtype == np.float32 else out

    monkeypatch.setattr(builder, "create_dot", create_dot)
    monkeypatch.setattr(builder, "binary_op", binary_op)


@pytest.fixture(params=SCHEDULES.values(), ids=SCHEDULES)
def schedule(request):
    return request.param


@dataclass(frozen=True)
class Kernels:
    """What runs a region, with its sources in a directory."""

    directory: Path

    def launcher(self, r: Recorded, schedule: Schedule, wide: bool = False):
        from printed import launcher

        return launcher(r, schedule, self.directory, wide=wide)

    def launch(self, r: Recorded, schedule: Schedule, wide: bool = False):
        return self.launcher(r, schedule, wide).prepare(r.sizes)(list(r.inputs.values()))


@pytest.fixture
def kernels(tmp_path):
    return Kernels(tmp_path)


@pytest.fixture
def fuse():
    """``redfuser.fuse`` for these kernels."""
    return lambda fn, **options: redfuser.fuse(fn, backend="triton", tune="off", rest="eager", strict=True, **options)


@pytest.fixture
def launches(monkeypatch):
    """One entry for every kernel that is interpreted."""
    from triton.runtime.interpreter import InterpretedFunction

    seen = []
    run = InterpretedFunction.run

    def noted(self, *args, **kwargs):
        seen.append(self.__name__)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(InterpretedFunction, "run", noted)
    return seen
