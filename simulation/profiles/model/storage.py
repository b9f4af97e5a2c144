"""A profile on disk: one parquet file of rows, with everything they depend on in the file's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from autoscaler.checked import Checked, from_table
from simulation.profiles.fit.rows import COLUMNS, LATER, SCHEMA, Row
from simulation.profiles.measure.machine import Machine
from simulation.profiles.model import parquet
from simulation.profiles.model.errors import ProfileError, ProfileMismatchError

VERSION: Literal[1] = 1
_KEY = b"smoe.profile"
MEMORY_TOLERANCE = 0.1
"""Machines whose memory differs by less than this part count as the same."""


@dataclass(frozen=True)
class Metadata(Checked):
    """What a profile was measured on, with and when."""

    error = ProfileError
    pipeline: str
    manifest_sha256: str
    classes: Mapping[str, tuple[str, ...]]
    """Measured node → the nodes it stands for."""
    machine: Machine
    cpu_scale: float
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    begun: str
    """ISO 8601, UTC."""
    ended: str
    load_average: tuple[float, float, float]
    """Load of the machine just before it began: what else was running."""
    left_out: int = 0
    """Points that would have taken too long."""
    fit: Mapping[str, Any] = field(default_factory=dict)
    """Numbers of the fitted model: tick, errors out of sample."""
    findings: tuple[str, ...] = ()
    """What the data show, in sentences."""
    notes: tuple[str, ...] = ()
    """What the platform could not do here."""
    version: Literal[1] = VERSION


@dataclass(frozen=True)
class Profile:
    """Rows and what they depend on."""

    metadata: Metadata
    rows: tuple[Row, ...] = field(repr=False)

    def of(self, *families: str) -> list[Row]:
        """Feasible rows of some families."""
        return [row for row in self.rows if row.family in families and row.feasible]

    def class_of(self, node: str) -> str:
        """The measured node that stands for ``node``. Raises ProfileError."""
        for measured, members in self.metadata.classes.items():
            if node in members:
                return measured
        raise ProfileError(f"the profile of {self.metadata.pipeline} has no node {node!r}")


def save(profile: Profile, path: Path) -> None:
    """Write the profile; an existing file is replaced whole."""
    columns = {name: [getattr(row, name) for row in profile.rows] for name in COLUMNS}
    document = json.dumps(asdict(profile.metadata)).encode()
    parquet.write(path, pa.table(columns, schema=SCHEMA), _KEY, document)


def load(path: Path) -> Profile:
    """Read a profile. Raises ProfileError with a sentence for anything that is none."""
    without = f"is a parquet file without the metadata of a profile ({_KEY.decode()})"
    table, document = parquet.read(path, _KEY, measured="PIPELINE", missing=without)
    try:
        metadata = from_table(Metadata, json.loads(document))
    except (ValueError, AttributeError, ProfileError) as error:
        raise ProfileError(f"{path}: the profile's metadata cannot be read: {error}") from error
    missing = sorted(set(COLUMNS) - LATER - set(table.column_names))
    if missing:
        raise ProfileError(f"{path} has no column {missing[0]!r}; it is not a profile of version {VERSION}")
    for name in COLUMNS:
        if name in table.column_names and table.schema.field(name).type != SCHEMA.field(name).type:
            stored, wanted = table.schema.field(name).type, SCHEMA.field(name).type
            raise ProfileError(f"{path}: column {name!r} holds {stored}; a profile's holds {wanted}")
    rows = table.select([name for name in COLUMNS if name in table.column_names]).to_pylist()
    for row in rows:
        row["quantiles_s"] = None if row["quantiles_s"] is None else tuple(row["quantiles_s"])
    return Profile(metadata, tuple(Row(**row) for row in rows))


def check_pipeline(metadata: Metadata, pipeline: str, manifest_sha256: str) -> None:
    """Raises ProfileMismatchError where the profile is of another pipeline."""
    if metadata.pipeline != pipeline:
        raise ProfileMismatchError(f"the profile is of pipeline {metadata.pipeline!r}, not of {pipeline!r}")
    if metadata.manifest_sha256 != manifest_sha256:
        raise ProfileMismatchError(
            f"the profile is of another split of {pipeline}: its manifest has sha256 {metadata.manifest_sha256[:12]}…, "
            f"this one {manifest_sha256[:12]}…; measure it again with `smoe lab profile {pipeline}`"
        )


def differences(metadata: Metadata, machine: Machine) -> str:
    """Every fact in which the profile's machine is another than ``machine``; empty where none is.

    Another machine is one with another processor, number of cores for this process, version of control groups, timer
    tick or GPU (none, too), or a tenth more or less memory. Kernel releases may differ.
    """
    was = metadata.machine
    parts = [
        f"{name} was {getattr(was, name)!r} and is {getattr(machine, name)!r}"
        for name in ("cpu_model", "cpu_cores", "cgroup_version", "tick_s", "gpu")
        if getattr(was, name) != getattr(machine, name)
    ]
    if abs(was.memory_mib - machine.memory_mib) > MEMORY_TOLERANCE * was.memory_mib:
        parts.append(f"memory_mib was {was.memory_mib} and is {machine.memory_mib}")
    return "; ".join(parts)


def check_machine(metadata: Metadata, machine: Machine) -> None:
    """Raises ProfileMismatchError with :func:`differences`."""
    difference = differences(metadata, machine)
    if difference:
        raise ProfileMismatchError(
            f"the profile was measured on another machine: {difference}. Measure this one with "
            f"`smoe lab profile {metadata.pipeline}`, or say that the other machine is meant"
        )
