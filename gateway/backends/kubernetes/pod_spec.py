"""The pod of a function: its container, environment, mounts, probes; computes only."""

from __future__ import annotations

from typing import Any

from gateway.backends.kubernetes.api import Object
from gateway.backends.kubernetes.live import (
    LIVE_FILE,
    LIVE_FOLDER,
    takes_live_settings,
)
from gateway.backends.kubernetes.placement import placed
from gateway.backends.kubernetes.secrets import CALLER_KEY
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.backends.process.quantities import checked_quantity, duration_s
from gateway.contract import FunctionSpec, InvalidSpecError
from gateway.durations import parse_duration
from platform_words.labels import POD_SETTINGS
from platform_words.resources import GPU, GPU_TENTHS, MPS_MEMORY, MPS_PERCENTAGE, RESIZED

SECRETS_FOLDER = "/var/openfaas/secrets"
FEED_FOLDER = "/var/openfaas/feed"
CALLER_FOLDER = "/var/openfaas/caller"
PIPELINES_FOLDER = "/var/smoe/pipelines"
CACHE_FOLDER = "/var/smoe/cache"
SETTLE_S = 3
"""Time from a pod's removal from the endpoints until its SIGTERM: clients need as long to learn of it."""
LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
MACHINE_VARIABLE = "smoe_machine"
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


def of_this_package(spec: FunctionSpec) -> bool:
    """Whether it serves nodes of a pipeline: others get no pipelines and no key of callers."""
    return "smoe_pipeline" in spec.env_vars


def _is_ingress(spec: FunctionSpec) -> bool:
    """It alone gets the replica feed, which holds the keys of callers of every namespace."""
    return of_this_package(spec) and spec.env_vars.get("smoe_nodes", "").strip() == "ingress"


def pod_of(spec: FunctionSpec, settings: KubernetesSettings, pull_secrets: frozenset[str]) -> Object:
    volumes, mounts = _volumes(spec, settings, pull_secrets)
    resources = {
        kind: dict(amounts) for kind, amounts in (("limits", spec.limits), ("requests", spec.requests)) if amounts
    }
    container = {
        "name": spec.name,
        "image": spec.image,
        "imagePullPolicy": settings.image_pull_policy,
        "ports": [{"name": "http", "containerPort": settings.function_port, "protocol": "TCP"}],
        "env": _environment(spec, settings),
        "resources": resources,
        "resizePolicy": [{"resourceName": resource, "restartPolicy": "NotRequired"} for resource in RESIZED],
        "securityContext": _security(spec, settings),
        "lifecycle": {"preStop": {"sleep": {"seconds": SETTLE_S}}},
        **probes(spec),
    }
    pod: Object = {
        "containers": [container],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace_s(spec),
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
        pod["nodeSelector"] = node_selector(spec)
    pod |= placed(spec)
    if pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in sorted(pull_secrets)]
    return pod


def _security(spec: FunctionSpec, settings: KubernetesSettings) -> Object:
    """A container's rights. Its user is the image's, unless the gateway was given one."""
    security: Object = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": spec.read_only_root_filesystem,
    }
    if settings.run_as_user is not None:
        security |= {"runAsUser": settings.run_as_user, "runAsNonRoot": settings.run_as_user != 0}
    return security


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
        mount(f"{spec.name}-projected-secrets"[:63].rstrip("-"), SECRETS_FOLDER, {"projected": {"sources": sources}})
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


def probes(spec: FunctionSpec) -> dict[str, Object]:
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


def grace_s(spec: FunctionSpec) -> int:
    """Time a pod has to end: to leave the endpoints, to go on taking calls (``healthcheck_interval``, where it is set:
    calls of a drain come until then), to answer the last. Raises InvalidSpecError."""
    takes_s = duration_s(spec.env_vars, "healthcheck_interval", 0.0)
    return max(30, round(takes_s + duration_s(spec.env_vars, "write_timeout", 30.0)) + SETTLE_S + 5)


def node_selector(spec: FunctionSpec) -> dict[str, str]:
    selector = {}
    for constraint in spec.constraints:
        key, equals, value = constraint.replace("==", "=").partition("=")
        if not equals or not key.strip() or not value.strip():
            raise InvalidSpecError(f"constraint {constraint[:80]!r} is no node label; it takes the form key=value")
        selector[key.strip()] = value.strip()
    return selector
