"""Text generation under load, abuse and time: ``python -m benchmarks.generation_soak --minutes 10``.

A small random decoder behind real worker processes. First ``--flood`` streams are opened at the same time and left
after ten seconds: those beyond the queue get 429. Then ``--clients`` threads stream without end: most texts are
compared with what the same model writes in one process, every fourth reader leaves in the midst, every tenth request
is malformed and has to be refused with 400.

``wrong``: texts that differ and refusals that are none. ``rss_growth``: memory of all processes at the end over that
at a fifth of the time, as the allocator's first minutes are not a leak. ``used_perc``: pages still in use after the
last client has left.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import threading
import time
from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks.generation import build, in_one_process
from benchmarks.harness.local_pipeline import LocalPipeline
from benchmarks.harness.options import AT_LEAST_1, benchmark, seed_option
from benchmarks.harness.report import print_result, print_table
from benchmarks.harness.run_folder import run_folder
from benchmarks.harness.streams import pieces, samples_of
from moe.reference import WholeModel

SMALL: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 128, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2,
    "mlp_only_layers": [], "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip
TOKENS, PROMPTS = 24, 24
FLOOD_S = 10.0
MALFORMED = (
    b"{",
    b'{"prompt": "t1 \xff"}',
    b'{"prompt": [99999]}',
    b'{"prompt": "t1", "max_tokens": 1000000}',
    b'{"prompt": "t1", "tools": [1]}',
    b'{"prompt": "' + b"t1 " * 5000 + b'"}',
)


class Soak:
    """What the clients share."""

    def __init__(self, address: str, texts: list[tuple[list[int], str]], until_s: float) -> None:
        self.address, self.texts, self.until_s = address, texts, until_s
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def client(self, seed: int) -> None:
        chosen = random.Random(seed)
        while time.monotonic() < self.until_s:
            kind = "malformed" if chosen.random() < 0.1 else "left" if chosen.random() < 0.25 else "whole"
            try:
                right = self.malformed(chosen) if kind == "malformed" else self.stream(chosen, leaves=kind == "left")
            except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
                right = False  # also an error's event within a stream
            with self._lock:
                self.counts[kind] += 1
                self.counts["wrong"] += not right

    def malformed(self, chosen: random.Random) -> bool:
        body, headers = chosen.choice(MALFORMED), {"content-type": "application/json"}
        with closing(http.client.HTTPConnection(self.address, timeout=120)) as connection:
            connection.request("POST", "/v1/completions", body, headers)
            return connection.getresponse().status == 400

    def stream(self, chosen: random.Random, *, leaves: bool) -> bool:
        prompt, wanted = chosen.choice(self.texts)
        with closing(pieces(self.address, {"prompt": prompt, "max_tokens": 1500 if leaves else TOKENS})) as texts:
            written = "".join(islice(texts, 6) if leaves else texts).strip()
        return leaves or written == wanted


async def flood(address: str, streams: int) -> Counter[str]:
    """So many streams at once; their statuses, ``waiting`` where none came in ``FLOOD_S``. Then all are left."""
    host, _, port = address.partition(":")
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 500, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    writers: list[asyncio.StreamWriter] = []

    async def one() -> str:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
            writer.write(head + body)
            return (await asyncio.wait_for(reader.readline(), FLOOD_S)).decode().split()[1]
        except TimeoutError:
            return "waiting"
        except (OSError, IndexError) as error:
            return type(error).__name__

    statuses = Counter(await asyncio.gather(*(one() for _ in range(streams))))
    for writer in writers:
        writer.close()
    return statuses


def used(address: str) -> float:
    """Part of the pages in use."""
    return next((sample.value for sample in samples_of(address, ("vllm:kv_cache_usage_perc",))), 1.0)


def expected(folder: Path, count: int, longest: int, tokens: int, seed: int) -> list[tuple[list[int], str]]:
    """The small random decoder in ``folder``, and ``count`` prompts of 5 to ``longest`` - 1 tokens with what one
    process writes to each: ``tokens`` words, or fewer where the text ends before."""
    build(folder, SMALL, seed)
    model, chosen, end = WholeModel(folder / "random"), random.Random(seed), SMALL["vocab_size"] - 1
    for segment in model.manifest.segments:
        model.programs[segment.id].open_cache(64 << 20)
    texts = []
    for _ in range(count):
        prompt = [chosen.randrange(end) for _ in range(chosen.randrange(5, longest))]
        _, (new,) = in_one_process(model, [prompt], tokens)
        new = new[: new.index(end)] if end in new else new
        texts.append((prompt, " ".join(f"t{token}" for token in new)))
    return texts


def soak(folder: Path, minutes: float, clients: int, streams: int, seed: int) -> dict[str, Any]:
    """All figures."""
    texts = expected(folder, PROMPTS, 300, TOKENS, seed)
    environ = {"smoe_kv_mb": "2", "smoe_timeout": "120s"}
    with LocalPipeline(folder / "random", max_inflight=64, environ=environ) as served:
        opened = asyncio.run(flood(served.ingress.address, streams)) if streams else Counter()
        processes = [psutil.Process(worker.pid) for worker in (*served.workers, served.ingress)]
        begun_s = time.monotonic()
        shared = Soak(served.ingress.address, texts, begun_s + minutes * 60)
        threads = [threading.Thread(target=shared.client, args=(seed + number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        samples = []
        while any(thread.is_alive() for thread in threads):
            samples.append((time.monotonic() - begun_s, sum(one.memory_info().rss for one in processes) / 2**20))
            time.sleep(min(5.0, minutes * 3))
        for thread in threads:
            thread.join()
        ended_s = time.monotonic()
        while (left := used(served.ingress.address)) > 0 and time.monotonic() < ended_s + 60:
            time.sleep(0.1)
    settled = next(rss for at_s, rss in samples if at_s >= minutes * 60 / 5 or at_s == samples[-1][0])
    return {
        "minutes": minutes,
        "seconds": round(ended_s - begun_s, 1),
        **{name: shared.counts[name] for name in ("whole", "left", "malformed", "wrong")},
        "flood": dict(opened),
        "rss_mb_first": round(samples[0][1], 1),
        "rss_mb_settled": round(settled, 1),
        "rss_mb_last": round(samples[-1][1], 1),
        "rss_growth": round(samples[-1][1] / settled - 1, 4),
        "used_perc": left,
    }


@benchmark
@click.option("--minutes", default=10.0, type=click.FloatRange(0.05), help="How long clients write.")
@click.option("--clients", default=16, type=AT_LEAST_1, help="Streams at once.")
@click.option("--flood", "streams", default=2000, type=click.IntRange(0, 20_000), help="Streams opened at once first.")
@seed_option
def main(minutes: float, clients: int, streams: int, seed: int) -> None:
    with run_folder("smoe-generation-soak-") as folder:
        result = soak(folder, minutes, clients, streams, seed)
    print_table(
        "generation under load and abuse", ("figure", ""), [(name, str(value)) for name, value in result.items()]
    )
    print_result(result)


if __name__ == "__main__":
    main()
