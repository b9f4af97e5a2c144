"""The gateway's cache of objects where an API server breaks off what it began."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import pytest

from gateway.backends.kubernetes.api import Api, Object, UnreachableError
from gateway.backends.kubernetes.informer import Informer
from gateway.backends.kubernetes.settings import KubernetesSettings


class BrokenApi:
    """Pages by their token, the first one's empty; what is no page is raised. Watches end as soon as they are open."""

    def __init__(self, pages: dict[str, Object | Exception]) -> None:
        self.pages = pages
        self.watched: list[str] = []

    async def get(self, path: str, params: Mapping[str, str], accept: str = "") -> Object:
        page = self.pages[params.get("continue", "")]
        if isinstance(page, Exception):
            raise page
        return page

    async def lines(
        self, path: str, params: Mapping[str, str], accept: str = "", silence_s: float | None = None
    ) -> AsyncIterator[bytes]:
        self.watched.append(params["resourceVersion"])
        await asyncio.sleep(0)
        for line in ():
            yield line


def page(version: str, *names: str, after: str = "") -> Object:
    items = [{"metadata": {"name": name, "uid": name, "resourceVersion": version}} for name in names]
    return {"metadata": {"resourceVersion": version, **({"continue": after} if after else {})}, "items": items}


def informer(api: BrokenApi, changed: Callable[[Any], None] = lambda function: None, **more: Any) -> Informer:
    return Informer(cast(Api, api), "/p", "s", KubernetesSettings(**more), changed)


async def followed(cache: Informer, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await cache.follow()


async def test_a_list_that_broke_off_leaves_objects_and_version_as_they_were() -> None:
    """With the version of a list whose objects were not taken, what changed until then would never be seen."""
    api = BrokenApi({"": page("1", "a")})
    cache = informer(api)
    await cache.load()
    api.pages = {"": page("7", "b", after="more"), "more": UnreachableError("gone")}
    with suppress(UnreachableError):
        await cache.load()
    await followed(cache, 0.05)
    assert (list(cache.objects), set(api.watched)) == (["a"], {"1"})


@pytest.mark.slow
async def test_watches_that_end_at_once_are_opened_again_after_pauses() -> None:
    api = BrokenApi({"": page("1", "a")})
    cache = informer(api, first_wait_s=0.2)
    await cache.load()
    await followed(cache, 0.5)
    assert 2 <= len(api.watched) <= 4
