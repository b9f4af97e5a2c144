"""Where the API server is and how to prove who asks: the pod's service account, or a kubeconfig file."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kubernetes import client

from gateway.contract import BackendError
from gateway.kubeconfig import NoClusterError, read_kubeconfig


@dataclass(frozen=True)
class Connection:
    """``authorization`` gives the present header, or None; tokens in files are read again when they age."""

    url: str
    tls: ssl.SSLContext | None
    authorization: Callable[[], str | None]


def connect(kubeconfig: Path | None) -> Connection:
    """Reads settings only, sends nothing. Raises BackendError."""
    try:
        configuration = read_kubeconfig(kubeconfig)
    except NoClusterError as error:
        raise BackendError(str(error)) from error

    def authorization() -> str | None:
        setting = configuration.auth_settings().get("BearerToken")
        return None if setting is None else str(setting["value"])

    try:
        return Connection(configuration.host.rstrip("/"), _tls(configuration), authorization)
    except (OSError, ValueError) as error:
        raise BackendError(f"the certificates for {configuration.host} cannot be read: {error}") from error


def _tls(configuration: client.Configuration) -> ssl.SSLContext | None:
    if not configuration.host.startswith("https"):
        return None
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
