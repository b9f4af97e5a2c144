"""How many tokens a function takes at once: what its memory was sized for, and fewer once its memory limit is lowered.

A controller lowers limits of running replicas, on the process backend as on Kubernetes, and whoever deploys a function
may give it less than Eq. (2) of the sMoE paper asks. The kernel's limit of this process counts (``limits``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)
LOOK_EVERY_S = 0.1
"""The limit is read no more often; a hop of a pass takes a third of a millisecond."""


class TokenBound:
    """``most`` tokens of all calls under way, 0: no limit."""

    def __init__(
        self,
        sized: int,
        fitting: Callable[[], int | None] = lambda: None,
        changed: Callable[[int], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``sized``: what memory was sized for; ``fitting``: how many fit now, None where nothing limits them;
        ``changed``: called with each new bound."""
        self._sized, self._fitting, self._changed, self._clock = sized, fitting, changed, clock
        self._most, self._looked_s = sized, -LOOK_EVERY_S

    @property
    def most(self) -> int:
        """The bound now."""
        now_s = self._clock()
        if self._sized and now_s >= self._looked_s + LOOK_EVERY_S:
            self._looked_s = now_s
            fitting = self._fitting()
            most = self._sized if fitting is None else min(self._sized, fitting)
            if most != self._most:
                log.info("tokens taken at once are now %d, by the memory limit; %d were deployed", most, self._sized)
                self._most = most
                self._changed(most)
        return self._most

    @property
    def cause(self) -> str:
        """What sets the bound, for error messages."""
        if self._most == self._sized:
            return "smoe_max_tokens"
        return f"its memory limit was lowered or is too low for smoe_max_tokens, {self._sized}"
