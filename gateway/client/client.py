"""A small client of OpenFaaS's REST API for the command line: list, deploy, remove, scale, invoke, wait.

Source of paths and statuses: the OpenFaaS gateway's API. Works against any OpenFaaS gateway.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import requests

from gateway.client.errors import GatewayRefusedError, GatewayUnreachableError, NotReadyError
from gateway.client.state import read_gateway_address, read_password
from platform_words.labels import NODES_LABEL

_CONNECT_TRIES = 3
_TIMEOUT_S = 15.0


class GatewayClient:
    """Calls ``url`` with basic auth; every call has a timeout, connection failures are tried three times."""

    def __init__(self, url: str, password: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._session = requests.Session()
        self._session.trust_env = False
        self.auth = ("admin", password) if password is not None else None

    def close(self) -> None:
        """Close connections that are kept open."""
        self._session.close()

    @classmethod
    def from_state(cls, state: Path) -> GatewayClient:
        """Address and credentials from a state folder; raises StateError when nothing runs there."""
        return cls(read_gateway_address(state), password=read_password(state))

    def functions(self) -> list[dict[str, Any]]:
        """FunctionStatus objects."""
        statuses: list[dict[str, Any]] = self._call("GET", "/system/functions").json()
        return statuses

    def replicas(self) -> dict[str, list[dict[str, Any]]]:
        """The replica feed now: function → replicas with ``id``, ``address``, ``state``, maybe ``node`` (machine)."""
        return _by_name(self._call("GET", "/system/replicas").json())

    def caller_key(self, name: str) -> str:
        """What a function's replicas take calls with that do not come through the gateway; empty: anybody's."""
        functions = self._call("GET", "/system/replicas").json()["functions"]
        return next((str(entry.get("key", "")) for key, entry in functions.items() if key.startswith(f"{name}.")), "")

    def follow_replicas(self) -> Generator[dict[str, list[dict[str, Any]]]]:
        """Yield :meth:`replicas` now and at every change, at least every 5 s, until the gateway ends the stream.
        Raises GatewayUnreachableError where it goes away."""
        with self._call("GET", "/system/replicas?follow=true", stream=True) as reply:
            for line in lines_of(reply):
                yield _by_name(json.loads(line))

    def views(self) -> list[dict[str, Any]]:
        """What controllers saw and did last, one document a pipeline. This project's gateway only."""
        documents: list[dict[str, Any]] = self._call("GET", "/system/view").json()["views"]
        return documents

    def info(self) -> dict[str, Any]:
        """GatewayInfo."""
        document: dict[str, Any] = self._call("GET", "/system/info").json()
        return document

    def deploy(self, deployment: dict[str, Any]) -> str:
        """Update the function, or create it where it is unknown. Returns ``updated`` or ``created``."""
        try:
            self._call("PUT", "/system/functions", json=deployment)
        except GatewayRefusedError as error:
            if error.status != 404:
                raise
            self._call("POST", "/system/functions", json=deployment)
            return "created"
        return "updated"

    def remove(self, name: str) -> None:
        self._call("DELETE", "/system/functions", json={"functionName": name})

    def scale(self, name: str, replicas: int) -> None:
        self._call("POST", f"/system/scale-function/{name}", json={"serviceName": name, "replicas": replicas})

    def scale_all(self, functions: Mapping[str, Mapping[str, Any]]) -> None:
        """Replicas of many functions at once, and annotations in addition to those they have:
        ``{"NAME": {"replicas": 2, "annotations": {…}}}``. This project's gateway only."""
        self._call("POST", "/system/scale-functions", json={"functions": functions})

    def invoke(
        self, name: str, body: bytes, content_type: str, timeout_s: float, *, stream: bool = False
    ) -> requests.Response:
        """The function's own reply, whatever its status; ``name`` may go on with a path, and with ``stream`` the body
        is read piece by piece. Raises GatewayUnreachableError."""
        headers = {"Content-Type": content_type}
        return self._send("POST", f"/function/{name}", data=body, headers=headers, timeout=timeout_s, stream=stream)

    def describe(self, name: str, timeout_s: float) -> dict[str, Any]:
        """What a pipeline's ingress answers to ``GET /`` about itself; empty for other functions.
        Raises GatewayUnreachableError."""
        reply = self._send("GET", f"/function/{name}", timeout=timeout_s)
        try:
            document = reply.json()
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}

    def wait_ready(
        self,
        names: list[str],
        timeout_s: float,
        on_progress: Callable[[int], None] = lambda ready: None,
    ) -> None:
        """Wait until each named function has an available replica. Raises NotReadyError naming those without, at once
        where their replicas cannot start, which this project's process backend knows: its problems do not pass."""
        end_s = time.monotonic() + timeout_s
        lasting: bool | None = None
        while True:
            functions = self.functions()
            available = {f["name"] for f in functions if f.get("availableReplicas", 0) > 0}
            missing = [name for name in names if name not in available]
            on_progress(len(names) - len(missing))
            if not missing:
                return
            broken = [f for f in functions if f["name"] in missing and f.get("problems")]
            if broken and lasting is None:
                lasting = self.info().get("provider", {}).get("orchestration") == "process"
            if broken and lasting:
                raise NotReadyError(
                    f"{len(broken)} of {len(names)} functions cannot start: {_shown([f['name'] for f in broken])}; "
                    f"{_reasons(broken)} (smoe logs NAME has more)"
                )
            if time.monotonic() > end_s:
                raise NotReadyError(
                    f"{len(missing)} of {len(names)} functions are not ready after {timeout_s:.0f} s: "
                    f"{_shown(missing)}; "
                    + (
                        _reasons([f for f in functions if f["name"] in missing])
                        or "their logs say why (smoe logs NAME)"
                    )
                )
            time.sleep(0.1)

    def logs(self, name: str, tail: int, follow: bool) -> requests.Response:
        """NDJSON stream of log lines."""
        path = f"/system/logs?name={name}&tail={tail}&follow={'true' if follow else 'false'}"
        timeout = (_TIMEOUT_S, None) if follow else _TIMEOUT_S
        return self._call("GET", path, stream=True, timeout=timeout)

    def _call(self, method: str, path: str, **options: Any) -> requests.Response:
        response = self._send(method, path, auth=self.auth, **options)
        if response.status_code >= 400:
            text = response.text.strip()[:300]
            hint = " (wrong or missing password)" if response.status_code == 401 else ""
            where = path.split("?", maxsplit=1)[0]
            raise GatewayRefusedError(
                f"the gateway answered {response.status_code} to {method} {where}{hint}: {text}",
                response.status_code,
            )
        return response

    def _send(self, method: str, path: str, **options: Any) -> requests.Response:
        options.setdefault("timeout", _TIMEOUT_S)
        for attempt in range(_CONNECT_TRIES):
            try:
                return self._session.request(method, self.url + path, **options)
            except requests.ConnectionError as error:
                if attempt == _CONNECT_TRIES - 1:
                    raise GatewayUnreachableError(
                        f"no gateway answers at {self.url}; start one with `smoe up`"
                    ) from error
                time.sleep(0.1 * 2**attempt)
            except requests.Timeout as error:
                raise GatewayUnreachableError(
                    f"the gateway at {self.url} did not answer {method} {path.split('?', maxsplit=1)[0]} in time"
                ) from error
            except requests.RequestException as error:  # a URL that is none, a reply that is no HTTP
                raise GatewayUnreachableError(f"{self.url} cannot be asked as a gateway: {error}") from error
        raise AssertionError("unreachable")


def lines_of(reply: requests.Response) -> Iterator[bytes]:
    """Lines as they come. Raises GatewayUnreachableError where the other side goes away within them."""
    try:
        yield from reply.iter_lines(chunk_size=None)
    except requests.RequestException as error:
        raise GatewayUnreachableError(f"the gateway went away within its answer: {error}") from error


def _by_name(snapshot: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {key.rsplit(".", 1)[0]: function["replicas"] for key, function in snapshot["functions"].items()}


def _shown(names: list[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _reasons(functions: list[dict[str, Any]]) -> str:
    """What a platform reports of replicas that are not ready, one replica for each kind of function and reason."""
    first_problems: dict[tuple[str, str], str] = {}
    for function in functions:
        nodes = (function.get("labels") or {}).get(NODES_LABEL, "")
        for problem in function.get("problems") or ():
            _, _, reason = problem.partition(": ")
            first_problems.setdefault((nodes.partition("-")[0], reason.partition(":")[0]), problem)
    return "; ".join(first_problems.values())
