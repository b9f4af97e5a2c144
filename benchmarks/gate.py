"""The gate on the attention or the experts' side, on a running pipeline: ``python -m benchmarks.gate``.

Janus (section 3.2) has experts' instances compute the router, so that attention instances send all rows to all of them
in fewer and simpler messages. Here the same pipeline is served once with each ``smoe_gate``, each ``smoe_dispatch``,
and with as many experts in a function as ``--functions`` makes (an instance of the paper has many), over machines
emulated on this one (replica r of function f is on machine (f + r) mod machines). The same texts go through, and every
answer is compared with the whole model's.

By pass: ``messages`` to functions of experts and segments on all machines, ``sent`` and ``received`` kB (headers of
HTTP left out), ``remote`` the same kB of other machines than the ingress's, ``fullest`` activated experts of the
fullest machine, milliseconds to the answer (median; only as good as the machine is quiet). Counts are exact. The last
line is one JSON object.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
import urllib.request
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.harness.local_pipeline import LocalPipeline
from benchmarks.harness.options import AT_LEAST_1, benchmark, listed, seed_option
from benchmarks.harness.report import in_words, print_result, print_table
from benchmarks.pipeline import make_texts
from moe.reference import WholeModel
from smoe.pipelines import ensure_pipeline

GATES = ("attention", "experts")
CLOSE = 1e-4
"""Largest difference from the whole model's answer, relative to its largest number."""


def ask(url: str, path: str = "", body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=100) as reply:
        return json.load(reply)


def totals(url: str) -> dict[str, float]:
    """Sums over all machines since the start, and the mean of the layers' fullest."""
    counted = ask(url, "/statistics")
    machines = counted["machines"].values()
    return {
        "messages": sum(one["messages"] for one in machines),
        "sent": sum(one["sent_bytes"] for one in machines) / 1000,
        "received": sum(one["received_bytes"] for one in machines) / 1000,
        "remote": sum(
            (one["sent_bytes"] + one["received_bytes"]) / 1000 for one in machines if one["place"] == "remote"
        ),
        "fullest": float(np.mean([one for one in counted["fullest_experts"] if one is not None] or [0.0])),
    }


def measure(pipeline: LocalPipeline, texts: list[str], expected: np.ndarray, calls: int) -> dict[str, float]:
    """By pass; ``expected`` [texts, d]. Raises RuntimeError for a wrong answer."""
    before, taken_ms, passes = totals(pipeline.url), [], calls + 1
    for _ in range(passes):
        begun_s = time.perf_counter()
        answer = np.array(ask(pipeline.url, body={"inputs": texts})["embeddings"])
        taken_ms.append(1000 * (time.perf_counter() - begun_s))
        if float(np.abs(answer - expected).max()) > CLOSE * float(np.abs(expected).max()):
            raise RuntimeError("an answer is not the whole model's")
    after = totals(pipeline.url)
    by_pass = {name: (after[name] - before[name]) / passes for name in ("messages", "sent", "received", "remote")}
    return by_pass | {"fullest": after["fullest"], "ms": statistics.median(taken_ms[1:])}


@benchmark
@click.option("--pipeline", "name", default="minilm", help="Preset of an encoder.")
@click.option("--machines", default=3, type=click.IntRange(2, 16), help="Emulated.")
@click.option("--replicas", default=2, type=click.IntRange(1, 16), help="Of each function.")
@click.option(
    "--functions", callback=listed(int), default="0,4", help="Of the pipeline, ingress included; 0: no limit."
)
@click.option("--dispatch", callback=listed(), default="least-loaded,aebs", help="Rules.")
@click.option("--texts", "sizes", callback=listed(int), default="1,4,16,64", help="Texts of a request.")
@click.option("--tokens", default=8, type=AT_LEAST_1, help="Of a text.")
@click.option("--calls", default=3, type=AT_LEAST_1, help="Requests of each size that are timed.")
@seed_option
def main(
    name: str, machines: int, replicas: int, functions: tuple[int, ...], dispatch: tuple[str, ...],
    sizes: tuple[int, ...], tokens: int, calls: int, seed: int,
) -> None:  # fmt: skip
    directory, manifest = ensure_pipeline(name, Path(".smoe/pipelines"))
    whole = WholeModel(directory)
    texts = make_texts(whole, max(sizes), tokens, seed)
    expected = whole.embed(texts).numpy()
    places = [f"m{number}" for number in range(machines)]
    rows = []
    for count, rule, gate, size in itertools.product(functions, dispatch, GATES, sizes):
        # a pipeline each, as means of the fullest are since the ingress's start
        environ = {"smoe_gate": gate, "smoe_dispatch": rule}
        with LocalPipeline(
            directory, replicas=replicas, max_functions=count, nodes=places, environ=environ
        ) as pipeline:
            figures = measure(pipeline, texts[:size], expected[:size], calls)
        rows.append({"functions": count, "dispatch": rule, "gate": gate, "texts": size, **figures})
    shown = [
        [row["functions"] or "no limit", *(in_words(value, 1) for value in list(row.values())[1:])] for row in rows
    ]
    print_table(f"{name} on {machines} machines, by pass", list(rows[0]), shown)
    print_result({"rows": rows, "machines": machines, "replicas": replicas, "layers": manifest.layers})


if __name__ == "__main__":
    main()
