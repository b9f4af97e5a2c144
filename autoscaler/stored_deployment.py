"""Stored deployment plans: one configuration a function, found by a search and used by policies that do not search.

A plan is a JSON object ``{"version": 1, "pipeline": …, "made_by": {…}, "configurations": {function: {…}}}``, where
``made_by`` is how it was found (method, workload, seed, cost) and is only shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from autoscaler.checked import Checked, from_table
from autoscaler.contract import Configuration, Topology
from autoscaler.errors import SettingsError


@dataclass(frozen=True)
class Plan(Checked):
    """Configurations by function of one pipeline."""

    pipeline: str
    configurations: Mapping[str, Configuration]
    made_by: Mapping[str, Any] = field(default_factory=dict)
    version: Literal[1] = 1


def save_plan(plan: Plan, path: Path) -> None:
    """Write it, sorted by function."""
    document = {
        "version": plan.version,
        "pipeline": plan.pipeline,
        "made_by": dict(plan.made_by),
        "configurations": {function: _plain(plan.configurations[function]) for function in sorted(plan.configurations)},
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _plain(configuration: Configuration) -> dict[str, Any]:
    return {name: value for name, value in asdict(configuration).items() if value is not None}


def load_plan(path: Path, topology: Topology | None = None) -> Plan:
    """Read a plan and, where a topology is given, check that it is of that pipeline. Raises SettingsError."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"plan {path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise SettingsError(f"plan {path}: it takes one JSON object")
    try:
        plan = from_table(Plan, document)
    except SettingsError as error:
        raise SettingsError(f"plan {path}: {error}") from error
    if topology is not None:
        _check(path, plan, topology)
    return plan


def _check(path: Path, plan: Plan, topology: Topology) -> None:
    if plan.pipeline != topology.pipeline:
        raise SettingsError(f"plan {path} is of the pipeline {plan.pipeline!r}, not of {topology.pipeline!r}")
    foreign = sorted(set(plan.configurations) - set(topology.functions()))
    if foreign:
        raise SettingsError(f"plan {path}: the pipeline {topology.pipeline!r} has no function {foreign[0]!r}")
