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

BUNDLED = Path(__file__).parents[1] / "data"


def committed(folder: Path = BUNDLED) -> tuple[Path, ...]:
    """Files of all profiles of this tree."""
    return tuple(sorted(folder.glob("*.parquet")))


def open_profile(path: Path, pipeline: Path, machine: Machine | None) -> Profile:
    """The profile at ``path``, of the pipeline in the folder ``pipeline`` and of ``machine``.

    ``machine`` None: whatever machine it is of, for planning for that machine. Raises ProfileError, and
    ProfileMismatchError with the difference named.
    """
    profile = _of(path, load_topology(pipeline))
    if machine is not None:
        check_machine(profile.metadata, machine)
    return profile


def _of(path: Path, topology: Topology) -> Profile:
    profile = load(path)
    check_pipeline(profile.metadata, topology.pipeline, topology.manifest_sha256)
    return profile


def named(path: Path, topology: Topology, meant: bool) -> Profile:
    """The profile at ``path`` that a policy's settings name: of the pipeline and, unless another machine is ``meant``,
    of this one. Raises ProfileError, and ProfileMismatchError with the difference named.
    """
    profile = _of(path, topology)
    if meant:
        return profile
    try:
        check_machine(profile.metadata, this_machine())
    except ProfileMismatchError as error:
        raise ProfileMismatchError(f"{path}: {error} (other_machine = true)") from error
    return profile


def planned_with(path: str, pipeline: Path, topology: Topology, meant: bool, who: str) -> Profile:
    """What the policy ``who`` plans with: :func:`named` where ``path`` is not empty, else of this tree's profiles that
    fit the pipeline the one of this machine, or another's with a warning unless that is ``meant``. Raises as these do.
    """
    if path:
        return named(Path(path), topology, meant)
    profile = load(nearest(pipeline, this_machine()))
    if not meant:
        _warn_of_another(profile, who)
    return profile


def find(pipeline: Path, machine: Machine | None, folder: Path = BUNDLED) -> Profile:
    """The first profile of this tree that fits. Raises ProfileMismatchError that states why each does not."""
    return load(fitting(pipeline, machine, folder))


def fitting(pipeline: Path, machine: Machine | None, folder: Path = BUNDLED) -> Path:
    """Its file. Raises as :func:`find` does."""
    reasons = []
    for path in committed(folder):
        try:
            open_profile(path, pipeline, machine)
            return path
        except ProfileError as error:
            reasons.append(f"{path.name}: {error}")
    raise ProfileMismatchError("no profile of this tree fits. " + (" ".join(reasons) or f"There is none in {folder}."))


def nearest(pipeline: Path, machine: Machine, folder: Path = BUNDLED) -> Path:
    """The file that :func:`fitting` finds for ``machine``, else for any. Raises as :func:`find` does."""
    try:
        return fitting(pipeline, machine, folder)
    except ProfileMismatchError:
        return fitting(pipeline, None, folder)


def _warn_of_another(profile: Profile, who: str) -> None:
    """Say once that ``who`` plans with a profile of another machine than this one, which nobody named."""
    difference = differences(profile.metadata, this_machine())
    if difference:
        warn_once(
            f"{who} plans with a profile of another machine: {difference}. "
            f"`smoe lab profile {profile.metadata.pipeline}` "
            f"measures this one (policy setting profile); other_machine = true states that the other one is meant"
        )


@cache
def warn_once(sentence: str) -> None:
    log.warning("%s", sentence)
