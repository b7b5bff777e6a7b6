"""``python -m redfuser`` is the ``redfuser`` command."""

from redfuser.cli import main

main()
