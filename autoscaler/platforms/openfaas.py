"""OpenFaaS's REST API as a platform: replicas by scale-function, everything else by an update of the deployment.

On the embedded gateway an update of limits or ``max_inflight`` is applied live; on other OpenFaaS installations it is a
rolling update. A gateway that does not report environment variables (the Community Edition) can only be scaled: an
update would lose them, and is refused. Standbys (annotation ``smoe.burst``) are brought about by a gateway that
announces them in ``/system/info``; OpenFaaS has none, and an order for some is refused there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from autoscaler.contract import NAMESPACE, Configuration
from autoscaler.errors import AccessError, FunctionGoneError, PlatformError, UnreachableError, without_password
from autoscaler.platforms.no_standbys import refuse_standbys
from autoscaler.platforms.quantities import (
    annotations_with,
    burst_from,
    configuration_from,
    float_quantity,
    floors_of,
    nodes_of,
)
from autoscaler.retry_after import WAITED_S, RetryAfter
from platform_words.labels import FUNCTION_LABEL, PIPELINE_LABEL
from platform_words.resources import GPU, GPU_TENTHS

_REPEATED = (429, 502, 503, 504)
_WAITS_S = (0.1, 0.4)
_DEPLOYMENT = (
    "image",
    "namespace",
    "envProcess",
    "envVars",
    "constraints",
    "secrets",
    "labels",
    "annotations",
    "limits",
    "requests",
    "readOnlyRootFilesystem",
)


class OpenFaasPlatform:
    """Functions of one pipeline (label ``smoe.pipeline``) behind ``url``. ``auth``: user and password.

    ``sign`` is called at every answer: a long tick goes on. Nothing is sent before the time that an overloaded gateway
    named (``retry_after``): short ones are waited for, others are an UnreachableError. ``namespace`` is that of the
    functions, as OpenFaaS's API takes it.
    """

    def __init__(
        self,
        url: str,
        pipeline: str,
        auth: tuple[str, str] | None,
        timeout_s: float = 10.0,
        sign: Callable[[], object] = lambda: None,
        wait: Callable[[float], object] = time.sleep,
        retry_after: RetryAfter | None = None,
        namespace: str = NAMESPACE,
    ) -> None:
        self._url = url.rstrip("/")
        self._shown = without_password(self._url)
        self._pipeline = pipeline
        self._auth = auth
        self._timeout_s = timeout_s
        self._sign = sign
        self._wait = wait
        self._retry_after = retry_after or RetryAfter()
        self._query = "" if namespace == NAMESPACE else f"?namespace={namespace}"
        retry = Retry(total=2, status=0, backoff_factor=0.1, allowed_methods=None, respect_retry_after_header=False)
        self._floors: dict[str, int] = {}
        self._info: Mapping[str, Any] | None = None
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.mount("http://", HTTPAdapter(max_retries=retry))
        self._session.mount("https://", HTTPAdapter(max_retries=retry))

    def configurations(self) -> Mapping[str, Configuration]:
        """Functions without a memory limit, or without a CPU or GPU limit, have no configuration and are left out."""
        configurations, nodes = {}, {}
        for status in self._json("GET", f"/system/functions{self._query}", list):
            if not isinstance(status, dict) or (status.get("labels") or {}).get(PIPELINE_LABEL) != self._pipeline:
                continue
            configuration = configuration_of(status)
            if configuration is not None:
                configurations[str(status["name"])] = configuration
                nodes[str(status["name"])] = nodes_of(status.get("annotations"))
        self._floors = floors_of(nodes)
        return configurations

    def floors(self) -> Mapping[str, int]:
        """Fewest replicas of functions with a placement on several nodes (annotation ``smoe.placement``): one for
        each."""
        return self._floors

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        if target.standbys and self._about().get("standbys") is not True:
            refuse_standbys(function, target, "OpenFaaS has none")
        replicas = present.replicas
        if replace(target, replicas=present.replicas) != present:
            self._update(function, target)
            # An update may set replicas back to their label's minimum (faas-netes does).
            replicas = int(self._json("GET", f"/system/function/{function}{self._query}", dict).get("replicas", 0))
        if target.replicas != replicas:
            body = {"serviceName": function, "replicas": target.replicas}
            self._call("POST", f"/system/scale-function/{function}{self._query}", body)

    def orchestration(self) -> str:
        """What functions run in, as the gateway calls it; empty where it names nothing. Raises PlatformError."""
        provider = self._about().get("provider")
        return str(provider.get("orchestration", "")) if isinstance(provider, dict) else ""

    def _about(self) -> Mapping[str, Any]:
        """What the gateway reports of itself; asked until it has answered once."""
        if self._info is None:
            self._info = self._json("GET", "/system/info", dict)
        return self._info

    def _update(self, function: str, target: Configuration) -> None:
        status = self._json("GET", f"/system/function/{function}{self._query}", dict)
        if not status.get("envVars"):
            raise PlatformError(
                f"function {function}: the gateway at {self._shown} does not report its environment variables; an "
                f"update of limits or concurrency would lose them; only replicas can be changed there"
            )
        self._call("PUT", "/system/functions", deployment_of(function, status, target))

    def _json(self, method: str, path: str, kind: type) -> Any:
        reply = self._call(method, path)
        try:
            document = reply.json()
        except ValueError as error:
            raise PlatformError(f"{method} {path} at {self._shown} was not answered with JSON") from error
        if not isinstance(document, kind):
            raise PlatformError(f"{method} {path} at {self._shown} was answered with a {type(document).__name__}")
        return document

    def _call(self, method: str, path: str, body: object = None) -> requests.Response:
        for left in reversed(range(len(_WAITS_S) + 1)):  # every call names the state to reach, so repeating one is safe
            reply = self._once(method, path, body)
            if not left or reply.status_code not in _REPEATED:
                break
            self._wait(_WAITS_S[-left])
        if reply.status_code in (401, 403):
            raise AccessError(f"{method} {path} at {self._shown} was refused: wrong user or password")
        if reply.status_code == 404:
            raise FunctionGoneError(f"{method} {path}: not deployed at {self._shown}")
        if reply.status_code >= 300:
            raise PlatformError(f"{method} {path} was answered {reply.status_code}: {reply.text.strip()[:200]}")
        return reply

    def _once(self, method: str, path: str, body: object) -> requests.Response:
        what = f"{method} {path} at {self._shown}"
        left_s = self._retry_after.left_s()
        if left_s > WAITED_S:
            raise UnreachableError(f"{what} was not sent: the gateway is overloaded and asks for {left_s:.0f} s more")
        if left_s:
            self._wait(left_s)
        try:
            reply = self._session.request(method, self._url + path, json=body, auth=self._auth, timeout=self._timeout_s)
        except requests.RequestException as error:
            raise UnreachableError(f"{what} failed: {type(error).__name__}") from error
        self._sign()
        self._retry_after.heard(reply.status_code, reply.headers.get("Retry-After"))
        return reply


def configuration_of(status: Mapping[str, Any]) -> Configuration | None:
    """The configuration of a FunctionStatus, or None when it has no memory or no CPU and GPU limit."""
    try:
        concurrency = int((status.get("envVars") or {}).get("max_inflight") or 0)
        configured = configuration_from(status.get("limits") or {}, int(status.get("replicas", 0)), concurrency)
        return configured and replace(configured, burst=burst_from(status.get("annotations")))
    except (TypeError, ValueError):
        return None


def deployment_of(function: str, status: Mapping[str, Any], target: Configuration) -> dict[str, Any]:
    """The FunctionDeployment that keeps everything of ``status``, with limits, concurrency and standbys of ``target``.

    Requests follow: memory moves with its limit, CPU stays unless it would be above the limit.
    """
    deployment = {key: status[key] for key in _DEPLOYMENT if key in status}
    labels = {key: value for key, value in (status.get("labels") or {}).items() if key != FUNCTION_LABEL}
    limits = dict(status.get("limits") or {}) | {"memory": f"{target.memory_mb}Mi"}
    requests_ = dict(status.get("requests") or {})
    if "memory" in requests_:
        requests_["memory"] = limits["memory"]
    for resource in ("cpu", GPU):
        limits.pop(resource, None)
    if target.gpu_share:
        limits[GPU] = str(round(target.gpu_share * GPU_TENTHS))
    else:
        requests_.pop(GPU, None)
        limits["cpu"] = f"{round(target.cpu_cores * 1000)}m"
        if "cpu" in requests_ and float_quantity(requests_["cpu"]) > target.cpu_cores:
            requests_["cpu"] = limits["cpu"]
    environment = {**(status.get("envVars") or {}), "max_inflight": str(target.concurrency)}
    changed = {"labels": labels, "limits": limits, "requests": requests_, "envVars": environment}
    changed["annotations"] = annotations_with(status.get("annotations"), target.burst)
    return {**deployment, "service": function, **changed}
