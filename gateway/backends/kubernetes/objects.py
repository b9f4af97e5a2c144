"""Between OpenFaaS's functions and Kubernetes' objects; computes only.

Names, labels, probes and mounts are those that OpenFaaS's users know. A Deployment carries two annotations of ours:
``smoe.function``, the FunctionDeployment as it was sent, and ``smoe.live``, what holds for its pods now (limits,
requests, concurrency): a pod that differs from it is brought in line without a restart. The template states the same
whenever it is written, so pods that come later differ only until they are seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from gateway.backends.kubernetes.api import Object
from gateway.backends.kubernetes.live import (
    live_of,
    takes_live_settings,
)
from gateway.backends.kubernetes.placement import placed
from gateway.backends.kubernetes.pod_spec import MACHINE_VARIABLE, grace_s, node_selector, pod_of, probes
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.backends.process.quantities import checked_quantity
from gateway.contract import DEFAULT_NAMESPACE, FunctionSpec, InvalidSpecError
from gateway.placement import parse_placement
from gateway.specs import burst_of, deployment_of, max_inflight, parse_deployment
from platform_words.labels import BURST, FUNCTION_LABEL, LIVE, MADE_BY, POD_SETTINGS, SPEC
from platform_words.live import Live
from platform_words.resources import GPU, GPU_TENTHS, MPS_MEMORY, MPS_PERCENTAGE, RESIZED, RESOURCES

_RESERVED = (
    "port",
    "secret_mount_path",
    "smoe_live_settings",
    "smoe_live_period",
    "OPENFAAS_NAME",
    "OPENFAAS_NAMESPACE",
    MACHINE_VARIABLE,
)


def check(spec: FunctionSpec) -> None:
    """Raises InvalidSpecError for what no cluster could run."""
    if spec.name[0].isdigit():  # the Deployment would be made, and stay without its Service
        raise InvalidSpecError(f"{spec.name} begins with a digit, which the name of a Kubernetes Service may not")
    for where, amounts in (("limits", spec.limits), ("requests", spec.requests)):
        for resource, text in amounts.items():
            if resource not in RESOURCES:
                raise InvalidSpecError(f"{where}.{resource[:60]} is not a resource; known are {', '.join(RESOURCES)}")
            value = checked_quantity(text, f"{where}.{resource}")
            if value < 0 or (where == "limits" and value == 0):
                raise InvalidSpecError(f"{where}.{resource} is {text!r}; it must be above 0, or be left out")
            if "gpu" in resource and value.denominator != 1:
                raise InvalidSpecError(f"{where}.{resource} is {text!r}; it takes a whole number of tenths of a GPU")
    tenths = checked_quantity(spec.limits.get(GPU, "0"))
    if tenths > GPU_TENTHS:
        raise InvalidSpecError(f"limits.{GPU} is {tenths}; a GPU is shared in {GPU_TENTHS} tenths, so at most that")
    for resource, text in spec.requests.items():
        if resource in spec.limits and checked_quantity(text) > checked_quantity(spec.limits[resource]):
            raise InvalidSpecError(f"requests.{resource} is {text}, above its limit of {spec.limits[resource]}")
    max_inflight(spec)
    for key in _RESERVED:
        if key in spec.env_vars:
            raise InvalidSpecError(f"envVars.{key} is set by this gateway for each replica; leave it out")
    node_selector(spec)
    placed(spec)
    burst_of(spec)
    probes(spec)
    grace_s(spec)


def deployment(spec: FunctionSpec, settings: KubernetesSettings, pull_secrets: frozenset[str]) -> Object:
    """The Deployment of a function, without replicas: those are scaled, not applied."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": spec.name, "namespace": settings.namespace, **_metadata(spec, settings)},
        "spec": {
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": {FUNCTION_LABEL: spec.name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": _labels(spec), "annotations": _pod_annotations(spec)},
                "spec": pod_of(spec, settings, pull_secrets),
            },
        },
    }


def service(spec: FunctionSpec, owner: Object | None, settings: KubernetesSettings) -> Object:
    """The Service of a function; it goes with its Deployment, ``owner``, where that is there already."""
    document: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": spec.name,
            "namespace": settings.namespace,
            "labels": {FUNCTION_LABEL: spec.name},
            "annotations": {"prometheus.io.scrape": "false"},
        },
        "spec": {
            "type": "ClusterIP",
            "selector": {FUNCTION_LABEL: spec.name},
            "ports": [{"name": "http", "port": settings.function_port, "protocol": "TCP", "targetPort": "http"}],
        },
    }
    if owner is not None:
        document["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": spec.name,
                "uid": owner["metadata"]["uid"],
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ]
    return document


def metadata(spec: FunctionSpec) -> dict[str, dict[str, str]]:
    """Labels and annotations of the Deployment itself; changing them restarts nothing."""
    return {
        "labels": _labels(spec),
        "annotations": {
            **spec.annotations,
            "prometheus.io.scrape": "false",
            SPEC: json.dumps(deployment_of(spec), sort_keys=True),
            LIVE: live_of(spec).text(),
        },
    }


def _metadata(spec: FunctionSpec, settings: KubernetesSettings) -> dict[str, dict[str, str]]:
    """Also by which of the gateway's settings the template was made."""
    described = metadata(spec)
    return {**described, "annotations": {**described["annotations"], MADE_BY: settings.shaping()}}


def made_by(document: Object, settings: KubernetesSettings) -> bool:
    """Whether a Deployment's template is of these settings of the gateway."""
    return bool((document["metadata"].get("annotations") or {}).get(MADE_BY) == settings.shaping())


def spec_of(document: Object, namespace: str = DEFAULT_NAMESPACE) -> FunctionSpec | None:
    """The function of a Deployment as it is now, or None for one that this gateway did not make. ``namespace`` is what
    clients call the one it is in, whatever it was written for."""
    annotations = document["metadata"].get("annotations") or {}
    try:
        spec = parse_deployment(json.loads(annotations[SPEC]))
        live = Live.parse(annotations[LIVE]) if LIVE in annotations else live_of(spec)
    except (KeyError, ValueError, TypeError, InvalidSpecError):
        return None
    notes = {key: value for key, value in spec.annotations.items() if key != BURST}
    if BURST in annotations:  # the controller's, too
        notes[BURST] = annotations[BURST]
    environment = dict(spec.env_vars)
    if live.max_inflight != max_inflight(spec):
        environment["max_inflight"] = str(live.max_inflight)
    return replace(
        spec,
        namespace=namespace,
        limits=live.limits,
        requests=live.requests,
        env_vars=environment,
        annotations=notes,
    )


def only_live_differs(before: FunctionSpec, after: FunctionSpec) -> bool:
    """Whether pods of ``before`` can become pods of ``after`` without a restart.

    Kubernetes resizes CPU and memory that are there, adds and removes none, and keeps a pod's class of service; nothing
    else of a container changes.
    """
    if takes_live_settings(before):
        before, after = (
            replace(one, env_vars={k: v for k, v in one.env_vars.items() if k != "max_inflight"})
            for one in (before, after)
        )
    old, new = live_of(before), live_of(after)
    for mine, theirs in ((old.limits, new.limits), (old.requests, new.requests)):
        if mine.keys() != theirs.keys() or any(mine[key] != theirs[key] for key in mine if key not in RESIZED):
            return False
    if old.guaranteed != new.guaranteed or parse_placement(before) != parse_placement(after):
        return False
    nothing: Mapping[str, str] = {}
    return replace(before, limits=nothing, requests=nothing, labels=nothing, annotations=nothing) == replace(
        after, limits=nothing, requests=nothing, labels=nothing, annotations=nothing
    )


def leftovers(document: Object, wanted: Object) -> Object | None:
    """A strategic merge patch that takes away limits, variables and standbys which others (the controller, moving a
    function to a GPU) put there and ``wanted`` does not have; None where there are none. Apply leaves those alone."""
    name = wanted["metadata"]["name"]
    new = wanted["spec"]["template"]["spec"]["containers"][0]
    old = next(
        (container for container in document["spec"]["template"]["spec"]["containers"] if container["name"] == name),
        None,
    )
    if old is None:
        return None
    resources = {
        kind: dict.fromkeys((old.get("resources", {}).get(kind) or {}).keys() - new["resources"].get(kind, {}).keys())
        for kind in ("limits", "requests")
        if new["resources"].get(kind)
    }
    wanted_names = {entry["name"] for entry in new["env"]}
    ours = (MPS_PERCENTAGE, MPS_MEMORY)
    env = [
        {"name": entry["name"], "$patch": "delete"}
        for entry in old.get("env") or ()
        if entry["name"] in ours and entry["name"] not in wanted_names
    ]
    resources = {kind: gone for kind, gone in resources.items() if gone}
    alone = "hostIPC" in document["spec"]["template"]["spec"] and "hostIPC" not in wanted["spec"]["template"]["spec"]
    rule = BURST in (document["metadata"].get("annotations") or {}) and BURST not in wanted["metadata"]["annotations"]
    if not resources and not env and not alone and not rule:
        return None
    container: Object = {"name": name}
    if resources:
        container["resources"] = resources
    if env:
        container["env"] = env
    pod: Object = {"containers": [container]}
    if alone:
        pod["hostIPC"] = None
    notes: Object = {"metadata": {"annotations": {BURST: None}}} if rule else {}
    return {**notes, "spec": {"template": {"spec": pod}}}


def _labels(spec: FunctionSpec) -> dict[str, str]:
    return {**spec.labels, FUNCTION_LABEL: spec.name}


def _pod_annotations(spec: FunctionSpec) -> dict[str, str]:
    annotations = {**spec.annotations, "prometheus.io.scrape": "false"}
    if takes_live_settings(spec):
        annotations[POD_SETTINGS] = live_of(spec).settings()
    return annotations
