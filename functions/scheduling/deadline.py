"""Instances without roles: a text goes where it is predicted to be in time, and what is due first is computed first.

Ahead of Arrow's paper, whose instances are of one role at a time: here every instance computes both phases in the same
iterations, prompts in the room that decodes leave (:mod:`functions.scheduling.pacing`). Prefill and decode are apart
only where computing both at one place costs more than it saves, which is where TPOT is short.
"""

from __future__ import annotations

from collections.abc import Mapping

from functions.scheduling.cluster import Instance, Scheduler
from functions.scheduling.predictor import Profile
from functions.scheduling.settings import SchedulingError, Targets

MIXING = 0.15
"""Part of its time for prompts that the first decode costs an instance, from which on decodes are packed together."""
FULL = 0.8
"""Part of TPOT that an iteration of decodes alone may take before further ones go elsewhere."""
LEAST_SHARE = 0.05
"""Part of the time that prompts are assumed to get where decodes leave less."""


class Deadline(Scheduler):
    """Least predicted time of the first token; decodes stay, or join other decodes where that frees enough time."""

    roles = False

    def __init__(self, profiles: Mapping[int, Profile], targets: Targets) -> None:
        super().__init__({}, targets, 1)
        for name, profile in profiles.items():
            self.add(name, profile)

    def share(self, instance: Instance, more: int = 0) -> float:
        """Part of the time that is left for prompts where each text gets a token every TPOT, with ``more`` tokens in
        the batch."""
        tokens = instance.decode_tokens + more
        if not tokens:
            return 1.0
        return max(LEAST_SHARE, 1.0 - instance.profile.decode.seconds(tokens) / self.targets.tpot_s)

    def prefill_end_s(self, instance: Instance, tokens: int) -> float:
        """Predicted seconds until a prompt of ``tokens`` would be computed there."""
        return (instance.prefill_s + instance.profile.prefill.seconds(tokens)) / self.share(instance)

    def choose_prefill(self, tokens: int, now_s: float) -> Instance:
        """Where the first token comes soonest; where decodes are packed, at instances without any while those are in
        time, or nobody is."""
        everybody = self._all()
        ends_s = {one.name: self.prefill_end_s(one, tokens) for one in everybody}
        in_time = [one for one in everybody if ends_s[one.name] <= self.targets.ttft_s]
        free = [one for one in everybody if not one.decodes] if self._packs(everybody[0]) else []
        pool = [one for one in free if one in in_time] or in_time or free or everybody
        return min(pool, key=lambda one: ends_s[one.name])

    def choose_decode(self, tokens: int, prefilled_on: Instance, now_s: float) -> Instance:
        """Here, where there is room; where decodes are packed and prompts wait here, the fullest with room for it."""
        fits = [one for one in self._all() if 1.0 - self.share(one, tokens) <= FULL]
        packs = self._packs(prefilled_on)
        if prefilled_on in fits and not (packs and prefilled_on.prefills):
            return prefilled_on
        if packs and fits:
            return max(fits, key=lambda one: (one.decode_tokens, one is prefilled_on, -one.prefill_s))
        return min(fits or self._all(), key=lambda one: (one.decode_tokens, one.prefill_s))

    def _packs(self, instance: Instance) -> bool:
        """Whether decodes belong together, as the first one at an instance takes too much of its time."""
        return instance.profile.decode.constant_s / self.targets.tpot_s >= MIXING

    def _all(self) -> list[Instance]:
        """Raises SchedulingError where there is no instance."""
        if not self.instances:
            raise SchedulingError("there is no instance")
        return list(self.instances.values())
