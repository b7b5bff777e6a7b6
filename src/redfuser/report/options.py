"""The page of options, generated from their one declaration: ``python -m redfuser.report.options > docs/options.md``."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import get_args, get_type_hints

from redfuser.settings import Options

_HEAD = """# Options

Given to `redfuser.fuse(fn, name=value)`, set for a block by `with redfuser.options(name=value):`, or for a process by
the environment variable `REDFUSER_NAME`. Generated from `settings.py`.

| option | values | default | what it does |
|---|---|---|---|
"""


def page() -> str:
    """The whole page as Markdown."""
    hints = get_type_hints(Options, include_extras=True)
    rows = []
    for f in dataclasses.fields(Options):
        kind, doc = get_args(hints[f.name])
        if issubclass(kind, Enum):
            values, default = ", ".join(f"`{m.value}`" for m in kind), f"`{f.default.value}`"
        else:
            values = {bool: "true or false", int: "a whole number", str: "a text"}[kind]
            default = f"`{f.default}`" if f.default != "" else "empty"
        rows.append(f"| `{f.name}` | {values} | {default} | {doc} |")
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(page(), end="")
