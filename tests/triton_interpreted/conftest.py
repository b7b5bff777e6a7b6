"""These tests run kernels under Triton's interpreter, which must be asked for before anything imports triton.

``TRITON_INTERPRET=1 pytest tests/triton_interpreted``, a process of its own; anywhere else they are skipped.
"""

import importlib.util
import os

import pytest


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
def _dots_of_bfloat16(monkeypatch):
    """The interpreter keeps bfloat16 as the bits in a uint16, and its dot multiplies those: it is given float32."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    dot = interpreter.InterpreterBuilder.create_dot

    def widened(x):
        if x.dtype.scalar != tl.bfloat16:
            return x
        bits = np.asarray(x.data).view(np.uint16).astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def create_dot(self, a, b, *more):
        return dot(self, widened(a), widened(b), *more)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
