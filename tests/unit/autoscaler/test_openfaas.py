"""The OpenFaaS adapter's own rules: what an update keeps, what it refuses, what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.contract import Configuration
from autoscaler.errors import PlatformError, UnreachableError
from autoscaler.platforms.openfaas import OpenFaasPlatform, configuration_of, deployment_of
from autoscaler.platforms.quantities import float_quantity, nodes_of
from platform_words.resources import QuantityError
from tests.contract.platform.server import AUTH, OpenFaas, status
from tests.unit.autoscaler.builders import configuration
from tests.unit.autoscaler.servers import serve


@pytest.fixture
def world() -> Iterator[tuple[OpenFaas, OpenFaasPlatform]]:
    openfaas = OpenFaas({"m": status("m")})
    with serve(openfaas.reply) as server:
        yield openfaas, OpenFaasPlatform(server.url, "m", AUTH, timeout_s=2.0)


def test_an_update_keeps_all_that_it_was_not_asked_to_change(world: tuple[OpenFaas, OpenFaasPlatform]) -> None:
    found, platform = world
    platform.apply("m", configuration(), configuration(memory_mb=512, cpu_cores=2.0, concurrency=7))
    (kind, body) = found.writes[0]
    assert kind == "PUT" and len(found.writes) == 1
    assert body == {
        "service": "m",
        "image": "smoe/function:1",
        "namespace": "openfaas-fn",
        "envProcess": "",
        "envVars": {"max_inflight": "7", "smoe_pipeline": "m"},
        "labels": {"smoe.pipeline": "m", "com.openfaas.scale.min": "1"},
        "annotations": {"com.openfaas.retry.attempts": "3"},
        "limits": {"memory": "512Mi", "cpu": "2000m"},
        "requests": {"memory": "512Mi", "cpu": "50m"},
        "secrets": ["feed-token"],
    }


def test_every_call_names_a_namespace_that_is_not_the_gateways_home() -> None:
    asked: list[tuple[str, str]] = []

    def reply(method: str, path: str, body: bytes, authorization: str) -> tuple[int, bytes]:
        if method == "PUT":  # the body names it
            return openfaas.reply(method, path, body, authorization)
        asked.append((method, path))
        name, _, query = path.partition("?")
        return openfaas.reply(method, name, body, authorization) if query == "namespace=team-a" else (404, b"")

    openfaas = OpenFaas({"m": status("m", namespace="team-a")})
    with serve(reply) as server:
        platform = OpenFaasPlatform(server.url, "m", AUTH, timeout_s=2.0, namespace="team-a")
        present = platform.configurations()["m"]
        platform.apply("m", present, configuration(2, memory_mb=512))
    assert [method for method, _ in asked] == ["GET", "GET", "GET", "POST"]
    assert openfaas.writes[0][1]["namespace"] == "team-a"


def test_a_request_never_stands_above_its_limit() -> None:
    deployment = deployment_of("m", status("m", requests={"cpu": "1500m"}), configuration(cpu_cores=0.5))
    assert deployment["requests"] == {"cpu": "500m"}


def test_a_gpu_share_is_asked_for_in_tenths_and_takes_the_place_of_cores() -> None:
    deployment = deployment_of("m", status("m"), configuration(cpu_cores=0.0, gpu_share=0.3))
    assert deployment["limits"] == {"memory": "256Mi", "nvidia.com/gpu": "3"}


def test_replicas_that_an_update_set_back_are_set_again(world: tuple[OpenFaas, OpenFaasPlatform]) -> None:
    found, platform = world
    found.functions["m"]["replicas"] = 5
    present = configuration(5)
    found.functions["m"]["replicas"] = 1  # what faas-netes does on an update with a minimum
    platform.apply("m", present, configuration(5, memory_mb=512))
    assert [kind for kind, _ in found.writes] == ["PUT", "scale"]
    assert platform.configurations()["m"] == configuration(5, memory_mb=512)


def test_an_update_that_would_lose_environment_variables_is_refused_and_scaling_still_works(
    world: tuple[OpenFaas, OpenFaasPlatform],
) -> None:
    found, platform = world
    del found.functions["m"]["envVars"]
    with pytest.raises(PlatformError, match="only replicas can be changed there"):
        platform.apply("m", configuration(concurrency=0), configuration(memory_mb=512))
    platform.apply("m", configuration(concurrency=0), configuration(3, concurrency=0))
    assert found.writes == [("scale", {"serviceName": "m", "replicas": 3})]


def test_a_wrong_password_is_reported() -> None:
    openfaas = OpenFaas({})
    with serve(openfaas.reply) as server, pytest.raises(UnreachableError, match="wrong user or password"):
        OpenFaasPlatform(server.url, "m", ("admin", "guess")).configurations()


def test_a_passing_failure_is_tried_again() -> None:
    replies = [(503, b""), (200, b"[]")]
    with serve(lambda *_: replies.pop(0)) as server:
        assert OpenFaasPlatform(server.url, "m", AUTH).configurations() == {}


@pytest.mark.parametrize("body", [b"<html>", b'{"a": 1}', b"null"])
def test_an_answer_that_is_no_list_is_reported(body: bytes) -> None:
    with serve(lambda *_: (200, body)) as server, pytest.raises(PlatformError, match=r"was (not )?answered with"):
        OpenFaasPlatform(server.url, "m", AUTH).configurations()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, configuration()),
        ({"limits": {"memory": "1Gi", "cpu": "0.5"}}, configuration(memory_mb=1024, cpu_cores=0.5)),
        ({"limits": {"memory": "256Mi", "nvidia.com/gpu": "10"}}, configuration(cpu_cores=0.0, gpu_share=1.0)),
        ({"replicas": 0}, configuration(0)),
        ({"envVars": {}}, configuration(concurrency=0)),
        ({"limits": {}}, None),
        ({"limits": None}, None),
        ({"limits": {"memory": "256Mi"}}, None),
        ({"limits": {"memory": "lots", "cpu": "1"}}, None),
        ({"envVars": {"max_inflight": "many"}}, None),
    ],
)
def test_reading_a_function_s_configuration(changes: dict[str, Any], expected: Configuration | None) -> None:
    assert configuration_of(status("m", **changes)) == expected


@given(
    st.builds(
        lambda memory, resource, replicas, concurrency: Configuration(memory, *resource, replicas, concurrency),
        st.integers(1, 20_000),
        st.one_of(
            st.tuples(st.integers(1, 64_000).map(lambda x: x / 1000), st.just(0.0)),
            st.tuples(st.just(0.0), st.integers(1, 10).map(lambda x: x / 10)),
        ),
        st.integers(0, 100),
        st.integers(0, 100),
    )
)
def test_every_configuration_survives_the_way_through_a_deployment(target: Configuration) -> None:
    deployment = deployment_of("m", status("m"), target)
    assert configuration_of({**deployment, "replicas": target.replicas}) == target


def test_quantities_are_kubernetes_and_nothing_else() -> None:
    assert (float_quantity("1Gi"), float_quantity("500m"), float_quantity("2")) == (2**30, 0.5, 2.0)
    for text in ("", "much", "5X", "NaN"):
        with pytest.raises(QuantityError):
            float_quantity(text)


@pytest.mark.parametrize(
    ("annotations", "nodes"),
    [
        ({"smoe.placement": "a=2,b=1"}, 2),
        ({"smoe.placement": " a=1 , b=0"}, 1),
        ({"smoe.placement": ""}, 0),
        ({"smoe.placement": "a,b=x"}, 0),
        ({}, 0),
        (None, 0),
    ],
)
def test_a_placement_is_read_from_its_annotation(annotations: dict[str, str] | None, nodes: int) -> None:
    assert nodes_of(annotations) == nodes


def test_functions_on_several_nodes_have_a_floor_from_the_list_that_was_read_last(
    world: tuple[OpenFaas, OpenFaasPlatform],
) -> None:
    found, platform = world
    assert platform.floors() == {}
    found.functions["m"] = {**status("m"), "annotations": {"smoe.placement": "a=1,b=2,c=0"}}
    platform.configurations()
    assert platform.floors() == {"m": 2}
    found.functions["m"] = {**status("m"), "annotations": {"smoe.placement": "a=3"}}
    platform.configurations()
    assert platform.floors() == {}
