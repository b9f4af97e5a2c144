"""The key that functions in containers take calls with: a secret which one gateway makes and all read."""

from __future__ import annotations

import asyncio
import base64
import re

import pytest

from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.contract import DEFAULT_NAMESPACE, BackendError
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
