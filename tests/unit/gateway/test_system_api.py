"""OpenFaaS's ``/system`` API: statuses, bodies and names, as its clients expect them."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any

import pytest

from gateway.contract import DEFAULT_NAMESPACE, LogLine, NotFoundError
from tests.unit.gateway.client import ask, parse, request, send_raw
from tests.unit.gateway.gateways import DEPLOYMENT, Running, Starter, deploy

# functions


async def test_what_was_deployed_is_described_field_by_field(running: Running) -> None:
    await running.system("POST", "/system/secrets", {"name": "key", "value": "v"})
    answer = await running.system("POST", "/system/functions", DEPLOYMENT)
    assert (answer.status, answer.body) == (202, b"")
    described = (await running.system("GET", "/system/function/f")).json()
    (listed,) = (await running.system("GET", "/system/functions")).json()
    assert described == listed
    assert datetime.fromisoformat(described.pop("createdAt")).tzinfo is not None
    expected = {key: value for key, value in DEPLOYMENT.items() if key != "service"}
    expected |= {"name": "f", "namespace": "openfaas-fn", "replicas": 2, "availableReplicas": 2}
    expected["labels"] = DEPLOYMENT["labels"] | {"faas_function": "f"}
    assert described == expected


async def test_numbers_that_are_zero_are_left_out_and_labels_and_annotations_never(running: Running) -> None:
    assert await deploy(running, labels={"com.openfaas.scale.min": "0"}, annotations=None) == 202
    described = (await running.system("GET", "/system/function/f")).json()
    assert not {"replicas", "availableReplicas", "invocationCount", "usage", "secrets"} & set(described)
    assert described["annotations"] == {}
    assert described["labels"]["faas_function"] == "f"


async def test_invocations_are_counted_in_the_list(running: Running) -> None:
    await deploy(running)
    for _ in range(3):
        await running.call("POST", "/function/f", b"x")
    assert (await running.system("GET", "/system/functions")).json()[0]["invocationCount"] == 3


@pytest.mark.parametrize("path", ["/system/function/f", "/system/function/f.openfaas-fn"])
async def test_usage_is_reported_on_request(running: Running, path: str) -> None:
    await deploy(running)
    usage = (await running.system("GET", f"{path}?usage=1")).json()["usage"]
    assert usage == {"cpu": 2.0, "totalMemoryBytes": 2 << 20}
    assert "usage" not in (await running.system("GET", path)).json()


async def test_an_unknown_function_is_404_with_an_empty_body(running: Running) -> None:
    answer = await running.system("GET", "/system/function/g")
    assert (answer.status, answer.body) == (404, b"")


async def test_put_of_an_unknown_function_is_404_so_that_clients_create_it(running: Running) -> None:
    assert (await running.system("PUT", "/system/functions", DEPLOYMENT | {"secrets": []})).status == 404


async def test_put_changes_a_function_and_keeps_its_replicas(running: Running) -> None:
    await deploy(running)
    await running.system("POST", "/system/scale-function/f", {"serviceName": "f", "replicas": 4})
    before = [replica.id for replica in running.replicas()]
    changed = DEPLOYMENT | {"secrets": [], "limits": {"cpu": "2"}}
    assert (await running.system("PUT", "/system/functions", changed)).status == 202
    described = (await running.system("GET", "/system/function/f")).json()
    assert (described["limits"], described["replicas"]) == ({"cpu": "2"}, 4)
    assert [replica.id for replica in running.replicas()] == before


async def test_put_brings_replicas_into_new_bounds_but_wakes_no_function_at_zero(running: Running) -> None:
    await deploy(running)
    narrow = DEPLOYMENT | {"secrets": [], "labels": {"com.openfaas.scale.min": "3", "com.openfaas.scale.max": "3"}}
    await running.system("PUT", "/system/functions", narrow)
    assert len(running.replicas()) == 3
    await running.system("POST", "/system/scale-function/f", {"serviceName": "f", "replicas": 0})
    await running.system("PUT", "/system/functions", narrow | {"annotations": {"a": "b"}})
    assert len(running.replicas()) == 0


async def test_a_function_that_exists_is_not_created_again(running: Running) -> None:
    assert await deploy(running) == 202
    answer = await running.system("POST", "/system/functions", DEPLOYMENT | {"secrets": []})
    assert (answer.status, answer.text) == (409, "function f.openfaas-fn exists already")


async def test_delete_takes_the_namespace_from_body_or_query(running: Running) -> None:
    for target, document in (
        ("/system/functions", {"functionName": "f"}),
        ("/system/functions", {"functionName": "f", "namespace": "openfaas-fn"}),
        ("/system/functions?namespace=openfaas-fn", {"functionName": "f"}),
        ("/system/functions", {"functionName": "f.openfaas-fn"}),
    ):
        assert await deploy(running) == 202
        assert (await running.system("DELETE", target, document)).status == 202
        assert (await running.system("DELETE", target, document)).status == 404
    assert (await running.system("DELETE", "/system/functions?namespace=n", {"functionName": "f"})).status == 404


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"service": None}, "service is missing: the function needs a name"),
        ({"image": None}, "image is missing"),
        ({"service": "Bad_Name"}, "service 'Bad_Name' is not allowed"),
        ({"service": "-a"}, "is not allowed"),
        ({"service": "a" * 64}, "is not allowed"),
        ({"service": "f/../g"}, "is not allowed"),
        ({"namespace": "other"}, "namespace 'other' does not exist; there is openfaas-fn"),
        ({"service": 7}, "service must be a string"),
        ({"envVars": {"A": 1}}, "envVars must be an object whose values are strings"),
        ({"labels": ["a"]}, "labels must be an object"),
        ({"secrets": "key"}, "secrets must be a list of strings"),
        ({"secrets": ["missing"]}, "f needs secret missing, which does not exist in openfaas-fn"),
        ({"limits": {"memory": "lots"}}, "limits.memory is 'lots'"),
        ({"readOnlyRootFilesystem": "yes"}, "readOnlyRootFilesystem must be true or false"),
        ({"labels": {"com.openfaas.scale.min": "-1"}}, "label com.openfaas.scale.min is '-1'"),
        ({"labels": {"com.openfaas.scale.min": "3", "com.openfaas.scale.max": "2"}}, "above com.openfaas.scale.max"),
        ({"envVars": {"max_inflight": "x"}}, "max_inflight is 'x'"),
    ],
)
async def test_what_cannot_be_deployed_is_400_with_a_sentence(
    running: Running, change: dict[str, Any], sentence: str
) -> None:
    document = {key: value for key, value in (DEPLOYMENT | {"secrets": []} | change).items() if value is not None}
    for method in ("POST", "PUT"):
        answer = await running.system(method, "/system/functions", document)
        if answer.status == 404 and method == "PUT":
            continue  # what only the backend can refuse needs a function that exists
        assert answer.status == 400
        assert sentence in answer.text
    assert running.backend.list() == []


async def test_fields_of_newer_clients_are_ignored(running: Running) -> None:
    assert await deploy(running, registryAuth="x", network="n", somethingNew={"a": [1]}) == 202


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"7", b"\xff", b"[" * 100_000, b'{"service": NaN}'])
@pytest.mark.parametrize("target", ["/system/functions", "/system/scale-function/f", "/system/secrets"])
async def test_bodies_that_are_no_json_objects_are_400(running: Running, body: bytes, target: str) -> None:
    answer = await ask(running.address, "POST", target, body, authorization=running.basic)
    assert answer.status == 400
    assert answer.text


async def test_json_beyond_the_limit_is_413(start: Starter) -> None:
    async with start(max_json_bytes=1000) as running:
        assert await deploy(running, annotations={"a": "x" * 1000}) == 413


# scale


@pytest.mark.parametrize("target", ["/system/scale-function/f", "/system/scale-function/f.openfaas-fn"])
async def test_scaling_sets_the_number_within_the_maximum(running: Running, target: str) -> None:
    await deploy(running, labels={"com.openfaas.scale.max": "5"})
    assert (await running.system("POST", target, {"serviceName": "f", "replicas": 3})).status == 202
    assert len(running.replicas()) == 3
    assert (await running.system("POST", target, {"replicas": 9})).status == 202
    assert len(running.replicas()) == 5
    assert (await running.system("POST", target, {"replicas": 0})).status == 202
    assert len(running.replicas()) == 0


@pytest.mark.parametrize("replicas", [-1, 1.5, "2", None, True, 5001, 1e300])
async def test_replicas_must_be_a_whole_number(running: Running, replicas: Any) -> None:
    await deploy(running)
    answer = await running.system("POST", "/system/scale-function/f", {"serviceName": "f", "replicas": replicas})
    assert answer.status == 400
    assert "replicas must be a whole number" in answer.text


async def test_scaling_an_unknown_function_is_404(running: Running) -> None:
    assert (await running.system("POST", "/system/scale-function/g", {"replicas": 1})).status == 404


SCALE_ALL = "/system/scale-functions"


async def test_many_functions_are_scaled_in_one_order_and_keep_their_annotations(running: Running) -> None:
    await deploy(running, annotations={"kept": "yes"}, labels={"com.openfaas.scale.max": "5"})
    await deploy(running, service="g")
    orders = {"f": {"replicas": 9, "annotations": {"new": "too"}}, "g.openfaas-fn": {"replicas": 2}}
    assert (await running.system("POST", SCALE_ALL, {"functions": orders})).status == 202
    assert (len(running.replicas("f")), len(running.replicas("g"))) == (5, 2)
    body = (await running.system("GET", "/system/function/f")).json()
    assert body["annotations"] == {"kept": "yes", "new": "too"}
    assert body["replicas"] == 5


@pytest.mark.parametrize(
    ("functions", "status"),
    [
        pytest.param({"f": {"replicas": 4}, "nobody": {"replicas": 1}}, 404, id="unknown"),
        pytest.param({"f": {"replicas": 4}, "g": {}}, 400, id="no-number"),
        pytest.param({"f": {"replicas": 4}, "g": {"replicas": 1, "annotations": {"a": 1}}}, 400, id="annotations"),
        pytest.param({"f": {"replicas": 4}, "g.elsewhere": {"replicas": 1}}, 400, id="namespace"),
        pytest.param({}, 400, id="nothing"),
        pytest.param(["f"], 400, id="a-list"),
    ],
)
async def test_an_order_with_one_mistake_changes_nothing(running: Running, functions: Any, status: int) -> None:
    await deploy(running)
    await deploy(running, service="g")
    before = len(running.replicas("f"))
    answer = await running.system("POST", SCALE_ALL, {"functions": functions})
    assert (answer.status, len(running.replicas("f"))) == (status, before)
    assert answer.text


async def test_the_feeds_token_does_not_scale(running: Running) -> None:
    token = f"Bearer {running.credentials.feed_token}"
    assert (await running.call("POST", SCALE_ALL, b"{}", authorization=token)).status == 401


# secrets


async def test_secrets_are_listed_without_values_and_writes_answer_202(running: Running) -> None:
    secret = {"name": "key", "value": "hidden"}
    assert (await running.system("POST", "/system/secrets", secret)).status == 202
    assert (await running.system("POST", "/system/secrets", secret)).status == 409
    raw = {"name": "key", "rawValue": base64.b64encode(b"\x00\xff").decode()}
    assert (await running.system("PUT", "/system/secrets", raw)).status == 202
    assert running.backend.secrets[DEFAULT_NAMESPACE]["key"] == b"\x00\xff"
    listed = await running.system("GET", "/system/secrets")
    assert listed.json() == [{"name": "key", "namespace": "openfaas-fn"}]
    assert (await running.system("DELETE", "/system/secrets", {"name": "key"})).status == 202
    assert (await running.system("DELETE", "/system/secrets", {"name": "key"})).status == 404
    assert (await running.system("PUT", "/system/secrets", secret)).status == 404


@pytest.mark.parametrize(
    "secret",
    [
        {"value": "v"},
        {"name": "Upper", "value": "v"},
        {"name": "../up", "value": "v"},
        {"name": "a"},
        {"name": "a", "rawValue": "no base64!"},
        {"name": "a", "value": "v", "namespace": 7},
    ],
)
async def test_secrets_that_cannot_be_are_400_and_never_repeated_in_the_reply(
    running: Running, secret: dict[str, Any]
) -> None:
    answer = await running.system("POST", "/system/secrets", secret)
    assert answer.status == 400
    assert "no base64!" not in answer.text


async def test_a_secrets_name_may_have_dots(running: Running) -> None:
    secret = {"name": "my.secret", "value": "v"}
    assert (await running.system("POST", "/system/secrets", secret)).status == 202
    assert (await running.system("GET", "/system/secrets")).json() == [
        {"name": "my.secret", "namespace": "openfaas-fn"}
    ]
    using = DEPLOYMENT | {"secrets": ["my.secret"]}
    assert (await running.system("POST", "/system/functions", using)).status == 202
    assert (await running.system("DELETE", "/system/secrets", {"name": "my.secret"})).status == 202


async def test_making_a_namespace_is_refused_with_a_sentence(running: Running) -> None:
    answer = await running.system("POST", "/system/namespace/", {"name": "team"})
    assert (answer.status, "the one namespace openfaas-fn" in answer.text) == (405, True)


@pytest.mark.parametrize(("value", "status"), [("true", 400), ("1", 400), ("false", 202)])
async def test_scaling_an_idle_function_to_zero_is_refused_and_not_ignored(
    running: Running, value: str, status: int
) -> None:
    document = DEPLOYMENT | {"secrets": [], "labels": {"com.openfaas.scale.zero": value}}
    answer = await running.system("POST", "/system/functions", document)
    assert (answer.status, "stops no idle functions" in answer.text) == (status, status == 400)


async def test_other_namespaces_hold_nothing(running: Running) -> None:
    assert (await running.system("GET", "/system/namespaces")).json() == ["openfaas-fn"]
    for path in ("/system/functions", "/system/secrets"):
        assert (await running.system("GET", f"{path}?namespace=other")).status == 400
    assert (await running.system("GET", "/system/functions?namespace=openfaas-fn")).json() == []


async def test_a_backend_that_fails_within_a_request_is_500_with_its_sentence(running: Running) -> None:
    def broken(*args: Any, **options: Any) -> list[LogLine]:
        raise NotFoundError("gone meanwhile")

    await deploy(running)
    running.backend.usage = broken  # type: ignore[method-assign, assignment]
    answer = await running.system("GET", "/system/function/f?usage=1")
    assert (answer.status, answer.text) == (404, "gone meanwhile")


async def test_keep_alive_clients_are_served_after_errors(running: Running) -> None:
    raw = request("POST", "/system/functions", b"{", close=False, authorization=running.basic)
    data = await send_raw(running.address, raw + request("GET", "/system/info", authorization=running.basic))
    assert parse(data).status == 400
    assert b"HTTP/1.1 200 OK" in data


# standbys


async def activated(running: Running, functions: Any, **changes: Any) -> Any:
    order = {"sender": "ingress", "lease_s": 30, "functions": functions, **changes}
    return await running.system("POST", "/system/replicas", order)


async def test_standbys_of_all_functions_are_activated_by_one_order_whose_reply_names_them(running: Running) -> None:
    running.backend.clock = lambda: 0.0
    for name in ("f", "g"):
        await running.deploy(name, annotations={"smoe.burst": "standbys=2,hold_s=3"})
    feed = (await running.system("GET", "/system/replicas")).json()["functions"]
    assert (feed["f.openfaas-fn"]["desired"], feed["f.openfaas-fn"]["burst"]) == (1, "standbys=2,hold_s=3")
    assert [one["state"] for one in feed["f.openfaas-fn"]["replicas"]] == ["ready", "standby", "standby"]
    answer = await activated(running, {"f": 2, "g.openfaas-fn": 1, "gone": 3})
    assert answer.status == 200
    found = {name: [one["state"] for one in entry["replicas"]] for name, entry in answer.json()["functions"].items()}
    assert found == {"f.openfaas-fn": ["ready"] * 3, "g.openfaas-fn": ["ready", "ready", "standby"]}
    metrics = await running.metrics()
    for line in (
        'smoe_function_standbys{function_name="f.openfaas-fn"} 2.0',
        'smoe_function_replicas{function_name="g.openfaas-fn",state="ready"} 1.0',
        'smoe_function_replicas{function_name="g.openfaas-fn",state="activated"} 1.0',
        'smoe_function_replicas{function_name="g.openfaas-fn",state="standby"} 1.0',
        'smoe_standby_activated_seconds_total{function_name="g.openfaas-fn"} 0.0',
    ):
        assert line in metrics.splitlines()


async def test_the_feeds_token_activates_and_nobody_without_one(running: Running) -> None:
    await running.deploy(annotations={"smoe.burst": "standbys=1"})
    order = json.dumps({"sender": "i", "lease_s": 1, "functions": {"f": 1}}).encode()
    token = f"Bearer {running.credentials.feed_token}"
    assert (await running.call("POST", "/system/replicas", order)).status == 401
    assert (await running.call("POST", "/system/replicas", order, authorization=token)).status == 200


@pytest.mark.parametrize(
    "changes",
    [
        {"sender": ""},
        {"sender": 1},
        {"lease_s": 0},
        {"lease_s": True},
        {"lease_s": 1e9},
        {"functions": ["f"]},
        {"functions": {"f": -1}},
        {"functions": {"f": 1.5}},
        {"functions": {"f": 101}},
    ],
)
async def test_an_activation_that_is_none_is_refused_in_words(running: Running, changes: Any) -> None:
    await running.deploy(annotations={"smoe.burst": "standbys=1"})
    answer = await activated(running, **{"functions": {"f": 1}, **changes})
    assert answer.status == 400
    assert "standbys" in answer.text or next(iter(changes)) in answer.text
    assert [replica.state.state for replica in running.replicas()] == ["ready", "standby"]


async def test_a_deployment_with_a_burst_rule_that_is_none_is_refused(running: Running) -> None:
    answer = await running.system(
        "POST", "/system/functions", {"service": "f", "image": "test/f", "annotations": {"smoe.burst": "many"}}
    )
    assert answer.status == 400 and "smoe.burst" in answer.text
