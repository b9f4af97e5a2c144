"""The staffing policy in the controller: learnt (``--policy rl.staffing.policy:make``), or one rule for all experts
(``:make_rule``), which is what it starts from and has to beat."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from autoscaler.checked import NotNegative, Positive, PositiveShare, Rule
from autoscaler.contract import Configuration, Memory, Observation, Policy, Proposal
from autoscaler.errors import SettingsError
from autoscaler.policies import Making
from autoscaler.policy.work import Work, stated_costs, stating
from autoscaler.prices import money
from evaluation.bound.last_window import MEAN_TOKENS, ModelSettings, Plan, pass_slo_s, workload_of
from platform_words.bursts import MAX_STANDBYS
from rl.agent.contract import Batch
from rl.agent.doubts import RANGES, Doubts
from rl.agent.errors import NetworkError
from rl.features import Encoder, calls_of
from rl.features.ranges import Ranges
from rl.staffing.action import AXES, NAMES, Actions, Depth, Staffing, action_of, burst_of, room_of
from rl.staffing.checks import LEAST_SEEN, NONE, Correction, tokens_seen, without_calls
from rl.staffing.export import load
from rl.staffing.features import FEATURES, StaffingEncoder
from rl.staffing.margin import Margin
from rl.staffing.networks import StaffingActor
from simulation.arrays import Floats
from simulation.engine.bursts import DEFAULT_BURSTS
from simulation.latency.roofline import Roofline
from simulation.workloads.paper import LIFECYCLE
from simulation.workloads.workload import TokenLengths, Workload, pipeline_workload

REACH = 2.0
"""Times the last window's work that replicas which run and which wait are there for together: load that doubles from
one window to the next finds them, more waits for the next window's order."""
OPENING = 1.5
"""λ over the seconds in which a standby opens, below which the rule, which lets standbys meet bursts, doubts itself."""


@dataclass(frozen=True)
class Remembered:
    """What the rule remembers of a measured pipeline."""

    work: Work = field(default_factory=Work)
    margin: Margin = field(default_factory=Margin)

    @staticmethod
    def of(memory: Memory, observation: Observation, following: Collection[str]) -> Remembered:
        """What the rule remembered. Where that is nothing, as after a start of the controller, what its orders of
        before have left at the functions. ``following``: names of numbers that the margin sets."""
        if isinstance(memory, Remembered):
            return memory
        present = [node.configuration for node in observation.nodes if node.configuration is not None]
        bursts = [one.burst for one in present if one.burst is not None]
        return Remembered(Work(token_s=stated_costs(observation)), Margin.ordered(bursts, following))


class StaffingRule:
    """The same eight numbers for all experts in all windows: what a search can tune. Of a measured pipeline those that
    are not given follow P95. Standbys go first to experts that get many tokens."""

    name = "staffing"

    def __init__(
        self,
        workload: Workload,
        encoder: Encoder,
        values: Mapping[str, float],
        segment_standbys: int = 0,
        following: Collection[str] = (),
        planned: bool = True,
    ) -> None:
        """``values``: by :data:`rl.staffing.action.NAMES`. ``segment_standbys``: of every segment, where calls are of
        functions that run; 0 leaves segments to another policy. ``following``: names of numbers that
        :class:`rl.staffing.margin.Margin` sets there, whatever ``values`` has. ``planned``: as of :class:`Staffing`."""
        self._workload, self._staffing, self.encoder = workload, Staffing(workload, planned), encoder
        self._by_cpu = workload.measured and not workload.topology.generates
        """Standbys open by the CPU time of a token. What is modelled has no quota, and takes the same either way."""
        self._values, self._following, self._planned = values, frozenset(following), planned
        self._segment_standbys = segment_standbys if self._by_cpu else 0

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        shares = [getattr(observation.node(node.id), "token_share", None) for node in self._workload.experts]
        priority = np.array([1.0 if share is None else share for share in shares])
        room = self.encoder.room(observation)
        remembered = self._remembered(observation, memory) if self._by_cpu else None
        values = self._values if remembered is None else self._followed(remembered.margin)
        actions = np.tile(action_of(values), (len(self._workload.experts), 1))
        experts = [node.function for node in self._workload.experts]
        depth = None
        if remembered is not None:
            depth = self._depth(experts, observation, remembered.work, values["load"], sized=self._planned)
        correction = NONE if self._by_cpu else Correction.of(memory).after(self._workload, observation)
        load = correction.planned_for(observation)
        plan = self._staffing.plan(load, actions, priority, room_of(room), depth, correction)
        answer = replace(proposal(plan, self._workload, actions, memory), doubt=self._doubt(observation))
        if remembered is None:
            if not answer.doubt:  # a load that is not all of it makes the seconds of what there is too few
                correction = correction.with_sizes(self._workload.slo_s, plan.present_s, plan.outside_s)
            return replace(answer, memory=correction)
        work, segments = remembered.work, self._staffed_segments(observation, remembered.work, values)
        reasons = {name: _staffing_words(name, one, work, observation) for name, one in segments.items()}
        if not answer.desired:  # nobody else takes them for a window
            reasons = dict.fromkeys(segments, plan.reason)
            return replace(answer, reasons={**answer.reasons, **reasons}, memory=remembered)
        desired = {**answer.desired, **segments}
        reasons |= {
            name: _staffing_words(name, one, work, observation) + _second(plan, name, self._workload)
            for name, one in answer.desired.items()
        }
        stated = {name: stating(one, work.token_s.get(name)) for name, one in desired.items()}
        return replace(answer, desired=stated, reasons={**answer.reasons, **reasons}, memory=remembered)

    def _remembered(self, observation: Observation, memory: Memory) -> Remembered:
        before = Remembered.of(memory, observation, self._following)
        return Remembered(before.work.after(observation), before.margin.after(observation, self._workload.slo_s))

    def _followed(self, margin: Margin) -> Mapping[str, float]:
        """The rule's numbers, those that follow P95 by ``margin``."""
        numbers = margin.numbers
        return {name: numbers[name] if name in self._following else one for name, one in self._values.items()}

    def _doubt(self, observation: Observation) -> str:
        opening_s, slo_s = DEFAULT_BURSTS.activation_s, self._workload.slo_s
        if slo_s < OPENING * opening_s and not self._workload.topology.generates:
            return f"standbys open in {opening_s:g} s, too late for an SLO of {slo_s:.3g} s"
        if without_calls(self._workload, observation):
            return "the experts show tokens and no calls"
        share = tokens_seen(self._workload, observation)
        if share is None or share >= LEAST_SEEN:
            return ""
        return f"the experts show {share:.0%} of the tokens that requests brought"

    def _depth(
        self, functions: Sequence[str], observation: Observation, work: Work, load: float, *, sized: bool = False
    ) -> Depth:
        """Replicas for ``load`` times the window's work always run, and as many wait as make ``REACH`` times that work
        together. The planner knows a call's time, not what a quota makes of a stream of them, so by itself it takes
        one replica for enough. Where the work is not known there are as many as now, but of functions whose size is
        planned (``sized``): other sizes are other numbers."""
        busy = np.array([work.busy(function, observation) for function in functions])
        running = np.ceil(load * busy).astype(int)
        if not sized:
            now = {node.function: node.configuration for node in observation.nodes}
            kept = [
                one.replicas if (one := now.get(function)) and not work.is_known(function, observation) else 0
                for function in functions
            ]
            running = np.maximum(running, np.array(kept, dtype=int))
        return Depth(running, np.ceil(REACH * busy).astype(int))

    def _staffed_segments(
        self, observation: Observation, work: Work, values: Mapping[str, float]
    ) -> dict[str, Configuration]:
        """Those of :meth:`_depth` for every segment on cores, one at least, with the standbys of the rule at least."""
        if not self._segment_standbys:
            return {}
        burst = burst_of(self._segment_standbys, values)
        present = {
            node.function: node.configuration
            for node in observation.nodes
            if node.kind == "segment" and node.configuration is not None and not node.configuration.gpu_share
        }
        depth = self._depth(list(present), observation, work, values["load"])
        running = np.maximum(1, depth.running)
        waiting = depth.standbys(np.full_like(running, burst.standbys), running)
        return {
            function: replace(present[function], replicas=int(count), burst=replace(burst, standbys=int(standbys)))
            for function, count, standbys in zip(present, running, waiting, strict=True)
        }


class LearntStaffingPolicy:
    """Eight numbers of every expert from the actor, and its pointer's weights as priorities."""

    name = "staffing-learnt"

    def __init__(
        self, actor: StaffingActor, workload: Workload, encoder: StaffingEncoder, ranges: Ranges | None = None
    ) -> None:
        self._actor, self._workload, self._staffing = actor.eval(), workload, Staffing(workload)
        self.encoder, self._doubts = encoder, Doubts(encoder, ranges)

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        if observation.stale or observation.requests is None:
            why = observation.problems[0] if observation.problems else "the window's requests are not known"
            held = {node.function: f"no data: {why}" for node in self._workload.experts}
            return Proposal({}, held, memory)
        state, history = self.encoder.encode(observation, memory)
        actions, priority = decided(self._actor, self.encoder, Batch.of(self.encoder.space, [state]))
        plan = self._staffing.plan(observation, actions, priority, room_of(state.room), None, NONE)
        answer = proposal(plan, self._workload, actions, history)
        return replace(answer, doubt=self._doubts.sentence(state, observation))


def _staffing_words(function: str, configuration: Configuration, work: Work, observation: Observation) -> str:
    burst = configuration.burst
    when = "while requests come" if burst is not None and burst.sleep_s is not None else "always"
    waiting, busy = 0 if burst is None else burst.standbys, work.busy(function, observation)
    is_known = work.is_known(function, observation)
    size = f"work for {busy:.2g} replicas" if is_known else "its work is not known"
    return f"{size}: {configuration.replicas} run {when}, {waiting} wait"


def decided(actor: StaffingActor, encoder: Encoder, batch: Batch) -> tuple[Actions, Floats]:
    """[experts, 8] and [experts] in the order of the pass, for the one state of ``batch``."""
    with torch.inference_mode():
        staffed = actor(batch)
    mask = encoder.configuration_index.mask
    return staffed.actions[0].numpy()[mask], staffed.priority[0].numpy()[mask].astype(np.float64)


def proposal(plan: Plan, workload: Workload, actions: Actions, memory: Memory) -> Proposal:
    """What is asked for, each with the eight numbers as the reason. ``actions`` [experts, numbers]."""
    if not plan.desired:
        return Proposal({}, dict.fromkeys(plan.functions, plan.reason), memory)
    values = np.stack([axis.value(actions[:, place]) for place, axis in enumerate(AXES)], -1)
    reasons = {
        node.function: ", ".join(f"{name} {value:.2g}" for name, value in zip(NAMES, row, strict=True))
        + _second(plan, node.function, workload)
        for node, row in zip(workload.experts, values, strict=True)
    }
    return Proposal(plan.desired, reasons, memory)


def _second(plan: Plan, function: str, workload: Workload) -> str:
    """What the second best choice would have been, and cost; empty where there is none."""
    if function not in plan.second:
        return ""
    other, more = plan.second[function]
    what = (
        f"{other.replicas} × {other.gpu_share:g} GPU"
        if other.gpu_share
        else f"{other.replicas} × {other.cpu_cores:g} cores"
    )
    return f"; the second best, {what}, would cost {money(more, workload.prices.currency)} an hour more"


MODELLED = {
    "load": 0.5, "standbys": 6.0, "headroom": 1.0, "spare": 0.1, "hold_s": 1.5, "look_back_s": 0.25, "sleep_s": 60.0
}  # fmt: skip
MEASURED = Margin().numbers
"""Defaults where call times are of functions that run: chosen live, on three traces at 14 and 17 requests/s, where the
arrivals of a quarter of a second are few and vary by half. ``load`` was chosen simulated: what the last window kept
busy costs less always running than opened again by every other request, until there is slack to give up."""


@dataclass(frozen=True)
class RuleSettings(ModelSettings):
    """Keys of the rule's file: the latency model, and the eight numbers, each within its axis of
    :data:`rl.staffing.action.AXES`."""

    title = "staffing"
    plan: bool = True
    """Plan sizes of replicas by call times. False: they stay as deployed, and their number goes by CPU time, which
    takes neither profile nor workload."""
    load: Positive | None = None
    """Times its calls in the last window that replicas always run for. [default: 0.5 where calls are modelled and of
    decoders, 0.5 to 1 by P95 where they were measured]"""
    standbys: NotNegative | None = None
    """Replicas of every expert that wait. [default: 6 where calls are modelled, 3 to 6 by P95 where they were
    measured]"""
    spare: NotNegative | None = None
    """z of the activation rule: replicas for each root of the work. [default: 0.1 where calls are modelled, 0.1
    to 1.6 by P95 where they were measured]"""
    activation_headroom: NotNegative | None = None
    """k of the activation rule: replicas for each replica's worth of work. [default: 1 where calls are modelled, 0.5
    to 1.5 by P95 where they were measured]"""
    hold_s: Positive | None = None
    """Seconds that an activated standby stays after it was wanted last. [default: 1.5 where calls are modelled, 1 to
    6 by P95 where they were measured]"""
    look_back_s: Positive | None = None
    """Seconds of arrivals that count. [default: 0.25 where calls are modelled, 1 to 0.5 by P95 where they were
    measured]"""
    budget: PositiveShare = 0.8
    """Part of what λ leaves the experts that a plan's mean seconds may take."""
    sleep_s: Positive | None = None
    """Seconds without a request after which replicas wait for the next one; from 15 on they always run. [default: 60
    where calls are modelled and of decoders, 0.5 to 14 by P95 where they were measured]"""
    segment_standbys: Annotated[int, Field(ge=0, le=MAX_STANDBYS)] = 2
    """Replicas of every segment that wait, next to those that always run for ``load`` times the last window, where
    calls were measured; 0, as without standbys of experts, leaves segments to HPA."""

    def values(self, measured: bool = False) -> dict[str, float]:
        """By :data:`rl.staffing.action.NAMES`; ``measured``: the planner's call times are."""
        return {**(MEASURED if measured else MODELLED), **self.given}

    @property
    def given(self) -> dict[str, float]:
        """Those that the file has, or that have one default for all; by :data:`rl.staffing.action.NAMES`."""
        mine = {name: getattr(self, _key(name)) for name in NAMES}
        return {name: value for name, value in mine.items() if value is not None}

    def rules(self) -> Iterable[Rule]:
        given = self.given
        for axis in AXES:
            value = given.get(axis.name, axis.low)
            yield _key(axis.name), axis.low <= value <= axis.high, f"{axis.low:g} to {axis.high:g}"


def _key(name: str) -> str:
    return "activation_headroom" if name == "headroom" else name


@dataclass(frozen=True)
class LearntSettings(ModelSettings):
    """Keys of the learnt policy's file: the latency model, and the actor."""

    title = "staffing-learnt"
    actor: str = ""
    """File of the trained actor."""


def make_rule(making: Making) -> Policy:
    """For ``--policy rl.staffing.policy:make_rule``; settings in ``--policy-settings FILE``. Raises SettingsError."""
    settings = making.settings_as(RuleSettings)
    return rule_for(making, settings, workload_of(making, settings) if settings.plan else _unprofiled(making))


def rule_for(making: Making, settings: RuleSettings, workload: Workload) -> StaffingRule:
    """The rule, planning with the call times of ``workload``."""
    values = settings.values(workload.measured)
    if workload.topology.generates:
        # Of steps of many texts, whose number hardly varies; and what holds texts under way never sleeps.
        values |= {name: MODELLED[name] for name in ("load", "sleep_s") if getattr(settings, name) is None}
    segments = settings.segment_standbys if values["standbys"] and "segment" in making.kinds else 0
    following = Margin().numbers.keys() - settings.given.keys()
    return StaffingRule(workload, _encoder(making, workload), values, segments, following, settings.plan)


def _unprofiled(making: Making) -> Workload:
    """The pipeline as functions that run and whose call times nobody asks for: the model's stand in. Raises
    SettingsError."""
    settings = making.settings
    if making.topology.generates or settings.slo_s is None:
        raise SettingsError("staffing: plan is false, which takes --slo-ms and a pipeline that generates no text")
    tokens = TokenLengths.fixed(MEAN_TOKENS)
    workload = pipeline_workload(
        settings.manifest_dir, Roofline(), LIFECYCLE, slo_s=settings.slo_s, tokens=tokens, prices=making.prices
    )
    return replace(workload, space=making.limits.space, alpha=making.limits.alpha)


def make(making: Making) -> Policy:
    """For ``--policy rl.staffing.policy:make``; settings in ``--policy-settings FILE``. Raises SettingsError."""
    settings = making.settings_as(LearntSettings)
    if pass_slo_s(making) is None:
        raise SettingsError(
            "slo_s is None; the staffing policy decides for a target (--slo-ms, of a decoder --tpot-ms)"
        )
    if not settings.actor:
        raise SettingsError("actor is empty; name the file of a trained staffing actor")
    try:
        actor, made = load(Path(settings.actor))
        ranges = Ranges.from_json(made[RANGES], FEATURES) if RANGES in made else None
    except (NetworkError, KeyError, ValueError, AttributeError, TypeError) as error:
        raise SettingsError(f"staffing-learnt: {error}") from error
    workload = workload_of(making, settings)
    return LearntStaffingPolicy(actor, workload, _encoder(making, workload), ranges)


def _encoder(making: Making, workload: Workload) -> StaffingEncoder:
    limits = replace(making.limits, space=workload.space)
    return StaffingEncoder(making.topology, limits, making.prices, workload.slo_s, calls_of(workload))
