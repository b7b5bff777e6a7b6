"""Workers that misbehave, for the driver's tests. They speak the protocol of benchmarks.worker."""

import os
import time

from benchmarks.ceilings import Ceilings
from benchmarks.record import Measured, Record
from benchmarks.worker import Doing, Failed

BROKEN = "compile"


def _serve(pipe, fault):
    pipe.send(Ceilings(1e12, 1e11))
    while (job := pipe.recv()) is not None:
        if BROKEN not in job.excluded:
            pipe.send(Doing(BROKEN, "preparing"))
            fault(pipe)
            continue
        record = Record(job.name, job.suite, "", True, 1.0, 1, 1.0, {}, 1, 1, None)
        record.alternatives = {n: Measured("failed", why) for n, why in job.excluded.items()}
        pipe.send(record)


def dies(pipe, how, ceilings):
    _serve(pipe, lambda pipe: os._exit(7))


def hangs(pipe, how, ceilings):
    _serve(pipe, lambda pipe: time.sleep(60))


def loses_the_device(pipe, how, ceilings):
    _serve(pipe, lambda pipe: pipe.send(Failed("an illegal memory access", lost=True)))


def stumbles(pipe, how, ceilings):
    _serve(pipe, lambda pipe: pipe.send(Failed("out of memory", lost=False)))


def never_starts(pipe, how, ceilings):
    os._exit(9)
