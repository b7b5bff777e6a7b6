"""What an engine reads of PyTorch's settings."""

from types import SimpleNamespace

import pytest
import torch

from redfuser.runtime.cache import Cache
from redfuser.runtime.engines import TritonEngine


@pytest.fixture
def engine(tmp_path):
    pytest.importorskip("triton")
    return TritonEngine(torch.device("cpu"), "cuda:90", Cache(tmp_path, 2**20))


@pytest.fixture
def matmul():
    """PyTorch's settings, put back afterwards: by the newer name alone, as it refuses the older one when they differ."""
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this PyTorch has no fp32_precision")
    before, legacy = matmul.fp32_precision, torch.get_float32_matmul_precision()
    yield matmul
    torch.set_float32_matmul_precision(legacy)
    matmul.fp32_precision = before


@pytest.mark.parametrize("named, mode", [("tf32", "tf32"), ("ieee", "ieee")])
def test_the_precision_by_its_newer_name(engine, matmul, named, mode):
    matmul.fp32_precision = named
    assert engine.mode == mode and engine.identity.endswith(mode)


@pytest.mark.parametrize("named, mode", [("highest", "ieee"), ("high", "tf32"), ("medium", "tf32")])
def test_the_precision_by_its_older_name(engine, matmul, named, mode):
    torch.set_float32_matmul_precision(named)
    assert engine.mode == mode


@pytest.mark.parametrize("allowed, mode", [(True, "tf32"), (False, "ieee")])
def test_a_pytorch_that_has_only_the_older_name(engine, monkeypatch, allowed, mode):
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=allowed))
    assert engine.mode == mode
