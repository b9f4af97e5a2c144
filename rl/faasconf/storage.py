"""State of a training under way, in one safetensors file, so that a stopped one goes on as if it had not been."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from autoscaler.errors import SettingsError
from rl.faasconf.training import Judged, Trainer


def save_state(trainer: Trainer, best: Judged | None, path: Path) -> None:
    """Networks, targets, optimisers, buffer and the generator's state."""
    tensors = {name: tensor.contiguous() for name, tensor in _networks(trainer).items()}
    for name, optimiser in _optimisers(trainer).items():
        for number, state in optimiser.state_dict()["state"].items():
            tensors |= {f"{name}/{number}/{key}": torch.as_tensor(value) for key, value in state.items()}
    tensors |= {f"buffer/{name}": torch.from_numpy(values) for name, values in trainer.buffer.arrays.items()}
    tensors |= {"mean": trainer.learner.mean, "spread": trainer.learner.spread}
    progress = {
        "settings": trainer.made_of,
        "episode": trainer.episode,
        "added": trainer.buffer.added,
        "rewards": trainer.rewards,
        "replayed": trainer.replayed,
        "rng": trainer.rng.bit_generator.state,
        "best": None if best is None else asdict(best),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    save_file(tensors, part, {"progress": json.dumps(progress)})
    part.replace(path)


def load_state(trainer: Trainer, path: Path) -> Judged | None:
    """Put ``trainer`` where the stored training was; returns the best weights' judgement so far.

    Raises SettingsError for a file that is none, or of other settings, hours or traces.
    """
    try:
        with safe_open(path, framework="pt") as file:
            progress = json.loads((file.metadata() or {}).get("progress", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise SettingsError(f"{path} cannot be read: {error}; delete it to train again") from error
    if progress.get("settings") != trainer.made_of:
        raise SettingsError(
            f"{path} is of a training with other settings, hours or traces; delete it, or name another --out"
        )
    for name, tensor in _networks(trainer).items():
        tensor.copy_(tensors[name])
    for name, optimiser in _optimisers(trainer).items():
        document = optimiser.state_dict()
        document["state"] = _rows(tensors, name)
        optimiser.load_state_dict(document)
    for name, values in trainer.buffer.arrays.items():
        values[:] = tensors[f"buffer/{name}"].numpy()
    trainer.learner.mean, trainer.learner.spread = tensors["mean"], tensors["spread"]
    trainer.episode, trainer.buffer.added = progress["episode"], progress["added"]
    trainer.rewards, trainer.replayed = progress["rewards"], progress["replayed"]
    trainer.rng.bit_generator.state = progress["rng"]
    return None if progress["best"] is None else Judged(**progress["best"])


def _networks(trainer: Trainer) -> dict[str, Tensor]:
    learner = trainer.learner
    modules = {"actor": learner.actor, "critic": learner.critic, "targets": learner.targets}
    return {f"{name}/{key}": value for name, module in modules.items() for key, value in module.state_dict().items()}


def _optimisers(trainer: Trainer) -> dict[str, torch.optim.Optimizer]:
    return {"actor-adam": trainer.learner.actor_optimiser, "critic-adam": trainer.learner.critic_optimiser}


def _rows(tensors: dict[str, Tensor], name: str) -> dict[int, dict[str, Tensor]]:
    rows: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        owner, _, rest = key.partition("/")
        if owner == name:
            number, entry = rest.split("/")
            rows.setdefault(int(number), {})[entry] = tensor
    return rows
