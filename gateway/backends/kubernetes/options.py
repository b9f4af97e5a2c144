"""Flags of ``python -m gateway --backend kubernetes``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from gateway.backends.kubernetes.settings import KubernetesSettings
from platform_words.resources import QuantityError, parse_quantity

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = {
    "namespace": click.option(
        "--kubernetes-namespace", "namespace", default="openfaas-fn", help="kubernetes: namespace of the functions."
    ),
    "all_namespaces": click.option(
        "--all-namespaces", is_flag=True, help="kubernetes: functions also in every namespace annotated openfaas=1."
    ),
    "kubeconfig": click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="kubernetes: cluster and user. [default: the pod's service account, else kubectl's]",
    ),
    "function_port": click.option(
        "--function-port",
        type=click.IntRange(1, 65535),
        default=8080,
        help="kubernetes: port that functions listen on.",
    ),
    "image_pull_policy": click.option(
        "--image-pull-policy",
        type=click.Choice(("Always", "IfNotPresent", "Never")),
        default="Always",
        help="kubernetes: when nodes pull images.",
    ),
    "run_as_user": click.option(
        "--run-as-user", type=click.IntRange(min=0), help="kubernetes: user id of all functions (MPS)."
    ),
    "gpu_memory_mb": click.option(
        "--gpu-memory-mb", type=click.IntRange(min=1), help="kubernetes: MiB of a GPU's memory, shared in tenths."
    ),
    "feed_url": click.option("--feed-url", help="kubernetes: the gateway's /system/replicas as functions reach it."),
    "feed_secret": click.option(
        "--feed-secret", help="kubernetes: secret in the functions' namespace with the key feed-token."
    ),
    "caller_secret": click.option(
        "--caller-secret",
        metavar="NAME",
        help="kubernetes: secret with the key that functions take calls with; made where it is missing. "
        "[default: they take anybody's]",
    ),
    "pipelines_claim": click.option("--pipelines-claim", help="kubernetes: volume claim with the folder of pipelines."),
    "weights_cache": click.option(
        "--weights-cache", metavar="PATH", help="kubernetes: folder of every node for weights from object stores."
    ),
    "lost_s": click.option(
        "--lost-after",
        "lost_s",
        type=click.IntRange(0, 3600),
        default=30,
        metavar="SECONDS",
        help="kubernetes: when replicas of a node that is not heard of are replaced.",
    ),
    "standby_cpu": click.option(
        "--standby-cpu", default="10m", metavar="QUANTITY", help="kubernetes: CPU request of a standby."
    ),
    "gpu_host_ipc": click.option(
        "--gpu-host-ipc",
        is_flag=True,
        help="kubernetes: functions with a GPU get the node's IPC namespace (GKE's MPS).",
    ),
}
"""Flags by the setting they give."""


def kubernetes_options(*settings: str) -> Callable[[Command], Command]:
    """Decorator: the flags of these settings, by default of all that have one."""

    def add(command: Command) -> Command:
        for setting in reversed(settings or tuple(_OPTIONS)):
            command = _OPTIONS[setting](command)
        return command

    return add


def take_kubernetes_options(options: dict[str, Any], **more: Any) -> KubernetesSettings:
    """Take this backend's values out of ``options``, ``more`` as they are. Raises click.UsageError."""
    given = {setting: options.pop(setting) for setting in _OPTIONS if setting in options}
    settings = KubernetesSettings(**given, **more)
    if (settings.feed_url is None) != (settings.feed_secret is None):
        raise click.UsageError("--feed-url and --feed-secret go together: the feed takes a token")
    if settings.weights_cache is not None and not settings.weights_cache.startswith("/"):
        raise click.UsageError(f"--weights-cache is {settings.weights_cache!r}; it takes an absolute path of the nodes")
    try:
        allowed = parse_quantity(settings.standby_cpu) > 0
    except QuantityError:
        allowed = False
    if not allowed:
        raise click.UsageError(f"--standby-cpu is {settings.standby_cpu!r}; it takes cores above 0, such as 10m")
    return settings
