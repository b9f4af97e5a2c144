"""Opponents of Arrow that no ingress uses: a sibling's rule, decoders that take prompts, and Arrow that knows lengths.

All are this project's readings of descriptions, on the same bookkeeping and profiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from functions.scheduling.arrow import Arrow, Cost
from functions.scheduling.cluster import Instance, Role, Scheduler
from functions.scheduling.predictor import Profile
from functions.scheduling.settings import Targets


def prefill_end_s(instance: Instance, tokens: int) -> float:
    """When a prompt of ``tokens`` would be computed there, in seconds from now."""
    return instance.prefill_s + instance.profile.prefill.seconds(tokens)


class XllmRule(Scheduler):
    """The thresholds of xllm-service (xLLM-AI/xllm-service at 73d5e00, instance_mgr.cpp).

    A prompt that no prefill instance computes in time goes to the least loaded decode instance, if that has room below
    (n_D - 1) / n_D of TPOT; a prefill instance changes when no decode instance keeps TPOT, a decode instance as soon as
    it is empty. Its TPOT is a + b · texts + c · tokens, hence a model of both."""

    def __init__(
        self,
        profiles: Mapping[int, Profile],
        targets: Targets,
        prefill: int,
        decode_s: Callable[[int, int], float],
    ) -> None:
        """``decode_s``: seconds of an iteration by texts and tokens in the batch."""
        super().__init__(profiles, targets, prefill)
        self._decode_s = decode_s

    def _interval_s(self, instance: Instance, texts: int = 0, tokens: int = 0) -> float:
        """Predicted token interval with so much more in the batch."""
        return self._decode_s(len(instance.decodes) + texts, instance.decode_tokens + tokens)

    def choose_prefill(self, tokens: int, now_s: float) -> Instance:
        best = min(self.pool(Role.PREFILL), key=lambda one: prefill_end_s(one, tokens))
        decoding = self.having(Role.DECODE)
        if prefill_end_s(best, tokens) <= self.targets.ttft_s or not decoding:
            return best
        least = min(decoding, key=self._interval_s)
        room = self._interval_s(least) < self.targets.tpot_s * (len(decoding) - 1) / len(decoding)
        return least if room else best

    def choose_decode(self, tokens: int, prefilled_on: Instance, now_s: float) -> Instance:
        if prefilled_on.role is Role.DECODE:
            return prefilled_on
        least = min(self.pool(Role.DECODE), key=lambda one: self._interval_s(one, 1, tokens))
        prefilling, decoding = self.having(Role.PREFILL), self.having(Role.DECODE)
        if self._interval_s(least, 1, tokens) <= self.targets.tpot_s or len(prefilling) < 2:
            return least
        mean_s = sum(one.prefill_s for one in prefilling) / len(prefilling)
        idle = mean_s < self.targets.ttft_s * (len(prefilling) - 1) / len(prefilling)
        if not idle and len(decoding) >= len(prefilling):
            return least
        flipped = min(prefilling, key=lambda one: one.prefill_s)
        flipped.role = Role.DECODE
        self.flips += 1
        return flipped

    def finish(self, request: int, generated: int) -> None:
        instance = self.instances[self._decoding[request]]
        super().finish(request, generated)
        if not instance.decodes and instance.role is Role.DECODE and len(self.having(Role.DECODE)) > 1:
            instance.role = Role.PREFILL
            self.flips += 1


class ConvertibleDecoders(Scheduler):
    """A static split whose first decode instance also takes prompts that no prefill instance computes in time, as
    TokenScale's convertible decoders do (arXiv 2512.03416); its scaling of numbers is left out."""

    def __init__(self, profiles: Mapping[int, Profile], targets: Targets, prefill: int) -> None:
        super().__init__(profiles, targets, prefill)
        self._convertible = [one for one in self.instances.values() if one.role is Role.DECODE][:1]

    def choose_prefill(self, tokens: int, now_s: float) -> Instance:
        best = min(self.pool(Role.PREFILL), key=lambda one: prefill_end_s(one, tokens))
        if prefill_end_s(best, tokens) <= self.targets.ttft_s:
            return best
        return min([best, *self._convertible], key=lambda one: prefill_end_s(one, tokens))

    def choose_decode(self, tokens: int, prefilled_on: Instance, now_s: float) -> Instance:
        if prefilled_on.role is Role.DECODE:
            return prefilled_on
        return min(self.pool(Role.DECODE), key=lambda one: one.decode_tokens)


class OracleArrow(Arrow):
    """Arrow that knows every output's length: a decode's L(r) is what it will be at its end."""

    def __init__(self, profiles: Mapping[int, Profile], targets: Targets, prefill: int, outputs: Sequence[int]) -> None:
        super().__init__(profiles, targets, prefill)
        self._outputs, self._coming = outputs, 0
        self._at_end = dict.fromkeys(profiles, 0)

    def decode(self, request: int, now_s: float) -> int:
        self._coming = self._outputs[request]
        name = super().decode(request, now_s)
        self._at_end[name] += self.instances[name].decodes[request] + self._outputs[request]
        return name

    def finish(self, request: int, generated: int) -> None:
        name = self._decoding[request]
        self._at_end[name] -= self.instances[name].decodes[request] + self._outputs[request]
        super().finish(request, generated)

    def decode_cost(self, tokens: int, instance: Instance) -> Cost:
        most = instance.profile.decode.most_tokens(self.targets.tpot_s)
        return instance.prefill_tokens, self._at_end[instance.name] + tokens + self._coming - most
