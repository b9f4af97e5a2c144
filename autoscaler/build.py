"""From settings to a controller: the one place where its parts are joined."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, replace

from autoscaler.capacity import load_capacity
from autoscaler.choice import Choice, chosen
from autoscaler.contract import MetricsSource, Platform, Policy, Topology
from autoscaler.decision.limits import LimitSettings
from autoscaler.errors import PlatformError, without_password
from autoscaler.logger import FunctionLogger
from autoscaler.loop import Controller
from autoscaler.monitor.prometheus import PrometheusSource
from autoscaler.monitor.scrape import ScrapeSource
from autoscaler.monitor.source import Monitor
from autoscaler.platforms.openfaas import OpenFaasPlatform
from autoscaler.policies import Making, hpa_settings, make_policy, with_standbys
from autoscaler.policy.fallback import FallbackPolicy, FallbackSettings
from autoscaler.policy.hpa import HpaPolicy
from autoscaler.policy.instances import InstancesPolicy
from autoscaler.prices import DEFAULT_SHEET, load_prices
from autoscaler.settings import GUARDED, ControllerSettings, runtime_of, window_of
from autoscaler.topology import load_topology
from autoscaler.view import View
from platform_words.memory import CONTAINERS

log = logging.getLogger("smoe.autoscaler")

ORDERS_AT_ONCE = 8
"""Orders sent at the same time to a cluster, whose API server answers each after milliseconds; a gateway changes one
function after the other."""


def build_controller(settings: ControllerSettings, platform: Platform | None = None) -> tuple[Controller, float]:
    """A controller and the length of its windows in seconds, which is also its default.

    ``platform``: what orders go to, by default the gateway of the settings.
    Raises SettingsError, ``moe.errors.ManifestError`` and ``moe.errors.GroupingError``.
    """
    choice = chosen(_making(informed(settings)))
    making, settings = choice.making, choice.making.settings
    topology, limits, prices = making.topology, making.limits, making.prices
    policy = guarded(make_policy(making), making)
    if topology.generates:
        policy = InstancesPolicy(policy)
    auth = None if settings.password is None else (settings.user, settings.password)
    logger = None
    if settings.log_dir is not None:
        context = {
            "pipeline": topology.pipeline,
            "manifest_sha256": topology.manifest_sha256,
            "policy": policy.name,
            "choice": choice.sentence,
            "slo_s": settings.slo_s,
            "prices": asdict(prices),
            "capacity": None if limits.capacity is None else asdict(limits.capacity),
            "policy_settings": making.whole_table(),
            "settings": shown(settings),
        }
        logger = FunctionLogger(
            settings.log_dir, context, settings.slo_s, settings.windows_per_file, most_mb=settings.log_mb
        )
    window_s = window_of(settings)
    controller = Controller(
        topology,
        _source(settings, topology, auth),
        policy,
        platform or build_platform(settings, topology.pipeline),
        limits,
        prices,
        logger=logger,
        view=View(topology, settings.slo_s, prices.currency, settings.view_dir, settings.namespace),
        dry_run=settings.dry_run,
        window_s=window_s,
        orders_at_once=ORDERS_AT_ONCE if settings.platform == "kubernetes" else 1,
        choice=choice.sentence,
    )
    return controller, window_s


def informed(settings: ControllerSettings) -> ControllerSettings:
    """``settings`` with what the functions run in, which a gateway is asked for where nothing states it. One that does
    not answer leaves it open: memory is counted as for containers (:func:`autoscaler.settings.runtime_of`)."""
    if settings.orchestration is not None:
        return settings
    if settings.platform == "kubernetes":
        return replace(settings, orchestration=CONTAINERS)
    try:
        return replace(settings, orchestration=build_platform(settings, "").orchestration() or None)
    except PlatformError as error:
        log.warning("memory is counted as for containers until this controller starts again: %s", error)
        return settings


def check_policy(settings: ControllerSettings) -> Choice:
    """Make the policy and leave it: raises what :func:`build_controller` would, before anything has been started.
    Returns what ``auto`` stands for, or the policy as it is named."""
    choice = chosen(_making(settings))
    make_policy(choice.making)
    return choice


def _making(settings: ControllerSettings) -> Making:
    topology = load_topology(settings.manifest_dir, settings.max_functions)
    prices = load_prices(settings.prices or DEFAULT_SHEET)
    return Making(settings, topology, limits_of(settings, topology.dtype), prices, measured=True)


def guarded(policy: Policy, making: Making) -> Policy:
    """``policy``, with HPA to take over from it where the settings have it watched (docs/controller.md). With the same
    standbys, where the settings have some."""
    watch = _watch(making.settings)
    if watch is None:
        return policy
    return FallbackPolicy(policy, with_standbys(HpaPolicy(hpa_settings(making)), making), watch)


def _watch(settings: ControllerSettings) -> FallbackSettings | None:
    """How the policy is watched; None where it is not."""
    if not settings.targets.any or settings.fallback_windows == 0:
        return None
    if settings.fallback_windows is None:
        return FallbackSettings(settings.targets) if settings.policy in GUARDED else None
    return FallbackSettings(settings.targets, settings.fallback_windows)


def build_platform(
    settings: ControllerSettings, pipeline: str, sign: Callable[[], object] = lambda: None
) -> OpenFaasPlatform:
    """The gateway of the settings as a platform; ``sign`` is called at every answer of it."""
    auth = None if settings.password is None else (settings.user, settings.password)
    return OpenFaasPlatform(settings.gateway_url, pipeline, auth, sign=sign, namespace=settings.namespace)


def limits_of(settings: ControllerSettings, dtype: str) -> LimitSettings:
    """Bounds on the decisions for a pipeline of ``dtype``. Raises SettingsError for a capacity that cannot be read."""
    return LimitSettings(
        space=replace(settings.space, replicas_min=settings.min_replicas, replicas_max=settings.max_replicas),
        alpha=settings.alpha,
        runtime=runtime_of(settings, dtype),
        max_step_replicas=settings.max_step_replicas,
        max_step_factor=settings.max_step_factor,
        cooldown_s=settings.cooldown_s,
        budget_per_hour=settings.budget_per_hour,
        capacity=None if settings.capacity is None else load_capacity(settings.capacity),
    )


def _source(settings: ControllerSettings, topology: Topology, auth: tuple[str, str] | None) -> MetricsSource:
    if settings.prometheus_url:
        stale_s = settings.stale_s or max(60.0, 3 * settings.interval_s)
        source = PrometheusSource(
            settings.prometheus_url,
            topology.pipeline,
            stale_s=stale_s,
            namespace=settings.namespace,
            in_cluster=settings.kubernetes_namespace or "",
        )
        return Monitor(topology, source, settings.namespace)
    stale_s = settings.stale_s or max(15.0, 3 * settings.interval_s)
    scraped = ScrapeSource(settings.gateway_url, auth, stale_s=stale_s, namespace=settings.namespace)
    return Monitor(topology, scraped, settings.namespace)


def shown(settings: ControllerSettings) -> dict[str, object]:
    """Settings as plain values, without passwords."""
    values = {key: value for key, value in asdict(settings).items() if key != "password"}
    urls = {key: without_password(values[key]) for key in ("gateway_url", "prometheus_url") if values[key]}
    return values | urls
