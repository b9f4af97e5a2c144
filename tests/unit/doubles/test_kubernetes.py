"""The double answers as a real API server did: the table of ``pods/resize``, ownership of fields, versions, watches."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.doubles.kubernetes import fields
from tests.doubles.kubernetes.functions import NAMESPACE, put, spec
from tests.doubles.kubernetes.running import Running

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
MERGE, STRATEGIC, APPLY = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
ONLY_CPU_AND_MEMORY = "only cpu and memory resources are mutable"


class Caller:
    """Requests as any client sends them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False

    def __call__(self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str) -> Any:
        headers = {"Content-Type": kind}
        return self._session.request(
            method, self._url + path, data=json.dumps(body), headers=headers, params=query, timeout=10
        )

    def close(self) -> None:
        self._session.close()


@pytest.fixture
def call(double: Running) -> Iterator[Caller]:
    caller = Caller(double.url)
    yield caller
    caller.close()


@pytest.fixture
def pod(double: Running) -> str:
    put(double, spec("f"))
    return str(double.pods("f")[0]["metadata"]["name"])


def resources(limits: dict[str, Any] | None = None, requests: dict[str, Any] | None = None, **more: Any) -> Any:
    given = {"limits": limits, "requests": requests}
    body = {"resources": {key: value for key, value in given.items() if value is not None}}
    return {"spec": {"containers": [{"name": "f", **body, **more}]}}


@pytest.mark.parametrize(
    ("body", "code", "sentence"),
    [
        pytest.param(resources({"cpu": "2"}, {"cpu": "100m"}), 200, "", id="cpu up"),
        pytest.param(resources({"memory": "128Mi"}, {"memory": "128Mi"}), 200, "", id="memory down"),
        pytest.param(resources({"nvidia.com/gpu": "1"}), 422, ONLY_CPU_AND_MEMORY, id="a GPU"),
        pytest.param(resources({}, resizePolicy=[]), 422, ONLY_CPU_AND_MEMORY, id="resize policy"),
        pytest.param(resources({"cpu": "50m", "memory": "256Mi"}, {}), 422, "Pod QOS Class may not change", id="class"),
        pytest.param(resources({}, {"cpu": "2"}), 422, "less than or equal to cpu limit", id="above the limit"),
        pytest.param(resources({"cpu": None}), 422, "limits cannot be removed", id="without a limit"),
        pytest.param(
            resources({"cpu": "128"}, {"cpu": "64"}),
            403,
            "node didn't have enough allocatable resources: cpu, requested: 64000, allocatable: 32000",
            id="more than the node",
        ),
    ],
)
def test_resize_is_answered_as_recorded(call: Caller, pod: str, body: Any, code: int, sentence: str) -> None:
    reply = call("PATCH", f"{PODS}/{pod}/resize", body, STRATEGIC)
    assert reply.status_code == code, reply.text
    assert sentence in reply.json().get("message", "")


def test_an_image_sent_to_resize_is_ignored_without_a_word(call: Caller, pod: str, double: Running) -> None:
    reply = call("PATCH", f"{PODS}/{pod}/resize", resources({"cpu": "2"}, image="other"), STRATEGIC)
    assert reply.status_code == 200
    assert double.pods("f")[0]["spec"]["containers"][0]["image"] == "smoe/function:1"


def test_a_plain_patch_changes_annotations_and_no_resources(call: Caller, pod: str) -> None:
    assert call("PATCH", f"{PODS}/{pod}", {"metadata": {"annotations": {"a": "b"}}}, MERGE).status_code == 200
    reply = call("PATCH", f"{PODS}/{pod}", resources({"cpu": "2"}), STRATEGIC)
    assert reply.status_code == 422 and "pod updates may not change fields other than" in reply.json()["message"]


def test_a_stale_version_is_a_conflict_and_a_dry_run_changes_nothing(call: Caller, pod: str, double: Running) -> None:
    stale = {**resources({"cpu": "2"}), "metadata": {"resourceVersion": "1"}}
    assert call("PATCH", f"{PODS}/{pod}/resize", stale, STRATEGIC).status_code == 409
    assert call("PATCH", f"{PODS}/{pod}/resize", resources({"cpu": "2"}), STRATEGIC, dryRun="All").status_code == 200
    assert double.pods("f")[0]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "1000m"


def test_resize_is_not_there_before_1_33(call: Caller, pod: str, double: Running) -> None:
    double.set(version=(1, 32))
    assert call("PATCH", f"{PODS}/{pod}/resize", resources({"cpu": "2"}), STRATEGIC).status_code == 404


def test_a_resized_pod_stays_and_a_template_with_the_same_values_replaces_it(
    call: Caller, pod: str, double: Running
) -> None:
    call("PATCH", f"{PODS}/{pod}/resize", resources({"cpu": "2"}), STRATEGIC)
    assert [one["metadata"]["name"] for one in double.pods("f")] == [pod]
    template = {"spec": {"template": resources({"cpu": "2"})}}
    assert call("PATCH", f"{DEPLOYMENTS}/f", template, STRATEGIC).status_code == 200
    assert pod not in [one["metadata"]["name"] for one in double.pods("f")]


def config(**spec_fields: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "f"}, "spec": spec_fields}


def test_fields_of_another_manager_are_a_conflict_unless_forced(call: Caller, pod: str, double: Running) -> None:
    reply = call("PATCH", f"{DEPLOYMENTS}/f", config(replicas=3), APPLY, fieldManager="b")
    assert reply.status_code == 409
    assert 'conflict with "smoe-gateway": .spec.replicas' in reply.json()["message"]
    reply = call("PATCH", f"{DEPLOYMENTS}/f", config(replicas=3), APPLY, fieldManager="b", force="true")
    assert reply.status_code == 200 and double.deployment("f")["spec"]["replicas"] == 3


def test_managed_fields_that_a_client_sends_are_taken_over_for_the_version_they_name(
    call: Caller, pod: str, double: Running
) -> None:
    """As client-go's csaupgrade makes an apply of what an update owned."""
    meta = double.deployment("f")["metadata"]
    owned = [{**entry, "operation": "Apply"} for entry in meta["managedFields"] if entry["manager"] == "smoe-gateway"]
    assert owned
    for version, code in (("1", 409), (meta["resourceVersion"], 200)):
        patch = {"metadata": {"resourceVersion": version, "managedFields": owned}}
        assert call("PATCH", f"{DEPLOYMENTS}/f", patch, MERGE).status_code == code
    less = {**config(selector={"matchLabels": {"faas_function": "f"}}), "metadata": {"name": "f", "labels": {}}}
    less["spec"]["template"] = double.deployment("f")["spec"]["template"]
    assert call("PATCH", f"{DEPLOYMENTS}/f", less, APPLY, fieldManager="smoe-gateway").status_code == 200
    assert "smoe.pipeline" not in double.deployment("f")["metadata"].get("labels", {})


def test_an_apply_that_names_a_uid_is_for_that_object_only(call: Caller, pod: str, double: Running) -> None:
    def apply(name: str, uid: str) -> Any:
        document = {**config(), "metadata": {"name": name, "uid": uid, "labels": {"a": "b"}}}
        del document["spec"]
        return call("PATCH", f"{DEPLOYMENTS}/{name}", document, APPLY, fieldManager="b", force="true")

    assert apply("f", double.deployment("f")["metadata"]["uid"]).status_code == 200
    other, none = apply("f", "other"), apply("g", "other")
    assert (other.status_code, none.status_code) == (422, 409)
    assert "field is immutable" in other.json()["message"] and "no existing object" in none.json()["message"]


def test_what_an_apply_leaves_out_goes_only_where_nobody_else_has_it() -> None:
    live: dict[str, Any] = {}
    sets: fields.Sets = {}
    for manager, document in (
        ("a", {"spec": {"x": 1, "y": 2, "env": [{"name": "p", "value": "1"}, {"name": "q", "value": "2"}]}}),
        ("b", {"spec": {"y": 2}}),
        ("a", {"spec": {"env": [{"name": "q", "value": "3"}]}}),
    ):
        live = fields.apply(live, sets, manager, document, force=False)
    assert live == {"spec": {"y": 2, "env": [{"name": "q", "value": "3"}]}}
    assert sets["b", "Apply"] == {("f:spec", "f:y")}


def test_an_update_takes_what_it_changes_and_nothing_else() -> None:
    sets: fields.Sets = {("a", "Apply"): {("f:x",), ("f:y",)}}
    fields.updated({"x": 1, "y": 2}, {"x": 1, "y": 3}, sets, "b")
    assert sets == {("a", "Apply"): {("f:x",)}, ("b", "Update"): {("f:y",)}}


@pytest.mark.slow
def test_a_watch_reports_changes_then_bookmarks_and_410_when_it_is_too_old(
    call: Caller, pod: str, double: Running
) -> None:
    version = call("GET", PODS, labelSelector="faas_function").json()["metadata"]["resourceVersion"]
    query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "1"}
    timer = threading.Timer(0.05, lambda: double.do(lambda: double.store.delete("pods", NAMESPACE, pod)))
    timer.start()
    events = [json.loads(line) for line in call("GET", PODS, **query).text.splitlines()]
    timer.join()
    assert [event["type"] for event in events if event["type"] != "BOOKMARK"][:2] == ["DELETED", "ADDED"]
    assert events[-1]["type"] == "BOOKMARK"
    double.do(double.store.compact)
    (error,) = [json.loads(line) for line in call("GET", PODS, **query).text.splitlines()]
    assert (error["type"], error["object"]["code"]) == ("ERROR", 410)


def test_lists_come_in_pages(call: Caller, double: Running) -> None:
    for name in ("a", "b", "c"):
        put(double, spec(name))
    first = call("GET", DEPLOYMENTS, limit="2").json()
    rest = call("GET", DEPLOYMENTS, limit="2", **{"continue": first["metadata"]["continue"]}).json()
    assert [one["metadata"]["name"] for one in (*first["items"], *rest["items"])] == ["a", "b", "c"]
    assert "continue" not in rest["metadata"]


def test_what_is_outside_the_subset_is_not_found(call: Caller) -> None:
    assert call("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets").status_code == 404
    assert call("GET", "/api/v1/namespaces/other/pods").status_code == 404
    assert call("POST", f"{PODS}/x/eviction", {}).status_code == 404
