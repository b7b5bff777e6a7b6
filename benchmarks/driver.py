"""Runs entries in a worker process under time limits, and goes on without the alternative that broke it."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType

from benchmarks.ceilings import Ceilings
from benchmarks.compare import How
from benchmarks.entry import Entry
from benchmarks.record import Record
from benchmarks.worker import Answer, Doing, Failed, Job, work

START_LIMIT = 120.0  # seconds for a worker to import, to open the device and to measure the ceilings
Notice = Callable[[str], None]


class Driver:
    """One worker at a time; a context manager that leaves none behind."""

    def __init__(
        self, how: How, limit: float, deadline: float = float("inf"), target: Callable[..., None] = work
    ) -> None:
        self.how = how
        self.limit = limit
        self.deadline = deadline
        self.target = target
        self.ceilings: Ceilings | None = None
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def compare(self, entry: Entry, notice: Notice) -> Record | str | None:
        """The record of an entry, a sentence where it has none, or ``None`` where the deadline came first."""
        excluded: dict[str, str] = {}
        while True:
            doing, lost = Doing("", "starting"), True
            failure = self._started(notice)
            end = time.monotonic() + self.limit
            if failure is None:
                assert self._pipe is not None
                left = min(self.limit, self.deadline - time.monotonic())
                self._pipe.send(Job(entry.suite, entry.name, excluded, left))
            while failure is None:
                answer = self._answer(min(end, self.deadline))
                if isinstance(answer, Doing):
                    doing = answer
                    notice(f"{doing.alternative} {doing.stage}".strip())
                elif isinstance(answer, Record):
                    return answer
                elif isinstance(answer, Failed):
                    failure, lost = answer.reason, answer.lost
                elif isinstance(answer, str):
                    failure = answer
            if lost:
                self._stop()
            if time.monotonic() >= self.deadline:
                return None
            if not doing.alternative or doing.alternative in excluded:
                return f"{failure} ({doing.stage})"
            excluded[doing.alternative] = failure

    def _started(self, notice: Notice) -> str | None:
        if self._process is not None:
            return None
        notice("starting")
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=self.target, args=(theirs, self.how, self.ceilings))
        self._process.start()
        theirs.close()
        answer = self._answer(min(time.monotonic() + START_LIMIT, self.deadline))
        if isinstance(answer, Ceilings):
            self.ceilings = answer
            return None
        return f"the worker did not start: {answer}"

    def _answer(self, end: float) -> Answer | str:
        """The next message, or a sentence on why there is none."""
        assert self._pipe is not None and self._process is not None
        try:
            if self._pipe.poll(max(0.0, min(end - time.monotonic(), 1e6))):
                answer: Answer = self._pipe.recv()
                return answer
        except (EOFError, ConnectionError):
            self._process.join(5)
            return f"the process died (exit code {self._process.exitcode})"
        return f"took longer than the limit of {self.limit:.0f} s"

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or self._pipe is None:
            return
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        process.join(0.5)
        if process.is_alive():
            process.kill()
            process.join()
        self._pipe.close()
