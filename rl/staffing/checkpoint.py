"""A run's folder: what it is made from, and what it goes on from.

``run.json`` states what a run is made from; a folder with another one is refused. ``checkpoint.pt`` holds networks,
optimizers, replay and progress. It is replaced as a whole, and read as tensors and numbers alone: nothing in it is
unpickled that could run code.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from rl.staffing.ddpg import OutcomeBuffer, StaffingDDPG
from rl.train.errors import TrainingError

BEST, CHECKPOINT, RUN = "actor.safetensors", "checkpoint.pt", "run.json"


@dataclass
class Progress:
    """Where a run is."""

    windows: int = 0
    updates: int = 0
    processor_s: float = 0.0
    """Processor time of everything."""
    validation_s: float = 0.0
    """That of the last validation."""
    validated: int = -1
    """Updates at the last validation."""
    next_validation: int = 0
    """Windows at the next one."""
    best: float | None = None
    """Score of the best actor."""
    curve: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Stored:
    """A checkpoint that was read."""

    path: Path
    progress: Progress
    tensors: Mapping[str, Any]


def claim(out: Path, made_of: Mapping[str, Any]) -> None:
    """Write ``made_of`` (JSON) into the folder ``out``. Raises TrainingError where another run is there."""
    path, wanted = out / RUN, json.loads(json.dumps(made_of))
    if not path.is_file():
        if (out / BEST).exists():
            raise TrainingError(f"{out} holds an actor and no {RUN} that states its run; take another --out")
        path.write_text(json.dumps(wanted, indent=1))
        return
    stored = json.loads(path.read_text())
    changed = [name for name in wanted if stored.get(name) != wanted[name]]
    if changed:
        raise TrainingError(
            f"{out} holds a run with other {', '.join(changed)}; it goes on only with the same, so take another --out "
            "or remove it"
        )


def store(out: Path, model: StaffingDDPG, progress: Progress) -> None:
    """Write the checkpoint, whole or not at all."""
    buffer, anchor = model.replay_buffer, model.anchor
    assert isinstance(buffer, OutcomeBuffer) and anchor is not None
    part = out / f"{CHECKPOINT}.part"
    tensors = {
        "parameters": model.get_parameters(),
        "anchor": anchor.state_dict(),
        "windows": buffer.held(),
        "following": buffer.pos,
    }
    torch.save({"progress": asdict(progress), **tensors}, part)
    part.replace(out / CHECKPOINT)


def read(out: Path) -> Stored | None:
    """The checkpoint of ``out``, None where there is none. Raises TrainingError for a file that is none."""
    path = out / CHECKPOINT
    if not path.is_file():
        return None
    try:
        tensors = torch.load(path, weights_only=True)
        return Stored(path, Progress(**tensors.pop("progress")), tensors)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path) from error


def put(stored: Stored, model: StaffingDDPG) -> None:
    """Into ``model``, as it was made at first. Raises TrainingError for a checkpoint of another one."""
    buffer, tensors = model.replay_buffer, stored.tensors
    assert isinstance(buffer, OutcomeBuffer)
    try:
        model.set_parameters(tensors["parameters"], device="cpu")
        buffer.restore(tensors["windows"], tensors["following"])
        model.anchored()
        assert model.anchor is not None
        model.anchor.load_state_dict(tensors["anchor"])
    except (KeyError, ValueError, RuntimeError) as error:
        raise _unreadable(stored.path) from error
    model.num_timesteps, model._n_updates = stored.progress.windows, stored.progress.updates


def _unreadable(path: Path) -> TrainingError:
    return TrainingError(f"{path} is no checkpoint of this run; remove {path.parent} or take another --out")
