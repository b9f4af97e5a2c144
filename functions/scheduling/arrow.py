"""Arrow's scheduler (arXiv 2505.11916, Algorithms 1, 2 and 3): prefill and decode belong to requests, roles are labels.

Costs are pairs, compared first by the first part. Equal ones go to the instance named first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from functions.scheduling.cluster import Instance, Role, Scheduler
from functions.scheduling.predictor import Profile
from functions.scheduling.settings import ArrowSettings, Targets

Cost = tuple[float, float]


class Arrow(Scheduler):
    """Requests by least cost within the SLO; an instance is flipped where none keeps it."""

    def __init__(
        self,
        profiles: Mapping[int, Profile],
        targets: Targets,
        prefill: int,
        settings: ArrowSettings | None = None,
    ) -> None:
        super().__init__(profiles, targets, prefill)
        self.settings = settings or ArrowSettings()
        self.decode_load = 0.0
        """L_D of the last update."""
        self._last_flip_s = -math.inf

    def prefill_cost(self, tokens: int, instance: Instance) -> Cost:
        """(tokens being decoded there, seconds of all prefills there with this one)."""
        return instance.decode_tokens, instance.prefill_s + instance.profile.prefill.seconds(tokens)

    def decode_cost(self, tokens: int, instance: Instance) -> Cost:
        """(tokens being prefilled there, tokens being decoded there with this one less the most that keep TPOT)."""
        most = instance.profile.decode.most_tokens(self.targets.tpot_s)
        return instance.prefill_tokens, instance.decode_tokens + tokens - most

    def choose_prefill(self, tokens: int, now_s: float) -> Instance:
        def cost(instance: Instance) -> Cost:
            return self.prefill_cost(tokens, instance)

        keeps = _cheapest(self.pool(Role.PREFILL), cost, self.targets.ttft_s)
        if keeps is None and self.decode_load < self.settings.low_decode_load:
            keeps = self.flip(Role.PREFILL, now_s)
        return keeps or min(self.pool(Role.PREFILL), key=cost)

    def choose_decode(self, tokens: int, prefilled_on: Instance, now_s: float) -> Instance:
        if prefilled_on.role is Role.DECODE and prefilled_on.name in self.instances:  # it may have been retired
            return prefilled_on

        def cost(instance: Instance) -> Cost:
            return self.decode_cost(tokens, instance)

        keeps = _cheapest(self.pool(Role.DECODE), cost, 0.0)
        return keeps or self.flip(Role.DECODE, now_s) or min(self.pool(Role.DECODE), key=cost)

    def update(self, now_s: float) -> None:
        for instance in self.instances.values():
            if instance.intervals:
                instance.interval_s = instance.intervals_s / instance.intervals
            elif not instance.decodes:
                instance.interval_s = 0.0
            instance.intervals_s, instance.intervals = 0.0, 0
        if not self.instances:
            return
        prefilling, decoding = self.pool(Role.PREFILL), self.pool(Role.DECODE)
        prefill_load = sum(instance.prefill_s for instance in prefilling) / len(prefilling) / self.targets.ttft_s
        interval_load = sum(instance.interval_s for instance in decoding) / len(decoding) / self.targets.tpot_s
        # Texts that wait for room show in no interval: without them one instance may be left with all of them.
        self.decode_load = max(interval_load, sum(map(self._fullness, decoding)) / len(decoding))
        settings = self.settings
        if self.decode_load >= settings.expand_load or prefill_load <= settings.shrink_load <= self.decode_load:
            self.flip(Role.DECODE, now_s)

    def _fullness(self, instance: Instance) -> float:
        """Its tokens in parts of what TPOT allows."""
        return instance.decode_tokens / max(1, instance.profile.decode.most_tokens(self.targets.tpot_s))

    def flip(self, to: Role, now_s: float) -> Instance | None:
        """Algorithm 3: the other role's instance with the least flip cost becomes ``to``; None where none may."""
        if to is Role.DECODE and now_s - self._last_flip_s < self.settings.cooldown_s:
            return None
        sources = self.having(to.other)
        if len(sources) < 2:
            return None
        flipped = min(sources, key=flip_cost)
        flipped.role = to
        self._last_flip_s = now_s
        self.flips += 1
        return flipped


def flip_cost(instance: Instance) -> Cost:
    """(whether it has nothing of the other phase, load of its own phase): flips under way are revoked first."""
    if instance.role is Role.PREFILL:
        return not instance.decodes, instance.prefill_s
    return not instance.prefills, instance.decode_tokens


def _cheapest(pool: list[Instance], cost: Callable[[Instance], Cost], limit: float) -> Instance | None:
    """The least-cost instance whose cost's second part is at most ``limit``."""
    costs = ((one, cost(one)) for one in pool)
    kept = min(((one, priced) for one, priced in costs if priced[1] <= limit), key=lambda pair: pair[1], default=None)
    return None if kept is None else kept[0]
