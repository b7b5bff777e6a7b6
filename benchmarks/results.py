"""Result files: one JSON file for each suite and device, written after every entry, with a Markdown table beside it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from benchmarks.environment import same
from benchmarks.record import Record
from benchmarks.report import markdown

FORMAT = 1


class Results:
    """The records of one suite on one device."""

    def __init__(self, folder: Path, suite: str, device: str, quick: bool = False) -> None:
        stem = f"{suite}-{re.sub(r'[^A-Za-z0-9]+', '-', device).strip('-').lower()}{'-quick' if quick else ''}"
        self.suite = suite
        self.path = folder / f"{stem}.json"
        self.records: dict[str, Record] = read(self.path) if self.path.exists() else {}

    def has(self, name: str, environment: dict[str, Any], against: list[str], quick: bool) -> bool:
        """Whether the entry was compared with all of these in the same place; a failure counts as a comparison."""
        found = self.records.get(name)
        if found is None or found.reason or found.quick != quick or not same(found.environment, environment):
            return False
        return all(a in found.alternatives for a in against)

    def add(self, record: Record, order: list[str]) -> None:
        """Keeps the record and writes both files. ``order`` is that of the suite; what it does not name goes."""
        self.records[record.name] = record
        self.records = {n: self.records[n] for n in order if n in self.records}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = {
            "format": FORMAT,
            "suite": self.suite,
            "environment": record.environment,
            "entries": [r.to_dict() for r in self.records.values()],
        }
        _write(self.path, json.dumps(data, indent=1, allow_nan=True) + "\n")
        _write(self.path.with_suffix(".md"), markdown(self.suite, list(self.records.values())))


def read(path: Path) -> dict[str, Record]:
    """The records of a file by name. Raises ``ValueError`` for a file of another format."""
    data = json.loads(path.read_text())
    if data.get("format") != FORMAT:
        raise ValueError(f"{path} has format {data.get('format')}, this program reads {FORMAT}")
    return {r["name"]: Record.from_dict(r) for r in data["entries"]}


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    scratch = path.with_name(path.name + ".new")
    scratch.write_text(text)
    os.replace(scratch, path)
