"""Stored deployment plans: one configuration a function, found by a search and used by policies that do not search.

A plan is a JSON object ``{"version": 1, "pipeline": …, "made_by": {…}, "configurations": {function: {…}}}``, where
``made_by`` is how it was found (method, workload, seed, cost) and is only shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from autoscaler.contract import Configuration, Topology
from autoscaler.errors import ConfigurationError, SettingsError

VERSION = 1
KEYS = ("version", "pipeline", "made_by", "configurations")


@dataclass(frozen=True)
class Plan:
    """Configurations by function of one pipeline."""

    pipeline: str
    configurations: Mapping[str, Configuration]
    made_by: Mapping[str, Any] = field(default_factory=dict)


def save_plan(plan: Plan, path: Path) -> None:
    """Write it, sorted by function."""
    document = {
        "version": VERSION,
        "pipeline": plan.pipeline,
        "made_by": dict(plan.made_by),
        "configurations": {function: asdict(plan.configurations[function]) for function in sorted(plan.configurations)},
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def load_plan(path: Path, topology: Topology | None = None) -> Plan:
    """Read a plan and, where a topology is given, check that it is of that pipeline. Raises SettingsError."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"plan {path} cannot be read: {error}") from error
    if not isinstance(document, dict) or sorted(document) != sorted(KEYS):
        raise SettingsError(f"plan {path}: it takes one JSON object with the keys {', '.join(KEYS)}")
    if document["version"] != VERSION:
        raise SettingsError(f"plan {path}: version is {document['version']!r}; allowed is {VERSION}")
    if not all(isinstance(document[key], dict) for key in ("made_by", "configurations")):
        raise SettingsError(f"plan {path}: made_by and configurations are JSON objects")
    plan = Plan(
        str(document["pipeline"]),
        {function: _configuration(path, function, row) for function, row in document["configurations"].items()},
        document["made_by"],
    )
    if topology is not None:
        _check(path, plan, topology)
    return plan


def _configuration(path: Path, function: str, row: object) -> Configuration:
    names = sorted(entry.name for entry in fields(Configuration))
    if not isinstance(row, dict) or sorted(row) != names:
        raise SettingsError(f"plan {path}: {function} takes the keys {', '.join(names)}")
    for name, value in row.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SettingsError(f"plan {path}: {function}: {name} is {value!r}; allowed are numbers")
    try:
        return Configuration(**row)
    except ConfigurationError as error:
        raise SettingsError(f"plan {path}: {function}: {error}") from error


def _check(path: Path, plan: Plan, topology: Topology) -> None:
    if plan.pipeline != topology.pipeline:
        raise SettingsError(f"plan {path} is of the pipeline {plan.pipeline!r}, not of {topology.pipeline!r}")
    foreign = sorted(set(plan.configurations) - set(topology.functions()))
    if foreign:
        raise SettingsError(f"plan {path}: the pipeline {topology.pipeline!r} has no function {foreign[0]!r}")
