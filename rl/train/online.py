"""Learning from what a controller logged: fine-tuning, and windows that a training begins with.

Off unless somebody asks for it, and never exploring.

What is learnt from are windows that were decided in production, behind the decision limits, by whichever policy ran; no
decision is drawn for the sake of learning. The result is an actor to look at and to deploy, not one that changes
itself: in the controller its decisions pass the same limits as before.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autoscaler.contract import Burst
from autoscaler.settings import window_of
from evaluation.comparison.policies import planned_by
from moe.errors import ManifestError
from rl.agent.contract import Batch
from rl.agent.ddpg.algorithm import PipelineDDPG
from rl.agent.ddpg.buffer import WindowStep
from rl.agent.ddpg.exploration import decide
from rl.agent.errors import NetworkError
from rl.agent.policy import NAME, encoder_of
from rl.agent.windows import as_learnt, making_of_log
from rl.experience import Experience, experiences
from rl.features import NODE_FEATURES, PIPELINE_FEATURES, Encoder
from rl.features.configuration_index import REPLICAS
from rl.train.errors import TrainingError
from simulation.profiles.model.errors import ProfileError
from simulation.workloads.custom import CustomPipeline, CustomPipelineError

log = logging.getLogger("smoe.train")
FEWEST = 64
"""Windows below which nothing is learnt: a handful teaches little, and forgets much."""


@dataclass(frozen=True)
class Logged:
    """A controller's log as windows to learn from."""

    pipeline: str
    windows: tuple[Experience, ...]
    encoder: Encoder
    window_s: float


@dataclass(frozen=True)
class Desired:
    """What an actor would have desired in the windows of a log."""

    unit_per_s: tuple[float, ...]
    """Price of each window: price of a second of all experts' replicas, in the log's currency."""
    actions: tuple[np.ndarray, ...]
    """Actions of each window [n, K, 4] configuration numbers."""

    @property
    def per_hour(self) -> float:
        """Currency an hour, in the mean of the windows."""
        return 3600 * float(np.mean(self.unit_per_s))

    def share_changed(self, other: Desired) -> float:
        """Share of windows in which at least one expert has another desired configuration, 0 to 1."""
        pairs = zip(self.actions, other.actions, strict=True)
        return float(np.mean([not np.array_equal(one, another) for one, another in pairs]))


def read(
    folder: Path,
    policy_settings: Path | None = None,
    slo_s: float | None = None,
    manifest: Path | None = None,
    burst: Burst | None = None,
    pipelines: Iterable[CustomPipeline] = (),
) -> Logged:
    """The windows of the log in ``folder`` as the learnt policy would have seen them.

    ``policy_settings``: its settings (TOML), by default those of the log where it was the policy; ``slo_s``: λ, by
    default the log's; ``manifest``: as of :func:`rl.agent.windows.making_of_log`; ``burst``: standbys of every expert
    in training; ``pipelines``: custom ones that are trained on, by whose mean calls a log of one of them is read that
    was another policy's. Raises TrainingError for fewer than ``FEWEST`` windows, and where the log is of another
    pipeline than its manifest; LogError, SettingsError.
    """
    try:
        making = making_of_log(folder, manifest)
        how: Path | dict[str, Any] | None = policy_settings
        if how is None and making.settings.policy != NAME:
            how = trained_with(pipelines, making.topology.pipeline)
        making = as_learnt(making, how, slo_s)
    except NetworkError as error:
        raise TrainingError(str(error)) from error
    encoder = encoder_of(making)
    return Logged(making.topology.pipeline, windows_of(folder, encoder, burst), encoder, window_of(making.settings))


def trained_with(pipelines: Iterable[CustomPipeline], name: str) -> dict[str, Any] | None:
    """Settings by which the policy counts in the mean calls of the one of ``pipelines`` that is ``name``; None where
    none is. Where one cannot be read, and might have been it, that is logged."""
    unread = []
    for one in pipelines:
        try:
            if one.pipeline == name:
                return planned_by(one)
        except (ManifestError, ProfileError, CustomPipelineError) as error:
            unread.append(f"{one.name}: {error}")
    if unread:
        log.warning(
            "the log of %s is read in the policy's usual mean calls, as a pipeline that is trained on cannot be "
            "read (%s)",
            name,
            "; ".join(unread),
        )
    return None


def windows_of(folder: Path, encoder: Encoder, burst: Burst | None = None) -> tuple[Experience, ...]:
    """Windows of experts with the standbys ``burst``; how many others are left out is logged. Raises TrainingError for
    fewer than ``FEWEST``, and where the pipeline had other nodes; LogError."""
    left_out = Counter[str]()
    try:
        windows = tuple(experiences(folder, encoder, burst, left_out))
    except ValueError as error:
        raise TrainingError(f"{folder}: {error}") from error
    others = "".join(f"; {count} are left out for {reason}" for reason, count in left_out.items())
    if len(windows) < FEWEST:
        raise TrainingError(
            f"{folder} holds {len(windows)} windows to learn from; at least {FEWEST} are needed, decided "
            f"one after the other{others}"
        )
    if others:
        log.warning("%s: %d windows are learnt from%s", folder, len(windows), others)
    return windows


def fine_tune(
    agent: PipelineDDPG, logged: Logged, updates: int, on_update: Callable[[], object] = lambda: None
) -> None:
    """``updates`` updates of an agent (as of ``PipelineDDPG.load``) on the windows of a log. C_ref is their mean cost
    on the agent's meter.

    Raises TrainingError for windows that cost nothing, and for an agent of other features.
    """
    fill(agent, logged)
    agent.progress(1.0)  # rates at their end: small steps
    for _ in range(updates):
        agent.train(1)
        on_update()


def fill(agent: PipelineDDPG, logged: Logged, reference: float | None = None) -> None:
    """Put the windows of a log into an agent's replay. ``reference``: C_ref in the log's currency, by default the mean
    cost of its windows on the agent's meter.

    Raises TrainingError as :func:`fine_tune` and :func:`register` do.
    """
    sizes = (agent.networks.node_features, agent.networks.pipeline_features)
    if sizes != (len(NODE_FEATURES), len(PIPELINE_FEATURES)):
        raise TrainingError(
            f"the agent has {sizes[0]} node and {sizes[1]} pipeline features, this version of the program "
            f"{len(NODE_FEATURES)} and {len(PIPELINE_FEATURES)}; train it again"
        )
    busy, encoder = agent.learner.busy_meter, logged.encoder
    if reference is None:
        reference = mean_cost(logged, busy)
    register(agent, logged, reference)
    for one in logged.windows:
        rewards = (-_cost(one, busy) / reference).astype(np.float32)
        p95 = np.nan if one.p95_s is None else one.p95_s / encoder.slo_s
        agent.replay_buffer.add(WindowStep(logged.pipeline, one.state, one.actions, rewards, p95, one.following))


def mean_cost(logged: Logged, busy: bool) -> float:
    """Mean cost of a window, in currency. Raises TrainingError where all cost nothing."""
    mean = float(np.mean([_cost(one, busy).sum() for one in logged.windows]))
    if not mean > 0:
        raise TrainingError("the windows of the log cost nothing, so there is nothing to save")
    return mean


def register(agent: PipelineDDPG, logged: Logged, reference: float) -> None:
    """Make the log's pipeline known to the replay. Raises TrainingError where it knows another one of that name."""
    buffer, space = agent.replay_buffer, logged.encoder.space
    present = buffer.spaces.get(logged.pipeline, space)
    if present.sizes != space.sizes or not torch.equal(present.mask, space.mask):
        raise TrainingError(
            f"the log's pipeline {logged.pipeline} has other experts or other configurations than the one of that name "
            f"which is trained on; give the same pipeline, or one of another name"
        )
    unit = float(logged.encoder.configuration_index.unit_per_s.max()) * REPLICAS * logged.window_s / reference
    if not np.isclose(buffer.units.get(logged.pipeline, unit), unit, rtol=1e-6):
        raise TrainingError(
            f"the log of {logged.pipeline} was priced by another sheet than the one that is trained with, so their "
            f"costs cannot be compared"
        )
    buffer.register(logged.pipeline, space, unit)


def desired(agent: PipelineDDPG, logged: Logged) -> Desired:
    """What the agent's actor decides in each window, without noise."""
    configuration_index, chosen = logged.encoder.configuration_index, []
    with torch.inference_mode():
        for one in logged.windows:
            chosen.append(decide(agent.actor.network, Batch.of(logged.encoder.space, [one.state]))[0])
    prices = logged.encoder.prices
    units = tuple(
        sum(each.replicas * prices.unit_per_s(each) for each in configuration_index.configurations(actions).values())
        for actions in chosen
    )
    return Desired(units, tuple(chosen))


def executed(logged: Logged) -> Sequence[float]:
    """Cost of each window: what was provisioned, in currency an hour."""
    return [3600 * float(one.provisioned.sum()) / logged.window_s for one in logged.windows]


def _cost(one: Experience, busy: bool) -> np.ndarray:
    return one.busy if busy else one.provisioned
