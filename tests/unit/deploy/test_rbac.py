"""``deploy/rbac.yaml`` grants what the gateway and the controller do, all of it and nothing else; so do the files for
further namespaces.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from autoscaler.lease import Elector, LeaseSettings
from autoscaler.platforms.kubernetes import KubernetesClient
from autoscaler.platforms.kubernetes.client import api_client
from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.contract import DEFAULT_NAMESPACE
from tests.doubles.kubernetes.fixtures import Backends, Platforms, ready, until_so
from tests.doubles.kubernetes.functions import put, spec
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import configuration

DEPLOY = Path(__file__).parents[3] / "deploy"
RBAC = (DEPLOY / "rbac.yaml",)
EVERYWHERE = (*RBAC, DEPLOY / "components" / "namespaces" / "rights.yaml", DEPLOY / "function-namespace.yaml")
TEAM = "team-a"
Grant = tuple[str, str, str, str]
"""(verb, API group, resource, namespace); the namespace is empty for what is in none."""


def documents(files: Sequence[Path]) -> list[dict[str, Any]]:
    documents = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    return [one for one in documents if one["apiVersion"].startswith("rbac.") or one["kind"] == "ServiceAccount"]


def rules_of(account: str, files: Sequence[Path] = RBAC) -> list[dict[str, Any]]:
    """Rules that the bindings give to a service account, each with its namespace, None for all of the cluster."""
    there = documents(files)
    roles = {
        (one["metadata"].get("namespace"), one["metadata"]["name"]): one
        for one in there
        if one["kind"].endswith("Role")
    }
    rules = []
    for binding in (one for one in there if one["kind"].endswith("Binding")):
        if {"kind": "ServiceAccount", "name": account, "namespace": "openfaas"} in binding["subjects"]:
            place, named = binding["metadata"].get("namespace"), binding["roleRef"]
            role = roles[place if named["kind"] == "Role" else None, named["name"]]
            assert role["kind"] == named["kind"]
            rules += [{**rule, "namespace": place} for rule in role["rules"]]
    return rules


def granted(account: str, files: Sequence[Path] = RBAC) -> set[Grant]:
    return {
        (verb, group, resource, rule["namespace"] or "")
        for rule in rules_of(account, files)
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def used(double: Running, account: str) -> set[Grant]:
    calls = double.do(lambda: list(double.api.calls))
    return {(call.verb, call.group, call.resource, call.namespace) for call in calls if call.user == account}


@pytest.fixture
def guarded(double: Running) -> Running:
    """The double, which refuses whatever the file does not grant."""
    accounts = ("smoe-gateway", "smoe-controller")
    double.set(users={name: name for name in accounts}, grants={name: rules_of(name) for name in accounts})
    return double


def _started_with(double: Running, namespace: str) -> str | None:
    """Memory limit of new pods, once the Deployment goes on."""
    spec_there = double.deployment("f", namespace)["spec"]
    limits = spec_there["template"]["spec"]["containers"][0]["resources"]["limits"]
    return None if "paused" in spec_there else str(limits["memory"])


def _pods(double: Running, namespace: str) -> set[str]:
    return double.do(lambda: {pod["metadata"]["name"] for pod in double.cluster.pods("f", namespace)})


async def everything(double: Running, backend: KubernetesBackend, namespace: str) -> None:
    """All that a gateway does in a namespace but the removal, and the repair of a create that was cut off."""

    async def until_ready(count: int) -> None:
        await until_so(lambda: ready(count)(backend.get("f", namespace)))

    await backend.put_secret("key", namespace, b"1", create=True)
    await backend.put_secret("key", namespace, b"2", create=False)
    function = spec("f", namespace=namespace, secrets=("key",))
    await backend.create(function, 1)
    await until_ready(1)
    more = {"memory": "512Mi", "cpu": "2"}
    await backend.update(replace(function, limits=more, env_vars={**function.env_vars, "max_inflight": "9"}))
    await until_so(lambda: _started_with(double, namespace) == more["memory"])
    looping = _pods(double, namespace)
    double.do(lambda: double.cluster.needs.update({"f": "800Mi"}))
    double.do(lambda: double.cluster.end_containers("f"))
    await until_so(lambda: looping.isdisjoint(_pods(double, namespace)))
    double.do(double.cluster.needs.clear)
    double.do(lambda: double.cluster.end_containers("f"))
    await backend.update(replace(function, image="smoe/function:2"))
    await backend.scale("f", namespace, 2)
    await until_ready(2)
    _ = [line async for line in backend.logs("f", namespace, instance=None, since_s=None, tail=1, follow=False)]
    double.do(lambda: double.store.delete("services", namespace, "f"))


@pytest.mark.slow
@pytest.mark.parametrize(("files", "places"), [(RBAC, [DEFAULT_NAMESPACE]), (EVERYWHERE, [DEFAULT_NAMESPACE, TEAM])])
async def test_the_gateway_does_all_that_it_may_and_nothing_else(
    guarded: Running, backends: Backends, files: Sequence[Path], places: list[str]
) -> None:
    guarded.set(metrics={}, grants={"smoe-gateway": rules_of("smoe-gateway", files)})
    guarded.do(lambda: guarded.cluster.add_namespace(TEAM, {"openfaas": "1"}))
    guarded.do(lambda: guarded.cluster.add_namespace("strangers"))
    more = {"all_namespaces": True} if len(places) > 1 else {}
    backend = await backends("smoe-gateway", **more)
    for place in places:
        await everything(guarded, backend, place)
    second = await backends("smoe-gateway", **more)

    def served_again() -> bool:
        return all(guarded.do(lambda it=place: guarded.store.find("services", it, "f")) for place in places)  # type: ignore[misc]

    await until_so(served_again)
    for place in places:
        await backend.delete("f", place)
        await backend.delete_secret("key", place)
    await until_so(lambda: not second.list())
    async with asyncio.timeout(100):
        while (missing := granted("smoe-gateway", files) - used(guarded, "smoe-gateway")) and second.version() >= 0:
            await asyncio.sleep(0.02)
    assert missing == set()
    assert used(guarded, "smoe-gateway") == granted("smoe-gateway", files)


def test_further_namespaces_give_the_gateway_what_it_has_at_home() -> None:
    def there(place: str) -> set[tuple[str, ...]]:
        return {grant[:3] for grant in granted("smoe-gateway", EVERYWHERE) if grant[3] == place}

    assert there(TEAM) == there(DEFAULT_NAMESPACE) == {grant[:3] for grant in granted("smoe-gateway")}
    assert there("") == {("list", "", "namespaces"), ("watch", "", "namespaces")}


def test_a_further_namespace_gives_the_controller_and_prometheus_what_they_have_at_home() -> None:
    files = (*EVERYWHERE, DEPLOY / "kubernetes" / "prometheus.yaml")
    for account in ("smoe-controller", "smoe-prometheus"):
        at = {
            place: {grant[:3] for grant in granted(account, files) if grant[3] == place}
            for place in (TEAM, DEFAULT_NAMESPACE)
        }
        assert at[TEAM] == at[DEFAULT_NAMESPACE] != set()


async def test_the_controller_does_all_that_it_may_and_nothing_else(guarded: Running, platforms: Platforms) -> None:
    put(guarded, spec("f"))
    platform = platforms("smoe-controller")
    present = platform.configurations()["f"]
    target = configuration(2, memory_mb=512, concurrency=9)
    platform.apply("f", present, target)
    platform.apply("f", target, configuration(2, cpu_cores=0.0, gpu_share=0.2))
    platform.configurations()
    platform.keep()
    platform.cluster.follow()
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


def test_leases_are_of_the_name_that_controllers_are_started_with() -> None:
    controller = (DEPLOY / "kubernetes" / "controller.yaml").read_text()
    (name,) = re.findall(r"--lease=(\S+)", controller)
    for files in (RBAC, EVERYWHERE):
        rules = [rule for rule in rules_of("smoe-controller", files) if rule["resources"] == ["leases"]]
        names = {verb: rule.get("resourceNames") for rule in rules for verb in rule["verbs"]}
        assert names == {"create": None} | {verb: [name] for verb in ("get", "update")}


def test_a_call_that_is_not_granted_is_refused_by_the_double(guarded: Running, platforms: Platforms) -> None:
    """So that the comparison above cannot pass for want of looking."""
    guarded.set(grants={"smoe-controller": []})
    with pytest.raises(Exception, match='cannot list resource "deployments" in API group "apps"'):
        platforms("smoe-controller").configurations()


def test_there_are_no_wildcards_and_cluster_roles_only_for_further_namespaces() -> None:
    assert {one["kind"] for one in documents(RBAC)} == {"ServiceAccount", "Role", "RoleBinding"}
    for account in ("smoe-gateway", "smoe-controller"):
        assert not any("*" in part for part in sum(granted(account, EVERYWHERE), ()))
