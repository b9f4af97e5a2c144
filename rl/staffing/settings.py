"""Settings of a training run of the staffing policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl.reward import RewardSettings
from rl.staffing.hours import HourSettings
from rl.staffing.policy import RuleSettings
from rl.staffing.risk import RiskSettings

START = RuleSettings().values() | {"sleep_s": 20.0}
"""What is decided before anything was learnt: the rule's, with a number of seconds that can still be learnt."""


@dataclass(frozen=True)
class StaffingSettings:
    """One run."""

    hours: HourSettings = field(default_factory=HourSettings)
    risks: RiskSettings = field(default_factory=RiskSettings)
    start: dict[str, float] = field(default_factory=lambda: dict(START))
    seed: int = 0
    train_hours: int = 80
    validation_rates: tuple[float, ...] = (20.0, 80.0)
    validation_hours: int = 2
    """Hours of every pattern at every rate."""
    warm_hours: int = 48
    """Training hours on which rules fill the replay first; 0: no warm start."""
    warm_runs: int = 12
    """Times that each of them is simulated."""
    clone_updates: int = 1000
    critic_updates: int = 4000
    """Updates of the warm start."""
    envs: int = 8
    windows: int = 20_000
    minutes: float | None = None
    """Minutes of CPU after which learning ends, validations and the warm start included, the choice of hours not;
    None: with ``windows``, or at the limit that the run is given."""
    buffer: int = 30_000
    batch: int = 64
    updates: int = 4
    """For each window of all environments."""
    critic_rate: float = 1e-3
    actor_rate: float = 1e-4
    """Learning rates."""
    noise: tuple[float, float, float] = (0.25, 0.1, 0.15)
    """Deviations that all experts share, those of a layer, and each one's own."""
    final_noise: float = 0.4
    """Part of the noise at the end."""
    validate_every: int = 2000
    width: int = 32
    hidden: int = 48
    most_violated: float = 0.03
    """Share of windows over λ on validation hours from which an actor is not taken."""
    price: float = 20.0
    """Cost, in C_ref, of a share of all windows beyond that."""

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> StaffingSettings:
        """What ``dataclasses.asdict`` gave, back from JSON. Raises KeyError and TypeError for other keys."""
        hours = _with_tuples(stored["hours"])
        parts = {
            "hours": HourSettings(**{**hours, "reward": RewardSettings(**hours["reward"])}),
            "risks": RiskSettings(**stored["risks"]),
        }
        return cls(**{**_with_tuples(stored), **parts})


def _with_tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
