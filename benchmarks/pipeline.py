"""What a pass over functions costs next to the whole model in one process: ``python -m benchmarks.pipeline``.

Everything is measured in turns within one run, so ratios hold on a noisy machine. Both sides go from JSON bytes to
JSON bytes, tokenising included. ``floor_ms`` = whole + sequential hops × the cheapest hop (an echo of 20 kB by the
same client and server). ``rps`` has 16 clients and as many passes at once as cores (``smoe_max_passes``),
``rps_unpacked`` no such limit. ``whole_rps`` is one single-threaded process a core, one text at a time;
``whole_batched_rps`` the same with eight texts at a time. The last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import click
import numpy as np
import orjson
import torch
import uvloop

from benchmarks.harness import answers
from benchmarks.harness.local_pipeline import LocalPipeline
from benchmarks.harness.options import AT_LEAST_1, benchmark, seed_option
from benchmarks.harness.report import print_figures, print_result, progress
from functions.dispatch.client import ConnectionPool, request_head
from functions.serving.server import FunctionServer, ServerSettings
from functions.wire.messages import Reply, Request
from moe.reference import WholeModel
from smoe.pipelines import ensure_pipeline

TOKENS = 32
CLIENTS = 16
BATCH = 8
ECHO_BYTES = 20_000
Way = Callable[[bytes], Awaitable[bytes]]
"""A body to its answer."""
WORDS = """
the a of to in and for with on at by from this that it was are be have not they we you he she his her time
people water house river market city school paper letter music road light night morning summer winter train
doctor teacher children garden story question answer number system model language machine memory network price
company money country government history science energy weather mountain island bridge window table kitchen
""".split()  # noqa: SIM905


def make_texts(model: WholeModel, count: int, tokens: int, seed: int) -> list[str]:
    """Texts of exactly ``tokens`` tokens each."""
    chosen = random.Random(seed)
    texts: list[str] = []
    while len(texts) < count:
        text = " ".join(chosen.choice(WORDS) for _ in range(tokens - 2))
        if len(model.tokenizer.encode(text)) == tokens:
            texts.append(text)
    return texts


def whole_answer(model: WholeModel, body: bytes) -> bytes:
    """What the ingress does, in one process: JSON in, tokens, pass, JSON out."""
    inputs = orjson.loads(body)["inputs"]
    texts = [inputs] if isinstance(inputs, str) else inputs
    embeddings = model.embed(texts).numpy()
    return orjson.dumps({"model": model.manifest.name, "embeddings": embeddings}, option=orjson.OPT_SERIALIZE_NUMPY)


class Echo:
    """The cheapest function there is: its answer is its input."""

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        answer(Reply(200, (request.body,), "application/octet-stream"))

    def metrics(self) -> bytes:
        return b""

    def close(self) -> None:
        """Holds nothing."""


def _serve_echo(report: Connection) -> None:
    async def serve() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        await FunctionServer(Echo(), ServerSettings()).start(listener)
        report.send(listener.getsockname()[1])
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


@contextmanager
def echo_server() -> Iterator[str]:
    """Address of an echo function in a process of its own."""
    process, receive = _forked(_serve_echo)
    try:
        yield f"127.0.0.1:{receive.recv()}"
    finally:
        process.kill()
        process.join()


def _forked(target: Callable[..., None], *given: object) -> tuple[BaseProcess, Connection]:
    """A forked process, started, that reports through the connection it gets last; its end is the second."""
    context = multiprocessing.get_context("fork")
    receive, report = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*given, report), daemon=True)
    process.start()
    return process, receive


def _count_whole(model: WholeModel, bodies: Sequence[bytes], seconds: float, report: Connection) -> None:
    torch.set_num_threads(1)
    done, end_s, texts = 0, time.perf_counter() + seconds, 0
    while time.perf_counter() < end_s:
        body = bodies[done % len(bodies)]
        whole_answer(model, body)
        done += 1
        texts += body.count(b'", "') + 1
    report.send(texts / (time.perf_counter() - end_s + seconds))


def whole_rps(model: WholeModel, bodies: Sequence[bytes], seconds: float) -> float:
    """Texts a second of one process a core, all at once."""
    counting = [_forked(_count_whole, model, bodies, seconds) for _ in range(os.cpu_count() or 1)]
    total = sum(float(receive.recv()) for _, receive in counting)
    for process, _ in counting:
        process.join()
    return total


async def _post(pool: ConnectionPool, body: bytes) -> bytes:
    head = request_head("/", pool.address, "application/json", len(body), [])
    reply = await pool.call(head, [body], 60.0)
    if reply.status != 200:
        raise RuntimeError(f"{pool.address} answered {reply.status}: {bytes(reply.body[:300])!r}")
    return bytes(reply.body)


async def latencies_ms(answer: Way, bodies: Sequence[bytes]) -> list[float]:
    """One call after another."""
    result = []
    for body in bodies:
        begun_s = time.perf_counter()
        await answer(body)
        result.append((time.perf_counter() - begun_s) * 1000)
    return result


async def throughput(pool: ConnectionPool, bodies: Sequence[bytes], clients: int, seconds: float) -> float:
    """Answers a second with ``clients`` closed-loop clients."""
    end_s = time.perf_counter() + seconds

    async def client(index: int) -> int:
        done = 0
        while time.perf_counter() < end_s:
            await _post(pool, bodies[(index + clients * done) % len(bodies)])
            done += 1
        return done

    begun_s = time.perf_counter()
    done = sum(await asyncio.gather(*(client(index) for index in range(clients))))
    return done / (time.perf_counter() - begun_s)


def measure(
    directory: Path, *, rounds: int, calls: int, seconds: float, seed: int, show: Callable[[str, float], None]
) -> dict[str, object]:
    """All figures, in ``rounds`` turns of ``calls`` calls and ``seconds`` of load each."""
    torch.set_num_threads(1)
    model = WholeModel(directory)
    texts = make_texts(model, 64, TOKENS, seed)
    bodies = [json.dumps({"inputs": text}).encode() for text in texts]
    batches = [json.dumps({"inputs": texts[i : i + BATCH]}).encode() for i in range(0, len(texts), BATCH)]
    echo_body = bytes(ECHO_BYTES)
    taken, loads = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    few = {"smoe_max_passes": str(os.cpu_count() or 1)}
    with (
        echo_server() as echo_address,
        LocalPipeline(directory, max_inflight=CLIENTS, environ=few) as served,
        LocalPipeline(directory, max_inflight=CLIENTS) as plain,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        echo, ingress = ConnectionPool(echo_address), ConnectionPool(served.ingress.address)
        unpacked = ConnectionPool(plain.ingress.address)

        async def whole(body: bytes) -> bytes:
            return whole_answer(model, body)

        ways: dict[str, Way] = {"whole": whole, "hop": partial(_post, echo), "pipeline": partial(_post, ingress)}
        expected = np.array(json.loads(whole_answer(model, bodies[0]))["embeddings"])
        answer = json.loads(runner.run(_post(ingress, bodies[0])))
        answers.check_equal(answer["embeddings"], expected, "the pipeline")  # what is measured must also be right
        for name in ("whole", "pipeline"):
            runner.run(latencies_ms(ways[name], bodies[:16]))
        for turn in range(rounds):
            some = [bodies[(turn * calls + i) % len(bodies)] for i in range(calls)]
            for name, way in ways.items():
                taken[name] += runner.run(latencies_ms(way, [echo_body] * calls if name == "hop" else some))
            show("latency", turn + 1)
        for turn in range(rounds):
            loads["rps"].append(runner.run(throughput(ingress, bodies, CLIENTS, seconds)))
            loads["rps_unpacked"].append(runner.run(throughput(unpacked, bodies, CLIENTS, seconds)))
            loads["whole_rps"].append(whole_rps(model, bodies, seconds))
            loads["whole_batched_rps"].append(whole_rps(model, batches, seconds))
            show("load", rounds + turn + 1)
        for pool in (echo, ingress, unpacked):
            pool.close()
    return figures(model, taken, loads)


def figures(
    model: WholeModel, taken: Mapping[str, Sequence[float]], loads: Mapping[str, Sequence[float]]
) -> dict[str, object]:
    """The last line's object."""
    hops = 2 * model.manifest.layers + 1
    whole, hop = statistics.median(taken["whole"]), statistics.median(taken["hop"])
    pipeline = statistics.median(taken["pipeline"])
    floor = whole + hops * hop
    rates = {name: statistics.median(values) for name, values in loads.items()}
    return {
        "pipeline": model.manifest.name,
        "tokens": TOKENS,
        "cores": os.cpu_count(),
        "whole_ms": round(whole, 3),
        "hop_ms": round(hop, 4),
        "sequential_hops": hops,
        "floor_ms": round(floor, 3),
        "pipeline_p50_ms": round(pipeline, 3),
        "pipeline_p99_ms": round(statistics.quantiles(taken["pipeline"], n=100)[98], 3),
        "ratio": round(pipeline / floor, 3),
        **{name: round(rate, 1) for name, rate in rates.items()},
        "rps_ratio": round(rates["rps"] / rates["whole_rps"], 3),
    }


@benchmark
@click.option("--pipeline", default="minilm", help="Preset or folder.")
@click.option("--rounds", default=5, type=AT_LEAST_1, help="Turns of each way.")
@click.option("--calls", default=60, type=click.IntRange(2), help="Calls a turn.")
@click.option("--seconds", default=2.0, help="Length of each load turn in seconds.")
@seed_option
def main(pipeline: str, rounds: int, calls: int, seconds: float, seed: int) -> None:
    directory, _ = ensure_pipeline(pipeline, Path(".smoe/pipelines"))
    with progress(2 * rounds) as show:
        result = measure(directory, rounds=rounds, calls=calls, seconds=seconds, seed=seed, show=show)
    print_figures("pass over functions against the whole model", result)
    print_result(result)


if __name__ == "__main__":
    main()
