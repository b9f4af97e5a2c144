"""Files of a run: what may be opened, and the buffer's windows as plain arrays.

The library's loader unpickles whatever a checkpoint states is pickled, and its own buffer file is a pickle; a pickle
runs code. So a checkpoint is read through :func:`checked`, and windows are stored by NumPy with pickling off.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from rl.agent.contract import State
from rl.agent.ddpg.buffer import BranchStep, WindowBuffer, WindowStep
from rl.agent.ddpg.settings import LearnerError

ENTRIES = frozenset(
    (
        *("data", "policy.pth", "actor.optimizer.pth", "critic.optimizer.pth", "pytorch_variables.pth"),
        *("_stable_baselines3_version", "system_info.txt"),
    )
)
MOST_BYTES = 512 * 2**20
"""Largest size of a checkpoint, unpacked."""
MOST_JSON = 2**20
PARTS = ("segments", "experts", "pipeline", "present", "least_memory")
UNKNOWN = np.full(3, np.nan, dtype=np.float32)
"""Room of a state that has none."""


def checked(path: str | Path | io.BytesIO) -> io.BytesIO:
    """The checkpoint's bytes, once they hold what the agent writes and nothing that would be unpickled.

    Raises LearnerError for anything else, FileNotFoundError where there is none.
    """
    name = "the checkpoint" if isinstance(path, io.BytesIO) else f"checkpoint {path}"
    content = path if isinstance(path, io.BytesIO) else io.BytesIO(_with_suffix(Path(path)).read_bytes())
    try:
        with zipfile.ZipFile(content) as archive:
            unpacked = {entry.filename: entry.file_size for entry in archive.infolist()}
            _refuse(unpacked, name)
            data = json.loads(archive.read("data"))
    except (zipfile.BadZipFile, ValueError, KeyError) as error:
        if isinstance(error, LearnerError):
            raise
        raise LearnerError(f"{name} is no checkpoint of this agent: {error}") from error
    where = _pickled(data)
    if where is not None:
        raise LearnerError(f"{name} holds a pickled object at {where!r}; a pickle can run code, so it is not opened")
    content.seek(0)
    return content


def _with_suffix(path: Path) -> Path:
    return path if path.suffix or path.is_file() else path.with_suffix(".zip")


def _refuse(unpacked: dict[str, int], name: str) -> None:
    foreign = sorted(set(unpacked) - ENTRIES)
    if foreign:
        raise LearnerError(f"{name} has an entry {foreign[0]!r} that this agent does not write; it is not opened")
    if sum(unpacked.values()) > MOST_BYTES or unpacked.get("data", 0) > MOST_JSON:
        raise LearnerError(f"{name} unpacks to {sum(unpacked.values())} bytes; at most {MOST_BYTES} are read")


def _pickled(data: Any, path: str = "data") -> str | None:
    """Where JSON holds what the library would unpickle."""
    if isinstance(data, dict):
        if ":serialized:" in data or ":type:" in data:
            return path
        inside = data.items()
    elif isinstance(data, list):
        inside = dict(enumerate(data)).items()
    else:
        return None
    return next((pickled for key, value in inside if (pickled := _pickled(value, f"{path}.{key}"))), None)


def save_windows(path: Path, buffer: WindowBuffer) -> None:
    """Every ring's windows; a state that two windows share is stored once."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for pipeline, ring in buffer.rings.items():
        if not ring:
            continue
        states: dict[int, State] = {}
        for step in ring:
            states[id(step.state)] = step.state
            if step.following is not None:
                states[id(step.following)] = step.following
        row = {key: number for number, key in enumerate(states)}
        for part in PARTS:
            arrays[f"{pipeline}/{part}"] = np.stack([getattr(state, part) for state in states.values()])
        rooms = [UNKNOWN if state.room is None else state.room for state in states.values()]
        arrays[f"{pipeline}/room"] = np.stack(rooms)
        links = [(row[id(step.state)], -1 if step.following is None else row[id(step.following)]) for step in ring]
        arrays[f"{pipeline}/links"] = np.array(links, dtype=np.int64)
        arrays[f"{pipeline}/next"] = np.array(buffer.nexts[pipeline])
        arrays[f"{pipeline}/executed"] = np.stack([step.executed for step in ring])
        arrays[f"{pipeline}/rewards"] = np.stack([step.rewards for step in ring])
        arrays[f"{pipeline}/p95"] = np.array([step.p95 for step in ring])
        branches = [(at, branch) for at, step in enumerate(ring) for branch in step.branches]
        arrays[f"{pipeline}/branch_of"] = np.array([at for at, _ in branches], dtype=np.int64)
        none = [ring[0].executed[:0]], [ring[0].rewards[:0]]
        arrays[f"{pipeline}/branch_executed"] = np.stack([one.executed for _, one in branches] or none[0])
        arrays[f"{pipeline}/branch_rewards"] = np.stack([one.rewards for _, one in branches] or none[1])
        arrays[f"{pipeline}/branch_p95"] = np.array([one.p95 for _, one in branches])
        arrays[f"{pipeline}/taught"] = np.array([step.teacher is not None for step in ring])
        arrays[f"{pipeline}/teacher"] = np.stack(
            [step.executed if step.teacher is None else step.teacher for step in ring]
        )
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_windows(path: Path, buffer: WindowBuffer) -> None:
    """Into ``buffer``, whose pipelines are registered. Raises LearnerError."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            names = sorted({key.rpartition("/")[0] for key in stored.files})
            unknown = [name for name in names if name not in buffer.spaces]
            if unknown:
                raise LearnerError(f"{path} holds windows of {unknown[0]!r}, which this run does not train on")
            for name in names:
                buffer.restore(
                    name, _steps(name, {k: stored[f"{name}/{k}"] for k in KEYS}), int(stored[f"{name}/next"])
                )
    except (ValueError, KeyError, OSError, zipfile.BadZipFile, IndexError) as error:
        if isinstance(error, LearnerError):
            raise
        raise LearnerError(f"windows in {path} cannot be read: {error}") from error


BRANCHES = ("branch_of", "branch_executed", "branch_rewards", "branch_p95")
KEYS = (*PARTS, "room", "links", "executed", "rewards", "p95", "taught", "teacher", *BRANCHES)


def _steps(pipeline: str, arrays: dict[str, np.ndarray[Any, Any]]) -> list[WindowStep]:
    count = len(arrays["segments"])
    rooms = [None if np.isnan(room).any() else room for room in arrays["room"]]
    states = [State(**{part: arrays[part][number] for part in PARTS}, room=rooms[number]) for number in range(count)]
    branches: list[list[BranchStep]] = [[] for _ in arrays["links"]]
    for row, at in enumerate(arrays["branch_of"]):
        executed, rewards, p95 = (arrays[key][row] for key in BRANCHES[1:])
        branches[at].append(BranchStep(executed, rewards, float(p95)))
    return [
        WindowStep(
            pipeline,
            states[here],
            arrays["executed"][number],
            arrays["rewards"][number],
            float(arrays["p95"][number]),
            None if there < 0 else states[there],
            arrays["teacher"][number] if arrays["taught"][number] else None,
            tuple(branches[number]),
        )
        for number, (here, there) in enumerate(arrays["links"])
    ]
