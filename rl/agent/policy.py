"""The learnt policy in the controller: the exported actor behind the protocol of all policies.

An observation goes through the encoder of training (:mod:`rl.features`), the actor decides every layer in turn, and the
desired configurations go to the decision limits like those of any policy, but for those that would change nothing
(:func:`settled`). It leaves segments and ingress alone. Loads without stable-baselines3 and Gymnasium.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from autoscaler.checked import Checked, FromZero, NotNegative, Rule
from autoscaler.contract import (
    Configuration,
    ConfigurationSpace,
    Memory,
    NodeInfo,
    NodeObservation,
    Observation,
    Policy,
    Proposal,
    Topology,
)
from autoscaler.errors import SettingsError
from autoscaler.policies import Making
from autoscaler.prices import Meter
from evaluation.comparison.learnt_files import published_actor
from moe.manifest import load as load_manifest
from rl.agent.contract import ActorNetwork, Batch
from rl.agent.doubts import Doubts, ranges_of
from rl.agent.errors import NetworkError
from rl.agent.export import load as load_actor
from rl.features import CallTimes, Encoder, calls_of, calls_of_cores, mean_calls
from rl.features.ranges import Ranges
from rl.reward import RewardSettings
from simulation.profiles.model.bundled import planned_with
from simulation.profiles.model.cluster import cluster_model
from simulation.profiles.model.errors import ProfileError, ProfileMismatchError
from simulation.profiles.model.profiled import fitted_model
from simulation.profiles.model.storage import Profile
from simulation.workloads.paper import PAPER_WORKLOADS, paper_workload
from simulation.workloads.workload import manifest_cost

log = logging.getLogger(__name__)

NAME = "smoe"
WITHDRAWN = (
    "%s learnt on arrivals that nobody could have sent, and its results are withdrawn (docs/training.md); train an "
    "actor (smoe lab train), or use --policy hpa or staffing"
)
MEAN_TOKENS = 64
"""Mean tokens of a request, with a profile."""
IDLE = 0.5
"""Mean calls at a replica, over the calls that it would take at once, below which taking fewer changes nothing."""


@dataclass(frozen=True)
class MakingSettings(Checked):
    """Keys of the settings file (TOML)."""

    title = NAME
    actor: str = ""
    """File of the exported actor; by default a published one."""
    meter: Meter = RewardSettings.meter
    """Which published actor: the one that keeps ``provisioned`` or ``busy`` cost low."""
    profile: str = ""
    """Measured profile of the pipeline (parquet), for the seconds of a call; by default one of this tree that fits."""
    workload: str = ""
    """Or one of the paper's workloads; by default the pipeline's name, where it is one."""
    mean_tokens: FromZero = 0
    """Tokens of a mean request; 0: the workload's own, 64 with a profile."""
    cpu_scale: NotNegative = 0.0
    """Real cores per configured core, with a profile; 0: where that was measured."""
    other_machine: bool = False
    """The profile's machine is meant: where this one is another a named profile is not refused, and there is no warning
    about one that was found."""
    cluster: bool = False
    """With a profile: Φ's GPU shares are there too, as :mod:`simulation.profiles.model.cluster` shows their seconds,
    and a replica's cores are its own."""

    def rules(self) -> Iterable[Rule]:
        return (
            ("workload", self.workload in ("", *PAPER_WORKLOADS), ", ".join(PAPER_WORKLOADS)),
            ("profile", not (self.profile and self.workload), "left out where workload is given"),
        )


class ExplainingActor(ActorNetwork, Protocol):
    """An actor that can say why."""

    def explain(self, batch: Batch, executed: Tensor) -> tuple[Tensor, Tensor]:
        """[B, n, K] pointer's weights (Eq. 11), and scores g of what was chosen (section 4.3)."""


class LearntPolicy:
    """Desired configurations of every expert; those without data are held, with the reason. ``ranges``: of the actor's
    training, beyond which it doubts itself."""

    name = NAME

    def __init__(self, actor: ExplainingActor, encoder: Encoder, ranges: Ranges | None = None) -> None:
        self.encoder = encoder
        self._actor = actor
        self._doubts = Doubts(encoder, ranges)

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        configuration_index = self.encoder.configuration_index
        functions = [function for row in configuration_index.functions for function in row]
        if observation.stale or observation.requests is None:
            why = observation.problems[0] if observation.problems else "the window's requests are not known"
            return Proposal({}, dict.fromkeys(functions, f"no data: {why}"), memory)
        state, history = self.encoder.encode(observation, memory)
        with torch.inference_mode():
            batch = Batch.of(self.encoder.space, [state])
            chosen = self._actor.decide(batch)
            pointer, score = (part[0].numpy()[configuration_index.mask] for part in self._actor.explain(batch, chosen))
        desired = configuration_index.configurations(chosen[0].numpy())
        reasons = {
            function: f"pointer {weight:.3f}, score {value:.3f}"
            for function, weight, value in zip(functions, pointer.tolist(), score.tolist(), strict=True)
        }
        for function, missing in unknown(self.encoder.topology, observation).items():
            del desired[function]
            reasons[function] = f"no data: the {missing} of {function} is not known"
        return Proposal(settled(observation, desired), reasons, history, self._doubts.sentence(state, observation))


def settled(observation: Observation, desired: Mapping[str, Configuration]) -> dict[str, Configuration]:
    """``desired``, and the present configuration where all that is desired is that replicas take fewer calls at once
    than now and far fewer than that come anyway: such orders change nothing but the log."""
    configurations = dict(desired)
    for node in observation.nodes:
        now, configuration = node.configuration, desired.get(node.function)
        if now is None or configuration is None:
            continue
        kept = replace(now, burst=configuration.burst)  # standbys are decided elsewhere
        if _limits_nobody(node, kept, configuration):
            configurations[node.function] = kept
    return configurations


def _limits_nobody(node: NodeObservation, now: Configuration, desired: Configuration) -> bool:
    slots = node.concurrency_utilisation
    return slots is not None and only_fewer_calls(now, desired) and slots * now.concurrency < IDLE * desired.concurrency


def only_fewer_calls(now: Configuration, desired: Configuration) -> bool:
    """Whether all that ``desired`` would change is that a replica takes fewer calls at once."""
    return desired.concurrency < now.concurrency and replace(desired, concurrency=now.concurrency) == now


def unknown(topology: Topology, observation: Observation) -> dict[str, str]:
    """Function → what is missing, of experts that cannot be judged."""
    reasons = {}
    for layer in range(topology.layers):
        for info in topology.experts(layer):
            missing = _missing(info, observation)
            if missing:
                reasons[info.function] = missing
    return reasons


def _missing(info: NodeInfo, observation: Observation) -> str:
    row: NodeObservation | None = observation.node(info.id)
    if row is None or row.configuration is None:
        return "configuration"
    if row.requests_per_s is None or row.tokens_per_s is None:
        return "load"
    return "peak of tokens" if row.peak_tokens is None else ""


def make(making: Making) -> Policy:
    """For ``--policy smoe``; settings in ``--policy-settings FILE``. Raises SettingsError."""
    settings, encoder = making.settings_as(MakingSettings), encoder_of(making)
    path = Path(settings.actor) if settings.actor else published_actor(making.topology.pipeline, settings.meter)
    try:
        actor = load_actor(path)
        if not settings.actor:
            log.warning(WITHDRAWN, path.name)
        return LearntPolicy(actor, encoder, ranges_of(path))
    except (NetworkError, ValueError) as error:
        raise SettingsError(f"{NAME}: {error}") from error


def encoder_of(making: Making) -> Encoder:
    """The encoder of the states that the policy of these settings decides in; no actor is read. Raises
    SettingsError."""
    settings, slo_s = making.settings_as(MakingSettings), making.settings.slo_s
    if slo_s is None:
        raise SettingsError(f"slo_s is None; {NAME} decides for a latency target (--slo-ms)")
    try:
        calls, space = call_times(making, settings, slo_s)
        return encoder_for(making, slo_s, calls, space)
    except (ProfileError, ValueError) as error:
        raise SettingsError(f"{NAME}: {error}") from error


def encoder_for(making: Making, slo_s: float, calls: CallTimes, space: ConfigurationSpace) -> Encoder:
    """The encoder of the states that the policy decides in. Raises ValueError."""
    return Encoder(making.topology, replace(making.limits, space=space), making.prices, slo_s, calls)


def call_times(making: Making, settings: MakingSettings, slo_s: float) -> tuple[CallTimes, ConfigurationSpace]:
    """Seconds of a mean call, and the part of Φ that they show of: of a profile, without ``cluster``, cores alone.

    From the profile or the paper's workload that the settings name, else from what fits the pipeline, else from cores
    alone. Raises ProfileError.
    """
    pipeline, space = making.topology.pipeline, making.limits.space
    name = settings.workload or (pipeline if not settings.profile and pipeline in PAPER_WORKLOADS else "")
    if name:
        return calls_of(paper_workload(name, mean_tokens=settings.mean_tokens or None, space=space)), space
    meant = settings.other_machine or settings.cluster
    try:
        profile = planned_with(settings.profile, making.settings.manifest_dir, making.topology, meant, NAME)
    except ProfileMismatchError:
        if settings.profile:
            raise
        return calls_of_cores(space, slo_s, making.topology.layers), space
    space_known = space if settings.cluster else replace(space, gpu_shares=())
    return _profiled(making, settings, profile, space_known), space_known


def _profiled(making: Making, settings: MakingSettings, profile: Profile, space: ConfigurationSpace) -> CallTimes:
    manifest = load_manifest(making.settings.manifest_dir, verify=False)
    costs = {node.id: manifest_cost(manifest, node) for node in manifest.nodes}
    experts = [making.topology.experts(layer) for layer in range(making.topology.layers)]
    mean = settings.mean_tokens or MEAN_TOKENS
    called = [
        (costs[node.id], max(1.0, mean * manifest.tokens_share(manifest.node(node.id))))
        for layer in experts
        for node in layer
    ]
    make_model = cluster_model if settings.cluster else fitted_model
    return mean_calls(make_model(profile, costs, settings.cpu_scale or None), called, space)
