"""Profiles that are part of this tree, and opening one for a pipeline and a machine."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from autoscaler.contract import Topology
from autoscaler.topology import load_topology
from simulation.profiles.measure.machine import Machine, this_machine
from simulation.profiles.model.errors import ProfileError, ProfileMismatchError
from simulation.profiles.model.storage import Profile, check_machine, check_pipeline, differences, load

log = logging.getLogger("smoe.profile")

SHELF = Path(__file__).parents[1] / "data"


def committed(shelf: Path = SHELF) -> tuple[Path, ...]:
    """Files of all profiles of this tree."""
    return tuple(sorted(shelf.glob("*.parquet")))


def open_profile(path: Path, pipeline: Path, machine: Machine | None) -> Profile:
    """The profile at ``path``, of the pipeline in the folder ``pipeline`` and of ``machine``.

    ``machine`` None: whatever machine it is of, for planning for that machine. Raises ProfileError, and
    ProfileMismatchError with the difference named.
    """
    found = _of(path, load_topology(pipeline))
    if machine is not None:
        check_machine(found.metadata, machine)
    return found


def _of(path: Path, topology: Topology) -> Profile:
    found = load(path)
    check_pipeline(found.metadata, topology.pipeline, topology.manifest_sha256)
    return found


def named(path: Path, topology: Topology, meant: bool) -> Profile:
    """The profile at ``path`` that a policy's settings name: of the pipeline and, unless another machine is ``meant``,
    of this one. Raises ProfileError, and ProfileMismatchError with the difference named.
    """
    found = _of(path, topology)
    if meant:
        return found
    try:
        check_machine(found.metadata, this_machine())
    except ProfileMismatchError as error:
        raise ProfileMismatchError(f"{path}: {error} (other_machine = true)") from error
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


def nearest(pipeline: Path, machine: Machine, shelf: Path = SHELF) -> Path:
    """The file that :func:`fitting` finds for ``machine``, else for any. Raises as :func:`find` does."""
    try:
        return fitting(pipeline, machine, shelf)
    except ProfileMismatchError:
        return fitting(pipeline, None, shelf)


def warn_of_another(profile: Profile, who: str) -> None:
    """Say once that ``who`` plans with a profile of another machine than this one, which nobody named."""
    found = differences(profile.metadata, this_machine())
    if found:
        _warn_once(
            f"{who} plans with a profile of another machine: {found}. `smoe lab profile {profile.metadata.pipeline}` "
            f"measures this one (policy setting profile); other_machine = true says that the other one is meant"
        )


@cache
def _warn_once(sentence: str) -> None:
    log.warning("%s", sentence)
