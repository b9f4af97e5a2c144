"""The key that functions in containers take calls with: a secret which one gateway makes and all read."""

from __future__ import annotations

import asyncio
import base64
import re

import pytest

from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.contract import DEFAULT_NAMESPACE, BackendError
from gateway.feed import ReplicaFeed
from tests.doubles.kubernetes.fixtures import Backends, until_so
from tests.doubles.kubernetes.functions import spec
from tests.doubles.kubernetes.running import Running

pytestmark = pytest.mark.timeout(600)


def key_of(backend: KubernetesBackend, name: str) -> str:
    return backend.get(name, DEFAULT_NAMESPACE).caller_key


async def test_gateways_make_one_key_and_give_it_for_functions_of_this_package_alone(
    double: Running, backends: Backends
) -> None:
    one, other = await asyncio.gather(backends(caller_secret="callers"), backends(caller_secret="callers"))
    await one.create(spec("f"), 1)
    await one.create(spec("foreign", env_vars={}), 1)
    await until_so(lambda: len(other.list()) == 2)
    secret = double.do(lambda: double.store.get("secrets", DEFAULT_NAMESPACE, "callers"))
    key = base64.b64decode(secret["data"]["caller-key"]).decode()
    assert re.fullmatch("[0-9a-f]{64}", key)
    assert [key_of(backend, "f") for backend in (one, other)] == [key, key]
    assert key_of(one, "foreign") == ""
    assert "callers" not in one.secret_names(DEFAULT_NAMESPACE)
    assert key not in repr(one.get("f", DEFAULT_NAMESPACE))


async def test_without_the_setting_there_is_no_secret_and_no_key(double: Running, backends: Backends) -> None:
    backend = await backends()
    await backend.create(spec("f"), 1)
    assert key_of(backend, "f") == ""
    assert double.do(lambda: double.store.find("secrets", DEFAULT_NAMESPACE, "callers")) is None


async def test_a_secret_without_a_key_is_named(backends: Backends) -> None:
    backend = await backends()
    await backend.put_secret("callers", DEFAULT_NAMESPACE, b"x", create=True)
    with pytest.raises(BackendError, match="secret callers has no caller-key; delete it"):
        await backends(caller_secret="callers")


async def test_once_the_secret_is_deleted_the_next_gateway_makes_another_key(
    double: Running, backends: Backends
) -> None:
    first = await backends(caller_secret="callers")
    await first.create(spec("f"), 1)
    double.do(lambda: double.store.delete("secrets", DEFAULT_NAMESPACE, "callers"))
    second = await backends(caller_secret="callers")
    assert key_of(second, "f") not in ("", key_of(first, "f"))


async def test_the_feed_has_the_keys_of_all_namespaces(double: Running, backends: Backends) -> None:
    double.do(lambda: double.cluster.add_namespace("team-a", {"openfaas": "1"}))
    backend = await backends(caller_secret="callers", all_namespaces=True)
    for namespace in (DEFAULT_NAMESPACE, "team-a"):
        await backend.create(spec("f", namespace=namespace), 1)
    await until_so(lambda: len(backend.list()) == 2)
    functions = ReplicaFeed(backend).snapshot()["functions"]
    keys = {entry["key"] for entry in functions.values()}
    assert (len(functions), len(keys), "" in keys) == (2, 2, False)
