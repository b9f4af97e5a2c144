"""The staffing actor as a small file: safetensors, with sizes, features and what made it as JSON in the header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoscaler.checked import from_table
from rl.agent.errors import NetworkError
from rl.agent.export import VERSION, check_features, fill, read, write
from rl.agent.settings import NetworkSettings
from rl.staffing.action import NAMES
from rl.staffing.features import NODES, PIPELINE
from rl.staffing.networks import StaffingActor

FORMAT = "smoe-staffing-actor"


def save(path: Path, actor: StaffingActor, made: Mapping[str, Any]) -> None:
    """Write the actor, whole or not at all; ``made`` (JSON): by what."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "settings": asdict(actor.settings),
        "features": _names(),
        "made": dict(made),
    }
    write(path, actor, header)


def load(path: Path) -> tuple[StaffingActor, dict[str, Any]]:
    """(actor, what made it), ready to decide. Raises NetworkError."""
    header, tensors = read(path, FORMAT)
    check_features(path, header, _names())
    try:
        actor = StaffingActor(from_table(NetworkSettings, header["settings"]))
    except NetworkError as error:
        raise NetworkError(f"{path}: {error}") from error
    fill(path, actor, tensors)
    actor.requires_grad_(False)
    return actor.eval(), header["made"]


def _names() -> dict[str, list[str]]:
    return {
        "node": [feature.name for feature in NODES],
        "pipeline": [feature.name for feature in PIPELINE],
        "axes": list(NAMES),
    }
