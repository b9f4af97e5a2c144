"""``python -m smoe``: the same as the ``smoe`` command."""

from smoe.cli import main

main()
