"""Files of what policies have learnt: trained actors and weights that come with the package.

Only names of files are known here. Policies that are learnt look up their files here too, so an evaluation's
fingerprint holds the very file that a policy loads.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoscaler.prices import DEFAULT_METER

_LEARNING = Path(__file__).parents[2] / "rl"
FAASCONF = _LEARNING / "faasconf" / "weights"
"""``WORKLOAD.safetensors``, trained as ``docs/policies.md`` describes."""
PUBLISHED = _LEARNING / "policies"
"""``PIPELINE-METER.safetensors``, and ``smoe-METER.safetensors`` for every pipeline without its own."""


@dataclass(frozen=True)
class Learnt:
    """Where a policy keeps what it has learnt; the file is part of a run's fingerprint."""

    setting: str
    """Key of the policy's settings file that names another file."""
    packaged: Callable[[str, Mapping[str, Any]], Path | None]
    """Workload and settings to the package's file."""


def published_actor(pipeline: str, meter: str, folder: Path = PUBLISHED) -> Path:
    """The published actor for a pipeline: its own, else the one for all."""
    named = folder / f"{pipeline}-{meter}.safetensors"
    return named if named.is_file() else folder / f"smoe-{meter}.safetensors"


def _of_family(workload: str, settings: Mapping[str, Any]) -> Path | None:
    """The workload's, else one of its family (``bert-4`` for ``bert-8``)."""
    exact, family = FAASCONF / f"{workload}.safetensors", workload.partition("-")[0]
    return exact if exact.is_file() else next(iter(sorted(FAASCONF.glob(f"{family}-*.safetensors"))), None)


def _published(workload: str, settings: Mapping[str, Any]) -> Path | None:
    return published_actor(workload, str(settings.get("meter", DEFAULT_METER)))


def _none(workload: str, settings: Mapping[str, Any]) -> Path | None:
    return None


LEARNT: Mapping[str, Learnt] = {
    "faasconf": Learnt("weights", _of_family),
    "smoe": Learnt("actor", _published),
    "staffing-learnt": Learnt("actor", _none),
}


def learnt_file(policy: str, workload: str, settings: Path | None = None) -> Path | None:
    """What the policy has learnt for a workload: the file its ``settings`` (TOML) name, else the package's; None for
    policies that learn nothing and where there is no file."""
    learnt = LEARNT.get(policy)
    if learnt is None:
        return None
    table = tomllib.loads(settings.read_text()) if settings is not None else {}
    named = table.get(learnt.setting)
    path = Path(str(named)) if named else learnt.packaged(workload, table)
    return path if path is not None and path.is_file() else None
