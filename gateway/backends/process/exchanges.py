"""How many functions may have more replicas than desired at once, while old ones wait for new ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Exchanges:
    """Turns for exchanges. A function that gets none is called again when another is done; first come, first served."""

    limit: int
    _under_way: set[str] = field(default_factory=set)
    _waiting: dict[str, Callable[[], None]] = field(default_factory=dict)

    def begin(self, function: str, again: Callable[[], None]) -> bool:
        """Whether ``function`` may go on with its exchange; if not, ``again`` is called when it is its turn."""
        if function in self._under_way:
            return True
        if len(self._under_way) >= self.limit:
            self._waiting[function] = again
            return False
        self._waiting.pop(function, None)
        self._under_way.add(function)
        return True

    def done(self, function: str) -> None:
        """``function`` has as many replicas as desired, or no longer exchanges any."""
        self._waiting.pop(function, None)
        if function not in self._under_way:
            return
        self._under_way.discard(function)
        for waiting, again in list(self._waiting.items()):
            if len(self._under_way) >= self.limit:
                return
            self._waiting.pop(waiting, None)
            again()
