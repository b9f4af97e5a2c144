"""Objects in the form of an API server: what the controller keeps of them does not grow with what it does not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from autoscaler.platforms.kubernetes.cache import trimmed_deployment, trimmed_pod
from autoscaler.platforms.kubernetes.deployments import configuration_of
from benchmarks.controller.__main__ import pipeline
from benchmarks.controller.cluster import Cluster

Object = dict[str, Any]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cluster, Cluster]:
    """The same functions, plain and as an API server returns them."""
    directory: Path = tmp_path_factory.mktemp("pipeline") / "large"
    pipeline(directory, 70)
    return Cluster(directory), Cluster(directory, as_served=True)


def pairs(clusters: tuple[Cluster, Cluster], kind: str) -> list[tuple[Object, Object]]:
    plain, served = (getattr(cluster, kind).objects for cluster in clusters)
    assert plain.keys() == served.keys() and len(plain) >= 70
    return [(plain[name], served[name]) for name in plain]


def test_of_a_pod_only_what_is_read_is_kept(clusters: tuple[Cluster, Cluster]) -> None:
    for plain, served in pairs(clusters, "pods"):
        kept, kept_served = trimmed_pod(plain), trimmed_pod(served)
        assert not {"managedFields", "generateName", "ownerReferences"} & kept_served["metadata"].keys()
        assert kept_served["status"].keys() == {"phase", "conditions"}
        assert kept_served["spec"] == kept["spec"]
        assert len(orjson.dumps(served)) > 2 * len(orjson.dumps(plain))
        assert len(orjson.dumps(kept_served)) < 1.2 * len(orjson.dumps(kept))


def test_of_a_deployment_the_same_configuration_is_read(clusters: tuple[Cluster, Cluster]) -> None:
    for plain, served in pairs(clusters, "deployments"):
        kept = trimmed_deployment(served)
        assert "managedFields" not in kept["metadata"]
        assert configuration_of(kept) == configuration_of(plain) is not None
        assert len(orjson.dumps(kept)) < 0.4 * len(orjson.dumps(served))


def test_field_owners_are_stated_by_path(clusters: tuple[Cluster, Cluster]) -> None:
    name = next(iter(clusters[1].deployments.objects))
    gateway, scale, manager = clusters[1].deployments.objects[name]["metadata"]["managedFields"]
    template = gateway["fieldsV1"]["f:spec"]["f:template"]["f:spec"]
    assert "f:image" in template["f:containers"][f'k:{{"name":"{name}"}}']
    assert "f:replicas" not in gateway["fieldsV1"]["f:spec"] and "f:status" not in gateway["fieldsV1"]
    assert scale["fieldsV1"] == {"f:spec": {"f:replicas": {}}}
    assert manager["subresource"] == "status" and "f:readyReplicas" in manager["fieldsV1"]["f:status"]


def test_a_replica_that_starts_and_ends_causes_the_events_of_a_cluster(tmp_path: Path) -> None:
    pipeline(tmp_path / "large", 8)
    cluster = Cluster(tmp_path / "large", as_served=True)
    events: dict[str, Any] = {"pods": _Queue(), "deployments": _Queue()}
    cluster.pods.watches.add(events["pods"])
    cluster.deployments.watches.add(events["deployments"])
    deployment = next(iter(cluster.deployments.objects.values()))
    for before, wanted in ((2, 3), (3, 2)):
        deployment["spec"]["replicas"] = wanted
        cluster.scaled(deployment, before)
    assert [one["type"] for one in events["pods"].seen] == ["ADDED", *["MODIFIED"] * 5, "DELETED"]
    versions = [int(one["object"]["metadata"]["resourceVersion"]) for one in events["pods"].seen]
    assert versions == sorted(set(versions))
    counts = [one["object"]["status"]["readyReplicas"] for one in events["deployments"].seen]
    assert counts == [2, 3, 2, 2]


class _Queue:
    def __init__(self) -> None:
        self.seen: list[Object] = []

    def put_nowait(self, line: bytes) -> None:
        self.seen.append(orjson.loads(line))
