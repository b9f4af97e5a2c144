"""Profiles that are part of this tree, and opening one for a pipeline and a machine."""

from __future__ import annotations

from pathlib import Path

from autoscaler.topology import load_topology
from rl.profile.errors import ProfileError, ProfileMismatchError
from rl.profile.machine import Machine
from rl.profile.storage import Profile, check_machine, check_pipeline, load

SHELF = Path(__file__).parents[1] / "profiles"


def committed(shelf: Path = SHELF) -> tuple[Path, ...]:
    """Files of all profiles of this tree."""
    return tuple(sorted(shelf.glob("*.parquet")))


def open_profile(path: Path, pipeline: Path, machine: Machine | None) -> Profile:
    """The profile at ``path``, of the pipeline in the folder ``pipeline`` and of ``machine``.

    ``machine`` None: whatever machine it is of, for planning for that machine. Raises ProfileError, and
    ProfileMismatchError with the difference named.
    """
    found = load(path)
    topology = load_topology(pipeline)
    check_pipeline(found.metadata, topology.pipeline, topology.manifest_sha256)
    if machine is not None:
        check_machine(found.metadata, machine)
    return found


def find(pipeline: Path, machine: Machine | None, shelf: Path = SHELF) -> Profile:
    """The first profile of this tree that fits. Raises ProfileMismatchError that says why each does not."""
    return load(fitting(pipeline, machine, shelf))


def fitting(pipeline: Path, machine: Machine | None, shelf: Path = SHELF) -> Path:
    """Its file. Raises as :func:`find` does."""
    reasons = []
    for path in committed(shelf):
        try:
            open_profile(path, pipeline, machine)
            return path
        except ProfileError as error:
            reasons.append(f"{path.name}: {error}")
    raise ProfileMismatchError("no profile of this tree fits. " + (" ".join(reasons) or f"There is none in {shelf}."))
