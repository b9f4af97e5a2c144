"""Which window ``smoe lab explain`` explains: a stored one of the function logger, or a fresh one of the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from autoscaler.checked import from_table
from autoscaler.contract import Configuration
from autoscaler.decision.limits import LimitSettings
from autoscaler.logger import configuration_of, read_contexts, read_decisions
from autoscaler.policies import Making
from autoscaler.prices import PriceSheet
from autoscaler.settings import ControllerSettings, runtime_of
from autoscaler.topology import load_topology
from evaluation.comparison.learnt_files import published_actor
from platform_words.memory import CONTAINERS, PROCESS
from rl.agent.actor import SisoActor
from rl.agent.contract import Batch, State
from rl.agent.errors import NetworkError
from rl.agent.export import load
from rl.agent.policy import LearntPolicy, make
from rl.episodes import Clip, episode_of, work_of
from rl.experience import Tick, ticks
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


def logged(folder: Path, at_s: float | None, actor_file: Path | None) -> Window:
    """The window of a controller's log that ended at ``at_s`` (Unix time; None: the last one).

    The state is made again from the log by the encoder that decided then. Raises NetworkError, LogError, SettingsError.
    """
    context = controller_context(folder)
    if context is None:
        raise NetworkError(f"{folder} holds no log of a controller; give the folder of windows-*.parquet")
    stored = list(ticks(folder))
    wanted = [tick for tick in stored if at_s is None or abs(tick.observation.end_s - at_s) < SLACK_S]
    if not wanted:
        ends = f"{stored[0].observation.end_s:.3f} to {stored[-1].observation.end_s:.3f}" if stored else "none"
        raise NetworkError(f"{folder} has no window that ended at {at_s}; stored are {ends}")
    last = wanted[-1]
    making = making_of(context)
    policy = make(making)
    if not isinstance(policy, LearntPolicy):
        raise NetworkError(f"{folder} is not of a learnt policy")
    path = actor_file or Path(
        str(making.table().get("actor", "") or published_actor(making.topology.pipeline, meter_of(making)))
    )
    state = state_at(policy.encoder, stored, last)
    desired = {
        row["function"]: asked
        for row in read_decisions(folder).to_pylist()
        if abs(row["end_s"] - last.observation.end_s) < SLACK_S and (asked := configuration_of(row, "wish_"))
    }
    about = {
        "pipeline": last.observation.pipeline,
        "end_s": last.observation.end_s,
        "policy": last.policy,
        "simulated": False,
    }
    return Window(load(path), policy.encoder, state, about, desired)


def controller_context(folder: Path) -> Mapping[str, Any] | None:
    """What the last controller that logged to ``folder`` was made with; None where none did. Raises LogError."""
    return next((context for context in reversed(read_contexts(folder)) if "settings" in context), None)


def meter_of(making: Making) -> str:
    """Which meter the policy of a log kept low."""
    return str(making.table().get("meter", "provisioned"))


def state_at(encoder: Encoder, stored: list[Tick], last: Tick) -> State:
    """The state of a stored window, with the history that the policy had then."""
    memory = None
    for tick in stored:
        if tick.observation.stale or tick.observation.requests is None:
            if tick is last:
                raise NetworkError("that window's data is stale or incomplete: nothing was decided in it")
            continue
        state, memory = encoder.encode(tick.observation, memory)
        if tick is last:
            return state
    raise NetworkError("that window is not among those stored")


def making_of(context: Mapping[str, Any]) -> Making:
    """What the policy of a log was made of: its settings are in the log. Raises SettingsError."""
    names = {entry.name for entry in fields(ControllerSettings)}  # older logs hold settings that are gone
    stored = {name: value for name, value in context["settings"].items() if name in names}
    if "orchestration" not in stored:  # an older log, of a controller that took every gateway for the process backend
        stored["orchestration"] = CONTAINERS if stored.get("platform") == "kubernetes" else PROCESS
    settings = from_table(ControllerSettings, stored)
    topology = load_topology(settings.manifest_dir, settings.max_functions)
    runtime = runtime_of(settings, topology.dtype)
    limits = LimitSettings(space=settings.space, alpha=settings.alpha, runtime=runtime)
    return Making(settings, topology, limits, PriceSheet(**context["prices"]), measured=True)
