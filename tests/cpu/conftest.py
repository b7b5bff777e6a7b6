import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from redfuser.backends.cpu.compile import find_compiler


def pytest_collection_modifyitems(items):
    for item in items:
        if find_compiler() is None and "cpu" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason="there is no C++ compiler"))
