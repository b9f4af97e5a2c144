"""The actor alone as a small file: safetensors, with its settings and what made it as JSON in the header; no pickle.

A file names the features that the actor was trained on. One that was made for others, of another version or with
tensors of other sizes is refused with a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from autoscaler.checked import from_table
from rl.agent.actor import SisoActor
from rl.agent.contract import AXES, CONFIGURATION_FEATURES
from rl.agent.errors import NetworkError
from rl.agent.settings import NetworkSettings, without_retired
from rl.agent.variants import actor as new_actor
from rl.features import NODE_FEATURES, PIPELINE_FEATURES

FORMAT = "smoe-actor"
VERSION = 1
KEY = "smoe"


def save(path: Path, actor: SisoActor, metadata: Mapping[str, Any]) -> None:
    """Write the actor; ``metadata`` (JSON: who made it, how, from what) is stored next to it. Raises NetworkError."""
    names = _names()
    for kind, size in (("node", actor.settings.node_features), ("pipeline", actor.settings.pipeline_features)):
        if size != len(names[kind]):
            raise NetworkError(f"the actor has {size} {kind} features, this version of the program {len(names[kind])}")
    header = {
        "format": FORMAT,
        "version": VERSION,
        "settings": asdict(actor.settings),
        "features": names,
        "made": dict(metadata),
    }
    write(path, actor, header)


def write(path: Path, network: nn.Module, header: Mapping[str, Any]) -> None:
    """The tensors of ``network`` and the JSON ``header``, whole or not at all."""
    tensors = {name: value.detach().contiguous() for name, value in network.state_dict().items()}
    beside = path.with_name(path.name + ".part")
    save_file(tensors, beside, metadata={KEY: json.dumps(header, sort_keys=True)})
    beside.replace(path)


def load(path: Path) -> SisoActor:
    """The actor of a file, ready to decide. Raises NetworkError with what is wrong."""
    header, tensors = read(path)
    check_features(path, header, _names())
    try:
        # ``direct`` is not named in files from before it was a setting
        settings = {"direct": False} | without_retired(header["settings"])
        actor = new_actor(from_table(NetworkSettings, settings))
    except NetworkError as error:
        raise NetworkError(f"{path}: {error}") from error
    fill(path, actor, tensors)
    return actor.eval().freeze()


def fill(path: Path, network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put the file's tensors [as the parameters] into ``network``. Raises NetworkError where they are not its own."""
    wanted = network.state_dict()
    wrong = sorted(set(wanted) ^ set(tensors))
    if wrong:
        verb = "misses" if wrong[0] in wanted else "has an unknown"
        raise NetworkError(f"{path}: {verb} tensor {wrong[0]}; an actor of its arm has {len(wanted)} tensors")
    for name, value in tensors.items():
        if value.shape != wanted[name].shape or value.dtype != torch.float32:
            raise NetworkError(
                f"{path}: tensor {name} is {value.dtype} {list(value.shape)}; by its settings it is "
                f"{wanted[name].dtype} {list(wanted[name].shape)}"
            )
        if not bool(value.isfinite().all()):
            raise NetworkError(f"{path}: tensor {name} holds numbers that are not finite")
    network.load_state_dict(dict(tensors))


def made(path: Path) -> dict[str, Any]:
    """What was stored next to the actor of a file when it was saved. Raises NetworkError."""
    record: dict[str, Any] = read(path)[0]["made"]
    return record


def check_features(path: Path, header: Mapping[str, Any], wanted: Mapping[str, list[str]]) -> None:
    """Raises NetworkError where the file was trained on other numbers than ``wanted``."""
    for kind, names in wanted.items():
        stored = header["features"].get(kind)
        if stored != names:
            raise NetworkError(f"{path}: {_difference(kind, stored if isinstance(stored, list) else [], names)}")


def _names() -> dict[str, list[str]]:
    return {
        "node": [feature.name for feature in NODE_FEATURES],
        "pipeline": [feature.name for feature in PIPELINE_FEATURES],
        "configuration": list(CONFIGURATION_FEATURES),
        "axes": list(AXES),
    }


def _difference(kind: str, stored: list[str], names: list[str]) -> str:
    for place, (stored_name, wanted) in enumerate(zip(stored, names, strict=False)):
        if stored_name != wanted:
            return (
                f"its {kind} feature {place} is {stored_name}, in this version of the program {wanted}; train it again"
            )
    return f"it has {len(stored)} {kind} features, this version of the program {len(names)}; train it again"


def read(path: Path, file_format: str = FORMAT) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(header, tensors by name, each [as its parameter]) of an actor's file. Raises NetworkError."""
    if not path.is_file():
        raise NetworkError(f"{path} is not there; it is the file of a trained actor")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY, "")
            header = json.loads(text) if text else {}
            if not isinstance(header, dict) or header.get("format") != file_format:
                raise NetworkError(f"{path} is not the file of an actor: it does not say {file_format} in its header")
            if header.get("version") != VERSION:
                raise NetworkError(f"{path} has version {header.get('version')}; this program reads {VERSION}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise NetworkError(f"{path} is not the file of an actor: {error}") from error
    missing = [key for key in ("settings", "features", "made") if not isinstance(header.get(key), dict)]
    if missing:
        raise NetworkError(f"{path}: its header has no {missing[0]}")
    return header, tensors
