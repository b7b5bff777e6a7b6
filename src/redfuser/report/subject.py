"""What a printed file says of its cascade, and how its check makes arguments."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from redfuser.algebra.nodes import Derivation
from redfuser.backends.listing import RESERVED
from redfuser.index.expr import Load, walk
from redfuser.index.ints import Int
from redfuser.index.nodes import Input
from redfuser.index.print import show, show_int
from redfuser.regions.nodes import Region
from redfuser.report.text import place
from redfuser.tile.names import Names


def names(wishes: Sequence[str]) -> tuple[str, ...]:
    """Parameters of the file's functions: the user's names where they are free."""
    taken = Names((*RESERVED, "triton", "tl"))
    return tuple(taken.new(w) for w in wishes)


def summary(region: Region, derivation: Derivation) -> tuple[str, ...]:
    """Each reduction with its line in the user's program."""
    axis, count = region.problem.axis, len(derivation.passes)
    lines = [f"over {axis.name} < {show_int(axis.size)}, in {'one pass' if count == 1 else f'{count} passes'}:"]
    for s in region.problem.stages:
        text = f"{s.name} = {s.reducer} of {show(s.body)}"
        lines += textwrap.wrap(text, 100, subsequent_indent="    ", break_long_words=False)
        if s.origin is not None and s.origin.where is not None:
            at = f"{place(s.origin.where)}: {s.origin.where.text}"
            lines += textwrap.wrap(at, 100, initial_indent=" " * 4, subsequent_indent=" " * 8, break_long_words=False)
    return tuple(lines)


def bound(region: Region) -> int:
    """Indices among the inputs are below this: the shortest dimension that is indexed by data, else the cascade axis."""

    def number(i: Int) -> int:
        return i.evaluate({s: s.hint for s in i.sizes()})

    program = region.program
    shapes = {x.name: [a.size for a in x.axes] for x in (*program.inputs, *program.definitions)}
    found = [number(region.problem.axis.size)]
    for d in program.definitions:
        for e in () if isinstance(d, Input) else walk(d.body):
            if isinstance(e, Load):
                sizes = shapes.get(e.source, [])
                found += [number(n) for n, i in zip(sizes, e.index, strict=False) if any(True for _ in i.gathers())]
    return max(1, min(found))
