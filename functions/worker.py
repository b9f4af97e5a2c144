"""A function as a local worker: forked by the process backend, or started by ``python -m functions.worker``.

Importing this module loads torch and everything a worker needs, so a warm parent imports it once and forks.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping

import torch
import uvloop

from functions import applications, preloading
from functions.ingress import handler as _preloaded_ingress  # noqa: F401 (forked workers share what is imported here)
from functions.serving import heap, live_settings
from functions.serving import nodes as _preloaded_nodes  # noqa: F401
from functions.serving.rehearsal import rehearse
from functions.serving.server import FunctionServer, ServerSettings
from functions.serving.settings import FunctionSettings, SettingsError, from_environment
from moe.errors import MoeError

log = logging.getLogger("functions.worker")

CLOSE_S = 1.0
"""Time for what is under way when the application is closed."""


def main(environ: Mapping[str, str], listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve the function described by ``environ`` on ``listener`` until SIGTERM, drain, return.

    ``ready`` is called once the weights are mapped, calls are rehearsed and the server accepts; SettingsError or
    MoeError come before that.
    """
    with _runner() as runner:
        runner.run(_serve(from_environment(environ), listener, ready))


def prepare(environ: Mapping[str, str]) -> Callable[[Mapping[str, str], socket.socket, Callable[[], None]], None]:
    """What can be done before the function is known, for a standby of this pipeline; returns the rest of :func:`main`.

    The event loop, the manifest, and a few calls of the smallest expert, so that the memory which is first touched by
    attaching and computing is there; of an ingress the tokenizer. Weights stay mapped by nobody. Raises SettingsError
    or MoeError.
    """
    runner = _runner()
    loop = runner.get_loop()
    settings = from_environment(environ)
    preloaded = preloading.read(settings)
    if not settings.is_ingress:
        loop.run_until_complete(preloading.rehearse_smallest(settings, preloaded.manifest))

    def rest(environ: Mapping[str, str], listener: socket.socket, ready: Callable[[], None]) -> None:
        settings = from_environment(environ)
        with runner:
            runner.run(_serve(settings, listener, ready, preloaded if preloaded.is_of(settings.pipeline_dir) else None))

    return rest


def _runner() -> asyncio.Runner:
    heap.give_back_large_blocks()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would not survive a fork
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _serve(
    settings: FunctionSettings,
    listener: socket.socket,
    ready: Callable[[], None],
    preloaded: preloading.Preloaded | None = None,
) -> None:
    loop = asyncio.get_running_loop()
    manifest, tokenizer = (preloaded.manifest, preloaded.tokenizer) if preloaded else (None, None)
    limits = ServerSettings(
        settings.max_inflight,
        max_connections=settings.max_connections,
        body_s=settings.read_timeout_s,
        drain_s=settings.write_timeout_s,
        caller_key=settings.caller_key(),
    )
    application = applications.build(settings, loop, manifest, tokenizer, limits)
    server = FunctionServer(application, limits)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGHUP, live_settings.apply, settings, server)
    live_settings.apply(settings, server)
    following = loop.create_task(live_settings.follow(settings, server))
    await rehearse(application)
    await server.start(listener)
    gc.freeze()
    ready()
    await stop.wait()
    log.info("draining %d calls", server.in_flight)
    following.cancel()
    await server.drain()
    application.close()
    cancelled = asyncio.all_tasks() - {asyncio.current_task()}
    if cancelled:  # they close connections, and an ingress's instances free pages that others would wait for
        await asyncio.wait(cancelled, timeout=CLOSE_S)


def _run_from_environment() -> int:
    try:
        port = int(os.environ.get("port", "8080"))
        with socket.create_server((os.environ.get("smoe_host", "127.0.0.1"), port), backlog=512) as listener:
            main(os.environ, listener, lambda: log.info("ready on port %d", port))
    except (SettingsError, MoeError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_run_from_environment())
