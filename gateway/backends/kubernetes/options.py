"""Flags of ``python -m gateway --backend kubernetes``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from gateway.backends.kubernetes.settings import KubernetesSettings

Command = TypeVar("Command", bound=Callable[..., Any])

_NAMES = {
    "kubernetes_namespace": "namespace",
    "all_namespaces": "all_namespaces",
    "kubeconfig": "kubeconfig",
    "function_port": "function_port",
    "image_pull_policy": "image_pull_policy",
    "run_as_user": "run_as_user",
    "gpu_memory_mb": "gpu_memory_mb",
    "feed_url": "feed_url",
    "feed_secret": "feed_secret",
    "pipelines_claim": "pipelines_claim",
    "weights_cache": "weights_cache",
    "gpu_host_ipc": "gpu_host_ipc",
}
"""Flag → setting."""

_OPTIONS = (
    click.option(
        "--kubernetes-namespace",
        default="openfaas-fn",
        show_default=True,
        help="kubernetes: namespace of the functions.",
    ),
    click.option(
        "--all-namespaces",
        is_flag=True,
        help="kubernetes: functions also in every namespace annotated openfaas=1.",
    ),
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        default=None,
        help="kubernetes: cluster and user. [default: the pod's service account, else kubectl's]",
    ),
    click.option(
        "--function-port",
        type=click.IntRange(1, 65535),
        default=8080,
        show_default=True,
        help="kubernetes: port that functions listen on.",
    ),
    click.option(
        "--image-pull-policy",
        type=click.Choice(("Always", "IfNotPresent", "Never")),
        default="Always",
        show_default=True,
        help="kubernetes: when nodes pull images.",
    ),
    click.option(
        "--run-as-user", type=click.IntRange(min=0), default=None, help="kubernetes: user id of all functions (MPS)."
    ),
    click.option(
        "--gpu-memory-mb",
        type=click.IntRange(min=1),
        default=None,
        help="kubernetes: MiB of a GPU's memory, shared in tenths.",
    ),
    click.option("--feed-url", default=None, help="kubernetes: this gateway's /system/replicas as functions reach it."),
    click.option(
        "--feed-secret", default=None, help="kubernetes: secret in the functions' namespace with the key feed-token."
    ),
    click.option("--pipelines-claim", default=None, help="kubernetes: volume claim with the folder of pipelines."),
    click.option(
        "--weights-cache",
        default=None,
        metavar="PATH",
        help="kubernetes: folder of every node for weights from object stores.",
    ),
    click.option(
        "--gpu-host-ipc",
        is_flag=True,
        help="kubernetes: functions with a GPU get the node's IPC namespace (GKE's MPS).",
    ),
)


def kubernetes_options(command: Command) -> Command:
    """Decorator: the flags of this backend."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_kubernetes_options(options: dict[str, Any]) -> KubernetesSettings:
    """Take this backend's values out of ``options``. Raises click.UsageError."""
    settings = KubernetesSettings(**{name: options.pop(flag) for flag, name in _NAMES.items()})
    if (settings.feed_url is None) != (settings.feed_secret is None):
        raise click.UsageError("--feed-url and --feed-secret go together: the feed takes a token")
    if settings.weights_cache is not None and not settings.weights_cache.startswith("/"):
        raise click.UsageError(f"--weights-cache is {settings.weights_cache!r}; it takes an absolute path of the nodes")
    return settings
