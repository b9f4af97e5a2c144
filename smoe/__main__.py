"""``python -m smoe``: the same as the ``smoe`` command."""

import sys

from smoe.cli import main

sys.exit(main())
