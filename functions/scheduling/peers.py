"""Simpler schedulers, as peers of :class:`functions.scheduling.arrow.Arrow`: roles never change."""

from __future__ import annotations

from functions.scheduling.cluster import Instance, Role, Scheduler


class MinimalLoad(Scheduler):
    """Static split: prefills to the shortest predicted queue, decodes to the fewest tokens."""

    def choose_prefill(self, tokens: int, now_s: float) -> Instance:
        return min(self.pool(Role.PREFILL), key=lambda one: one.prefill_s + one.profile.prefill.seconds(tokens))

    def choose_decode(self, tokens: int, prefilled_on: Instance, now_s: float) -> Instance:
        return min(self.pool(Role.DECODE), key=lambda one: one.decode_tokens)


class RoundRobin(Scheduler):
    """Static split: each pool in turn."""

    _prefills = 0
    _decodes = 0

    def choose_prefill(self, tokens: int, now_s: float) -> Instance:
        pool = self.pool(Role.PREFILL)
        self._prefills += 1
        return pool[(self._prefills - 1) % len(pool)]

    def choose_decode(self, tokens: int, prefilled_on: Instance, now_s: float) -> Instance:
        pool = self.pool(Role.DECODE)
        self._decodes += 1
        return pool[(self._decodes - 1) % len(pool)]


class Colocated(Scheduler):
    """No split: a request stays where it was prefilled, next to the chunks of other prompts."""

    roles = False

    def choose_prefill(self, tokens: int, now_s: float) -> Instance:
        return min(self.instances.values(), key=self._load)

    def choose_decode(self, tokens: int, prefilled_on: Instance, now_s: float) -> Instance:
        return prefilled_on

    def _load(self, instance: Instance) -> float:
        """Its queue in parts of the TTFT target and its tokens in parts of what TPOT allows."""
        most = max(instance.profile.decode.most_tokens(self.targets.tpot_s), 1)
        return instance.prefill_s / self.targets.ttft_s + instance.decode_tokens / most
