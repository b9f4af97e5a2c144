"""The weights manager of one node: an image like any other, ``functions.memory.manager:main``.

    POST /hold     {"regions": [{"name", "bytes", "sha256", "peer": "HOST:PORT" | null}]}   have them, a few at once
    POST /release  {"names": [...]}                                          give regions back
    GET  /held                                                               what is here and coming, measured rates
    POST /bytes/NAME  with x-smoe-offset                 a piece of a region and its digest, for other managers

Every path takes the bearer token of the replica feed. A region that is coming already is waited for, not fetched twice.
Environment: ``smoe_weights_dir`` (the node's memory folder), ``smoe_pipelines_dir`` (disk), ``smoe_machine``,
``smoe_memory_bytes``, ``smoe_link_bytes_per_s``, ``smoe_disk_bytes_per_s`` (0: no limit), ``smoe_feed_token_file``;
with ``smoe_device`` ``cuda`` it lends regions on GPUs too (``lending``), at most ``smoe_device_memory_bytes`` on each.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from functions.memory.cuda_memory import CudaMemory
from functions.memory.device_regions import DeviceRegions
from functions.memory.lending import Lending
from functions.memory.regions import Filling, Region, RegionError, Regions, SourceError, check_name
from functions.memory.sources import DIGEST, OFFSET, PIECE, Line, from_disk, from_peer
from functions.serving.device_loss import leave
from functions.serving.server import FunctionServer, ServerSettings
from functions.serving.settings import DeviceSettings, SettingsError, device_settings, duration_s
from functions.wire.messages import Reply, Request, error_reply

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Regions of one request that come at the same time; they share the line's rate."""


@dataclass(frozen=True)
class ManagerSettings:
    """What a manager is made from."""

    node: str
    folder: Path
    pipelines: Path
    token: str
    memory_bytes: int = 0
    link_bytes_per_s: float = 0.0
    disk_bytes_per_s: float = 0.0
    drain_s: float = 30.0
    device: DeviceSettings = field(default_factory=DeviceSettings)
    """``cuda``: regions are lent on GPUs."""
    device_memory_bytes: int = 0


def from_environment(environ: Mapping[str, str]) -> ManagerSettings:
    """Read and check. Raises SettingsError."""
    missing = [
        key for key in ("smoe_weights_dir", "smoe_pipelines_dir", "smoe_feed_token_file") if not environ.get(key)
    ]
    if missing:
        raise SettingsError(f"{missing[0]} is not set; a weights manager runs on a node (gateway option --machine)")
    return ManagerSettings(
        node=environ.get("smoe_machine", ""),
        folder=Path(environ["smoe_weights_dir"]),
        pipelines=Path(environ["smoe_pipelines_dir"]),
        token=Path(environ["smoe_feed_token_file"]).read_text().strip(),
        memory_bytes=int(_number(environ, "smoe_memory_bytes")),
        link_bytes_per_s=_number(environ, "smoe_link_bytes_per_s"),
        disk_bytes_per_s=_number(environ, "smoe_disk_bytes_per_s"),
        drain_s=duration_s("write_timeout", environ.get("write_timeout", "30s")),
        device=device_settings(environ),
        device_memory_bytes=int(_number(environ, "smoe_device_memory_bytes")),
    )


def _number(environ: Mapping[str, str], key: str) -> float:
    text = environ.get(key, "").strip() or "0"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise SettingsError(f"{key} is {text[:40]!r}; it takes a number of 0 or more, 0 for no limit")
    return value


class Manager:
    """The application. Regions that come share their source's line; requests are answered meanwhile."""

    def __init__(self, settings: ManagerSettings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings = settings
        self._loop = loop
        self.regions = Regions(settings.folder, settings.memory_bytes)
        self._in = Line(settings.link_bytes_per_s)
        self._out = Line(settings.link_bytes_per_s)
        self._disk = Line(settings.disk_bytes_per_s)
        self._coming: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._disk_reads: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        """Digests of whole regions, by name."""
        self._stopping = False
        self._devices: DeviceRegions | None = None

    def lend(self, memory: CudaMemory, on_lost: Callable[[str], object]) -> Lending:
        """Lend what is held on GPUs too, from ``start`` of what is returned to its ``close``."""
        self._devices = DeviceRegions(self.regions, memory, self._settings.device_memory_bytes, on_lost)
        return Lending(self._settings.folder, self._devices)

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._settings.token}".encode()):
            answer(error_reply(401, "token", "a weights manager takes the token of the replica feed", platform=False))
            return
        task = self._loop.create_task(self._answer(request, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def metrics(self) -> bytes:
        return b""

    def stop(self) -> None:
        """Break off what is coming and say so to those who wait; what has come stays and is gone on with."""
        self._stopping = True
        for task in self._coming.values():
            task.cancel()

    def close(self) -> None:
        """Let go of everything."""
        self.stop()
        for task in self._tasks:
            task.cancel()

    async def _answer(self, request: Request, answer: Callable[[Reply], None]) -> None:
        try:
            answer(await self._serve(request))
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            answer(error_reply(503, "stopping", "the weights manager stops; another goes on", platform=True))
        except RegionError as error:
            answer(error_reply(409, "region", str(error), platform=False))
        except SourceError as error:
            answer(error_reply(502, "source", str(error), platform=False))
        except (KeyError, TypeError, ValueError) as error:
            answer(error_reply(400, "bad_request", f"not what this path takes: {error!r}", platform=False))
        except Exception:
            log.exception("%s failed", request.path)
            answer(error_reply(500, "internal", "the weights manager failed; its log has the reason", platform=True))

    async def _serve(self, request: Request) -> Reply:
        path = request.path
        if path == "/held":
            return _json(self.held())
        if path == "/hold":
            asked = [(_region(one), one.get("peer")) for one in json.loads(request.body)["regions"]]
            return _json({"regions": await self._hold_all(asked)})
        if path == "/release":
            names = [check_name(str(name)) for name in json.loads(request.body)["names"]]
            return _json({"freed": sum(self._release(name) for name in names)})
        if path.startswith("/bytes/"):
            return await self._bytes(path.removeprefix("/bytes/"), int(request.headers.get(OFFSET, "0")))
        return error_reply(404, "not_found", f"there is no {path[:80]}", platform=False)

    def held(self) -> dict[str, Any]:
        """What this node has, and what its lines carried so far."""
        return {
            "node": self._settings.node,
            "held": self.regions.held(),
            "unfinished": self.regions.unfinished(),
            "memory_bytes": self._settings.memory_bytes,
            "rates": {
                "link": self._in.measured or self._settings.link_bytes_per_s or None,
                "disk": self._disk.measured or self._settings.disk_bytes_per_s or None,
            },
            "disk_reads": self._disk_reads,
            "on_devices": self._devices.held() if self._devices is not None else [],
        }

    async def _hold_all(self, asked: list[tuple[Region, str | None]]) -> list[dict[str, Any]]:
        """Have all of them. Where one fails no other is begun, and those under way end before the caller gets the
        error: so a caller that asks again, from elsewhere, does not join what is bound to fail, and can give back what
        came."""
        turns = asyncio.Semaphore(AT_ONCE)
        waiting = [self._loop.create_task(self._hold(turns, *one)) for one in asked]
        try:
            return list(await asyncio.gather(*waiting))
        except (SourceError, RegionError):
            for one in waiting:
                one.cancel()
            under_way = [task for region, _ in asked if (task := self._coming.get(region.name)) is not None]
            await asyncio.gather(*waiting, *under_way, return_exceptions=True)
            raise

    async def _hold(self, turns: asyncio.Semaphore, region: Region, peer: str | None) -> dict[str, Any]:
        async with turns:
            return await self.hold(region, peer)

    async def hold(self, region: Region, peer: str | None) -> dict[str, Any]:
        """Have ``region`` whole. Raises RegionError, SourceError."""
        if self.regions.held().get(region.name) == region.nbytes:
            return {"source": "reuse", "copied": 0, "resumed_at": region.nbytes, "seconds": 0.0}
        task = self._coming.get(region.name)
        if task is None:
            if self._stopping:
                raise asyncio.CancelledError
            task = self._loop.create_task(self._fetch(region, peer))
            self._coming[region.name] = task
            task.add_done_callback(lambda _: self._coming.pop(region.name, None))
        return await asyncio.shield(task)

    async def _fetch(self, region: Region, peer: str | None) -> dict[str, Any]:
        began_s = time.monotonic()
        filling = self.regions.fill(region, from_peer=peer is not None)
        line = self._in if peer else self._disk
        line.begin(began_s)
        try:
            await self._bring(filling, peer)
            self._digests[region.name] = filling.digest
        finally:
            filling.close()
            line.end(filling.offset - filling.resumed_at, time.monotonic())
        seconds = time.monotonic() - began_s
        copied = region.nbytes - filling.resumed_at
        if not peer:
            self._disk_reads[region.name] = self._disk_reads.get(region.name, 0) + 1
        log.info("%s: %d bytes from %s in %.3f s", region.name, copied, peer or "disk", seconds)
        source = "peer" if peer else "disk"
        return {"source": source, "copied": copied, "resumed_at": filling.resumed_at, "seconds": seconds}

    async def _bring(self, filling: Filling, peer: str | None) -> None:
        """The bytes that are not there yet, and the proof of all of them. Raises SourceError, RegionError."""
        region, token = filling.region, self._settings.token
        if peer is None:
            if filling.offset < region.nbytes:
                await from_disk(self._settings.pipelines / region.name, filling.offset, self._disk, filling.append)
            filling.finish()
        else:
            proved = await from_peer(peer, region.name, filling.offset, region.nbytes, token, self._in, filling.append)
            filling.finish(proved)

    def _release(self, name: str) -> int:
        if name in self._coming:
            raise RegionError(f"{name} is coming at this moment")
        self._digests.pop(name, None)
        freed = self.regions.release(name)
        if self._devices is not None:
            self._devices.released(name)
        return freed

    async def _bytes(self, name: str, offset: int) -> Reply:
        """A piece of a region, written from where it is: its pages are mapped, not read."""
        path = self.regions.path(name)
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise RegionError(f"{name[:80]} is not held on node {self._settings.node}") from error
        try:
            piece = _mapped(descriptor, offset)
            if name not in self._digests:  # filled by an earlier manager
                self._digests[name] = self.regions.digest(name)
        finally:
            os.close(descriptor)
        await self._out.carry(len(piece))
        return Reply(200, (piece,), "application/octet-stream", {DIGEST: self._digests[name]})


def _mapped(descriptor: int, offset: int) -> memoryview:
    """At most PIECE bytes of a file from ``offset`` on; none where it ends before."""
    left = os.fstat(descriptor).st_size - offset
    if offset < 0 or left <= 0:
        return memoryview(b"")
    before = offset % mmap.ALLOCATIONGRANULARITY
    pages = mmap.mmap(
        descriptor,
        min(PIECE, left) + before,
        flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
        prot=mmap.PROT_READ,
        offset=offset - before,
    )
    return memoryview(pages)[before:]


def _region(asked: Mapping[str, Any]) -> Region:
    return Region(check_name(str(asked["name"])), int(asked["bytes"]), str(asked["sha256"]))


def _json(document: dict[str, Any]) -> Reply:
    return Reply(200, (json.dumps(document).encode(),))


def main(environ: Mapping[str, str], listener: socket.socket, ready: Callable[[], None]) -> None:
    """Manage the node's memory until SIGTERM. Raises SettingsError."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    settings = from_environment(environ)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, listener, ready))


async def _serve(settings: ManagerSettings, listener: socket.socket, ready: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    manager = Manager(settings, loop)
    server = FunctionServer(manager, ServerSettings(settle_s=0.0, drain_s=settings.drain_s))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    lending = _lending(settings, manager)
    await server.start(listener)
    ready()
    await stop.wait()
    manager.stop()
    if lending is None:
        await server.drain()
    else:
        await asyncio.gather(server.drain(), lending.drain(settings.drain_s))
        await lending.close()
    manager.close()
    await asyncio.sleep(0)


def _lending(settings: ManagerSettings, manager: Manager) -> Lending | None:
    """Begin to lend on GPUs where that is asked for; managing the node's memory goes on where it is not possible."""
    if settings.device.kind != "cuda":
        return None
    os.environ.update(settings.device.variables)  # CUDA reads them when it is first used
    lending = manager.lend(CudaMemory(), leave)
    try:
        lending.start()
    except OSError as error:
        log.error("regions are not lent on GPUs: %s: %s", settings.folder, error)
        return None
    return lending
