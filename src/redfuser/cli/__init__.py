"""The command line: ``redfuser explain | demo | doctor | cache``."""

from redfuser.cli.main import main

__all__ = ["main"]
