"""Policies by name: what ``--policy`` takes, and how each is built from settings and files.

A policy that is not of this package is named ``MODULE:MAKER`` or ``FILE.py:MAKER``; the maker is called with
:class:`Making` and returns a policy. So learnt policies and optimisers plug in without the controller knowing them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from autoscaler.checked import Checked, from_table, read_toml
from autoscaler.contract import Burst, NodeKind, Policy, Topology
from autoscaler.decision.limits import LimitSettings, memory_need
from autoscaler.errors import SettingsError
from autoscaler.policy.apa import ApaPolicy, ApaSettings
from autoscaler.policy.bursting import BurstingPolicy, BurstingSettings
from autoscaler.policy.hpa import HpaPolicy, HpaSettings
from autoscaler.policy.keda import KedaPolicy, KedaSettings
from autoscaler.policy.kpa import KpaPolicy, KpaSettings
from autoscaler.policy.scaled_together import ScaledTogetherPolicy
from autoscaler.policy.slo_aware import SloAwarePolicy, SloAwareSettings
from autoscaler.policy.static import StaticPolicy
from autoscaler.policy.token_load import TokenLoadPolicy, TokenLoadSettings
from autoscaler.policy.vertical import VerticalHpaPolicy, draw
from autoscaler.policy.vpa import VpaPolicy, VpaSettings
from autoscaler.prices import PriceSheet
from autoscaler.settings import ELSEWHERE, HPA_NAMES, PLAN_NAMES, POLICY_NAMES, ControllerSettings
from autoscaler.stored_deployment import Plan, load_plan

Settings = TypeVar("Settings", bound=Checked)
HPA_TABLE = "hpa"
"""Table of another policy's settings: HPA's, where it scales what that policy leaves alone or takes over from it."""

BURST_TABLE = "burst"
"""Table of any policy's settings: the standbys on top of its replicas."""


@dataclass(frozen=True)
class Making:
    """What a policy is made of."""

    settings: ControllerSettings
    topology: Topology
    limits: LimitSettings
    prices: PriceSheet
    measured: bool = field(default=False, kw_only=True)
    """Functions run, or what is simulated was measured. Standbys then open by the CPU time of a token, unless texts are
    generated; what is modelled has no quota, and takes the same either way."""

    @property
    def kinds(self) -> frozenset[NodeKind]:
        """Functions that policies which scale everything may touch."""
        kinds: set[NodeKind] = {"expert"}
        if self.settings.scale_segments:
            kinds.add("segment")
        if self.settings.scale_ingress:
            kinds.add("ingress")
        return frozenset(kinds)

    @property
    def bounds(self) -> dict[str, int]:
        return {"min_replicas": self.settings.min_replicas, "max_replicas": self.settings.max_replicas}

    @property
    def targets(self) -> dict[str, float | None]:
        """λ, by the names of :class:`autoscaler.state.targets.Targets`."""
        return asdict(self.settings.targets)

    def plan(self) -> Plan:
        """The stored plan. Raises SettingsError."""
        if self.settings.plan is None:
            raise SettingsError(f"plan is None; the policy {self.settings.policy} takes a stored plan (--plan FILE)")
        return load_plan(self.settings.plan, self.topology)

    @property
    def origin(self) -> str:
        """Where the policy's settings come from, for sentences."""
        given = self.settings.policy_settings
        return str(given) if isinstance(given, Path) else "as given"

    def table(self) -> Mapping[str, Any]:
        """The policy's settings, empty where none are given; HPA's next to it left out. Raises SettingsError."""
        table = self._own_table()
        return table if self.settings.policy in HPA_NAMES else {k: v for k, v in table.items() if k != HPA_TABLE}

    def hpa_table(self) -> Mapping[str, Any]:
        """HPA's settings: the policy's, or those of HPA next to another policy. Raises SettingsError."""
        table = self._own_table()
        if self.settings.policy in HPA_NAMES:
            return table
        hpa = table.get(HPA_TABLE, {})
        if not isinstance(hpa, Mapping):
            raise SettingsError(f"policy settings {self.origin}: {HPA_TABLE} takes a table, [{HPA_TABLE}]")
        return hpa

    def settings_as(self, kind: type[Settings], **given: Any) -> Settings:
        """``kind`` from the policy's settings, with ``given`` from the controller's. Raises SettingsError."""
        return self.read(kind, self.table(), **given)

    def read(self, kind: type[Settings], table: Mapping[str, Any], **given: Any) -> Settings:
        """``kind`` from a table of the policy's settings and ``given``. Raises SettingsError."""
        try:
            return from_table(kind, table, given)
        except SettingsError as error:
            raise SettingsError(f"policy settings {self.origin}: {error}") from error

    def refuse_unwanted_settings(self) -> None:
        """Raises SettingsError where this policy takes no settings but standbys and those of HPA next to it,
        and there are others."""
        name, given = self.settings.policy, self.settings.policy_settings
        if given is None or name in WITH_FILE:
            return
        tables = set(self.whole_table())
        if not tables or tables - {HPA_TABLE, BURST_TABLE}:
            raise SettingsError(f"policy_settings is {self.origin}; {name} takes none ({', '.join(WITH_FILE)} do)")

    def burst(self) -> Burst | None:
        """The standbys that the policy's settings give every function. Raises SettingsError."""
        table = {key: value for key, value in self.whole_table().items() if key == BURST_TABLE}
        return self.read(BurstingSettings, table).burst

    def whole_table(self) -> Mapping[str, Any]:
        """All that the policy's settings hold. Raises SettingsError."""
        given = self.settings.policy_settings
        return read_toml(given, "policy settings") if isinstance(given, Path) else given or {}

    def _own_table(self) -> Mapping[str, Any]:
        return {key: value for key, value in self.whole_table().items() if key != BURST_TABLE}


Maker = Callable[[Making], Policy]


def make_policy(making: Making) -> Policy:
    """The policy that the settings name; where that is for experts only, HPA scales what else may be scaled; with
    standbys where the settings have some.

    Raises SettingsError.
    """
    return with_standbys(_named(making), making)


def with_standbys(policy: Policy, making: Making) -> Policy:
    """``policy``, with standbys where the settings have some. Raises SettingsError."""
    burst = making.burst()
    if burst is None:
        return policy
    return BurstingPolicy(policy, burst, by_cpu_time=making.measured and not making.topology.generates)


def _named(making: Making) -> Policy:
    name = making.settings.policy
    if name in MAKERS:
        making.refuse_unwanted_settings()
        return MAKERS[name](making)
    policy = _custom(name, making)
    others = making.kinds - {"expert"}
    if name not in ELSEWHERE or not others:
        return policy
    return ScaledTogetherPolicy(policy, HpaPolicy(replace(hpa_settings(making), kinds=others)))


def _custom(name: str, making: Making) -> Policy:
    """The policy of a maker that is not of this package. Raises SettingsError, also where a custom maker fails."""
    maker = maker_of(name)
    try:
        return maker(making)
    except Exception as error:
        if name in ELSEWHERE or isinstance(error, SettingsError):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        sentence = (
            f"policy is {name!r}, whose maker failed: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        )
        raise SettingsError(sentence) from error


def maker_of(name: str) -> Maker:
    """The maker of a policy that is not of this package. Raises SettingsError, whatever its file raises."""
    module, _, attribute = ELSEWHERE.get(name, name).rpartition(":")
    try:
        loaded = _file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
        maker: Maker = getattr(loaded, attribute)
    except Exception as error:
        hint = f"; the file here is named {module}.py:{attribute}" if Path(f"{module}.py").is_file() else ""
        sentence = f"policy is {name!r}, which cannot be loaded: {type(error).__name__}: {error}{hint}"
        raise SettingsError(sentence) from error
    return maker


def _file(path: Path) -> ModuleType:
    """A Python file as a module under its own path's name; its folder comes last on the import path, for what it
    imports from there."""
    name, folder = f"policy_of_{path.resolve()}", str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _static(making: Making) -> Policy:
    return StaticPolicy(making.plan().configurations if making.settings.plan else None)


def _stored(making: Making) -> Policy:
    return StaticPolicy(making.plan().configurations, name=making.settings.policy)


def hpa_settings(making: Making) -> HpaSettings:
    """HPA's settings: the policy's, or those of HPA next to another policy. Raises SettingsError."""
    return making.read(HpaSettings, making.hpa_table(), kinds=making.kinds, **making.bounds)


def _hpa(making: Making) -> Policy:
    return HpaPolicy(hpa_settings(making))


def _tuned_hpa(making: Making) -> Policy:
    return VerticalHpaPolicy("tuned-hpa", making.plan().configurations, hpa_settings(making))


def _openfaas(making: Making) -> Policy:
    """Experts only: the other functions have no Φ of their own in the paper."""
    needs = {}
    for function, nodes in making.topology.functions().items():
        need = memory_need(nodes, [], making.limits)
        if need is not None and any(node.kind == "expert" for node in nodes):
            needs[function] = need
    drawn = draw(needs, making.limits.space, making.settings.policy_seed)
    return VerticalHpaPolicy("openfaas", drawn, hpa_settings(making))


def _vpa(making: Making) -> Policy:
    settings = making.settings_as(VpaSettings, kinds=making.kinds)
    return VpaPolicy(settings, making.limits.space, hpa_settings(making) if settings.with_hpa else None)


def _kpa(making: Making) -> Policy:
    return KpaPolicy(making.settings_as(KpaSettings, kinds=making.kinds, **making.bounds))


def _keda(making: Making) -> Policy:
    return KedaPolicy(making.settings_as(KedaSettings, kinds=making.kinds, **making.bounds))


def _apa(making: Making) -> Policy:
    return ApaPolicy(making.settings_as(ApaSettings, kinds=making.kinds, **making.bounds))


def _slo_aware(making: Making) -> Policy:
    if not making.settings.targets.any:
        raise SettingsError("slo_s is None; the policy slo-aware needs a target (--slo-ms, --ttft-ms, --tpot-ms)")
    given = {**making.targets, "kinds": making.kinds, **making.bounds}
    return SloAwarePolicy(making.settings_as(SloAwareSettings, **given))


def _elastic_moe(making: Making) -> Policy:
    return TokenLoadPolicy(making.settings_as(TokenLoadSettings, **making.bounds))


MAKERS: Mapping[str, Maker] = {
    "static": _static,
    "hpa": _hpa,
    "tuned-hpa": _tuned_hpa,
    "openfaas": _openfaas,
    "vpa": _vpa,
    "kpa": _kpa,
    "keda": _keda,
    "apa": _apa,
    "slo-aware": _slo_aware,
    "elasticmoe": _elastic_moe,
    **dict.fromkeys(PLAN_NAMES, _stored),
}
WITH_FILE = (*HPA_NAMES, "vpa", "kpa", "keda", "apa", "slo-aware", "elasticmoe")
assert tuple(MAKERS) == POLICY_NAMES
