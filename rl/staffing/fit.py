"""Whether the rule can be trusted with a pipeline, by what is measured of it: asked by the policy ``auto``
(``docs/decisions/0032-what-auto-runs.md``). torch is loaded only where nothing cheaper decides."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoscaler.errors import SettingsError, UnfitError
from autoscaler.policies import Making
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.model.bundled import fitting, named
from simulation.profiles.model.errors import ProfileError, ProfileMismatchError

RULE = "rl.staffing.policy"
AS_DEPLOYED = "with replicas of the size that is deployed"


def table_of(making: Making) -> tuple[Mapping[str, Any], str]:
    """The rule's settings with profile and ``cpu_scale`` filled in, or ``plan`` where there is no profile, and how the
    rule goes about it.

    Raises UnfitError where HPA is to be preferred, SettingsError for settings that are wrong, and ImportError where
    the rule cannot be loaded.
    """
    if any(len(nodes) > 1 for nodes in making.topology.functions().values()):
        raise UnfitError("functions serve several nodes each (--max-functions), and staffing plans for single ones")
    table = dict(making.table())
    settings = making.settings_as(importlib.import_module(RULE).RuleSettings) if table else None
    if settings is not None and not settings.plan:
        how = f"{AS_DEPLOYED}, as its settings ask for"
    elif settings is not None and settings.workload and not settings.profile:
        how = f"planning with the modelled call times of {settings.workload}, as its settings name them"
    elif path := _profile(making, settings):
        scale = (settings.cpu_scale if settings else 0.0) or making.settings.real_cores or 0.0
        table |= {"profile": str(path), "cpu_scale": scale}
        how = f"planning with {path}"
    else:
        table["plan"], name = False, making.topology.pipeline
        how = (
            f"{AS_DEPLOYED}, as there is no profile of {name} on this machine; `smoe lab profile {name} --out FILE` "
            "measures one (policy setting profile)"
        )
    _check_activation(making)
    return table, how


def _check_activation(making: Making) -> None:
    """Raises UnfitError where standbys open too late for the target: the rule would doubt itself in every window."""
    rule = importlib.import_module(RULE)
    least_s = rule.OPENING * rule.DEFAULT_BURSTS.activation_s
    slo_s = making.settings.slo_s
    if slo_s is not None and slo_s < least_s:
        raise UnfitError(f"standbys open too late for an SLO below {1000 * least_s:g} ms")


def _profile(making: Making, settings: Any) -> Path | None:
    """What the rule plans with; ``settings``: the rule's, None where none are given."""
    meant = settings is not None and (settings.other_machine or settings.cluster)
    return _named(making, settings.profile, meant) if settings and settings.profile else _bundled(making, meant)


def _named(making: Making, path: str, meant: bool) -> Path:
    """``path``, a profile of this pipeline and, unless another is ``meant``, of this machine. Raises UnfitError, and
    SettingsError for a file that is no profile."""
    try:
        named(Path(path), making.topology, meant)
    except ProfileMismatchError as error:
        raise UnfitError(str(error)) from error
    except ProfileError as error:
        raise SettingsError(f"auto: {error}") from error
    return Path(path)


def _bundled(making: Making, meant: bool) -> Path | None:
    """This tree's profile of the pipeline and this machine, or of another where that is ``meant``; None without one.
    Raises UnfitError.

    In a cluster functions run on other machines than this one, and without a state folder nothing states what a
    configured core is, nor whether there are standbys: there a profile has to be named.
    """
    settings = making.settings
    if settings.platform == "kubernetes":
        raise UnfitError("no profile of the machines that functions run on is named (policy setting profile)")
    if settings.real_cores is None:
        raise UnfitError("no profile is named (policy setting profile), and of a gateway's core the size is not known")
    try:
        return fitting(settings.manifest_dir, None if meant else this_machine())
    except ProfileMismatchError:
        return None
