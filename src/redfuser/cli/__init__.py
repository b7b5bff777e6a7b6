"""The command line: ``redfuser explain | demo | doctor``."""

from redfuser.cli.main import main

__all__ = ["main"]
