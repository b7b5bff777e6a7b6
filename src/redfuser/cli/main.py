"""Commands and their options. Each command imports what it needs, so ``redfuser --help`` is instant."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated

import typer

from redfuser.cli.cache import app as cache_app
from redfuser.errors import RedfuserError

if TYPE_CHECKING:
    from redfuser.api import Explanation

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(cache_app, name="cache")


@app.callback()
def _root() -> None:
    """Proves that chains of dependent reductions in plain PyTorch functions fuse into one pass, and fuses them."""


@app.command()
def explain(
    target: Annotated[str, typer.Argument(help="file.py:function")],
    arg: Annotated[
        list[str] | None,
        typer.Option(help='an argument, as "q=bf16[1,8,L,64]"; a name in place of a size is any length'),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="a setting, as strategy=single (see docs/options.md)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the same content as JSON")] = False,
    source: Annotated[bool, typer.Option("--source", help="print the kernels as a file that runs alone")] = False,
) -> None:
    """Show the cascades of a function: reductions, proof, loop, and what was refused.

    The inputs are given by --arg, or by a function example_inputs() in the file.
    """
    from redfuser.cli.targets import explain_target
    from redfuser.settings import options

    chosen = dict(o.partition("=")[::2] for o in option or [])
    with options(**chosen):
        explanation, names = explain_target(target, arg or [])
    if source:
        return _print_source(explanation)
    text = json.dumps(explanation.to_dict(), indent=2) if as_json else str(explanation)
    for symbol, name in names.items():
        text = re.sub(rf"\b{symbol}\b", name, text)
    typer.echo(text)
    given = {n for a in arg or [] for n in re.findall(r"\b[A-Za-z]\w*", a.partition("[")[2])}
    for name in sorted(given - set(names.values())):
        typer.secho(f"redfuser: the function fixes {name}, so it is not any length here", err=True)


def _print_source(explanation: Explanation) -> None:
    from redfuser.report.text import NO_SOURCE

    text = explanation.source
    if not text:
        typer.secho(f"redfuser: {NO_SOURCE}", err=True)
        raise typer.Exit(1)
    typer.echo(text, nl=False)


@app.command()
def demo() -> None:
    """Fuse a real sentence encoder's attention, then the same attention over 32,768 keys. No GPU needed."""
    from redfuser.cli.demo import run

    run()


@app.command()
def doctor() -> None:
    """What is installed, which backends work here, and the fix for what does not."""
    from redfuser.cli.doctor import report

    lines, healthy = report()
    for line in lines:
        typer.echo(line)
    raise typer.Exit(0 if healthy else 1)


def main() -> None:
    """Entry point of the ``redfuser`` command. Errors of redfuser are one line, without a traceback."""
    try:
        app()
    except RedfuserError as e:
        typer.secho(f"redfuser: {e}", err=True)
        raise SystemExit(2) from None
