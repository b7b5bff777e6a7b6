import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import native

import redfuser
from redfuser.backends.cpu import launch
from redfuser.backends.cpu.compile import find_compiler
from redfuser.tile.nodes import Strategy
from redfuser.tile.strategy import Schedule

SCHEDULES = {
    "single": Schedule(Strategy.SINGLE, row=4, tile=16),
    "multi": Schedule(Strategy.MULTI, row=4, tile=16, segments=3),
    "whole": Schedule(Strategy.WHOLE, row=4),
    "rows in lanes": Schedule(Strategy.SINGLE, row=16, tile=16),
}


def pytest_collection_modifyitems(items):
    for item in items:
        if find_compiler() is None and "cpu" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason="there is no C++ compiler"))


@pytest.fixture(params=SCHEDULES.values(), ids=SCHEDULES)
def schedule(request):
    return request.param


@pytest.fixture
def kernels():
    """What runs a region: ``launch`` and ``launcher``."""
    return native


@pytest.fixture
def fuse():
    """``redfuser.fuse`` for these kernels."""
    return lambda fn, **options: redfuser.fuse(fn, **{"tune": "off", "rest": "eager", "strict": True} | options)


@pytest.fixture
def launches(monkeypatch):
    """One entry for every program that is entered."""
    seen = []
    call = launch._Call.__call__

    def noted(self, *args):
        seen.append(self.entry)
        return call(self, *args)

    monkeypatch.setattr(launch._Call, "__call__", noted)
    return seen
