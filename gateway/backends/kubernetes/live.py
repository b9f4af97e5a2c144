"""What a function's pods should have now, and how a pod that differs is brought there without a restart."""

from __future__ import annotations

from typing import Any

from gateway.backends.kubernetes.api import Object
from gateway.contract import FunctionSpec
from gateway.specs import max_inflight
from platform_words.labels import POD_SETTINGS, READS_LIVE_SETTINGS
from platform_words.live import Live
from platform_words.resources import RESIZED, parse_quantity, same_quantity

LIVE_FOLDER = "/etc/smoe/live"
LIVE_FILE = "settings.json"


def live_of(spec: FunctionSpec) -> Live:
    """Limits, requests and concurrency that ``spec`` asks for."""
    return Live(dict(spec.limits), dict(spec.requests), max_inflight(spec))


def takes_live_settings(spec: FunctionSpec) -> bool:
    """Whether the image reads ``smoe_live_settings``; others learn ``max_inflight`` from their environment only."""
    return spec.annotations.get(READS_LIVE_SETTINGS) == "true"


def resize(pod: Object, name: str, live: Live, *, may_wait: bool = False) -> Object | None:
    """The body for ``pods/resize`` that gives the container ``name`` its CPU and memory; None where nothing differs.
    With ``may_wait`` a smaller CPU request, as standbys have it, is no difference.

    A pod of another template (with a GPU, or without limits) is left alone: a roll-out replaces it.
    """
    present = _resources(pod, name)
    if present is None:
        return None
    if may_wait and has_raised_request(pod, name, live) is False:
        live = live.waiting(present["requests"]["cpu"])
    wanted: dict[str, dict[str, str]] = {
        "limits": dict(live.limits),
        "requests": live.full_requests(),
    }
    changes: dict[str, dict[str, str]] = {}
    for kind in ("limits", "requests"):
        have = {k: v for k, v in (present.get(kind) or {}).items() if k in RESIZED}
        want = {k: v for k, v in wanted[kind].items() if k in RESIZED}
        if have.keys() != want.keys():
            return None
        differing = {k: v for k, v in want.items() if not same_quantity(str(have[k]), v)}
        if differing:
            changes[kind] = want
    if not changes:
        return None
    return {"spec": {"containers": [{"name": name, "resources": changes}]}}


def has_raised_request(pod: Object, name: str, low: Live) -> bool | None:
    """Whether the container ``name`` requests more CPU than ``low``; None where one of them requests none."""
    asked, least = ((_resources(pod, name) or {}).get("requests") or {}).get("cpu"), low.full_requests().get("cpu")
    return None if asked is None or least is None else parse_quantity(str(asked)) > parse_quantity(least)


def _resources(pod: Object, name: str) -> Object | None:
    """Those of the container ``name``; None without one."""
    return next((entry.get("resources") or {} for entry in pod["spec"]["containers"] if entry["name"] == name), None)


def beyond_resizing(pod: Object, name: str, live: Live) -> bool:
    """Whether a pod is down for want of memory and was given, or is to be given, other resources than it was made with.

    A kubelet reports such a resize as done and leaves the pod's cgroup as it was while no container runs
    (kubernetes/kubernetes#138760), so it is ended again and again. Pods that were never resized are left alone: a new
    one would have no more.
    """
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    status: Object = next((one for one in statuses if one["name"] == name), {})
    state, last = status.get("state") or {}, status.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    down = "running" not in state and ended.get("reason") == "OOMKilled"
    return down and (pod["metadata"].get("generation", 1) > 1 or resize(pod, name, live) is not None)


def live_annotations(pod: Object, live: Live) -> dict[str, str | None]:
    """Those of a pod that bring its live settings; none where it has them or cannot read them."""
    present, wanted = (pod["metadata"].get("annotations") or {}).get(POD_SETTINGS), live.settings()
    return {} if present in (None, wanted) else {POD_SETTINGS: wanted}


def leaving(pod: Object) -> bool:
    """Whether the pod is on its way out or over."""
    return "deletionTimestamp" in pod["metadata"] or pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def condition(pod: Object, kind: str) -> dict[str, Any] | None:
    """A condition of a pod that is true."""
    for entry in pod.get("status", {}).get("conditions") or ():
        if entry["type"] == kind and entry["status"] == "True":
            return dict(entry)
    return None
