"""Which window ``smoe lab explain`` explains: a stored one of the function logger, or a fresh one of the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from autoscaler.build import limits_of
from autoscaler.checked import from_table
from autoscaler.contract import Capacity, Configuration
from autoscaler.logger import configuration_of, read_contexts, read_decisions
from autoscaler.policies import Making
from autoscaler.prices import PriceSheet
from autoscaler.settings import ControllerSettings
from autoscaler.topology import load_topology
from evaluation.comparison.learnt_files import published_actor
from moe.errors import ManifestError
from platform_words.memory import CONTAINERS, PROCESS
from rl.agent.actor import SisoActor
from rl.agent.contract import Batch, State
from rl.agent.errors import NetworkError
from rl.agent.export import load
from rl.agent.policy import NAME, encoder_of
from rl.episodes import Clip, episode_of, work_of
from rl.experience import Tick, states
from rl.features import Encoder

SLACK_S = 1e-3
START = Configuration(memory_mb=1024, cpu_cores=2.0, gpu_share=0.0, replicas=2, concurrency=4)
"""What the experts of a fresh window begin with."""


@dataclass(frozen=True, eq=False)
class Window:
    """A state to be explained."""

    actor: SisoActor
    encoder: Encoder
    state: State
    about: Mapping[str, Any]
    """What the window is, for the title and for JSON."""
    stored: Mapping[str, Configuration]
    """Function → the desired configuration when it was decided; empty for a fresh window."""


def fresh(actor_file: Path | None, name: str, pattern: str, seed: int, mean_rps: float, number: int) -> Window:
    """Window ``number`` of an episode of the validation set, simulated under the actor. Raises NetworkError."""
    actor = load(actor_file or published_actor(name, "provisioned"))
    clip = Clip(name, pattern, seed, "validation", mean_rps=mean_rps, seconds=30.0 * (number + 2))
    episode = episode_of(clip, start=work_of(clip).workload.initial(START))
    if episode.windows_left < number:
        raise NetworkError(f"the episode has {episode.windows_left} windows; window {number} is not one of them")
    for _ in range(number):
        batch = Batch.of(episode.encoder.space, [episode.state()])
        episode.step(actor.decide(batch)[0].numpy())
    about = {"workload": name, "pattern": pattern, "seed": seed, "window": number, "simulated": True}
    return Window(actor, episode.encoder, episode.state(), about, {})


def logged(folder: Path, at_s: float | None, actor_file: Path | None, manifest: Path | None = None) -> Window:
    """The window of a controller's log that ended at ``at_s`` (Unix time; None: the last one).

    The state is made again from the log by the encoder that decided then. ``manifest``: as of :func:`making_of_log`.
    Raises NetworkError, LogError, SettingsError.
    """
    making = making_of_log(folder, manifest)
    if making.settings.policy != NAME and actor_file is None:
        raise NetworkError(f"{folder} is of the policy {making.settings.policy}, not of {NAME}; name an actor to ask")
    making = as_learnt(making)
    path = actor_file or Path(
        str(making.table().get("actor", "") or published_actor(making.topology.pipeline, meter_of(making)))
    )
    encoder = encoder_of(making)
    last, state = _at(folder, at_s, encoder)
    end_s = last.observation.end_s
    decided = (pc.field("end_s") > end_s - SLACK_S) & (pc.field("end_s") < end_s + SLACK_S)
    desired = {
        row["function"]: asked
        for row in read_decisions(folder).filter(decided).to_pylist()
        if (asked := configuration_of(row, "wish_"))
    }
    about = {
        "pipeline": last.observation.pipeline,
        "end_s": end_s,
        "policy": last.policy,
        "simulated": False,
    }
    return Window(load(path), encoder, state, about, desired)


def _at(folder: Path, at_s: float | None, encoder: Encoder) -> tuple[Tick, State]:
    """A stored window, and its state with the history that the policy had then. Raises NetworkError."""
    ends = list[float]()
    wanted: tuple[Tick, State | None] | None = None
    try:
        for tick, state in states(folder, encoder):
            ends.append(tick.observation.end_s)
            if at_s is None or abs(ends[-1] - at_s) < SLACK_S:
                wanted = tick, state
    except ValueError as error:
        raise NetworkError(f"{folder}: {error}") from error
    if wanted is None:
        stored = f"{ends[0]:.3f} to {ends[-1]:.3f}" if ends else "none"
        raise NetworkError(f"{folder} has no window that ended at {at_s}; stored are {stored}")
    tick, state = wanted
    if state is None:
        raise NetworkError("that window's data is stale or incomplete: nothing was decided in it")
    return tick, state


def making_of_log(folder: Path, manifest: Path | None = None) -> Making:
    """What the policy of the last controller that logged to ``folder`` was made of.

    ``manifest``: the pipeline's folder, where it is not where that controller had it; of a log of several pipelines
    it also names the one that is meant. Raises NetworkError where there is none, LogError, SettingsError.
    """
    name = None if manifest is None else load_topology(manifest).pipeline
    for context in reversed(read_contexts(folder)):
        if "settings" in context and name in (None, context.get("pipeline", name)):
            try:
                return making_of(context, manifest)
            except ManifestError as error:
                hint = "; name the pipeline's folder (--manifest)" if manifest is None else ""
                raise NetworkError(f"{folder}: {error}{hint}") from error
    of_name = "" if name is None else f" for {name}"
    raise NetworkError(f"{folder} holds no log of a controller{of_name}; give the folder of windows-*.parquet")


def as_learnt(
    making: Making, policy_settings: Path | Mapping[str, Any] | None = None, slo_s: float | None = None
) -> Making:
    """The same for the learnt policy: with the settings that are given, else those of the log where it was that."""
    settings = making.settings
    given = policy_settings or (settings.policy_settings if settings.policy == NAME else None)
    asked = replace(settings, policy=NAME, policy_settings=given, slo_s=slo_s or settings.slo_s)
    return replace(making, settings=asked)


def meter_of(making: Making) -> str:
    """Which meter the policy of a log kept low."""
    return str(making.table().get("meter", "provisioned"))


def making_of(context: Mapping[str, Any], manifest: Path | None = None) -> Making:
    """What the policy of a log was made of: its settings are in the log. ``manifest``: the pipeline's folder, by
    default the controller's. Raises SettingsError."""
    names = {entry.name for entry in fields(ControllerSettings)}  # older logs hold settings that are gone
    stored = {name: value for name, value in context["settings"].items() if name in names}
    if "orchestration" not in stored:  # an older log, of a controller that took every gateway for the process backend
        stored["orchestration"] = CONTAINERS if stored.get("platform") == "kubernetes" else PROCESS
    if "capacity" in context:  # what the files held then
        stored |= {"capacity": None, "policy_settings": context["policy_settings"] or None}
    if manifest is not None:
        stored["manifest_dir"] = str(manifest)
    settings = from_table(ControllerSettings, stored)
    topology = load_topology(settings.manifest_dir, settings.max_functions)
    limits = limits_of(settings, topology.dtype)
    if context.get("capacity"):
        limits = replace(limits, capacity=from_table(Capacity, context["capacity"]))
    return Making(settings, topology, limits, PriceSheet(**context["prices"]), measured=True)
