"""Settings of the controller, checked in one place. Read once, at the entry point."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autoscaler.contract import NAMESPACE, ConfigurationSpace
from autoscaler.errors import SettingsError

POLICY_NAMES = ("static", "hpa", "tuned-hpa", "openfaas", "kpa", "keda", "elasticmoe", "serverlessmoe")
"""Policies of this package (``docs/policies.md``); any other is named ``MODULE:MAKER``."""
ELSEWHERE = {
    "smoe": "rl.agent.policy:make",
    "last-window": "evaluation.bound.last_window:make",
    "faasconf": "rl.faasconf.policy:make",
    "janus": "autoscaler.policy.janus:make",
}
"""Policies with a name of their own that are loaded when one is chosen."""
SHORT_NAMES = (*POLICY_NAMES, *ELSEWHERE)
LEARNT = ("smoe", "faasconf")
"""Policies that came out of a simulator: where they misbehave, ``hpa`` takes over."""
HPA_NAMES = ("hpa", "tuned-hpa", "openfaas")
"""Policies whose settings are HPA's."""
HPA_KEYS = ("cpu_target", "concurrency_target", "tolerance", "up_stabilisation_s", "down_stabilisation_s", "period_s")
"""HPA's settings that the controller's settings still take, with a warning."""
PLATFORMS = ("openfaas", "kubernetes")
PROMETHEUS_WINDOW_S = 30.0
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A namespace's name (RFC 1123 label)."""


@dataclass(frozen=True)
class ControllerSettings:
    """Everything a controller is built from. Described one by one in ``docs/controller.md``."""

    gateway_url: str
    manifest_dir: Path
    """The pipeline's folder; only ``pipeline.json`` is read."""
    policy: str = "hpa"
    """One of ``SHORT_NAMES``, or ``MODULE:MAKER`` of a policy that is not of this package."""
    policy_settings: Path | Mapping[str, Any] | None = None
    """Settings of a policy that has some (``docs/policies.md``): a TOML file, or the table that it would hold. HPA's,
    where it scales what another policy leaves alone or takes over from it, are in the table ``hpa``."""
    plan: Path | None = None
    """Stored plan: the configurations of ``serverlessmoe``, ``tuned-hpa`` and, if given, ``static``."""
    policy_seed: int = 0
    """``openfaas``: seed of the configurations it draws."""
    interval_s: float = 5.0
    """Time between decisions."""
    window_s: float | None = None
    """Time an observation covers; default one interval (direct scrapes) or 30 s (Prometheus)."""
    slo_s: float | None = None
    """Target of the pipeline's P95 latency."""
    namespace: str = NAMESPACE
    """What the gateway calls the functions' namespace: ``openfaas-fn`` is its home, whatever that is called in the
    cluster; others have their own name."""
    user: str = "admin"
    password: str | None = field(default=None, repr=False)
    prometheus_url: str | None = None
    """Without it the gateway's scrape targets are read directly."""
    prices: Path | None = None
    """Price sheet; default the one in the package."""
    log_dir: Path | None = None
    """Folder of the function logger; None writes nothing."""
    windows_per_file: int = 12
    view_dir: Path | None = None
    """Folder of the document that the gateway's page shows; None writes none."""
    dry_run: bool = False
    """Decide and record, change nothing."""
    shadow: bool = False
    """Go on as if decisions were carried out, change nothing, and report what it would have cost."""
    platform: str = "openfaas"
    """Who carries orders out: ``openfaas`` (a gateway's REST API) or ``kubernetes`` (the API server itself)."""
    kubeconfig: Path | None = None
    """``kubernetes``: cluster and user; None takes the pod's service account, else kubectl's own."""
    kubernetes_namespace: str | None = None
    """``kubernetes``: where the functions and the lease are; None: ``namespace``. It differs where that is a gateway's
    home by another name."""
    gpu_memory_mb: int | None = None
    """``kubernetes``: MiB of a GPU, of which a share may pin its part; None sets no limit."""
    gpu_host_ipc: bool = False
    """``kubernetes``: functions that get a GPU get the node's IPC namespace too, as GKE's MPS wants."""
    unschedulable_s: float = 60.0
    """``kubernetes``: how long a new replica waits for a node with room before the plan goes without it; longer than a
    cluster autoscaler takes to bring a node."""
    lease: str | None = None
    """``kubernetes``: name of the Lease that one of several controllers holds; None elects nobody."""
    metrics_port: int = 0
    """Port of the controller's own metrics on all addresses; 0 has none."""
    fallback_windows: int | None = None
    """So many windows in a row of missed SLO and a desire for less put ``hpa`` in the policy's place; 0 = never. None:
    three for a policy that was learnt (:data:`LEARNT`) and has a target, never for others."""
    max_functions: int = 0
    """What the pipeline was deployed with; 0 = one node a function."""
    min_replicas: int = 1
    max_replicas: int = 8
    scale_segments: bool = True
    scale_ingress: bool = False
    cpu_target: float | None = None
    """This and the five that follow are HPA's, deprecated here: they belong into ``policy_settings``."""
    concurrency_target: float | None = None
    tolerance: float | None = None
    up_stabilisation_s: float | None = None
    down_stabilisation_s: float | None = None
    period_s: float | None = None
    space: ConfigurationSpace = field(default_factory=ConfigurationSpace)
    """Φ; its replica bounds are replaced by ``min_replicas`` and ``max_replicas``."""
    alpha: float = 0.9
    """Loss factor of Eq. (2)."""
    runtime_mb: int = 64
    """Memory of a worker besides its weights: part of M_e of Eq. (2)."""
    max_step_replicas: int = 8
    """Most replicas that one decision adds or removes; 0 = no limit."""
    max_step_factor: float = 0.0
    """Memory, CPU cores and GPU share become at most so many times larger or smaller in one decision; 0 = no limit."""
    cooldown_s: float = 0.0
    """Least time between two changes of one function."""
    budget_per_hour: float | None = None
    """Most that all functions may cost, provisioned, in the price sheet's currency."""
    stale_s: float | None = None
    """Oldest data that is decided on; default three intervals, at least 15 s (with Prometheus, 60 s)."""
    stalled_s: float | None = None
    """Longest time that a tick may stand still before this controller counts as hung: it renews its lease no more and
    is not healthy; default three intervals, at least 30 s."""


def validate(settings: ControllerSettings) -> None:
    """Raises SettingsError for the first rule that is broken."""
    s = settings
    checks = [
        _positive("interval_s", s.interval_s),
        _positive("window_s", s.window_s),
        _positive("slo_s", s.slo_s),
        _positive("stale_s", s.stale_s),
        _positive("stalled_s", s.stalled_s),
        (
            "stalled_s",
            s.stalled_s,
            s.stalled_s is None or s.stalled_s > s.interval_s,
            f"more than interval_s, which is {s.interval_s}",
        ),
        _positive("budget_per_hour", s.budget_per_hour),
        ("policy", s.policy, is_policy(s.policy), f"one of {', '.join(SHORT_NAMES)}, or MODULE:MAKER"),
        (
            "plan",
            s.plan,
            s.plan is not None or s.policy not in ("tuned-hpa", "serverlessmoe"),
            f"a file, for {s.policy} runs a stored plan",
        ),
        ("gateway_url", s.gateway_url, _is_url(s.gateway_url), "an http or https address"),
        ("prometheus_url", s.prometheus_url, s.prometheus_url is None or _is_url(s.prometheus_url), "an http address"),
        ("namespace", s.namespace, bool(_NAME.fullmatch(s.namespace)), "a name of Kubernetes: a-z, 0-9 and -"),
        (
            "kubernetes_namespace",
            s.kubernetes_namespace,
            s.kubernetes_namespace in (None, s.namespace) or s.namespace == NAMESPACE,
            f"none besides namespace {s.namespace}, for it is that of a gateway's home, {NAMESPACE}",
        ),
        ("platform", s.platform, s.platform in PLATFORMS, " or ".join(PLATFORMS)),
        (
            "lease",
            s.lease,
            s.lease is None or s.platform == "kubernetes",
            "none with this platform, which has no leases",
        ),
        ("dry_run", s.dry_run, not (s.dry_run and s.shadow), "one of dry_run and shadow"),
        ("metrics_port", s.metrics_port, 0 <= s.metrics_port < 65536, "0 to 65535"),
        _not_negative("fallback_windows", s.fallback_windows or 0),
        (
            "slo_s",
            s.slo_s,
            s.slo_s is not None or not s.fallback_windows,
            "a target, for fallback_windows judges by it",
        ),
        ("min_replicas", s.min_replicas, 1 <= s.min_replicas <= s.max_replicas, "1 to max_replicas"),
        ("max_functions", s.max_functions, s.max_functions == 0 or s.max_functions >= 2, "0, or 2 or more"),
        _share("cpu_target", s.cpu_target),
        _share("concurrency_target", s.concurrency_target),
        ("tolerance", s.tolerance, s.tolerance is None or 0 <= s.tolerance < 1, "0 to below 1"),
        _not_negative("up_stabilisation_s", s.up_stabilisation_s or 0),
        _not_negative("down_stabilisation_s", s.down_stabilisation_s or 0),
        _positive("period_s", s.period_s),
        _not_negative("cooldown_s", s.cooldown_s),
        _not_negative("max_step_replicas", s.max_step_replicas),
        ("max_step_factor", s.max_step_factor, s.max_step_factor == 0 or s.max_step_factor > 1, "0, or above 1"),
        _not_negative("runtime_mb", s.runtime_mb),
        _not_negative("unschedulable_s", s.unschedulable_s),
        ("alpha", s.alpha, 0 < s.alpha <= 1, "above 0, at most 1"),
        ("windows_per_file", s.windows_per_file, s.windows_per_file >= 1, "1 or more"),
    ]
    for key, value, holds, allowed in checks:
        if not holds:
            raise SettingsError(f"{key} is {value}; allowed is {allowed}")


Check = tuple[str, object, bool, str]


def _positive(key: str, value: float | None) -> Check:
    return key, value, value is None or 0 < value < math.inf, "a number above 0"


def _share(key: str, value: float | None) -> Check:
    return key, value, value is None or 0 <= value <= 1, "0 to 1"


def _not_negative(key: str, value: float) -> Check:
    return key, value, 0 <= value < math.inf, "0 or more"


def _is_url(text: str) -> bool:
    parts = urlsplit(text)
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def is_policy(name: str) -> bool:
    """Whether this is a policy's name or has the form ``MODULE:MAKER``."""
    module, colon, maker = name.partition(":")
    return name in SHORT_NAMES or (
        bool(colon) and maker.isidentifier() and all(map(str.isidentifier, module.split(".")))
    )


def with_hpa(policy: str, table: Mapping[str, Any], hpa: Mapping[str, Any]) -> dict[str, Any]:
    """``policy_settings`` of a policy with the settings ``table``, and HPA's where it runs with it or in its place."""
    return {**hpa, **table} if policy in HPA_NAMES else {**table, "hpa": dict(hpa)}


def window_of(settings: ControllerSettings) -> float:
    """Length of a window in seconds."""
    return settings.window_s or (PROMETHEUS_WINDOW_S if settings.prometheus_url else settings.interval_s)
