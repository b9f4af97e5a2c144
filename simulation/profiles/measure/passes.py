"""What the ingress adds: whole passes through the pipeline, one at a time, with every function at a full core.

Its CPU seconds per pass are counted by its own cgroup, so other functions' work is not in them.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import median
from typing import Any

from autoscaler.monitor.growth import Samples
from autoscaler.monitor.scrape import parse_exposition
from functions.dispatch.client import ConnectionPool, TransportError
from functions.serving.metric_names import NODE_CALLS
from moe.manifest import Manifest
from simulation.profiles.fit.rows import Row, spread
from simulation.profiles.measure.concurrent import SIZES, bursts_s, measure_bursts
from simulation.profiles.measure.counters import ReplicaCounters, listening_pid
from simulation.profiles.measure.idle_gap import idle_s, measure_idle
from simulation.profiles.measure.in_pass import by_node, rows_between, spent
from simulation.profiles.measure.load import CALL_TIMEOUT_S, Call, closed_loop
from simulation.profiles.measure.measurement_plan import ProfileSettings, node_classes
from simulation.profiles.measure.requests import INGRESS, Counters, blank, close_all, request_to
from simulation.profiles.measure.stopped import Experts, measure_stopped, stopped_s
from simulation.profiles.measure.target import Function, Gateway, Setting
from simulation.profiles.model.errors import MeasurementError

log = logging.getLogger(__name__)

PASSES = 60
LEAST_S = 1.0
"""Passes are slow compared with calls: at least this long, in seconds."""
TEXTS = 8
"""Family of rows of requests after idle gaps."""
OnStep = Callable[[str, float], None]
Measure = Callable[[Sequence[Call], int, Sequence[Counters], ProfileSettings, asyncio.Runner], list[Row]]
"""Rounds of calls that take turns, a repeat, and counters of all that works for them."""


def requests_s(settings: ProfileSettings) -> float:
    """About how long one repeat of concurrent requests, of requests after idle gaps and of stopped experts takes."""
    return bursts_s(settings) + idle_s(settings) + stopped_s(settings)


def measure_passes(
    gateway: Gateway,
    manifest: Manifest,
    deployments: Mapping[str, dict[str, Any]],
    settings: ProfileSettings,
    runner: asyncio.Runner,
    on_step: OnStep,
    alone: bool = True,
) -> list[Row]:
    """One row for each number of tokens and repeat (not without ``alone``), those of concurrent requests and that
    come after pauses, and what each kind of node used for the latter; none for a pipeline that takes no text.

    What fails gives an infeasible row with the reason: by now the rest of the profile has been measured.
    """
    if manifest.tokenizer is None:
        return []
    functions = _functions(gateway, deployments, settings)
    rows: list[Row] = []
    try:
        addresses = _started(functions, on_step)
        replica = functions[INGRESS].wait_ready()
        counters = ReplicaCounters(listening_pid(replica.address))
        nodes = {node: ReplicaCounters(listening_pid(address)) for node, address in addresses.items()}
        workers = list(nodes.values())
        experts = _experts(manifest, functions, addresses, nodes, runner)
        longest = manifest.tokenizer.max_tokens
        for repeat in range(settings.repeats):
            for tokens in settings.tokens:
                if alone and 3 <= tokens <= longest:
                    on_step(f"passes of {tokens} tokens", settings.seconds_per_point)
                    rows.append(_measure(replica.address, tokens, repeat, counters, settings, runner))
            if 3 <= settings.surface_tokens <= longest:
                on_step("concurrent requests", bursts_s(settings))
                rows += _whole(measure_bursts, max(SIZES), replica.address, repeat, workers, settings, runner)
                on_step("requests after pauses", idle_s(settings))
                rows += _after_pauses(manifest, replica.address, repeat, nodes, settings, runner)
                on_step("experts that their limit stops", stopped_s(settings))
                measure = partial(measure_stopped, experts)
                rows += _whole(measure, TEXTS, replica.address, repeat, workers, settings, runner)
    except MeasurementError as error:
        rows.append(replace(blank(0, 0, settings), feasible=False, note=str(error)[:300]))
    finally:
        _remove(functions.values())
    return rows


def _started(functions: Mapping[str, Function], on_step: OnStep) -> dict[str, str]:
    """The address of each, once all are ready."""
    for name, function in functions.items():
        on_step(f"passes: starting {name}", 0.1)
        function.start()
    return {name: function.wait_ready().address for name, function in functions.items()}


def _remove(functions: Iterable[Function]) -> None:
    """All of them, also where one cannot be removed."""
    for function in reversed(list(functions)):
        try:
            function.remove()
        except Exception as error:
            log.warning("%s could not be removed: %s", function.name, error)


def _after_pauses(
    manifest: Manifest,
    ingress: str,
    repeat: int,
    nodes: Mapping[str, ReplicaCounters],
    settings: ProfileSettings,
    runner: asyncio.Runner,
) -> list[Row]:
    """Rows of requests after idle gaps to ``ingress`` (host:port), and of what each kind of node used for them."""
    before = spent(nodes, runner.run(_metrics(ingress)))
    rows = _whole(measure_idle, TEXTS, ingress, repeat, list(nodes.values()), settings, runner)
    after = spent(nodes, runner.run(_metrics(ingress)))
    others = median(row.others_cores or 0.0 for row in rows)
    return [*rows, *rows_between(before, after, node_classes(manifest), repeat, others, settings)]


def _experts(
    manifest: Manifest,
    functions: Mapping[str, Function],
    addresses: Mapping[str, str],
    counters: Mapping[str, ReplicaCounters],
    runner: asyncio.Runner,
) -> Experts:
    kinds = [kind for kind in node_classes(manifest) if manifest.node(kind.node).kind == "expert"]
    nodes = [node for kind in kinds for node in kind.members]
    return Experts(
        kinds,
        {node: functions[node] for node in nodes},
        {node: addresses[node] for node in nodes},
        lambda: spent(counters, runner.run(_metrics(addresses[INGRESS]))),
    )


def _functions(
    gateway: Gateway, deployments: Mapping[str, dict[str, Any]], settings: ProfileSettings
) -> dict[str, Function]:
    """Workers first, the ingress last, as it looks for them."""
    setting = Setting(1.0 / settings.cpu_scale, settings.ample_mib, 8)
    order = [node for node in deployments if node != INGRESS] + [INGRESS]
    return {node: Function(gateway, copy.deepcopy(deployments[node]), setting) for node in order}


def _whole(
    measure: Measure,
    texts: int,
    address: str,
    repeat: int,
    workers: list[ReplicaCounters],
    settings: ProfileSettings,
    runner: asyncio.Runner,
) -> list[Row]:
    """What ``measure`` makes of requests of so many unlike ``texts``, so that they do not all go to the same experts,
    nor one again and again to its own caches."""
    targets = [request_to(address, settings.surface_tokens, 5 * place) for place in range(texts)]
    try:
        return measure([target.call for target in targets], repeat, workers, settings, runner)
    finally:
        runner.run(close_all(targets))


def _measure(
    address: str,
    tokens: int,
    repeat: int,
    counters: ReplicaCounters,
    settings: ProfileSettings,
    runner: asyncio.Runner,
) -> Row:
    target = request_to(address, tokens)
    runner.run(closed_loop(target.call, 1, 4, settings.seconds_per_point))
    before, called = counters.read(), runner.run(_node_calls(address))
    recorded = runner.run(closed_loop(target.call, 1, PASSES, max(LEAST_S, settings.seconds_per_point)))
    after, called = counters.read(), runner.run(_node_calls(address)) - called
    runner.run(close_all([target]))
    if recorded.errors or not recorded.latencies_s:
        note = f"the ingress refused a text of about {tokens} tokens"
        return replace(blank(tokens, repeat, settings), feasible=False, note=note)
    counted = before.cpu_s is not None and after.cpu_s is not None
    cpu_s = (after.cpu_s or 0.0) - (before.cpu_s or 0.0)
    return replace(
        blank(tokens, repeat, settings),
        seconds=recorded.seconds,
        throughput_rps=len(recorded.latencies_s) / recorded.seconds,
        cpu_s_per_call=cpu_s / len(recorded.latencies_s) if counted else None,
        node_calls=called / len(recorded.latencies_s),
        **asdict(spread(recorded.latencies_s)),
    )


async def _node_calls(address: str) -> float:
    """Calls to nodes that the ingress has counted so far. Raises MeasurementError."""
    return sum(by_node(await _metrics(address), NODE_CALLS).values())


async def _metrics(address: str) -> Samples:
    """Metrics of the ingress. Raises MeasurementError."""
    pool = ConnectionPool(address)
    try:
        head = f"GET /metrics HTTP/1.1\r\nhost: {address}\r\n\r\n".encode()
        reply = await pool.call(head, (), CALL_TIMEOUT_S)
    except TransportError as error:
        raise MeasurementError(f"the ingress's metrics at {address} could not be read: {error}") from error
    finally:
        pool.close()
    return parse_exposition(bytes(reply.body).decode())
