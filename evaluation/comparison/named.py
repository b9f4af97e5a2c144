"""What the policies that an evaluation knows by name have learnt; makers' names are the controller's."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoscaler.settings import SHORT_NAMES

NAMES = SHORT_NAMES
FAASCONF = Path(__file__).parents[2] / "rl" / "faasconf" / "weights"


@dataclass(frozen=True)
class Learnt:
    """Where a policy keeps what it has learnt; the file is part of a run's fingerprint."""

    setting: str
    """Of its settings file: names another file."""
    own: Callable[[str, Mapping[str, Any]], Path | None]
    """Workload and settings to the package's file."""


def _of_family(workload: str, settings: Mapping[str, Any]) -> Path | None:
    """The workload's, else one of its family (``bert-4`` for ``bert-8``)."""
    own, family = FAASCONF / f"{workload}.safetensors", workload.partition("-")[0]
    return own if own.is_file() else next(iter(sorted(FAASCONF.glob(f"{family}-*.safetensors"))), None)


def _published(workload: str, settings: Mapping[str, Any]) -> Path | None:
    from rl.agent.policy import published  # PyTorch takes a second to load
    from rl.reward import RewardSettings

    return published(workload, str(settings.get("meter", RewardSettings.meter)))


LEARNT: Mapping[str, Learnt] = {"faasconf": Learnt("weights", _of_family), "smoe": Learnt("actor", _published)}


def learnt_file(policy: str, workload: str, settings: Path | None = None) -> Path | None:
    """What the policy has learnt for a workload: the file its ``settings`` (TOML) name, else the package's; None for
    policies that learn nothing and where there is no file."""
    learnt = LEARNT.get(policy)
    if learnt is None:
        return None
    table = tomllib.loads(settings.read_text()) if settings is not None else {}
    named = table.get(learnt.setting)
    found = Path(str(named)) if named else learnt.own(workload, table)
    return found if found is not None and found.is_file() else None
