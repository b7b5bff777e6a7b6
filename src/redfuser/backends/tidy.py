"""Printed code as a person lays it out: no bracket that changes nothing, and lines that fit.

    total_moved = tl.where((a == b), x, (x * exp))  ->  total_moved = tl.where(a == b, x, x * exp)

The statements stay the same: what comes out parses to the same tree as what went in.
"""

from __future__ import annotations

import ast
import io
import textwrap
import tokenize
from collections.abc import Iterator

WIDTH = 110
_INDENT = "    "
_MANY = 8  # items of a call stand one to a line up to here
_OPEN, _CLOSE = "([{", ")]}"
# where a long expression is broken, the loosest first: before the operator
_OPERATORS = ((" | ",), (" & ",), (" + ", " - "), (" * ", " / ", " // ", " % "))


def tidy(line: str, width: int = WIDTH) -> list[str]:
    """A line of code, which is one statement or the head of a block, as lines of at most ``width`` where that can be."""
    indent = line[: len(line) - len(line.lstrip())]
    code, comment = _apart(line.strip())
    if not code:
        return [indent + comment] if comment else [""]
    code = _plain(code)
    note = f"  {comment}" if comment else ""
    if len(indent + code + note) <= width:
        return [indent + code + note]
    lines = list(_fit(_bracketed(code) if len(indent + code) > width else code, indent, width))
    return [indent + comment, *lines] if comment else lines


def _apart(line: str) -> tuple[str, str]:
    """The code of a line and the comment behind it."""
    if "#" not in line:
        return line, ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(line + "\n").readline):
            if token.type == tokenize.COMMENT:
                return line[: token.start[1]].rstrip(), token.string
    except tokenize.TokenError:
        pass
    return line, ""


def _plain(code: str) -> str:
    """The statement without brackets that change nothing; as it is where it is no statement of its own."""
    head = code.endswith(":")
    try:
        (statement,) = ast.parse(f"{code} pass" if head else code).body
    except SyntaxError:
        return code
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return code  # a docstring
    text = ast.unparse(statement)
    if head:
        text = text.removesuffix("pass").rstrip()
    return code if "\n" in text else _double_quoted(text)


def _double_quoted(text: str) -> str:
    out = []
    for token in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
        string = token.string
        if token.type == tokenize.STRING and string[0] == "'" and '"' not in string:
            string = f'"{string[1:-1]}"'
        out.append((token.type, string, token.start, token.end, token.line))
    made: str = tokenize.untokenize(out)
    return made.rstrip("\n")


def _bracketed(code: str) -> str:
    """A long right-hand side that is no call in brackets, so that it can be broken."""
    target, equals, value = code.partition(" = ")
    if not equals or not target.isidentifier() or not _pieces(value):
        return code
    return f"{target} = ({value})"


def _fit(text: str, indent: str, width: int) -> Iterator[str]:
    """The text in lines of at most ``width``, broken inside its longest brackets."""
    if len(indent + text) <= width:
        yield indent + text
        return
    found = max(_brackets(text), key=lambda b: b[1] - b[0], default=None)
    if found is None or found[1] - found[0] <= 1:
        yield indent + text
        return
    start, stop = found
    inner, tail = text[start + 1 : stop], text[stop:]
    yield indent + text[: start + 1]
    deeper = indent + _INDENT
    items = [x.strip() for x in _split(inner, (",",))]
    items = [x for x in items if x]
    if len(items) > 1:
        joined = ", ".join(items)
        if len(deeper + joined) <= width:
            yield deeper + joined + ","
        elif len(items) > _MANY and all(len(deeper + x) < width for x in items):
            yield from textwrap.wrap(
                joined + ",", width, initial_indent=deeper, subsequent_indent=deeper, break_on_hyphens=False
            )
        else:
            for x in items:
                *lines, last = _inside(x, deeper, width - 1)
                yield from lines
                yield last + ","
    else:
        yield from _inside(inner.strip(), deeper, width)
    yield from _fit(tail, indent, width)


def _inside(text: str, indent: str, width: int) -> Iterator[str]:
    """One item within brackets, where a line may end before any operator."""
    pieces = _pieces(text) if len(indent + text) > width else []
    for x in pieces or [text]:
        yield from _fit(x, indent, width)


def _brackets(text: str) -> Iterator[tuple[int, int]]:
    """Where the outermost brackets open and close."""
    depth, start, quote = 0, 0, ""
    for n, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c in _OPEN:
            if depth == 0:
                start = n
            depth += 1
        elif c in _CLOSE:
            depth -= 1
            if depth == 0:
                yield start, n


def _split(text: str, marks: tuple[str, ...]) -> list[str]:
    """Cut before each mark outside brackets; a comma is left out, an operator begins its piece."""
    covered = set()
    for a, b in _brackets(text):
        covered |= set(range(a, b + 1))
    out, last, n = [], 0, 0
    while n < len(text):
        mark = next((m for m in marks if text.startswith(m, n)), None)
        if mark is None or n in covered or n == 0:
            n += 1
            continue
        out.append(text[last:n])
        last = n + len(mark) if mark == "," else n + 1
        n += len(mark)
    out.append(text[last:])
    return out


def _pieces(text: str) -> list[str]:
    """The operands of the loosest operator, each but the first behind its operator; none where there is no operator."""
    if any(word in text for word in (" if ", " for ", " lambda ")):
        return []
    for marks in ((" or ",), (" and ",), (" == ", " != ", " <= ", " >= ", " < ", " > "), *_OPERATORS):
        pieces = _split(text, marks)
        if len(pieces) > 1:
            return [x.strip() for x in pieces]
    return []


def paragraph(text: str, indent: str = "", width: int = WIDTH) -> list[str]:
    """Prose in lines that fit."""
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
