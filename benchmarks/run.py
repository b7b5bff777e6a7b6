"""``python -m benchmarks.run --suite paper|memory|variants|cpu``: checks, then times, and writes what it found."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.alternatives import ALTERNATIVES, ON_CPU, WITHOUT_COMPILER, applicable
from benchmarks.compare import How
from benchmarks.driver import Driver
from benchmarks.entries import SUITES, entries
from benchmarks.entry import Entry
from benchmarks.environment import device_name, environment
from benchmarks.record import Record
from benchmarks.report import short_table
from benchmarks.results import Results

MARGIN = 15.0  # seconds: with less than this left of a budget no entry is begun


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    p.add_argument("--suite", action="append", choices=SUITES, help="may be given several times; default: all but cpu")
    p.add_argument("--device", help="default: cuda where there is one, and cpu for the suite of that name")
    p.add_argument("--only", nargs="+", metavar="NAME", help="entries by name or pattern, such as 'gqa-*'")
    p.add_argument("--against", metavar="NAMES", help=f"alternatives, with commas, out of {', '.join(ALTERNATIVES)}")
    p.add_argument("--rounds", type=int, default=9, help="turns of each alternative")
    p.add_argument("--limit", type=float, default=240.0, metavar="SECONDS", help="for one entry, compiling included")
    p.add_argument("--budget", type=float, metavar="SECONDS", help="stop before this much time has passed")
    p.add_argument("--resume", action="store_true", help="skip what was measured on this device with this source")
    p.add_argument("--quick", action="store_true", help="tiny shapes and short turns, to try the machinery")
    p.add_argument("--list", action="store_true", help="print the entries and the alternatives that apply")
    p.add_argument("--check", action="store_true", help="compare the results with the targets at the end")
    p.add_argument("--out", type=Path, default=Path(__file__).parent / "results", metavar="DIR")
    p.add_argument("--commit", default="", help="recorded as the commit, where there is no git")
    p.add_argument("--seed", type=int, default=0)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """0 when everything that was asked for is measured or recorded as failed, 3 when the budget ended before,
    1 when ``--check`` finds a target missed."""
    args = parser().parse_args(argv)
    suites: list[str] = args.suite or [s for s in SUITES if s != "cpu"]
    if args.device is None:
        args.device = "cuda" if torch.cuda.is_available() and "cpu" not in suites else "cpu"
    device_type = torch.device(args.device).type
    default = ALTERNATIVES if device_type == "cuda" else ON_CPU if suites == ["cpu"] else WITHOUT_COMPILER
    against = tuple(args.against.split(",")) if args.against else default
    unknown = sorted(set(against) - set(ALTERNATIVES))
    if unknown:
        parser().error(f"--against: unknown {', '.join(unknown)}; known: {', '.join(ALTERNATIVES)}")
    against = tuple(n for n in ALTERNATIVES if n in against or n == "redfuser")
    chosen = {s: _chosen(entries(s, args.quick), args.only) for s in suites}
    if not any(chosen.values()):
        parser().error(f"--only: no entry is called {' or '.join(args.only)}; --list names them")
    console = Console(width=None if sys.stdout.isatty() else 200)
    if args.list:
        for e in (e for found in chosen.values() for e in found):
            print(f"{e.suite:9} {e.name:34} {e.shape:34} {', '.join(applicable(e, against))}")
        return 0
    how = How(args.device, against, args.rounds, seed=args.seed)
    if args.quick:
        how = How(args.device, against, min(args.rounds, 3), 0.002, 0.0, args.seed, quick=True)
    deadline = time.monotonic() + args.budget if args.budget else float("inf")
    measured: list[Record] = []
    finished = True
    with Driver(how, args.limit, deadline) as driver:
        for suite in suites:
            results = Results(args.out, suite, device_name(args.device), args.quick)
            done, finished = _suite(chosen[suite], results, driver, how, args, console)
            measured += done
            if not finished:
                break
    missed = 0
    if args.check:
        from benchmarks.check import report

        missed = report(measured, console)
    if measured:
        console.print(short_table(measured))
    if not finished:
        console.print("The budget ended first: --resume goes on from here.")
    return 3 if not finished else 1 if missed else 0


def _chosen(found: list[Entry], only: Sequence[str] | None) -> list[Entry]:
    return [e for e in found if only is None or any(fnmatch.fnmatch(e.name, o) for o in only)]


def _suite(
    chosen: list[Entry], results: Results, driver: Driver, how: How, args: argparse.Namespace, console: Console
) -> tuple[list[Record], bool]:
    """The records of the entries asked for, new and resumed, and whether none was left out for the budget."""
    order = [e.name for e in entries(results.suite, args.quick)]
    measured: list[Record] = []
    took = 0.0
    for i, entry in enumerate(chosen):
        where = environment(args.device, args.commit)
        if args.resume and results.has(entry.name, where, applicable(entry, how.against), args.quick):
            measured.append(results.records[entry.name])
            continue
        if time.monotonic() + max(MARGIN, min(took, driver.limit / 2)) > driver.deadline:
            return measured, False
        label = f"{results.suite} {i + 1}/{len(chosen)} {entry.name}"
        start = time.monotonic()
        with console.status(label) as status:  # nothing is drawn where there is no terminal
            outcome = driver.compare(entry, lambda text, at=label: status.update(f"{at}: {text}"))  # type: ignore[misc]
        took = time.monotonic() - start
        if outcome is None:
            return measured, False
        if isinstance(outcome, str):
            outcome = _without_figures(entry, how, outcome, driver)
        outcome.environment = where
        results.add(outcome, order)
        measured.append(outcome)
        us = outcome.time("redfuser")
        console.print(f"{label}: {'no figure' if us is None else f'{us:.1f} µs'} ({took:.0f} s)", highlight=False)
    return measured, True


def _without_figures(entry: Entry, how: How, reason: str, driver: Driver) -> Record:
    c = driver.ceilings
    ceilings = {"flops": c.flops if c else 0.0, "bandwidth": c.bandwidth if c else 0.0}
    return Record(
        entry.name,
        entry.suite,
        entry.shape,
        how.quick,
        entry.flops,
        0,
        0.0,
        ceilings,
        0,
        how.rounds,
        None,
        reason=reason,
    )


if __name__ == "__main__":
    sys.exit(main())
