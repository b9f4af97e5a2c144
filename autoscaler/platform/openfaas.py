"""OpenFaaS's REST API as a platform: replicas by scale-function, everything else by an update of the deployment.

On the embedded gateway an update of limits or ``max_inflight`` is applied live; on other OpenFaaS installations it is a
rolling update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from autoscaler.contract import MIB, Configuration
from autoscaler.errors import FunctionGoneError, PlatformError
from autoscaler.platform.quantities import QuantityError, parse_quantity

PIPELINE_LABEL = "smoe.pipeline"
GPU = "nvidia.com/gpu"
_STATUS_ONLY = ("name", "replicas", "availableReplicas", "invocationCount", "createdAt", "usage")


class OpenFaasPlatform:
    """Functions of one pipeline (label ``smoe.pipeline``) behind ``url``."""

    def __init__(self, url: str, pipeline: str, auth: tuple[str, str] | None, timeout_s: float = 10.0) -> None:
        self._url = url.rstrip("/")
        self._pipeline = pipeline
        self._auth = auth
        self._timeout_s = timeout_s
        retry = Retry(
            total=2, backoff_factor=0.1, status_forcelist=(502, 503, 504), allowed_methods=None, raise_on_status=False
        )
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.mount("http://", HTTPAdapter(max_retries=retry))
        self._session.mount("https://", HTTPAdapter(max_retries=retry))

    def configurations(self) -> Mapping[str, Configuration]:
        found = {}
        for status in self._list():
            configuration = configuration_of(status)
            if configuration is not None:
                found[str(status["name"])] = configuration
        return found

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        if (target.memory_mb, target.cpu_cores, target.gpu_share, target.concurrency) != (
            present.memory_mb,
            present.cpu_cores,
            present.gpu_share,
            present.concurrency,
        ):
            self._update(function, target)
        if target.replicas != present.replicas:
            body = {"serviceName": function, "replicas": target.replicas}
            self._call("POST", f"/system/scale-function/{function}", body)

    def _update(self, function: str, target: Configuration) -> None:
        status = self._call("GET", f"/system/function/{function}").json()
        deployment = {key: value for key, value in status.items() if key not in _STATUS_ONLY}
        deployment["service"] = function
        labels = dict(deployment.get("labels") or {})
        labels.pop("faas_function", None)
        limits = dict(deployment.get("limits") or {})
        limits["memory"] = f"{target.memory_mb}Mi"
        if target.gpu_share:
            limits.pop("cpu", None)
            limits[GPU] = f"{target.gpu_share:g}"
        else:
            limits.pop(GPU, None)
            limits["cpu"] = f"{round(target.cpu_cores * 1000)}m"
        environment = dict(deployment.get("envVars") or {}) | {"max_inflight": str(target.concurrency)}
        self._call(
            "PUT", "/system/functions", deployment | {"labels": labels, "limits": limits, "envVars": environment}
        )

    def _list(self) -> list[dict[str, Any]]:
        functions = self._call("GET", "/system/functions").json()
        return [f for f in functions if (f.get("labels") or {}).get(PIPELINE_LABEL) == self._pipeline]

    def _call(self, method: str, path: str, body: object = None) -> requests.Response:
        try:
            reply = self._session.request(method, self._url + path, json=body, auth=self._auth, timeout=self._timeout_s)
        except requests.RequestException as error:
            raise PlatformError(f"{method} {path} at {self._url} failed: {type(error).__name__}") from error
        if reply.status_code == 404:
            raise FunctionGoneError(f"{method} {path}: not deployed at {self._url}")
        if reply.status_code >= 400:
            raise PlatformError(f"{method} {path} was answered {reply.status_code}: {reply.text.strip()[:200]}")
        return reply


def configuration_of(status: Mapping[str, Any]) -> Configuration | None:
    """The configuration of a FunctionStatus, or None when it has no memory or no CPU and GPU limit."""
    limits = status.get("limits") or {}
    try:
        memory_mb = round(parse_quantity(limits["memory"]) / MIB)
        share = parse_quantity(limits[GPU]) if GPU in limits else 0.0
        cores = 0.0 if share else parse_quantity(limits["cpu"])
        concurrency = int((status.get("envVars") or {}).get("max_inflight", 0) or 0)
        return Configuration(memory_mb, cores, share, int(status.get("replicas", 0)), concurrency)
    except (KeyError, QuantityError, ValueError):
        return None
