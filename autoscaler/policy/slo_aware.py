"""llm-d's SLO-aware autoscaling ("epp-saturation") as a policy: replicas from the tail's latency over the SLO.

Source: llm-d/llm-d, guides/workload-autoscaling/README.slo-aware.md, the control law. The saturation is the P90 of
requests over the SLO, clamped and averaged over 45 s; with targets for a decoder's tokens the largest of their P90
over target, as the guide has it for TTFT and TPOT. Above a band the replicas grow in its proportion, less what is on
its way already; below they shrink. Kubernetes' HPA then limits rate and direction.

Departures: the P90 is the measured one, which the guide falls back to where no latency predictor runs, read off the
window's P50 and P95 by a straight line; one pool is the pipeline, so all its functions follow one signal; the guide's
scale-down of one replica in 120 s is one in the 60 s of the scale-up's period.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.checked import AboveOne, FromOne, FromZero, NotNegative, Positive, PositiveShare, Rule
from autoscaler.contract import Configuration, Memory, NodeKind, Observation, Proposal
from autoscaler.policy.pace import NOTHING, History, Pace, limit
from autoscaler.policy.rows import EVERY_KIND, by_function
from autoscaler.state.targets import Targets

TAIL = 0.9


@dataclass(frozen=True)
class SloAwareSettings(Targets):
    """Thresholds, clamp and times are the guide's."""

    title = "slo-aware"
    up_threshold: PositiveShare = 0.55
    """Saturation above which replicas are added: before the SLO is broken, as latency rises steeply there."""
    down_threshold: PositiveShare = 0.4
    """Saturation below which replicas are taken away."""
    clamp: AboveOne = 2.0
    """Most that one window's saturation counts for."""
    smoothing_s: Positive = 45.0
    """Seconds over which windows' saturations are averaged."""
    up_stabilisation_s: NotNegative = 30.0
    """Window whose least recommendation bounds scaling up."""
    down_stabilisation_s: NotNegative = 180.0
    """Window whose largest recommendation bounds scaling down."""
    period_s: Positive = 60.0
    """Period of the rate: up by the larger of 4 and 100 %, down by ``down_pods``."""
    down_pods: FromOne = 1
    """Most replicas taken away in ``period_s``."""
    min_replicas: FromZero = 1
    max_replicas: FromOne = 8
    kinds: frozenset[NodeKind] = EVERY_KIND

    def rules(self) -> tuple[Rule, ...]:
        return (
            ("slo_s", self.any, "a target, where ttft_s and tpot_s are none"),
            ("down_threshold", self.down_threshold < self.up_threshold, "below up_threshold"),
        )


class Remembered(NamedTuple):
    """What is remembered from window to window."""

    samples: tuple[tuple[float, float], ...] = ()
    """(Unix time, clamped saturation), oldest first."""
    histories: tuple[tuple[str, History], ...] = ()
    """Function → what HPA remembers of it."""


class SloAwarePolicy:
    """One saturation signal for all functions of the chosen kinds; it changes replicas only."""

    name = "slo-aware"

    def __init__(self, settings: SloAwareSettings) -> None:
        self.settings = s = settings
        self._pace = Pace(
            up_stabilisation_s=s.up_stabilisation_s, down_stabilisation_s=s.down_stabilisation_s, down_percent=0.0,
            down_pods=s.down_pods, period_s=s.period_s, min_replicas=s.min_replicas, max_replicas=s.max_replicas,
        )  # fmt: skip

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        past = memory if isinstance(memory, Remembered) else Remembered()
        rows = by_function(observation, self.settings.kinds)
        measured = saturation_of(observation, self.settings)
        if measured is None:
            reason = "no data: nothing that has a target ended in this window, and requests are under way"
            return Proposal({}, dict.fromkeys(rows, reason), past)
        what, saturation = measured
        samples = (*(s for s in past.samples if s[0] > now_s - self.settings.smoothing_s), (now_s, saturation))
        smoothed = sum(value for _, value in samples) / len(samples)
        histories, desired, reasons = dict(past.histories), dict[str, Configuration](), dict[str, str]()
        for function, nodes in rows.items():
            present, ready = nodes[0].configuration, nodes[0].ready_replicas
            if present is None or ready is None:
                reasons[function] = "no data: its replicas are not known"
                continue
            raw = desired_replicas(smoothed, present.replicas, ready, self.settings)
            history = histories.get(function, NOTHING)
            wanted, histories[function], why = limit(raw, present.replicas, history, now_s, self._pace)
            desired[function] = present.with_replicas(wanted)
            reasons[function] = f"P90{what} at {smoothed:.0%} of the SLO asks for {raw}" + (f"; {why}" if why else "")
        return Proposal(desired, reasons, Remembered(samples, tuple(histories.items())))


def saturation_of(observation: Observation, settings: SloAwareSettings) -> tuple[str, float] | None:
    """The largest P90 over its target, clamped, and which it is where there are several kinds.

    While requests are under way, a target of which nothing ended is no reason to shrink, and None where that is so of
    all of them: texts that wait for their first token show in no completion.
    """
    tails = settings.tails(observation)
    ratios = [(reached / tail.target_s, tail.name) for tail in tails if (reached := tail.reached(TAIL)) is not None]
    texts = observation.generation
    under_way = bool(observation.in_flight) or (texts is not None and bool(texts.running or texts.waiting))
    if under_way and not ratios:
        return None
    saturation, name = max(ratios, default=(0.0, ""))
    if under_way and len(ratios) < len(tails):
        saturation = max(saturation, settings.down_threshold)
    return "" if name in ("", "P95") else f" of {name}", min(saturation, settings.clamp)


def desired_replicas(saturation: float, provisioned: int, ready: int, settings: SloAwareSettings) -> int:
    """The guide's piecewise law, its step 2.

    Worked examples at 0.55 and 0.4: 4 replicas, all ready, at 0.825 become 6; with 3 of them ready (0.825 · 3/4 =
    0.619) 5; at 0.2 they become 2; between the thresholds 4 stay 4. With one of 4 ready 0.825 asks for 2: that is the
    guide's formula, against its own words that only the signal as measured takes replicas away; the HPA's window over
    the past, which still holds what was asked for when they were added, keeps them.
    """
    if saturation > settings.up_threshold:
        # What is starting will carry a part of the load, though the signal does not show it yet.
        credited = saturation * (ready / provisioned if 0 < ready < provisioned else 1.0)
        return provisioned + math.ceil(provisioned * (credited / settings.up_threshold - 1) - 1e-9)
    if saturation < settings.down_threshold:
        return provisioned - math.floor(provisioned * (1 - saturation / settings.down_threshold) + 1e-9)
    return provisioned
