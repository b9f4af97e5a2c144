"""How an instance ends that is scaled away: it takes no new texts, and those that it has go on.

Each text goes on at another instance where there is room for it now, which pulls its pages; else where it is, until it
ends or room is found. What is left when the time is over is computed again by others, as after a loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from functions.generation.texts import Text

if TYPE_CHECKING:
    from functions.generation.run import InstanceRun

log = logging.getLogger(__name__)


def nowhere(text: Text) -> None:
    """No other instance has room."""


@dataclass
class Drain:
    """One instance's. ``most_s``: how long its texts may go on; ``elsewhere``: an instance with room for a text now."""

    most_s: float = 0.0
    elsewhere: Callable[[Text], InstanceRun | None] = nowhere
    _until_s: float = field(init=False, default=float("inf"))
    _begun: bool = field(init=False, default=False)

    def cut_short(self) -> None:
        """Others need its replicas: what it still has is computed again."""
        self._until_s = float("-inf")

    def over(self, run: InstanceRun, now_s: float) -> bool:
        """Before each iteration of an instance whose replicas drain: send on what can go; whether the rest is to end.
        ``now_s``: on the loop's clock."""
        if not self._begun:
            self._begun, self._until_s = True, min(self._until_s, now_s + self.most_s)
            run.retire()
        if now_s >= self._until_s:
            log.info("the time of an instance that drains is over, its %d texts are computed again", len(run.texts))
            return True
        for text in list(run.texts):
            if len(text.tokens) - text.kept == 1 and text.written and not text.scoring and not text.cancelled:
                to = self.elsewhere(text)
                if to is not None:
                    run.send(text, to, now_s)
        return not (run.texts or run.leaving or run.migrations.moving)
