"""What was learnt: the actor and the scale of its states; kept in one safetensors file with what it was trained on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from autoscaler.errors import SettingsError
from rl.faasconf.actions import OUTPUTS
from rl.faasconf.features import FEATURES
from rl.faasconf.networks import Actor
from simulation.arrays import Singles

VERSION = 1


@dataclass(frozen=True, eq=False)
class Agent:
    """The shared actor, for agents of any pipeline; ``mean`` and ``spread`` [features] standardise a state."""

    actor: Actor
    mean: Tensor
    spread: Tensor

    def outputs(self, states: Singles, adjacency: Tensor) -> Singles:
        """[agents, outputs] of 0 to 1 for ``states`` [agents, features]; no exploration."""
        self.actor.eval()
        with torch.no_grad():
            scaled = (torch.from_numpy(states) - self.mean) / self.spread
            outputs: Singles = self.actor(scaled[None], adjacency)[0].numpy()
        return outputs


def save(agent: Agent, path: Path, about: Mapping[str, Any]) -> None:
    """``about``: how it was trained, JSON."""
    tensors = {f"actor.{name}": tensor.contiguous() for name, tensor in agent.actor.state_dict().items()}
    metadata = {"version": str(VERSION), "features": json.dumps(FEATURES), "outputs": json.dumps(OUTPUTS)}
    metadata["about"] = json.dumps(dict(about), sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    save_file({**tensors, "mean": agent.mean, "spread": agent.spread}, part, metadata)
    part.replace(path)


def load(path: Path) -> tuple[Agent, dict[str, Any]]:
    """The agent and how it was trained. Raises SettingsError for a file that is none, or of other features."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise SettingsError(f"faasconf: the weights {path} cannot be read: {error}") from error
    wanted = {"version": str(VERSION), "features": json.dumps(FEATURES), "outputs": json.dumps(OUTPUTS)}
    for key, value in wanted.items():
        if metadata.get(key) != value:
            raise SettingsError(f"faasconf: {path} has {key} {metadata.get(key)}; allowed is {value}: train it again")
    actor = Actor(len(FEATURES), len(OUTPUTS))
    try:
        actor_tensors = {
            name.removeprefix("actor."): value for name, value in tensors.items() if name.startswith("actor.")
        }
        actor.load_state_dict(actor_tensors)
        mean, spread = tensors["mean"], tensors["spread"]
    except (RuntimeError, KeyError) as error:
        raise SettingsError(f"faasconf: {path} does not hold the actor's weights: {error}") from error
    is_whole = mean.shape == spread.shape == (len(FEATURES),) and bool((spread > 0).all())
    if not is_whole or not all(bool(value.isfinite().all()) for value in tensors.values()):
        raise SettingsError(
            f"faasconf: {path} holds numbers that are not finite, or no scale of {len(FEATURES)} features"
        )
    return Agent(actor, mean, spread), dict(json.loads(metadata.get("about", "{}")))
