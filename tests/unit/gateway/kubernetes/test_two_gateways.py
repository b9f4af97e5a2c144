"""Two gateways that are given orders about the same thing in the same moment: one of them wins, whole, and both callers
get true answers. One gateway is stopped before one of its calls while the other does all of its work.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.backends.kubernetes.space import Space
from gateway.contract import DEFAULT_NAMESPACE, ConflictError, FunctionSpec, GatewayError, NotFoundError
from tests.doubles.kubernetes.crossing import Order, crossed
from tests.doubles.kubernetes.fixtures import Backends, ready, until, until_so
from tests.doubles.kubernetes.functions import spec
from tests.doubles.kubernetes.running import Running

pytestmark = pytest.mark.timeout(600)
F = spec("f", labels={"team": "a"})
OTHER = replace(F, image="smoe/function:2", env_vars={**F.env_vars, "a": "b"}, labels={"owner": "two"})
LIVE = replace(F, labels={"live": "yes"}, limits={"memory": "512Mi", "cpu": "2"})


def home(backend: KubernetesBackend) -> Space:
    return backend.spaces[DEFAULT_NAMESPACE]


def kept(double: Running) -> FunctionSpec:
    """The function that the cluster holds, which it is in all its parts: metadata, template, Service."""
    document = double.deployment("f")
    kept = objects.spec_of(document)
    assert kept is not None
    wanted = objects.deployment(kept, KubernetesSettings(), frozenset())
    (container,) = document["spec"]["template"]["spec"]["containers"]
    (like,) = wanted["spec"]["template"]["spec"]["containers"]
    for part in (container, like):
        part["env"].sort(key=lambda entry: entry["name"])
    assert (container["image"], container["env"]) == (like["image"], like["env"])
    assert document["metadata"]["labels"] == wanted["metadata"]["labels"]
    service = double.do(lambda: double.store.get("services", DEFAULT_NAMESPACE, "f"))
    assert [owner["uid"] for owner in service["metadata"]["ownerReferences"]] == [document["metadata"]["uid"]]
    return kept


async def test_of_two_creates_in_one_moment_one_wins_and_the_other_is_refused(
    double: Running, backends: Backends
) -> None:
    for nth in itertools.count():
        one, two = await backends(), await backends()
        ended = await crossed(one, two, nth, lambda it: it.create(F, 1), lambda it: it.create(OTHER, 1))
        if not ended:
            break
        assert [type(end) for end in ended].count(ConflictError) == 1, (nth, ended)
        assert kept(double) == (OTHER if ended[0] else F)
        await until_so(lambda both=(one, two): [len(it.list()) for it in both] == [1, 1])  # type: ignore[misc]
        await until(one, ready(1))
        await one.delete("f", DEFAULT_NAMESPACE)
    assert nth >= 2


@pytest.mark.slow
@pytest.mark.parametrize("first", [OTHER, LIVE], ids=["roll-out first", "live first"])
@pytest.mark.parametrize("second", [replace(OTHER, image="smoe/function:3"), LIVE], ids=["roll-out", "live"])
async def test_of_two_updates_in_one_moment_one_stays_whole(
    double: Running, backends: Backends, first: FunctionSpec, second: FunctionSpec
) -> None:
    for nth in itertools.count():
        one, two = await backends(), await backends()
        await one.create(F, 1)
        ended = await crossed(one, two, nth, lambda it: it.update(first), lambda it: it.update(second))
        if not ended:
            break
        assert ended == [None, None]
        assert kept(double) in (first, second)
        await one.delete("f", DEFAULT_NAMESPACE)
    assert nth >= 1


@pytest.mark.parametrize("update", [OTHER, LIVE], ids=["roll-out", "live"])
async def test_an_update_does_not_bring_back_what_was_deleted_meanwhile(
    double: Running, backends: Backends, update: FunctionSpec
) -> None:
    for nth in itertools.count():
        one, two = await backends(), await backends()
        await one.create(F, 1)
        await until_so(lambda it=two: bool(it.list()))  # type: ignore[misc]
        ended = await crossed(one, two, nth, lambda it: it.update(update), lambda it: it.delete("f", DEFAULT_NAMESPACE))
        if not ended:
            break
        assert isinstance(ended[0], NotFoundError) and ended[1] is None
        assert double.do(lambda: double.store.find("deployments", DEFAULT_NAMESPACE, "f")) is None
    assert nth >= 1


async def test_an_update_leaves_alone_what_was_deleted_and_deployed_again_meanwhile(
    double: Running, backends: Backends
) -> None:
    one, two = await backends(), await backends()
    await one.create(F, 1)
    await until_so(lambda: bool(two.list()))
    third = replace(F, image="smoe/function:3")

    async def again(it: KubernetesBackend) -> None:
        await it.delete("f", DEFAULT_NAMESPACE)
        await it.create(third, 1)

    ended = await crossed(one, two, 1, lambda it: it.update(OTHER), again)
    assert isinstance(ended[0], ConflictError) and "deployed again meanwhile" in str(ended[0])
    assert kept(double) == third


async def test_of_two_secrets_made_in_one_moment_one_stays_and_the_other_caller_is_refused(
    double: Running, backends: Backends
) -> None:
    def put(value: bytes) -> Order:
        return lambda it: it.put_secret("key", DEFAULT_NAMESPACE, value, create=True)

    ended = await crossed(await backends(), await backends(), 0, put(b"one"), put(b"two"))
    assert isinstance(ended[0], ConflictError) and ended[1] is None
    assert double.do(lambda: double.store.get("secrets", DEFAULT_NAMESPACE, "key"))["data"] == {"key": "dHdv"}


@pytest.mark.parametrize("what", ["function", "secret"])
async def test_a_create_whose_answer_was_lost_is_no_conflict_with_itself(
    backends: Backends, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    backend = await backends()
    once, lost = backend.api.once, False

    async def losing(method: str, *rest: Any) -> Any:
        nonlocal lost
        answer = await once(method, *rest)
        if method == "POST" and not lost:
            lost = True
            raise aiohttp.ServerDisconnectedError
        return answer

    monkeypatch.setattr(backend.api, "once", losing)

    async def make() -> None:
        if what == "function":
            await backend.create(F, 1)
        else:
            await backend.put_secret("key", DEFAULT_NAMESPACE, b"1", create=True)

    await make()
    assert lost
    with pytest.raises(ConflictError):
        await make()


async def test_a_function_that_another_gateway_deleted_just_now_can_be_deployed_again(
    double: Running, backends: Backends
) -> None:
    one, two = await backends(), await backends()
    await one.create(F, 1)
    await until_so(lambda: bool(two.list()))
    home(two).deployments.take = lambda kind, document: None  # type: ignore[method-assign] # its watch lags
    await one.delete("f", DEFAULT_NAMESPACE)
    await two.create(OTHER, 1)
    assert kept(double) == OTHER


async def test_what_an_update_takes_away_is_gone_and_replicas_stay(double: Running, backends: Backends) -> None:
    """Fields of the create, of a change of labels and of an apply are all this gateway's to take away."""
    backend = await backends()
    await backend.create(OTHER, 3)
    await backend.update(replace(OTHER, labels={"late": "label"}))
    await backend.update(F)
    assert kept(double) == F
    assert double.deployment("f")["spec"]["replicas"] == 3
    await backend.scale("f", DEFAULT_NAMESPACE, 2)
    await backend.update(OTHER)
    assert kept(double) == OTHER
    assert double.deployment("f")["spec"]["replicas"] == 2


async def test_orders_for_what_another_gateway_made_just_now_are_carried_out(
    double: Running, backends: Backends
) -> None:
    one, two = await backends(), await backends()
    home(two).deployments.take = lambda kind, document: None  # type: ignore[method-assign] # its watch lags
    await one.create(F, 1)
    with pytest.raises(GatewayError, match="there is no function f"):
        two.get("f", DEFAULT_NAMESPACE)
    assert (await two.look("f", DEFAULT_NAMESPACE)).spec == F
    await two.scale("f", DEFAULT_NAMESPACE, 2)
    assert double.deployment("f")["spec"]["replicas"] == 2
    await two.delete("f", DEFAULT_NAMESPACE)
    with pytest.raises(NotFoundError):
        await two.look("f", DEFAULT_NAMESPACE)
