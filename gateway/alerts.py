"""``/system/alert``: Alertmanager reports that a function is busy (``firing``) or no longer busy (``resolved``).

OpenFaaS's own scaling by alert rules, for installations that run Prometheus and Alertmanager next to this gateway; the
gateway itself watches nothing. Rule (OpenFaaS's documentation, "Autoscaling"): a firing alert adds ``scale.factor``
percent of ``scale.max`` replicas, rounded up, up to ``scale.max``; a resolved one goes to ``scale.min``. Equal bounds
or a factor of 0 switch it off. A function at zero stays there: only a call wakes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.contract import FunctionState, InvalidSpecError
from gateway.specs import label_number, scale_bounds, split_name
from platform_words.labels import SCALE_FACTOR

DEFAULT_FACTOR_PERCENT = 20
DEFAULT_MAX = 20


@dataclass(frozen=True)
class Alert:
    """One alert about one function."""

    function: str
    namespace: str
    firing: bool


def parse_alerts(document: Any) -> list[Alert]:
    """The alerts of an Alertmanager webhook body. Raises InvalidSpecError."""
    alerts = document.get("alerts") if isinstance(document, dict) else None
    if not isinstance(alerts, list):
        raise InvalidSpecError("the body must be a JSON object with a list of alerts")
    return [_alert(one, f"alerts[{index}]") for index, one in enumerate(alerts)]


def _alert(document: Any, where: str) -> Alert:
    if not isinstance(document, dict) or document.get("status") not in ("firing", "resolved"):
        raise InvalidSpecError(f"{where}.status must be firing or resolved")
    labels = document.get("labels")
    name = labels.get("function_name") if isinstance(labels, dict) else None
    if not isinstance(name, str) or not name:
        raise InvalidSpecError(f"{where}.labels.function_name must be the name of a function")
    function, namespace = split_name(name)
    return Alert(function, namespace, document["status"] == "firing")


def wanted_replicas(state: FunctionState, *, firing: bool) -> int:
    """How many replicas the function should have after the alert."""
    present = state.desired_replicas
    low, high = scale_bounds(state.spec)
    high = max(DEFAULT_MAX, low) if high is None else high
    factor = label_number(state.spec, SCALE_FACTOR, DEFAULT_FACTOR_PERCENT) or 0
    if present == 0 or low == high or factor == 0:
        return present
    if not firing:
        return low
    step = -(-high * factor // 100)
    return max(present, min(high, present + step))
