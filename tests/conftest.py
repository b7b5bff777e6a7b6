import os
import sys
from pathlib import Path

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch

for module in ("inputs", "masks", "order", "product"):
    pytest.register_assert_rewrite(f"same.{module}")  # what several folders of tests have in common


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """What the tests tune and compile, in this process and those it starts, stays out of the user's cache."""
    os.environ["REDFUSER_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("xdg"))  # the sources of kernels
    os.environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
