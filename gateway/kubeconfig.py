"""Address and credentials of the Kubernetes cluster, read in this one place for gateway and controller.

Reads settings only and sends nothing. It is no part of the Kubernetes backend, so the controller may use it without
knowing how the gateway works (``docs/decisions/0006-cluster-settings.md``).
"""

from __future__ import annotations

import os
from pathlib import Path

import yaml
from kubernetes import client, config


class NoClusterError(Exception):
    """No cluster is named, or what names it cannot be read."""


def read_kubeconfig(kubeconfig: Path | None) -> client.Configuration:
    """The cluster of a kubeconfig file; without one the pod's service account, where this is a pod, else what kubectl
    would use (``KUBECONFIG``, ``~/.kube/config``). Tokens that age are read again by the result itself.

    Raises NoClusterError.
    """
    configuration = client.Configuration()
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            path = None if kubeconfig is None else str(kubeconfig)
            config.load_kube_config(config_file=path, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except _BROKEN as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        where = "" if kubeconfig is None else f" by {kubeconfig}"
        raise NoClusterError(f"no way to reach a Kubernetes API server{where}: {reason}") from error
    return configuration


_BROKEN = (config.ConfigException, OSError, yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError)
"""What kubernetes.config raises for files that are missing, not YAML, or YAML of something else."""
