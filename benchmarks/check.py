"""``python -m benchmarks.check FILE ...``: result files against the targets, one line each."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rich.console import Console

from benchmarks.record import Record
from benchmarks.results import read
from benchmarks.targets import CPU_TARGETS, TARGETS, Figure, Target


class Verdict(Enum):
    PASS = "pass"
    FAIL = "FAIL"
    SHORT = "short"  # of a stretch target
    UNKNOWN = "unknown"  # it was tried, and there is no figure
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Line:
    """One target on one entry."""

    entry: str
    verdict: Verdict
    text: str


def check(records: Sequence[Record]) -> Iterator[Line]:
    """Every target on every entry it names, and the numerical contract on every entry."""
    for record in records:
        yield _contract(record)
        targets = CPU_TARGETS if record.suite == "cpu" else TARGETS
        for target in () if record.quick else targets:  # tiny shapes say nothing about speed
            if fnmatch.fnmatchcase(record.name, target.entries):
                yield _line(record, target)


def _contract(record: Record) -> Line:
    ours = record.alternatives.get("redfuser")
    if ours is None or ours.within_contract is None or ours.error is None or record.eager_error is None:
        reason = record.reason or (ours.reason if ours else "it was not run")
        return Line(record.name, Verdict.FAIL, f"redfuser gave no result: {' '.join(reason.split())[:200]}")
    text = f"error {ours.error.norm:.1e}, eager's {record.eager_error.norm:.1e}"
    others = [m.agrees for name, m in record.alternatives.items() if name != "redfuser" and m.agrees is not None]
    if others and not any(others):
        return Line(record.name, Verdict.FAIL, text + " on the samples; the whole differs from every alternative")
    return Line(record.name, Verdict.PASS if ours.within_contract else Verdict.FAIL, text)


def _line(record: Record, target: Target) -> Line:
    replayed = " in a graph" if target.graph else ""
    if target.figure is Figure.RATIO:
        found = record.ratio(target.alternative, target.graph)
        what, sign = f"{target.alternative} / redfuser{replayed}", "≥"
    elif target.figure is Figure.FLOOR:
        replays = record.floor_ratio(True)  # where there are any, launches would count as bandwidth
        found, what, sign = record.floor_ratio(False) if replays is None else replays, "redfuser / floor", "≤"
    else:
        found, what, sign = record.time("redfuser", target.graph), f"redfuser µs{replayed}", "≤"
    bound = f"{sign} {target.bound:g}"
    if found is None:
        needed = [n for n in ("redfuser", target.alternative) if n]
        verdict = Verdict.UNKNOWN if all(n in record.alternatives for n in needed) else Verdict.NOT_RUN
        return Line(record.name, verdict, f"{what} {bound}: {_why(record, target)}")
    met = found >= target.bound if sign == "≥" else found <= target.bound
    verdict = Verdict.PASS if met else Verdict.SHORT if target.stretch else Verdict.FAIL
    return Line(record.name, verdict, f"{what} {found:.2f} {bound}")


def _why(record: Record, target: Target) -> str:
    for name in ("redfuser", target.alternative):
        found = record.alternatives.get(name)
        if found is None:
            if name:
                return f"{name} was not run"
        elif found.reason or (target.graph and found.graph_reason):
            return f"{name}: {' '.join((found.reason or found.graph_reason).split())[:120]}"
    return "no figure"


def report(records: Sequence[Record], console: Console) -> int:
    """Prints every line and a count; the number of targets missed."""
    lines = list(check(records))
    for line in lines:
        if line.verdict is Verdict.NOT_RUN:
            continue
        console.print(
            f"{line.verdict.value:8} {line.entry:32} {line.text}", highlight=False, markup=False, soft_wrap=True
        )
    counts = {v: sum(line.verdict is v for line in lines) for v in Verdict}
    console.print(", ".join(f"{n} {v.value}" for v, n in counts.items() if n), highlight=False)
    return counts[Verdict.FAIL]


def main(argv: Sequence[str] | None = None) -> int:
    """0 when no target is missed. A target without a figure is not met and not missed: it is named."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.check", description=__doc__)
    p.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON files that benchmarks.run wrote")
    files = p.parse_args(argv).files
    records = [r for path in files for r in read(path).values()]
    return 1 if report(records, Console()) else 0


if __name__ == "__main__":
    sys.exit(main())
