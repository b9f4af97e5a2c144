"""Calls to the API server by the official client, on plain dictionaries: bounded tries, named errors.

The client's own models are left out on purpose: they cost seconds for thousands of objects, and their major versions
differ, while the API's JSON does not.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import urllib3
from kubernetes import client

from autoscaler.errors import FunctionGoneError, PlatformError, UnreachableError
from autoscaler.platforms.kubernetes.managed_fields import without_managed_fields
from autoscaler.retry_after import WAITED_S, RetryAfter
from gateway.kubeconfig import NoClusterError, read_kubeconfig

Object = dict[str, Any]
Event = tuple[str, Object]
"""An event of a watch: kind (``ADDED``, ``MODIFIED``, ``DELETED``, ``BOOKMARK``) and the object."""

FIELD_MANAGER = "smoe-controller"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
PAGE = 500
"""Objects of one answer to a list. With 15,000 objects in pages of 150, 101 round trips to a real API server, a first
tick took 4.0 s, in pages of 500 3.5 s and 32 MB more, as two answers are whole in memory (docs/results/controller)."""
_REPEATED = (409, 429, 500, 502, 503, 504)
_WAITS_S = (0.1, 0.4)
_NO_RIGHT = re.compile(r'cannot \w+ resource "')
_LIMIT_RANGE = re.compile(r"(maximum|minimum) \S+ usage per \w+ is ")


def beyond_namespace(answer: str) -> bool:
    """Whether an admission's words are those of a ResourceQuota that is used up, or of a LimitRange."""
    return "exceeded quota" in answer or bool(_LIMIT_RANGE.search(answer))


class ExpiredError(PlatformError):
    """The API server has forgotten the version that a watch was to start from."""


class RefusedError(PlatformError):
    """The API server refused an order; ``code`` is the HTTP status, ``answer`` its own words."""

    def __init__(self, what: str, code: int, answer: str) -> None:
        super().__init__(f"{what}: the Kubernetes API server answered {code}: {answer[:400]}")
        self.code = code
        self.answer = answer

    @property
    def over_quota(self) -> bool:
        """More than the namespace allows by a ResourceQuota or a LimitRange."""
        return self.code == 403 and beyond_namespace(self.answer)

    @property
    def beyond_node(self) -> bool:
        """More than the pod's node has at all: another node may have it."""
        return self.code == 403 and "allocatable" in self.answer

    @property
    def no_right(self) -> bool:
        """This user may not do so to any object, in the words of the API server's authoriser; an admission webhook's
        403 is about this one."""
        return self.code == 403 and bool(_NO_RIGHT.search(self.answer))

    @property
    def no_right_to_resize(self) -> bool:
        """This user may not resize any pod, whatever is asked; a new pod of a Deployment can be so."""
        return self.code == 403 and 'cannot patch resource "pods/resize"' in self.answer

    @property
    def not_on_a_live_pod(self) -> bool:
        """Kubernetes changes no live pod in this way; a new pod can be so."""
        return self.code == 422


def connect(kubeconfig: Path | None) -> client.ApiClient:
    """The pod's service account, or a kubeconfig file (default: kubectl's). Raises PlatformError."""
    try:
        return api_client(read_kubeconfig(kubeconfig))
    except NoClusterError as error:
        raise PlatformError(str(error)) from error


def api_client(configuration: client.Configuration) -> client.ApiClient:
    """A client that tries each call once; repeating is decided here, in :class:`KubernetesClient`."""
    configuration.retries = urllib3.Retry(total=0, redirect=0)
    return client.ApiClient(configuration)


class Rate:
    """Client-side limit of calls: ``per_s`` in the long run, ``burst`` at once. ``clock``: seconds that only grow."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._seen_s = clock()
        self._lock = threading.Lock()

    def take(self) -> float:
        """Take a turn; seconds to wait before the call."""
        with self._lock:
            now_s = self._clock()
            self._left = min(float(self._burst), self._left + (now_s - self._seen_s) * self._per_s) - 1.0
            self._seen_s = now_s
            return max(0.0, -self._left / self._per_s)


RATE_PER_S = 100.0
BURST = 200


class KubernetesClient:
    """Orders here say what should be, so repeating one is safe.

    ``guard`` is called before every write, each try of it: a controller that is no longer the leader raises there.
    ``calls`` counts answers by (verb, resource, status). No more than ``rate`` calls are made, and none before the time
    that an overloaded API server named (``retry_after``): short ones are waited for, others are an UnreachableError.
    """

    def __init__(
        self,
        api: client.ApiClient,
        namespace: str,
        *,
        timeout_s: float = 5.0,
        guard: Callable[[], None] = lambda: None,
        wait: Callable[[float], object] = time.sleep,
        rate: Rate | None = None,
        retry_after: RetryAfter | None = None,
    ) -> None:
        self._rate = rate or Rate(RATE_PER_S, BURST)
        self._retry_after = retry_after or RetryAfter()
        self.namespace = namespace
        self.guard = guard
        self.calls: Counter[tuple[str, str, int]] = Counter()
        self._api = api
        self._timeout_s = timeout_s
        self._wait = wait
        self._counting = threading.Lock()

    def version(self) -> tuple[int, int]:
        """Major and minor version of the API server."""
        answer = self._call("GET", "/version", "version")
        return _number(answer.get("major")), _number(answer.get("minor"))

    def deployments(self, selector: str) -> Iterator[Object]:
        return self.listed("deployments", selector)

    def pods(self, selector: str) -> Iterator[Object]:
        return self.listed("pods", selector)

    def patch_deployment(self, name: str, patch: Object, content_type: str = STRATEGIC) -> Object:
        return self._patch(
            f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{name}", "deployments", patch, content_type
        )

    def scale(self, name: str, replicas: int) -> str | None:
        """Returns the Deployment's version afterwards, where it is in the answer."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{name}/scale"
        answer = self._patch(path, "deployments/scale", {"spec": {"replicas": replicas}}, MERGE)
        version = answer.get("metadata", {}).get("resourceVersion")
        return None if version is None else str(version)

    def resize(self, pod: str, patch: Object) -> Object:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/resize"
        return self._patch(path, "pods/resize", patch, STRATEGIC)

    def patch_pod(self, pod: str, patch: Object) -> Object:
        return self._patch(f"/api/v1/namespaces/{self.namespace}/pods/{pod}", "pods", patch, MERGE)

    def lease(self, name: str) -> Object | None:
        """A Lease, None where there is none; asked once."""
        try:
            return self._call("GET", f"{self._leases}/{name}", "leases", tries=1)
        except FunctionGoneError:
            return None

    def put_lease(self, document: Object) -> Object:
        """Make a Lease, or replace the form of it that ``document`` names by its resource version. Tried once.

        Raises RefusedError 409 where somebody was faster.
        """
        name = document["metadata"]["name"]
        if "resourceVersion" not in document["metadata"]:
            return self._call("POST", self._leases, "leases", document, tries=1)
        return self._call("PUT", f"{self._leases}/{name}", "leases", document, tries=1)

    @property
    def _leases(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    def listed(
        self, resource: str, selector: str, on_version: Callable[[str], object] = lambda version: None
    ) -> Iterator[Object]:
        """All ``deployments`` or ``pods`` that a selector chooses, in pages, of which the next one is asked for while
        one is read; without managed fields. ``on_version`` gets the version of the list."""
        query = {"labelSelector": selector, "limit": str(PAGE)}
        path = self._path(resource)
        page = self._call("GET", path, resource, query=query)
        with ThreadPoolExecutor(1, "page") as ahead:
            while after := page["metadata"].get("continue"):
                coming = ahead.submit(self._call, "GET", path, resource, query={**query, "continue": after})
                yield from page.get("items") or ()
                page = coming.result()
        yield from page.get("items") or ()
        on_version(page["metadata"]["resourceVersion"])

    def watch(
        self, resource: str, selector: str, version: str, seconds: int, opened: Callable[[Callable[[], None]], object]
    ) -> Iterator[Event]:
        """Changes after ``version``, until the API server ends the watch; ``opened`` gets what ends it from here.

        Raises ExpiredError where only a new list helps, UnreachableError and RefusedError.
        """
        query = {"watch": "true", "labelSelector": selector, "resourceVersion": version}
        query |= {"allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        path = self._path(resource)
        what = f"watch {path}"
        self._let_recover(what)
        try:
            limit = urllib3.Timeout(connect=self._timeout_s, read=seconds + self._timeout_s)
            with self._open("GET", path, None, query, "application/json", limit, stream=True) as reply:
                self._count("WATCH", resource, reply.status)
                self._retry_after.heard(reply.status, reply.headers.get("Retry-After"))
                if reply.status >= 300:
                    raise ExpiredError(what) if reply.status == 410 else _refused(what, reply.status, reply.read())
                opened(reply.shutdown)
                for line in _lines(reply):
                    event = orjson.loads(without_managed_fields(line))
                    if event["type"] == "ERROR":
                        code = int(event["object"].get("code", 500))
                        raise ExpiredError(what) if code == 410 else _refused(what, code, line)
                    yield event["type"], event["object"]
        except (urllib3.exceptions.HTTPError, OSError, client.ApiException, ValueError) as error:
            raise UnreachableError(f"{what} broke off: {type(error).__name__}") from error

    def _path(self, resource: str) -> str:
        root = "/apis/apps/v1" if resource == "deployments" else "/api/v1"
        return f"{root}/namespaces/{self.namespace}/{resource}"

    def _patch(self, path: str, resource: str, patch: Object, content_type: str) -> Object:
        query = {"fieldManager": FIELD_MANAGER}
        return self._call("PATCH", path, resource, patch, query=query, content_type=content_type, guarded=True)

    def _call(
        self,
        method: str,
        path: str,
        resource: str,
        body: Object | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        guarded: bool = False,
        tries: int = len(_WAITS_S) + 1,
    ) -> Object:
        what = f"{method} {path}"
        for left in reversed(range(tries)):
            self._let_recover(what)
            turn_s = self._rate.take()
            if turn_s:
                self._wait(turn_s)
            if guarded:
                self.guard()
            try:
                status, data = self._once(method, path, body, query, content_type)
            except (urllib3.exceptions.HTTPError, OSError, client.ApiException) as error:
                self._count(method, resource, 0)
                if not left:
                    host = self._api.configuration.host
                    raise UnreachableError(f"{what} at {host} failed: {type(error).__name__}") from error
            else:
                self._count(method, resource, status)
                if status < 300:
                    return _object(what, data)
                if not left or status not in _REPEATED:
                    raise _refused(what, status, data)
            self._wait(_WAITS_S[-left])
        raise AssertionError("unreachable")

    def _let_recover(self, what: str) -> None:
        """Wait for as long as the API server asked for. Raises UnreachableError where that is too long for one call."""
        left_s = self._retry_after.left_s()
        if left_s > WAITED_S:
            raise UnreachableError(
                f"{what} was not sent: the Kubernetes API server is overloaded and asks for {left_s:.0f} s more"
            )
        if left_s:
            self._wait(left_s)

    def _count(self, verb: str, resource: str, status: int) -> None:
        with self._counting:  # orders and watches come from several threads
            self.calls[verb, resource, status] += 1

    def _once(
        self, method: str, path: str, body: Object | None, query: Mapping[str, str] | None, content_type: str
    ) -> tuple[int, bytes]:
        limit = urllib3.Timeout(total=self._timeout_s)
        reply = self._open(method, path, body, query, content_type, limit)
        self._retry_after.heard(reply.status, reply.headers.get("Retry-After"))
        return reply.status, reply.data

    def _open(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: Mapping[str, str] | None,
        content_type: str,
        limit: urllib3.Timeout,
        *,
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        request = self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            auth_settings=["BearerToken"],
        )
        verb, url, header, _, _ = request
        data = None if body is None else orjson.dumps(body)
        reply: urllib3.BaseHTTPResponse = self._api.rest_client.pool_manager.request(
            verb, url, body=data, headers=header, timeout=limit, preload_content=not stream
        )
        return reply


def _lines(reply: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Lines of a stream as they come; a half line at its end is none."""
    rest = b""
    while data := reply.read1(1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        yield from (line for line in lines if line)


def _refused(what: str, status: int, data: bytes) -> PlatformError:
    try:
        answer = str(orjson.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        answer = data.decode(errors="replace").strip() or "no reason given"
    if status == 404:
        return FunctionGoneError(f"{what}: {answer}")
    if status == 401:
        return UnreachableError(f"{what}: the Kubernetes API server does not know this user: {answer}")
    if status in (429, 502, 503, 504):
        return UnreachableError(f"{what}: the Kubernetes API server answered {status}: {answer[:200]}")
    return RefusedError(what, status, answer)


def _object(what: str, data: bytes) -> Object:
    try:
        document = orjson.loads(without_managed_fields(data))
    except ValueError as error:
        raise PlatformError(f"{what} was not answered with JSON") from error
    if not isinstance(document, dict):
        raise PlatformError(f"{what} was answered with a {type(document).__name__}")
    return document


def _number(text: object) -> int:
    digits = "".join(one for one in str(text) if one.isdigit())
    return int(digits) if digits else 0
