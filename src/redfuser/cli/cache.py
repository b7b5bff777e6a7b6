"""``redfuser cache``: what the disk cache holds; emptying and checking it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from redfuser.runtime.cache import Cache

app = typer.Typer(help="List, clear or verify the cache of tuned choices and compiled kernels.")


@app.callback(invoke_without_command=True)
def _default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_()


@app.command("list")
def list_() -> None:
    """List the entries, the most recently used first."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cache = _open()
    entries = cache.entries()
    total = size(sum(e.size for e in entries))
    typer.echo(f"{count(len(entries))}, {total} of at most {size(cache.limit)}, in {cache.directory}")
    if not entries:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("key", no_wrap=True)
    table.add_column("what", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("last used", no_wrap=True)
    now = time.time()
    for e in entries:
        table.add_row(e.key[:12], Text(e.what or "-"), size(e.size), ago(now - e.used))
    console = Console(highlight=False)
    console.print(table, width=None if console.is_terminal else 120)


@app.command()
def clear() -> None:
    """Remove all entries."""
    cache = _open()
    typer.echo(f"removed {count(cache.clear())} from {cache.directory}")
    left = len(cache.entries())
    if left:
        typer.secho(f"redfuser: {count(left)} cannot be removed: is the folder read-only?", err=True)
        raise typer.Exit(1)


@app.command()
def verify() -> None:
    """Read every entry and remove the damaged ones. The exit status is 1 when there were any."""
    cache = _open()
    found = cache.verify()
    for d in found.damaged:
        typer.echo(f"{d.key[:12]}  {d.reason}: {'removed' if d.removed else 'it cannot be removed'}")
    typer.echo(f"{found.sound} sound, {len(found.damaged)} damaged, in {cache.directory}")
    raise typer.Exit(1 if found.damaged else 0)


def _open() -> Cache:
    from redfuser.runtime.cache import open_cache
    from redfuser.settings import current

    return open_cache(current())


def count(n: int) -> str:
    return f"{n} {'entry' if n == 1 else 'entries'}"


def size(n: float) -> str:
    """Bytes for a reader: 512 B, 1.5 KiB, 1.0 GiB."""
    if n < 1024:
        return f"{n:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        n /= 1024
        if n < 1023.95 or unit == "GiB":
            break
    return f"{n:.1f} {unit}"


def ago(seconds: float) -> str:
    """How long ago, in the largest unit that has passed: 'now', '5 min ago', '3 h ago', '2 d ago'."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "now"
