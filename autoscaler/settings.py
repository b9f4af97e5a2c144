"""Settings of the controller process, checked in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autoscaler.errors import SettingsError

PolicyName = Literal["static", "hpa"]


@dataclass(frozen=True)
class ControllerSettings:
    """Everything a controller is built from."""

    gateway_url: str
    manifest_dir: Path
    policy: PolicyName = "hpa"
    interval_s: float = 5.0
    window_s: float | None = None
    """Window of an observation; default one interval (direct scrapes) or 30 s (Prometheus)."""
    slo_s: float | None = None
    user: str = "admin"
    password: str | None = None
    prometheus_url: str | None = None
    prices: Path | None = None
    log_dir: Path | None = None
    dry_run: bool = False
    min_replicas: int = 1
    max_replicas: int = 8
    cpu_target: float = 0.8
    concurrency_target: float = 0.7
    down_stabilisation_s: float = 300.0
    period_s: float = 15.0
    budget_per_hour: float | None = None
    cooldown_s: float = 0.0
    scale_segments: bool = True


def validate(settings: ControllerSettings) -> None:
    """Raises SettingsError for the first rule that is broken."""
    rules = [
        (settings.interval_s > 0, "interval_s", settings.interval_s, "above 0"),
        (settings.slo_s is None or settings.slo_s > 0, "slo_s", settings.slo_s, "above 0"),
        (
            1 <= settings.min_replicas <= settings.max_replicas,
            "min_replicas",
            settings.min_replicas,
            "1 to max_replicas",
        ),
        (0 < settings.cpu_target <= 1, "cpu_target", settings.cpu_target, "above 0, at most 1"),
        (0 < settings.concurrency_target <= 1, "concurrency_target", settings.concurrency_target, "above 0, at most 1"),
        (settings.down_stabilisation_s >= 0, "down_stabilisation_s", settings.down_stabilisation_s, "0 or more"),
        (settings.cooldown_s >= 0, "cooldown_s", settings.cooldown_s, "0 or more"),
    ]
    for holds, key, value, allowed in rules:
        if not holds:
            raise SettingsError(f"{key} is {value}; allowed is {allowed}")
