"""Several namespaces under one gateway, and several gateways whose orders cross, on an API server."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from autoscaler.errors import FunctionGoneError
from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.contract import DEFAULT_NAMESPACE, ConflictError, InvalidSpecError, NotFoundError
from tests.cluster.conftest import Backends, Target, until
from tests.cluster.namespaces import Asking
from tests.doubles.kubernetes.crossing import crossed
from tests.doubles.kubernetes.functions import spec

pytestmark = pytest.mark.timeout(1200)


def annotate(asking: Asking, value: str | None) -> None:
    asking.patch("", {"metadata": {"annotations": {"openfaas": value}}})


def served(backend: KubernetesBackend, namespace: str) -> bool:
    try:
        backend.check_namespace(namespace)
    except InvalidSpecError:
        return False
    return True


@pytest.mark.slow
async def test_functions_of_one_name_live_apart_in_two_namespaces_of_one_gateway(
    target: Target, backends: Backends
) -> None:
    team = await asyncio.to_thread(target.another)
    place = team.namespace
    backend = await backends(all_namespaces=True)
    with pytest.raises(InvalidSpecError, match="openfaas"):
        backend.check_namespace(place)
    annotate(team, "1")
    await until(lambda: served(backend, place))
    await backend.create(spec("f"), 1)
    await backend.create(spec("f", namespace=place), 2)

    def ready(namespace: str) -> int:
        return len(backend.get("f", namespace).ready)

    await until(lambda: (ready(DEFAULT_NAMESPACE), ready(place)) == (1, 2))
    there, here = (team.read("apps/v1:deployments/f"), target.deployment())
    (container,) = there["spec"]["template"]["spec"]["containers"]
    assert {"name": "OPENFAAS_NAMESPACE", "value": place} in container["env"]
    assert (there["spec"]["replicas"], here["spec"]["replicas"]) == (2, 1)
    await backend.scale("f", place, 1)
    await backend.delete("f", DEFAULT_NAMESPACE)
    await until(lambda: ready(place) == 1 and not target.pods())
    annotate(team, None)
    await until(lambda: not served(backend, place))
    with pytest.raises(NotFoundError):
        backend.get("f", place)
    assert team.read("apps/v1:deployments/f")["spec"]["replicas"] == 1


async def test_of_two_creates_that_cross_one_wins_whole_and_the_other_is_reported(
    target: Target, backends: Backends
) -> None:
    one, two = await backends(), await backends()
    for nth in itertools.count():
        mine = spec(f"f-{nth}", labels={"owner": "one"})
        other = replace(mine, image="smoe/function:2", labels={"owner": "two"})
        first, second = await backends(), await backends()
        ended = await crossed(
            first, second, nth, lambda it, f=mine: it.create(f, 1), lambda it, f=other: it.create(f, 1)
        )  # type: ignore[misc]
        if not ended:
            break
        assert [type(end) for end in ended].count(ConflictError) == 1, (nth, ended)
        winner = other if ended[0] else mine
        await until(lambda f=winner: all(f in [it.spec for it in seen.list()] for seen in (one, two)))  # type: ignore[misc]
        document = target.deployment(winner.name)
        (container,) = document["spec"]["template"]["spec"]["containers"]
        assert (container["image"], document["metadata"]["labels"]["owner"]) == (winner.image, winner.labels["owner"])
        service = target.asking.read(f"services/{winner.name}")
        assert [it["uid"] for it in service["metadata"]["ownerReferences"]] == [document["metadata"]["uid"]]
    assert nth >= 2


@pytest.mark.slow
@pytest.mark.parametrize("rolls", [True, False], ids=["roll-out", "live"])
async def test_an_update_that_crosses_a_removal_does_not_bring_the_function_back(
    target: Target, backends: Backends, rolls: bool
) -> None:
    for nth in itertools.count():
        function = spec(f"f-{nth}")
        changed = replace(function, limits={"memory": "512Mi", "cpu": "2"}, labels={"live": "yes"})
        update = replace(changed, image="smoe/function:2") if rolls else changed
        one, two = await backends(), await backends()
        await one.create(function, 1)
        await until(lambda it=two, name=function.name: name in [one.spec.name for one in it.list()])  # type: ignore[misc]
        ended = await crossed(
            one,
            two,
            nth,
            lambda it, f=update: it.update(f),  # type: ignore[misc]
            lambda it, name=function.name: it.delete(name, DEFAULT_NAMESPACE),  # type: ignore[misc]
        )
        if not ended:
            break
        assert isinstance(ended[0], NotFoundError) and ended[1] is None
        with pytest.raises(FunctionGoneError):
            target.deployment(function.name)
    assert nth >= 1
