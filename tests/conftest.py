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
    """What the tests tune and compile, in this process and those it starts, stays out of the user's cache.

    Kernels are compiled once for all the processes of a run, and nothing is measured but where a test asks for it: a
    candidate takes a second to compile.
    """
    here = tmp_path_factory.getbasetemp()
    shared = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here
    os.environ["REDFUSER_CACHE_DIR"] = str(shared / "cache")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("xdg"))  # the sources of kernels
    os.environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    os.environ.setdefault("REDFUSER_TUNE", "off")


@pytest.fixture(scope="module")
def quick_kernels():
    """C++ kernels of a module's tests are compiled at -O1, in half the time, where each of them runs once. The flags that
    decide what a number is are the same; tests/cpu, the docs and the commands run what users run."""
    from redfuser.backends.cpu import compile as native

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "FLAGS", tuple("-O1" if f == "-O3" else f for f in native.FLAGS))
        yield


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
