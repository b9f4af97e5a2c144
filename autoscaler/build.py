"""From settings to a controller: the one place where its parts are joined."""

from __future__ import annotations

from dataclasses import asdict, replace

from autoscaler.contract import ConfigurationSpace, MetricsSource, NodeKind, Policy, Topology
from autoscaler.decision.limits import LimitSettings
from autoscaler.logger import FunctionLogger
from autoscaler.loop import Controller
from autoscaler.monitor.prometheus import PrometheusSource
from autoscaler.monitor.scrape import ScrapeSource
from autoscaler.monitor.source import Monitor
from autoscaler.platform.openfaas import OpenFaasPlatform
from autoscaler.policy.hpa import HpaPolicy, HpaSettings
from autoscaler.policy.static import StaticPolicy
from autoscaler.prices import DEFAULT_SHEET, load_prices
from autoscaler.settings import ControllerSettings, validate
from autoscaler.topology import load_topology

PROMETHEUS_WINDOW_S = 30.0


def build_controller(settings: ControllerSettings) -> tuple[Controller, float]:
    """A controller and the length of its windows in seconds. Raises SettingsError and ``moe.errors.ManifestError``."""
    validate(settings)
    topology = load_topology(settings.manifest_dir)
    prices = load_prices(settings.prices or DEFAULT_SHEET)
    auth = None if settings.password is None else (settings.user, settings.password)
    platform = OpenFaasPlatform(settings.gateway_url, topology.pipeline, auth)
    space = replace(ConfigurationSpace(), replicas_min=settings.min_replicas, replicas_max=settings.max_replicas)
    limits = LimitSettings(space=space, cooldown_s=settings.cooldown_s, budget_per_hour=settings.budget_per_hour)
    logger = None
    if settings.log_dir is not None:
        context = {"settings": _shown(settings), "prices": asdict(prices), "manifest_sha256": topology.manifest_sha256}
        logger = FunctionLogger(settings.log_dir, context, settings.slo_s)
    controller = Controller(
        topology,
        _source(settings, topology, auth),
        _policy(settings),
        platform,
        limits,
        prices,
        logger=logger,
        dry_run=settings.dry_run,
    )
    default_s = PROMETHEUS_WINDOW_S if settings.prometheus_url else settings.interval_s
    return controller, settings.window_s or default_s


def _source(settings: ControllerSettings, topology: Topology, auth: tuple[str, str] | None) -> MetricsSource:
    if settings.prometheus_url:
        return Monitor(topology, PrometheusSource(settings.prometheus_url))
    return Monitor(topology, ScrapeSource(settings.gateway_url, auth))


def _policy(settings: ControllerSettings) -> Policy:
    if settings.policy == "static":
        return StaticPolicy()
    kinds: frozenset[NodeKind] = frozenset(("expert", "segment") if settings.scale_segments else ("expert",))
    return HpaPolicy(
        HpaSettings(
            targets={"cpu": settings.cpu_target, "concurrency": settings.concurrency_target},
            min_replicas=settings.min_replicas,
            max_replicas=settings.max_replicas,
            down_stabilisation_s=settings.down_stabilisation_s,
            period_s=settings.period_s,
            kinds=kinds,
        )
    )


def _shown(settings: ControllerSettings) -> dict[str, object]:
    """Settings without the password."""
    return {key: value for key, value in asdict(settings).items() if key != "password"}
