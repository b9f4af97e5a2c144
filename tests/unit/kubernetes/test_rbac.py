"""``deploy/rbac.yaml`` grants what the gateway and the controller do, all of it and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from autoscaler.lease import Elector, LeaseSettings
from autoscaler.platform.kubernetes import KubernetesClient
from autoscaler.platform.kubernetes.client import api_client
from gateway.contract import DEFAULT_NAMESPACE
from tests.doubles.kubernetes.functions import put, spec
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import configuration
from tests.unit.kubernetes.conftest import Backends, Platforms, ready, until, until_so

FILE = Path(__file__).parents[3] / "deploy" / "rbac.yaml"
Grant = tuple[str, str, str]
"""(verb, API group, resource)."""


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(FILE.read_text()))


def rules_of(account: str) -> list[dict[str, Any]]:
    """Rules that the bindings give to a service account, each with its namespace."""
    roles = {one["metadata"]["name"]: one for one in documents() if one["kind"] == "Role"}
    found = []
    for binding in (one for one in documents() if one["kind"] == "RoleBinding"):
        if {"kind": "ServiceAccount", "name": account, "namespace": "openfaas"} in binding["subjects"]:
            role = roles[binding["roleRef"]["name"]]
            assert role["metadata"]["namespace"] == binding["metadata"]["namespace"]
            found += [{**rule, "namespace": role["metadata"]["namespace"]} for rule in role["rules"]]
    return found


def granted(account: str) -> set[Grant]:
    return {
        (verb, group, resource)
        for rule in rules_of(account)
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def used(double: Running, account: str) -> set[Grant]:
    calls = double.do(lambda: list(double.api.calls))
    return {(call.verb, call.group, call.resource) for call in calls if call.user == account}


@pytest.fixture
def guarded(double: Running) -> Running:
    """The double, which refuses whatever the file does not grant."""
    accounts = ("smoe-gateway", "smoe-controller")
    double.set(users={name: name for name in accounts}, grants={name: rules_of(name) for name in accounts})
    return double


async def test_the_gateway_does_all_that_it_may_and_nothing_else(guarded: Running, backends: Backends) -> None:
    guarded.set(metrics={})
    backend = await backends("smoe-gateway")
    await backend.put_secret("key", DEFAULT_NAMESPACE, b"1", create=True)
    await backend.put_secret("key", DEFAULT_NAMESPACE, b"2", create=False)
    function = spec("f", secrets=("key",))
    await backend.create(function, 1)
    await until(backend, ready(1))
    more = {"memory": "512Mi", "cpu": "2"}
    await backend.update(replace(function, limits=more, env_vars={**function.env_vars, "max_inflight": "9"}))
    await backend.update(replace(function, image="smoe/function:2"))
    await backend.scale("f", DEFAULT_NAMESPACE, 2)
    await until(backend, ready(2))
    _ = [line async for line in backend.logs("f", DEFAULT_NAMESPACE, instance=None, since_s=None, tail=1, follow=False)]
    guarded.do(lambda: guarded.store.delete("services", DEFAULT_NAMESPACE, "f"))
    second = await backends("smoe-gateway")
    await until_so(lambda: guarded.do(lambda: guarded.store.find("services", DEFAULT_NAMESPACE, "f")) is not None)
    await backend.delete("f", DEFAULT_NAMESPACE)
    await backend.delete_secret("key", DEFAULT_NAMESPACE)
    await until_so(lambda: not second.list())
    async with asyncio.timeout(10):
        while (missing := granted("smoe-gateway") - used(guarded, "smoe-gateway")) and second.version() >= 0:
            await asyncio.sleep(0.02)
    assert missing == set()
    assert used(guarded, "smoe-gateway") == granted("smoe-gateway")


async def test_the_controller_does_all_that_it_may_and_nothing_else(guarded: Running, platforms: Platforms) -> None:
    put(guarded, spec("f"))
    platform = platforms("smoe-controller")
    present = platform.configurations()["f"]
    target = configuration(2, memory_mb=512, concurrency=9)
    platform.apply("f", present, target)
    platform.apply("f", target, configuration(2, cpu_cores=0.0, gpu_share=0.2))
    platform.configurations()
    platform.keep()
    platform.follow()
    await until_so(lambda: guarded.do(lambda: guarded.api.watching) == 2)
    platform.close()
    setting = client.Configuration(host=guarded.url)
    setting.api_key["BearerToken"] = "Bearer smoe-controller"
    api = api_client(setting)
    elector = Elector(KubernetesClient(api, DEFAULT_NAMESPACE), LeaseSettings("controller", "c0"))
    assert elector.step() and elector.step()
    elector.release()
    api.close()
    assert used(guarded, "smoe-controller") == granted("smoe-controller")


def test_a_call_that_is_not_granted_is_refused_by_the_double(guarded: Running, platforms: Platforms) -> None:
    """So that the comparison above cannot pass for want of looking."""
    guarded.set(grants={"smoe-controller": []})
    with pytest.raises(Exception, match='cannot list resource "deployments" in API group "apps"'):
        platforms("smoe-controller").configurations()


def test_there_are_no_cluster_roles_and_no_wildcards() -> None:
    assert {one["kind"] for one in documents()} == {"ServiceAccount", "Role", "RoleBinding"}
    assert not any("*" in part for account in ("smoe-gateway", "smoe-controller") for part in sum(granted(account), ()))
