"""Roles that flip under load on real workers: ``python -m benchmarks.arrow.live [--flips 1000]``.

A small random decoder with ``--instances`` replicas of every segment, and ``--clients`` threads that stream texts
without end, while Arrow runs with settings under which its own rules flip all the time: no cooldown, a monitoring loop
of ``UPDATE_S`` that always finds decode short, and a TTFT target that no prompt keeps.

``flip_ms``: the whole decision in which a role changed; from then on texts of the new role go there. ``lost``: streams
without their whole text. ``tokens_identical``: every text is what the same model writes in one process.
``decision_ms``: the scheduler alone with 64 instances and ``EACH`` texts on each, by the clock, and as processor time,
which neighbours on the machine change less. The last line is one JSON object.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import click
import numpy as np
import requests

from benchmarks.generation_soak import expected
from benchmarks.harness.local_pipeline import LocalPipeline
from benchmarks.harness.options import AT_LEAST_1, benchmark, seed_option
from benchmarks.harness.report import print_result, print_table
from benchmarks.harness.run_folder import run_folder
from benchmarks.harness.streams import pieces
from functions.scheduling.arrow import Arrow
from functions.scheduling.predictor import DecodeModel, PrefillModel, Profile
from functions.scheduling.settings import Targets

TOKENS, TEXTS = 12, 16
UPDATE_S = 0.02
MOST_S = 540.0
EACH, DECISIONS, LARGE = 50, 5000, 64
RESTLESS = f"cooldown_s=0,update_s={UPDATE_S},expand_load=0,shrink_load=0,low_decode_load=1e9"


class Clients:
    """Threads that stream, each one text after the other, and what became of the texts."""

    def __init__(self, address: str, texts: list[tuple[list[int], str]], count: int, seed: int) -> None:
        self.texts_done = self.lost = self.different = 0
        self._address, self._texts = address, texts
        self._lock, self._over = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._stream, args=(seed + one,)) for one in range(count)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _stream(self, seed: int) -> None:
        chosen = random.Random(seed)
        while not self._over.is_set():
            prompt, wanted = chosen.choice(self._texts)
            text = written(self._address, prompt)
            with self._lock:
                self.texts_done += 1
                self.lost += text is None
                self.different += text is not None and text != wanted


def written(address: str, prompt: list[int]) -> str | None:
    """A streamed text; None where it did not come whole."""
    try:
        return "".join(pieces(address, {"prompt": prompt, "max_tokens": TOKENS})).strip()
    except (OSError, HTTPException, ValueError):
        return None


def generation(url: str) -> dict[str, Any]:
    """What the ingress reports of its instances."""
    document: dict[str, Any] = requests.get(f"{url}/statistics", timeout=100).json()["generation"]
    return document


def until(condition: Callable[[], bool], most_s: float) -> None:
    """Raises TimeoutError."""
    ends_s = time.monotonic() + most_s
    while not condition():
        if time.monotonic() > ends_s:
            raise TimeoutError("the instances did not come to what was waited for in time")
        time.sleep(0.2)


def flips_under_load(folder: Path, flips: int, instances: int, clients: int, seed: int) -> dict[str, Any]:
    """Until so many flips were made, or ``MOST_S`` have passed."""
    texts = expected(folder, TEXTS, 200, TOKENS, seed)
    environ = {
        "smoe_schedule": "arrow",
        "smoe_ttft": "0.1ms",
        "smoe_tpot": "10s",
        "smoe_arrow": RESTLESS,
        "smoe_prefill_instances": str(instances // 2),
        "smoe_profiles": str(folder / "profiles"),
        "smoe_timeout": "120s",
    }
    with LocalPipeline(folder / "random", replicas=instances, max_inflight=64, environ=environ) as served:
        until(lambda: len(generation(served.url)["instances"]) == instances, 300)
        begun_s = time.monotonic()
        with Clients(served.ingress.address, texts, clients, seed) as shared:
            while (document := generation(served.url))["flips"] < flips and time.monotonic() - begun_s < MOST_S:
                time.sleep(1.0)
        spent_s = time.monotonic() - begun_s
    took_ms = np.array(document["flip_ms"])
    return {
        "flips": document["flips"],
        "flip_ms_p50": float(np.median(took_ms)),
        "flip_ms_p99": float(np.quantile(took_ms, 0.99)),
        "flip_ms_max": float(took_ms.max()),
        "texts": shared.texts_done,
        "lost": shared.lost,
        "tokens_identical": shared.different == 0 and shared.texts_done > shared.lost,
        "moved": document["moved"],
        "seconds": spent_s,
    }


def scheduling(seed: int) -> dict[str, float]:
    """Times in ms of the choices for one text, prefill and decode together, over ``LARGE`` busy instances."""
    chosen = random.Random(seed)
    profile = Profile(PrefillModel(0.01, 1e-4, 1e-8), DecodeModel(0.02, 1e-6))
    arrow = Arrow(dict.fromkeys(range(LARGE), profile), Targets(1.0, 0.05), LARGE // 2)
    decoding: list[int] = []
    for request in range(LARGE * EACH):
        arrow.prefill(request, chosen.randrange(1, 4000), 0.0)
        if request % 2:
            arrow.decode(request, 0.0)
            decoding.append(request)
    taken_ms, cpu_ms = [], []
    for request in range(LARGE * EACH, LARGE * EACH + DECISIONS):
        begun_s, cpu_s = time.perf_counter(), time.thread_time()
        arrow.prefill(request, chosen.randrange(1, 4000), 1.0)
        arrow.decode(request, 1.0)
        cpu_ms.append(1000 * (time.thread_time() - cpu_s))
        taken_ms.append(1000 * (time.perf_counter() - begun_s))
        decoding.append(request)
        arrow.finish(decoding.pop(chosen.randrange(len(decoding))), 0)
    p50, p99 = np.quantile(taken_ms, (0.5, 0.99))
    return {"p50": float(p50), "p99": float(p99), "max": max(taken_ms), "cpu_p99": float(np.quantile(cpu_ms, 0.99))}


@benchmark
@click.option("--flips", default=1000, type=AT_LEAST_1, help="Flips to make.")
@click.option("--instances", default=3, type=click.IntRange(2, 16), help="Replicas of every segment.")
@click.option("--clients", default=8, type=AT_LEAST_1, help="Streams at once.")
@seed_option
def main(flips: int, instances: int, clients: int, seed: int) -> None:
    decisions = scheduling(seed)
    with run_folder("smoe-arrow-") as folder:
        result = flips_under_load(folder, flips, instances, clients, seed)
    rows = [(name, str(value)) for name, value in result.items()]
    print_table("Arrow on real workers, flipping under load", ("figure", ""), rows)
    print_result({**result, "decision_ms_64_instances": decisions, "instances": instances}, seed=seed)


if __name__ == "__main__":
    main()
