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
from typing import Any

from gateway.backends.kubernetes.api import Object
from gateway.backends.kubernetes.live import (
    LIVE_FILE,
    LIVE_FOLDER,
    live_of,
    takes_live_settings,
)
from gateway.backends.kubernetes.placement import placed
from gateway.backends.kubernetes.secrets import CALLER_KEY
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.backends.process.quantities import checked_quantity
from gateway.contract import DEFAULT_NAMESPACE, FunctionSpec, InvalidSpecError
from gateway.durations import parse_duration
from gateway.placement import parse_placement
from gateway.specs import burst_of, deployment_of, max_inflight, parse_deployment
from platform_words.labels import BURST, FUNCTION_LABEL, LIVE, MADE_BY, POD_SETTINGS, SPEC
from platform_words.live import Live
from platform_words.resources import GPU, GPU_TENTHS, MPS_MEMORY, MPS_PERCENTAGE, RESIZED, RESOURCES

SECRETS_FOLDER = "/var/openfaas/secrets"
FEED_FOLDER = "/var/openfaas/feed"
CALLER_FOLDER = "/var/openfaas/caller"
PIPELINES_FOLDER = "/var/smoe/pipelines"
CACHE_FOLDER = "/var/smoe/cache"
SETTLE_S = 3
"""Time from a pod's removal from the endpoints until its SIGTERM: clients need as long to learn of it."""
LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
MACHINE_VARIABLE = "smoe_machine"
_RESERVED = (
    "port",
    "secret_mount_path",
    "smoe_live_settings",
    "smoe_live_period",
    "OPENFAAS_NAME",
    "OPENFAAS_NAMESPACE",
    MACHINE_VARIABLE,
)
_PROBES: dict[str, tuple[str, dict[str, int]]] = {
    "livenessProbe": (
        "com.openfaas.health.http",
        {"initialDelaySeconds": 2, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
    ),
    "readinessProbe": (
        "com.openfaas.ready.http",
        {"initialDelaySeconds": 2, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 3},
    ),
}
"""Probe, the prefix of its annotations, its times. OpenFaaS's own 1 s and 6 s until a restart are too short for
functions of a few hundredths of a core: under load their answers are late, and restarts of all of them followed."""


def check(spec: FunctionSpec) -> None:
    """Raises InvalidSpecError for what no cluster could run."""
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
    _node_selector(spec)
    placed(spec)
    burst_of(spec)
    _probes(spec)
    _grace_s(spec)


def of_this_package(spec: FunctionSpec) -> bool:
    """Whether it serves nodes of a pipeline: others get no pipelines and no key of callers."""
    return "smoe_pipeline" in spec.env_vars


def _is_ingress(spec: FunctionSpec) -> bool:
    """It alone gets the replica feed, which holds the keys of callers of every namespace."""
    return of_this_package(spec) and spec.env_vars.get("smoe_nodes", "").strip() == "ingress"


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
                "spec": _pod(spec, settings, pull_secrets),
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


def _pod(spec: FunctionSpec, settings: KubernetesSettings, pull_secrets: frozenset[str]) -> Object:
    volumes, mounts = _volumes(spec, settings, pull_secrets)
    resources = {
        kind: dict(amounts) for kind, amounts in (("limits", spec.limits), ("requests", spec.requests)) if amounts
    }
    security: Object = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": spec.read_only_root_filesystem}
    if settings.run_as_user is not None:
        security |= {"runAsUser": settings.run_as_user, "runAsNonRoot": settings.run_as_user != 0}
    container = {
        "name": spec.name,
        "image": spec.image,
        "imagePullPolicy": settings.image_pull_policy,
        "ports": [{"name": "http", "containerPort": settings.function_port, "protocol": "TCP"}],
        "env": _environment(spec, settings),
        "resources": resources,
        "resizePolicy": [{"resourceName": resource, "restartPolicy": "NotRequired"} for resource in RESIZED],
        "securityContext": security,
        "lifecycle": {"preStop": {"sleep": {"seconds": SETTLE_S}}},
        **_probes(spec),
    }
    pod: Object = {
        "containers": [container],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": _grace_s(spec),
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": settings.lost_s}
            for key in LOST
        ],
    }
    if settings.gpu_host_ipc and GPU in spec.limits:
        pod["hostIPC"] = True
    if mounts:
        container["volumeMounts"] = mounts
        pod["volumes"] = volumes
    if spec.constraints:
        pod["nodeSelector"] = _node_selector(spec)
    pod |= placed(spec)
    if pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in sorted(pull_secrets)]
    return pod


def _environment(spec: FunctionSpec, settings: KubernetesSettings) -> list[Object]:
    environment: dict[str, str] = {}
    tenths = int(checked_quantity(spec.limits.get(GPU, "0")))
    if tenths:
        environment[MPS_PERCENTAGE] = str(100 * tenths // GPU_TENTHS)
        if settings.gpu_memory_mb is not None:
            environment[MPS_MEMORY] = f"0={settings.gpu_memory_mb * tenths // GPU_TENTHS}M"
    if settings.feed_url and settings.feed_secret and _is_ingress(spec):
        environment |= {"smoe_feed_url": settings.feed_url, "smoe_feed_token_file": f"{FEED_FOLDER}/feed-token"}
    if settings.pipelines_claim and of_this_package(spec):
        environment["smoe_pipelines_dir"] = PIPELINES_FOLDER
    if settings.weights_cache and of_this_package(spec):
        environment["smoe_weights_cache"] = CACHE_FOLDER
    environment |= spec.env_vars
    if spec.env_process.strip():
        environment["fprocess"] = spec.env_process.strip()
    environment |= {
        "port": str(settings.function_port),
        "OPENFAAS_NAME": spec.name,
        "OPENFAAS_NAMESPACE": spec.namespace,
        "secret_mount_path": SECRETS_FOLDER,
    }
    if settings.caller_secret and of_this_package(spec):
        environment["smoe_caller_key_file"] = f"{CALLER_FOLDER}/{CALLER_KEY}"
    if takes_live_settings(spec):  # max_inflight is in that file from the start
        environment.pop("max_inflight", None)
        environment |= {"smoe_live_settings": f"{LIVE_FOLDER}/{LIVE_FILE}", "smoe_live_period": "2s"}
    entries: list[Object] = [{"name": key, "value": value} for key, value in sorted(environment.items())]
    return [*entries, {"name": MACHINE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]


def _volumes(
    spec: FunctionSpec, settings: KubernetesSettings, pull_secrets: frozenset[str]
) -> tuple[list[Object], list[Object]]:
    volumes: list[Object] = []
    mounts: list[Object] = []

    def mount(name: str, folder: str, source: Object, read_only: bool = True) -> None:
        volumes.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": folder, "readOnly": read_only})

    files = [name for name in spec.secrets if name not in pull_secrets]
    if files:
        sources = [{"secret": {"name": name}} for name in files]
        mount(f"{spec.name}-projected-secrets"[:63], SECRETS_FOLDER, {"projected": {"sources": sources}})
    if spec.read_only_root_filesystem:
        mount("temp", "/tmp", {"emptyDir": {}}, read_only=False)  # noqa: S108
    if takes_live_settings(spec):
        item = {"path": LIVE_FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{POD_SETTINGS}']"}}
        mount("live-settings", LIVE_FOLDER, {"downwardAPI": {"items": [item]}})
    if settings.feed_url and settings.feed_secret and _is_ingress(spec):
        mount("replica-feed", FEED_FOLDER, {"secret": {"secretName": settings.feed_secret}})
    if settings.caller_secret and of_this_package(spec):
        mount("caller-key", CALLER_FOLDER, {"secret": {"secretName": settings.caller_secret}})
    if settings.pipelines_claim and of_this_package(spec):
        claim = {"claimName": settings.pipelines_claim, "readOnly": True}
        mount("pipelines", PIPELINES_FOLDER, {"persistentVolumeClaim": claim})
    if settings.weights_cache and of_this_package(spec):
        folder = {"path": settings.weights_cache, "type": "Directory"}
        mount("weights-cache", CACHE_FOLDER, {"hostPath": folder}, read_only=False)
    return volumes, mounts


def _probes(spec: FunctionSpec) -> dict[str, Object]:
    """OpenFaaS's probes, with its annotations for path and times. Raises InvalidSpecError."""
    probes: dict[str, Object] = {}
    for name, (prefix, times) in _PROBES.items():
        probe: dict[str, Any] = {
            "httpGet": {"path": spec.annotations.get(f"{prefix}.path", "/_/health"), "port": "http"}
        }
        for key, default in times.items():
            text = spec.annotations.get(f"{prefix}.{key}", str(default))
            try:
                probe[key] = round(parse_duration(text))
            except ValueError as error:
                raise InvalidSpecError(f"annotation {prefix}.{key}: {error}") from None
        probes[name] = probe
    if takes_live_settings(spec):
        # Of the function contract too: not ready before the weights are there, whatever a watchdog reports of itself.
        # Asked until it first succeeds, so that a replica with no free slot (429) is not taken for one that starts.
        path = {"path": "/_/ready", "port": "http"}
        probes["startupProbe"] = {"httpGet": path, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 600}
    return probes


def _grace_s(spec: FunctionSpec) -> int:
    """Time a pod has to end: to leave the endpoints, then to answer what it has begun. Raises InvalidSpecError."""
    try:
        return max(30, round(parse_duration(spec.env_vars.get("write_timeout") or "30s")) + SETTLE_S + 5)
    except ValueError as error:
        raise InvalidSpecError(f"envVars.write_timeout: {error}") from None


def _node_selector(spec: FunctionSpec) -> dict[str, str]:
    selector = {}
    for constraint in spec.constraints:
        key, equals, value = constraint.replace("==", "=").partition("=")
        if not equals or not key.strip() or not value.strip():
            raise InvalidSpecError(f"constraint {constraint[:80]!r} is no node label; it takes the form key=value")
        selector[key.strip()] = value.strip()
    return selector
