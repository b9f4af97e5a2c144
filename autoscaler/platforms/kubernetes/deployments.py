"""Between configurations and Deployments; computes only.

What a function's pods should have now stands in the Deployment's annotation ``smoe.live`` (written by the gateway at a
deployment, by the controller at a change); without it, the template counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autoscaler.contract import Burst, Configuration
from autoscaler.platforms.kubernetes.client import Object
from autoscaler.platforms.quantities import annotations_with, burst_from, configuration_from, float_quantity
from platform_words.bursts import ordered_among, pods_in_all
from platform_words.labels import (
    BURST,
    LIVE,
    MOVED,
    POD_SETTINGS,
    SCALE_MIN,
    SCALE_TYPE,
    SCALE_TYPE_BEFORE,
    SET_ASIDE,
    SPEC,
    TAKEN_BACK,
)
from platform_words.live import Live
from platform_words.resources import GPU, GPU_RESOURCES, GPU_TENTHS, MPS_MEMORY, MPS_PERCENTAGE, RESIZED, same_quantity

IN_FORCE = "inForce"
"""What is kept of a pod: limits by container where they are not those of its spec (yet)."""


@dataclass(frozen=True)
class GpuSettings:
    """How functions share GPUs here: ``memory_mb`` MiB of a GPU, None sets no memory limits; ``host_ipc``: a function
    with a GPU gets its node's IPC namespace, as GKE's MPS wants."""

    memory_mb: int | None = None
    host_ipc: bool = False


def container_of(document: Object, name: str) -> Object | None:
    """The function's container: the one of its name, else the first."""
    spec = document["spec"]["template"]["spec"] if "template" in document["spec"] else document["spec"]
    containers = spec.get("containers") or [None]
    container: Object | None = next((one for one in containers if one and one["name"] == name), containers[0])
    return container


def live_of(deployment: Object) -> Live | None:
    """What the function's replicas should have now, None where that cannot be read."""
    name = deployment["metadata"]["name"]
    container = container_of(deployment, name)
    if container is None:
        return None
    annotation = (deployment["metadata"].get("annotations") or {}).get(LIVE)
    try:
        if annotation is not None:
            return Live.parse(annotation)
        resources = container.get("resources") or {}
        environment = {entry["name"]: entry.get("value") for entry in container.get("env") or ()}
        inflight = int(environment.get("max_inflight") or 0)
        return Live(dict(resources.get("limits") or {}), dict(resources.get("requests") or {}), inflight)
    except (ValueError, KeyError, TypeError):
        return None


def pods_of(deployment: Object) -> int:
    """Pods that the Deployment has, standbys among them."""
    return int(deployment["spec"].get("replicas", 1))


def standbys_of(deployment: Object) -> Burst | None:
    """Standbys that this project's gateway manages, and their rule; None without any, and with a GPU, where the gateway
    counts none."""
    annotations = deployment["metadata"].get("annotations") or {}
    live = live_of(deployment)
    if SPEC not in annotations or (live is not None and any(resource in GPU_RESOURCES for resource in live.limits)):
        return None
    return burst_from(annotations)


def ordered(deployment: Object) -> int:
    """Replicas that were ordered: pods without standbys."""
    burst = standbys_of(deployment)
    return ordered_among(pods_of(deployment), 0 if burst is None else burst.standbys)


def configuration_of(deployment: Object) -> Configuration | None:
    """The configuration, or None without a memory limit, or without a CPU or GPU limit."""
    live = live_of(deployment)
    return None if live is None else _configuration(deployment, live.limits, live)


def _configuration(deployment: Object, limits: Mapping[str, str], live: Live) -> Configuration | None:
    configuration = configuration_from(limits, ordered(deployment), live.max_inflight)
    return configuration and replace(configuration, burst=standbys_of(deployment))


def in_force(deployment: Object, pods: Iterable[Object]) -> Configuration | None:
    """The configuration by what containers have rather than should have; None where none differs."""
    live, name = live_of(deployment), deployment["metadata"]["name"]
    differing = [limits for pod in pods if (limits := pod["status"].get(IN_FORCE, {}).get(name)) is not None]
    if live is None or not differing:
        return None
    limits = {key: max((one.get(key, "0") for one in differing), key=float_quantity) for key in live.limits}
    return _configuration(deployment, limits, live)


def wanted(present: Live, target: Configuration) -> Live:
    """``present`` with the numbers of ``target``.

    Requests follow: those that equal their limit go on doing so (a live pod keeps its class of service), memory's too
    where there is one; CPU's stays unless it would be above the limit.
    """
    limits = dict(present.limits) | {"memory": f"{target.memory_mb}Mi"}
    requests = dict(present.requests)
    for resource in ("cpu", GPU):
        limits.pop(resource, None)
    if target.gpu_share:
        limits[GPU] = str(round(target.gpu_share * GPU_TENTHS))
        requests.pop(GPU, None)
    else:
        requests.pop(GPU, None)
        limits["cpu"] = f"{round(target.cpu_cores * 1000)}m"
        before = requests.get("cpu")
        if before is not None and (
            float_quantity(before) > target.cpu_cores
            or ("cpu" in present.limits and same_quantity(before, present.limits["cpu"]))
        ):
            requests["cpu"] = limits["cpu"]
    if "memory" in requests:
        requests["memory"] = limits["memory"]
    return Live(limits, requests, target.concurrency)


def takes_live_settings(deployment: Object) -> bool:
    """Whether replicas read their concurrency from a file that an annotation fills."""
    return POD_SETTINGS in (deployment["spec"]["template"]["metadata"].get("annotations") or {})


def only_resizes(before: Live, after: Live) -> bool:
    """Whether live pods can take the change: CPU and memory that are there change, nothing comes or goes."""
    return all(
        old.keys() == new.keys() and all(same_quantity(old[key], new[key]) for key in old if key not in RESIZED)
        for old, new in ((before.limits, after.limits), (before.requests, after.requests))
    )


def resize_patch(pod: Object, name: str, live: Live, *, standbys: bool = False) -> Object | None:
    """Strategic merge patch for ``pods/resize``; None where nothing differs or the pod is of another template.

    With ``standbys`` a smaller CPU request is no difference: the gateway gives and takes it.
    """
    container = container_of(pod, name)
    if container is None:
        return None
    present = container.get("resources") or {}
    asked = (present.get("requests") or {}).get("cpu")
    if standbys and asked is not None:
        live = live.waiting(str(asked))
    changes: dict[str, dict[str, str]] = {}
    for kind, amounts in (("limits", live.limits), ("requests", live.full_requests())):
        have = {k: v for k, v in (present.get(kind) or {}).items() if k in RESIZED}
        want = {k: v for k, v in amounts.items() if k in RESIZED}
        if have.keys() != want.keys():
            return None
        if any(not same_quantity(have[k], want[k]) for k in want):
            changes[kind] = want
    return {"spec": {"containers": [{"name": container["name"], "resources": changes}]}} if changes else None


def settings_patch(pod: Object, live: Live) -> Object | None:
    """Merge patch with the pod's live settings; None where it has them or does not read them."""
    present = (pod["metadata"].get("annotations") or {}).get(POD_SETTINGS)
    if present in (None, live.settings()):
        return None
    return {"metadata": {"annotations": {POD_SETTINGS: live.settings()}}}


def live_patch(live: Live) -> Object:
    """The Deployment's note of what its replicas should have; restarts nothing."""
    return {"metadata": {"annotations": {LIVE: live.text()}}}


def standbys_patch(target: Configuration) -> Object:
    """Merge patch to the standbys of ``target`` and the pods that the Deployment has then, both in one form of it."""
    rule = annotations_with({}, target.burst).get(BURST)
    pods = pods_in_all(target.replicas, 0 if target.burst is None else target.burst.standbys)
    return {"metadata": {"annotations": {BURST: rule}}, "spec": {"replicas": pods}}


def template_patch(deployment: Object, live: Live, gpu: GpuSettings, *, move: bool = False) -> Object:
    """Strategic merge patch that makes ``live`` the template: a roll-out, new replicas before old ones go.

    ``move``: also where the template is ``live`` already, so that replicas are placed again; once for each ``live``.
    """
    name = deployment["metadata"]["name"]
    present = container_of(deployment, name)
    assert present is not None
    resources = present.get("resources") or {}
    changes: dict[str, dict[str, str | None]] = {}
    for kind, amounts in (("limits", live.limits), ("requests", live.requests)):
        gone = dict.fromkeys((resources.get(kind) or {}).keys() - amounts.keys())
        if kind == "requests":  # the API server fills requests in from limits: what stays limited may stay requested
            gone = {k: v for k, v in gone.items() if k not in live.limits}
        changes[kind] = {**gone, **amounts}
    environment = {entry["name"] for entry in present.get("env") or ()}
    env = _gpu_environment(live, environment, gpu.memory_mb)
    template: Object = {"spec": {"containers": [{"name": present["name"], "resources": changes}]}}
    if gpu.host_ipc:
        template["spec"]["hostIPC"] = True if GPU in live.limits else None
    annotations = {MOVED: live.text()} if move else {}
    if takes_live_settings(deployment):
        annotations[POD_SETTINGS] = live.settings()
    else:
        env.append({"name": "max_inflight", "value": str(live.max_inflight)})
    if annotations:
        template["metadata"] = {"annotations": annotations}
    if env:
        template["spec"]["containers"][0]["env"] = env
    return {**live_patch(live), "spec": {"template": template}}


def taken_back_patch(deployment: Object, left: int) -> Object:
    """Merge patch that notes how many replicas there are, or were, before all but ``left`` are taken back."""
    before = max(ordered(deployment), before_taken_back(deployment))
    return {"metadata": {"annotations": {TAKEN_BACK: f"{before} {left}"}}}


def before_taken_back(deployment: Object) -> int:
    """Replicas that there were before some were taken back, while those that were left are there; else 0."""
    before, _, left = (deployment["metadata"].get("annotations") or {}).get(TAKEN_BACK, "").partition(" ")
    return int(before) if before.isdecimal() and left == str(ordered(deployment)) else 0


def note_over_patch(deployment: Object) -> Object | None:
    """Merge patch that takes the note of replicas taken back away once it means nothing any more; else None."""
    noted = TAKEN_BACK in (deployment["metadata"].get("annotations") or {})
    return {"metadata": {"annotations": {TAKEN_BACK: None}}} if noted and not before_taken_back(deployment) else None


def least_replicas(deployment: Object) -> int:
    """Fewest replicas of the function by its own label; 0 without one."""
    text = (deployment["metadata"].get("labels") or {}).get(SCALE_MIN, "")
    return int(text) if text.isdecimal() else 0


def moved(deployment: Object, live: Live) -> bool:
    """Whether replicas were placed again for this already."""
    return (deployment["spec"]["template"]["metadata"].get("annotations") or {}).get(MOVED) == live.text()


def take_back_patch(deployment: Object, live: Live, gpu: GpuSettings) -> Object:
    """Strategic merge patch back to the template of ``live``; where replicas of it still run, they are kept."""
    patch = template_patch(deployment, live, gpu)
    patch["spec"]["template"].setdefault("metadata", {}).setdefault("annotations", {})[MOVED] = None
    return patch


def has_limits(document: Object, name: str, live: Live) -> bool:
    """Whether the limits of a pod, or of a Deployment's template, are these."""
    limits = _limits(document, name)
    return limits.keys() == live.limits.keys() and all(same_quantity(limits[key], live.limits[key]) for key in limits)


def above_template(deployment: Object, live: Live) -> bool:
    """Whether pods have more memory than the template's limit, with which new ones start."""
    limit = _limits(deployment, deployment["metadata"]["name"]).get("memory")
    return limit is not None and float_quantity(live.limits["memory"]) > float_quantity(limit)


def _limits(document: Object, name: str) -> Object:
    """The limits of a function's container in a pod, or in a Deployment's template."""
    container = container_of(document, name)
    return ((container or {}).get("resources") or {}).get("limits") or {}


def set_aside_patch(deployment: Object) -> Object | None:
    """Takes a function out of the hands of OpenFaaS's own autoscaler; None where that is done or nobody else scales."""
    meta = deployment["metadata"]
    labels = deployment["spec"]["template"]["metadata"].get("labels") or {}
    if SPEC in (meta.get("annotations") or {}) or labels.get(SCALE_TYPE) == SET_ASIDE:
        return None
    change = {SCALE_TYPE: SET_ASIDE}
    note = {SCALE_TYPE_BEFORE: labels.get(SCALE_TYPE, "")}
    return {
        "metadata": {"labels": change, "annotations": note},
        "spec": {"template": {"metadata": {"labels": change}}},
    }


def _gpu_environment(live: Live, present: set[str], gpu_memory_mb: int | None) -> list[dict[str, Any]]:
    """The two variables that bind a process to its share of a GPU under MPS, or their removal."""
    tenths = round(float_quantity(live.limits[GPU])) if GPU in live.limits else 0
    values = {MPS_PERCENTAGE: str(100 * tenths // GPU_TENTHS) if tenths else None, MPS_MEMORY: None}
    if tenths and gpu_memory_mb is not None:
        values[MPS_MEMORY] = f"0={gpu_memory_mb * tenths // GPU_TENTHS}M"
    env: list[dict[str, Any]] = [{"name": k, "value": v} for k, v in values.items() if v is not None]
    return env + [{"name": k, "$patch": "delete"} for k, v in values.items() if v is None and k in present]
