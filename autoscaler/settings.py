"""Settings of the controller, checked in one place. Read once, at the entry point."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from autoscaler.checked import Checked, Flag, FromOne, FromZero, NotNegative, Positive, PositiveShare, Rule
from autoscaler.contract import NAMESPACE, ConfigurationSpace
from autoscaler.state.targets import Targets
from platform_words.memory import CONTAINERS, RuntimeMemory, runtime_memory

POLICY_NAMES = (
    "static", "hpa", "tuned-hpa", "openfaas", "vpa", "kpa", "keda", "apa", "slo-aware", "elasticmoe", "serverlessmoe",
    "constant", "constant-per-layer", "constant-per-expert",
)  # fmt: skip
"""Policies of this package (``docs/policies.md``); any other is named ``MODULE:MAKER`` or ``FILE.py:MAKER``."""
ELSEWHERE = {
    "smoe": "rl.agent.policy:make",
    "last-window": "evaluation.bound.last_window:make",
    "faasconf": "rl.faasconf.policy:make",
    "janus": "autoscaler.policy.janus:make",
    "staffing": "rl.staffing.policy:make_rule",
    "staffing-learnt": "rl.staffing.policy:make",
}
"""Policies with a name of their own that are loaded when one is chosen."""
SHORT_NAMES = (*POLICY_NAMES, *ELSEWHERE)
AUTO = "auto"
"""staffing where it fits, else hpa: :mod:`autoscaler.choice`."""
PLAN_NAMES = ("serverlessmoe", "constant", "constant-per-layer", "constant-per-expert")
"""Policies that hold a stored plan and nothing else."""
GUARDED = ("smoe", "faasconf", "staffing", "staffing-learnt")
"""Policies that came out of a simulator, or plan with its call times: where they misbehave, ``hpa`` takes over."""
HPA_NAMES = ("hpa", "tuned-hpa", "openfaas")
"""Policies whose settings are HPA's."""
OTHERS = "MODULE:MAKER or FILE.py:MAKER"
PROMETHEUS_WINDOW_S = 30.0
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A namespace's name (RFC 1123 label)."""


@dataclass(frozen=True)
class ControllerSettings(Checked):
    """Everything a controller is built from, and, by :mod:`autoscaler.options`, the options of ``smoe autoscale``.

    Raises SettingsError. Described one by one in ``docs/controller.md``.
    """

    gateway_url: Annotated[str, Flag("--gateway")]
    """Address of the gateway. [default: the state folder's]"""
    manifest_dir: Annotated[Path, Flag("--manifest")]
    """The pipeline's folder; only ``pipeline.json`` is read. [default: the state folder's]"""
    namespace: str = NAMESPACE
    """What the gateway calls the functions' namespace; its home is always openfaas-fn, whatever that is called in the
    cluster."""
    user: str = "admin"
    """User of the gateway."""
    password: Annotated[str | None, Flag(hidden=True)] = field(default=None, repr=False)
    """Password of the gateway; never logged."""
    prometheus_url: Annotated[str | None, Flag("--prometheus")] = None
    """Prometheus server; without it targets are scraped."""
    cpu_scale: Annotated[Positive | None, Flag(hidden=True)] = None
    """Real cores per configured core, where that is known: on one machine of its state folder."""
    max_functions: FromZero = 0
    """As given to `smoe up` or `smoe pipeline deploy`; 0 = one node a function."""
    policy: Annotated[str, Flag(metavar="NAME")] = AUTO
    """auto (staffing with --slo-ms where it fits, else hpa), static, hpa, tuned-hpa, openfaas, vpa, kpa, keda,
    apa, slo-aware, elasticmoe, serverlessmoe, smoe, last-window, faasconf, janus, staffing,
    staffing-learnt, MODULE:MAKER or FILE.py:MAKER (docs/own-policy.md)."""
    policy_settings: Annotated[Path | Mapping[str, Any] | None, Flag(file=True)] = None
    """TOML file with the policy's own settings (or the table that it would hold), auto's those of staffing, and HPA's
    in [hpa] where it scales in the place of another or what that leaves alone; static and serverlessmoe have none."""
    plan: Annotated[Path | None, Flag(file=True)] = None
    """serverlessmoe, tuned-hpa, static: stored configurations (JSON)."""
    policy_seed: int = 0
    """openfaas: seed of its drawn configurations."""
    fallback_windows: Annotated[FromZero | None, Flag("--fallback")] = None
    """Windows in a row of missed SLO and a desire for less after which hpa takes over; 0 = never. [default: 3 for a
    learnt policy and staffing with --slo-ms, else 0]"""
    alpha: PositiveShare = 0.9
    """Loss factor of Eq. (2)."""
    interval_s: Annotated[float, Field(gt=0, lt=86400)] = 5.0
    """Time between decisions (5, 5s)."""
    window_s: Positive | None = None
    """Seconds an observation covers. [default: one interval; 30 with --prometheus]"""
    slo_s: Annotated[Positive | None, Flag("--slo-ms", times=1000)] = None
    """Latency target, P95 in milliseconds."""
    ttft_s: Annotated[Positive | None, Flag("--ttft-ms", times=1000)] = None
    """Decoders: target of the P95 from a text's arrival to its first token, in milliseconds."""
    tpot_s: Annotated[Positive | None, Flag("--tpot-ms", times=1000)] = None
    """Decoders: target of the P95 from one token of a text to its next, in milliseconds."""
    stale_s: Positive | None = None
    """Oldest data, in seconds, that is decided on. [default: 3 intervals, at least 15; with --prometheus 60]"""
    stalled_s: Positive | None = None
    """Seconds a tick may stand still before this controller counts as hung: it renews its lease no more and is not
    healthy. [default: 3 intervals, at least 30]"""
    dry_run: bool = False
    """Decide and record, change nothing."""
    shadow: bool = False
    """Change nothing, go on as if, and report what it would have cost, in each tick and in all."""
    scale_segments: Annotated[bool, Flag("--scale-segments/--experts-only")] = True
    """Whether segments are managed too, or left alone."""
    scale_ingress: bool = False
    """Manage the ingress too."""
    space: Annotated[ConfigurationSpace, Flag(hidden=True)] = field(default_factory=ConfigurationSpace)
    """Φ; its replica bounds are replaced by ``min_replicas`` and ``max_replicas``."""
    min_replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """Fewest replicas of a function."""
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = 8
    """Most replicas of a function."""
    max_step_replicas: FromZero = 8
    """Most replicas that one decision adds or removes; 0 = no limit."""
    max_step_factor: NotNegative = 0.0
    """Most times that memory, cores or GPU share grow or shrink in one decision (such as 2); 0 = no limit."""
    cooldown_s: NotNegative = 0.0
    """Least seconds between two changes of a function."""
    budget_per_hour: Annotated[Positive | None, Flag("--budget")] = None
    """Most that all functions may cost an hour, provisioned, in the price sheet's currency."""
    prices: Annotated[Path | None, Flag(file=True)] = None
    """Price sheet (TOML). [default: autoscaler/prices.toml]"""
    capacity: Annotated[Path | None, Flag(file=True)] = None
    """TOML file with what all functions may take together: cores, memory_mb and gpu_tenths, or [[machines]]
    (docs/controller.md)."""
    runtime_mb: FromZero | None = None
    """Memory of a worker besides its weights, in MiB: part of M_e of Eq. (2). [default: as measured; 64 where a gateway
    forks workers, in containers 224, 64 for experts in float32, 288 for the ingress]"""
    orchestration: Annotated[str | None, Flag(hidden=True)] = None
    """What functions run in, as /system/info calls it: process, all else containers, which count too where a gateway
    does not answer. [default: asked once]"""
    platform: Literal["openfaas", "kubernetes"] = "openfaas"
    """Who gets the orders: a gateway's REST API, or the Kubernetes API server."""
    kubeconfig: Annotated[Path | None, Flag(file=True)] = None
    """kubernetes: cluster and user. [default: the pod's service account, else kubectl's]"""
    kubernetes_namespace: str | None = None
    """kubernetes: namespace of functions and lease, where home has another name in the cluster. [default: that of
    --namespace]"""
    gpu_memory_mb: FromOne | None = None
    """kubernetes: MiB of a GPU's memory, of which a share may pin its part."""
    gpu_host_ipc: bool = False
    """kubernetes: the node's IPC namespace for GPUs (GKE's MPS)."""
    unschedulable_s: Annotated[NotNegative, Flag("--unschedulable-wait")] = 60.0
    """kubernetes: seconds that a replica waits for a node with room before the plan goes without it; longer than a
    cluster autoscaler takes to bring a node."""
    lease: Annotated[str | None, Flag(metavar="NAME")] = None
    """kubernetes: Lease that the one acting controller of several holds."""
    log_dir: Path | None = None
    """Folder of the function logger (parquet); a program that names none logs nothing. [default: STATE/log]"""
    windows_per_file: FromOne = 12
    """Windows in one parquet file."""
    log_mb: FromZero = 896
    """MiB that the log's folder may take, whoever wrote it; beyond it the oldest files are deleted. 0 = no bound."""
    view_dir: Path | None = None
    """Folder of the document that the gateway's page shows. [default: STATE/view; none with --gateway]"""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of /metrics, /view and /healthz, on all addresses; 0 = none."""

    @property
    def targets(self) -> Targets:
        """λ, as the policies that know it take it."""
        return Targets(self.slo_s, self.ttft_s, self.tpot_s)

    @property
    def real_cores(self) -> float | None:
        """Real cores per configured core; None where that is not known."""
        return 1.0 if self.platform == "kubernetes" else self.cpu_scale

    def rules(self) -> Iterable[Rule]:
        stored, factor = self.policy in ("tuned-hpa", *PLAN_NAMES), self.max_step_factor
        home = self.kubernetes_namespace in (None, self.namespace) or self.namespace == NAMESPACE
        names = ", ".join((AUTO, *SHORT_NAMES))
        return (
            ("stalled_s", self.stalled_s is None or self.stalled_s > self.interval_s, f"above {self.interval_s}"),
            ("policy", self.policy == AUTO or is_policy(self.policy), f"one of {names}, {OTHERS}"),
            ("plan", self.plan is not None or not stored, f"a file, for {self.policy} runs a stored plan"),
            ("gateway_url", is_url(self.gateway_url), "an http or https address"),
            ("prometheus_url", self.prometheus_url is None or is_url(self.prometheus_url), "an http address"),
            ("namespace", bool(_LABEL.fullmatch(self.namespace)), "a name of Kubernetes: a-z, 0-9 and -"),
            ("kubernetes_namespace", home, f"none next to namespace {self.namespace}: only {NAMESPACE} is a home"),
            ("lease", self.lease is None or self.platform == "kubernetes", "none: this platform has no leases"),
            ("dry_run", not (self.dry_run and self.shadow), "one of dry_run and shadow"),
            ("slo_s", self.targets.any or not self.fallback_windows, "a target, as fallback_windows needs one"),
            ("min_replicas", self.min_replicas <= self.max_replicas, "1 to max_replicas"),
            ("max_functions", self.max_functions != 1, "0, or 2 or more"),
            ("max_step_factor", factor == 0 or factor > 1, "0, or above 1"),
        )


def is_url(text: str) -> bool:
    """Whether this is an http or https address."""
    parts = urlsplit(text)
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def is_policy(name: str) -> bool:
    """Whether this is a policy's name or has the form ``MODULE:MAKER`` or ``FILE.py:MAKER``."""
    module, colon, maker = name.rpartition(":")
    return name in SHORT_NAMES or (
        bool(colon)
        and maker.isidentifier()
        and (module.endswith(".py") or all(map(str.isidentifier, module.split("."))))
    )


def with_hpa(policy: str, table: Mapping[str, Any], hpa: Mapping[str, Any]) -> dict[str, Any]:
    """``policy_settings`` of a policy with the settings ``table``, and HPA's where it runs with it or in its place."""
    return {**hpa, **table} if policy in HPA_NAMES else {**table, "hpa": dict(hpa)}


def runtime_of(settings: ControllerSettings, dtype: str) -> RuntimeMemory:
    """Memory of workers besides weights, of a pipeline of ``dtype``: as given, else as measured on the platform; that
    of containers where the platform is not known: too much memory costs, too little kills."""
    if settings.runtime_mb is not None:
        return RuntimeMemory.same(settings.runtime_mb)
    return runtime_memory(settings.orchestration or CONTAINERS, dtype)


def window_of(settings: ControllerSettings) -> float:
    """Length of a window in seconds."""
    return settings.window_s or (PROMETHEUS_WINDOW_S if settings.prometheus_url else settings.interval_s)
