"""The process that compares. It is started anew when an alternative hangs, dies or takes the device with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.ceilings import Ceilings
from benchmarks.compare import How
from benchmarks.record import Record


@dataclass(frozen=True)
class Job:
    """One entry to compare."""

    suite: str
    name: str
    excluded: Mapping[str, str]
    limit: float


@dataclass(frozen=True)
class Doing:
    """What the worker has begun; ``alternative`` is empty between them."""

    alternative: str
    stage: str


@dataclass(frozen=True)
class Failed:
    """The job has no record; ``lost``: this process cannot go on."""

    reason: str
    lost: bool


Answer = Ceilings | Record | Doing | Failed


def work(pipe: Connection, how: How, ceilings: Ceilings | None) -> None:
    """Measures the ceilings unless they are known, sends them, then answers one job after another until ``None``."""
    import gc

    import torch

    from benchmarks.ceilings import measure
    from benchmarks.compare import DeviceLost, compare, usable
    from benchmarks.entries import entries

    torch.set_grad_enabled(False)
    dynamo: Any = torch._dynamo.config
    dynamo.recompile_limit = 64  # a set of inputs may cost a compilation; beyond the limit functions run uncompiled
    found = ceilings or measure(how.device, how.quick)
    pipe.send(found)
    while (job := pipe.recv()) is not None:
        assert isinstance(job, Job)
        torch._dynamo.reset()
        entry = next(e for e in entries(job.suite, how.quick) if e.name == job.name)
        try:
            answer: Answer = compare(
                entry, how, found, job.excluded, job.limit, lambda name, stage: pipe.send(Doing(name, stage))
            )
        except DeviceLost as why:
            answer = Failed(str(why), lost=True)
        except Exception as why:  # inputs, reference or a turn: the next entry may still be measured
            answer = Failed(f"{type(why).__name__}: {why}"[:2000], lost=not usable(how))
        if not (isinstance(answer, Failed) and answer.lost):
            gc.collect()
            if how.cuda:
                torch.cuda.empty_cache()
        pipe.send(answer)
