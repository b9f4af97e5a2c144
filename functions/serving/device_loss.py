"""How a process ends whose device is lost."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

log = logging.getLogger(__name__)

EXIT_DEVICE_LOST = 75
"""Exit code of a worker or a weights manager whose device is lost (EX_TEMPFAIL of sysexits.h): another may succeed."""


def leave(reason: str, end: Callable[[int], NoReturn] = os._exit) -> NoReturn:
    """End the process at once: a thread may hang in the driver, whose own clean-up might then hang too."""
    log.critical("this process ends: %s", reason)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    end(EXIT_DEVICE_LOST)
