"""The policy ``auto``: which one it stands for on this pipeline and platform, and why
(``docs/decisions/0032-what-auto-runs.md``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from autoscaler.errors import SettingsError, UnfitError
from autoscaler.policies import BURST_TABLE, HPA_TABLE, Making, maker_of
from autoscaler.policy.hpa import HpaSettings
from autoscaler.settings import AUTO

log = logging.getLogger("smoe.autoscaler")

STAFFING, HPA = "staffing", "hpa"
FIT = "rl.staffing.fit:table_of"
"""What states the settings to plan with here; of a package that this one does not import."""


@dataclass(frozen=True)
class Choice:
    """``making`` names a policy that is made as it stands; ``sentence`` states what ``auto`` chose and why, empty where
    the policy was named."""

    making: Making
    sentence: str = ""


def chosen(making: Making) -> Choice:
    """``making`` with ``auto`` replaced, which is logged. Raises SettingsError where its settings are wrong."""
    if making.settings.policy != AUTO:
        return Choice(making)
    _refuse_hpas_keys(making)
    burst = {key: value for key, value in making.whole_table().items() if key == BURST_TABLE}
    try:
        table, how = _staffing(making)
        policy, table = STAFFING, {**table, HPA_TABLE: dict(making.hpa_table()), **burst}
        sentence = f"auto: {STAFFING}, {how}"
    except UnfitError as reason:
        policy, table = HPA, {**making.hpa_table(), **burst}
        sentence = f"auto: {HPA}, because {reason}"
    log.info("%s", sentence)
    settings = replace(making.settings, policy=policy, policy_settings=table)
    return Choice(replace(making, settings=settings), sentence)


def _staffing(making: Making) -> tuple[Mapping[str, Any], str]:
    """The rule's settings with what it plans with filled in, and how it goes about it. Raises UnfitError."""
    if making.topology.generates:
        raise UnfitError("on a pipeline that generates text nothing measured is better")
    if making.settings.slo_s is None:
        raise UnfitError("there is no target (--slo-ms)")
    try:
        return cast(Callable[[Making], tuple[Mapping[str, Any], str]], maker_of(FIT))(making)
    except SettingsError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
        raise UnfitError(f"{STAFFING} cannot be loaded here: {error.__cause__}") from error
    except ImportError as error:
        raise UnfitError(f"{STAFFING} cannot be loaded here: {error}") from error


def _refuse_hpas_keys(making: Making) -> None:
    """Raises SettingsError: they would go unused without a word."""
    keys = sorted({entry.name for entry in fields(HpaSettings)} & set(making.table()))
    if keys:
        raise SettingsError(
            f"policy settings {making.origin}: {keys[0]} is a setting of hpa, which stands in [{HPA_TABLE}] "
            f"where the policy is {AUTO}; or name --policy hpa"
        )
