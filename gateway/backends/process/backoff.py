"""When to start a replica again after a crash: a function of the settings, the past and the time given."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.backends.process.settings import BackoffSettings


@dataclass
class Backoff:
    """Crash series of one function."""

    settings: BackoffSettings
    crashes: int = 0
    """Crashes in a row without a stable run between them."""
    not_before_s: float = 0.0
    """Monotonic time before which nothing is started."""

    def crashed(self, now_s: float, ready_for_s: float | None) -> float:
        """A replica ended after being ready for ``ready_for_s`` (None: never). Returns the delay in seconds."""
        if ready_for_s is not None and ready_for_s >= self.settings.stable_after_s:
            self.crashes = 0
        self.crashes += 1
        delay_s = self._delay_s()
        self.not_before_s = max(self.not_before_s, now_s + delay_s)
        return delay_s

    def reset(self) -> None:
        """Someone changed the function: try at once."""
        self.crashes = 0
        self.not_before_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """Seconds until a start is allowed; 0 when it is."""
        return max(0.0, self.not_before_s - now_s)

    def _delay_s(self) -> float:
        if self.crashes <= 1:
            return 0.0
        exponent = min(self.crashes - 2, 64)
        return min(self.settings.limit_s, self.settings.first_s * self.settings.factor**exponent)
