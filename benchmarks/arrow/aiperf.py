"""Goodput as NVIDIA's ``aiperf`` counts it, next to ``smoe replay``'s: ``python -m benchmarks.arrow.aiperf``.

A random decoder of which every token is a character, on one instance of ``--cores``, behind an embedded gateway; all of
it on one processor, the clients on the others, so that how much a client computes does not change what it measures. For
each trace, lengths / 8, ``--seconds`` of it at the rate in ``RATES`` become one file, which ``smoe replay`` and
``aiperf`` (``--program``, else ``$SMOE_AIPERF``, else on the path) replay in turns, each turn with other prompts. A
replay before, not counted, warms the pipeline and sets the targets, the same for both: TTFT the histograms' bound next
to its 85th percentile from sending, TPOT the 85th percentile of answers that have one.

``goodput_aiperf``: its good requests over all its requests, ``goodput_ours``: of ``smoe replay``; means of the turns.
``difference_points``: between them. aiperf counts no answer of one token (``one_token``, share) as good; ``one_rule``:
the same by its numbers where such an answer has to keep TTFT alone, as for ``smoe replay`` and vLLM's benchmark.
``same_run``: points between both ways to judge one run, so without noise: aiperf's events (``--export-level raw``) read
and judged by ``smoe replay``'s code, TTFT from when a request was due, over aiperf's own numbers; and the records of
``smoe replay`` with TTFT from sending over its own. ``formula``: requests that aiperf's count has and its rule on these
events has not. ``spread_points``: between the turns of a client. ``within_ttft``: share of first tokens within TTFT,
by the client from sending and by the ingress's histogram. ``late_ms``: P99 of sending after the moment due. ``reused``:
share of prompts' tokens that were kept from before. ``cpu_s``: of the instance, in a turn's
``seconds``, which hold the client's start. ``others``: cores that processes outside this benchmark used. The last line
is one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.arrow.aiperf_records import Row, good_for_aiperf, good_from_sending, good_numbers, records_of
from benchmarks.fidelity.machine import Usage
from benchmarks.generation import build
from benchmarks.harness.options import AT_LEAST_1, benchmark, data_option, listed, seed_option
from benchmarks.harness.report import print_result, print_table, progress
from benchmarks.harness.run_folder import run_folder
from benchmarks.harness.running import RunningPipeline, local_gateway, running_pipeline
from benchmarks.harness.streams import first_requests, samples_of
from functions.serving import generation_metric_names as names
from functions.serving.metric_names import BUCKETS_S
from smoe.deployment import DeploymentSettings
from traces import catalog
from traces.completions import TokenTargets, lengths_of
from traces.results import RequestRecord, read_records
from traces.token_results import keeps

RATES = {"llm-code": 7.0, "llm-conv": 7.0, "mooncake-conv": 1.2}
"""Requests/s."""
DIVISOR = 8
LEAST_PROMPT = 8
"""Tokens of a prompt: shorter ones may be blanks alone, which some tokenizers take for no text."""
CHARACTERS, CONTEXT = 128, 2048 + LEAST_PROMPT
SHAPE: dict[str, Any] = {
    "vocab_size": CHARACTERS, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 256, "moe_intermediate_size": 128,
    "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": [1], "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
}  # fmt: skip
INGRESS_CORES = 1.0
"""Real cores of the ingress: it is not what limits."""
SHARE = 0.85
TIMEOUT_S = 120


@dataclass(frozen=True)
class Turn:
    """One replay by one client."""

    records: list[RequestRecord]
    """aiperf's by :func:`records_of`."""
    figures: dict[str, Any]


def characters() -> Tokenizer:
    """Every ASCII character is a token, so that prompts of text have the trace's lengths and every token is an event;
    others count as "?"."""
    vocabulary = {chr(code): code for code in range(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def rows_of(name: str, data: Path | None, seconds: float, part: int) -> list[Row]:
    """The ``part``-th ``seconds`` of a trace at its rate, lengths divided and cut to the context."""
    count = round(RATES[name] * seconds)
    trace = first_requests(name, data, count, part * count)
    lengths = lengths_of(trace, DIVISOR, CONTEXT)
    times_ms = np.rint(trace.arrival_s * 1000 * seconds / trace.arrival_s[-1]).astype(int)
    prompts = np.maximum(lengths.prompt, LEAST_PROMPT)
    columns = zip(times_ms.tolist(), prompts.tolist(), lengths.answer.tolist(), strict=True)
    return [{"timestamp": at_ms, "input_length": asked, "output_length": most} for at_ms, asked, most in columns]


class Bench:
    """A pipeline that runs and what its clients need."""

    def __init__(self, served: RunningPipeline, folder: Path, program: str, processors: list[int]) -> None:
        self.served, self.folder, self._program, self._processors = served, folder, program, processors
        (replica,) = served.client.replicas()[served.functions[0]]
        self._ingress = str(replica["address"])
        self._turns = 0

    def turn(self, client: str, rows: Sequence[Row], targets: TokenTargets | None) -> Turn:
        """``rows`` replayed; None: without targets, not judged."""
        self._turns += 1
        trace, seed, out = self.folder / "trace.jsonl", self._turns, self.folder / str(self._turns)
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
        before, usage, cpu_s, begun_s = self._counts(), Usage(), self._cpu_s(), time.monotonic()
        replay = self._ours if client == "ours" else self._aiperf
        records, figures = replay(trace, rows, targets, seed, out)
        others, spent_s = usage.cores()[1], time.monotonic() - begun_s
        after, cpu_s = self._counts(), self._cpu_s() - cpu_s
        counts = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in after}
        first = counts[f"{names.TTFT_SECONDS}_count"]
        if targets is not None:
            assert targets.ttft_s is not None
            in_time = [record.ttft_s is not None and record.ttft_s <= targets.ttft_s for record in records]
            by_ingress = counts[f"{names.TTFT_SECONDS}_bucket {targets.ttft_s!r}"] / first
            figures["within_ttft"] = {"client": statistics.fmean(in_time), "ingress": by_ingress}
        ttft_s = [record.ttft_s for record in records if record.ttft_s is not None]
        tpot_s = [record.tpot_s for record in records if record.tpot_s is not None]
        late_s = [record.sent_s - record.scheduled_s for record in records if record.sent_s is not None]
        figures |= {
            "client": client,
            "failed": sum(record.outcome != "ok" for record in records),
            "ttft_ms": [1000 * float(value) for value in np.quantile(ttft_s, (0.5, 0.85, 0.95))],
            "tpot_ms": [1000 * float(value) for value in np.quantile(tpot_s, (0.5, 0.85, 0.95))],
            "late_ms": 1000 * float(np.quantile(late_s, 0.99)),
            "reused": round(counts[names.PREFIX_HITS] / counts[names.PREFIX_QUERIES], 4),
            "seconds": spent_s,
            "cpu_s": cpu_s,
            "others": others,
        }
        return Turn(records, figures)

    def _ours(
        self, trace: Path, rows: Sequence[Row], targets: TokenTargets | None, seed: int, out: Path
    ) -> tuple[list[RequestRecord], dict[str, Any]]:
        wanted = [] if targets is None else ["--ttft-ms", _ms(targets.ttft_s), "--tpot-ms", _ms(targets.tpot_s)]
        to = ["--gateway", self.served.client.url, "--tokenizer", str(self.folder / "checkpoint"), "--out", str(out)]
        what = ["--trace", str(trace), "--seed", str(seed), "--timeout-s", str(TIMEOUT_S), "--send", "completions"]
        command = [sys.executable, "-m", "smoe", "replay", self.served.manifest.name, *to, *what, *wanted, "--json"]
        done = self._client(command)
        if not (out / "replay.json").exists():
            raise click.ClickException(f"smoe replay: {done.stderr[-500:]}")
        records = read_records(out / "requests.csv")
        generation = json.loads((out / "replay.json").read_text())["generation"]
        if targets is None:
            return records, {}
        other = _share(good_from_sending(record, targets) for record in records)
        return records, {"goodput": generation["goodput"], "one_rule": generation["goodput"], "judged_otherwise": other}

    def _aiperf(
        self, trace: Path, rows: Sequence[Row], targets: TokenTargets | None, seed: int, out: Path
    ) -> tuple[list[RequestRecord], dict[str, Any]]:
        assert targets is not None
        to = ["--model", self.served.manifest.name, "--url", self.served.url, "--endpoint-type", "completions"]
        replayed = ["--input-file", str(trace), "--custom-dataset-type", "mooncake_trace", "--fixed-schedule"]
        wanted = f"time_to_first_token:{_ms(targets.ttft_s)} inter_token_latency:{_ms(targets.tpot_s)}"
        counted = ["--tokenizer", str(self.folder / "checkpoint"), "--use-server-token-count"]
        fields = ["--extra-inputs", "temperature:0", "--extra-inputs", "ignore_eos:true"]
        written = ["--artifact-dir", str(out), "--ui", "none", "--export-level", "raw", "--no-server-metrics"]
        further = ["--random-seed", str(seed), "--request-timeout-seconds", str(TIMEOUT_S), "--streaming"]
        command = [self._program, "profile", *to, *replayed, "--goodput", wanted, *counted, *fields, *written, *further]
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_HUB_OFFLINE")}
        done = self._client(command, cwd=self.folder, env=kept)
        if not (out / "profile_export_aiperf.json").exists():
            raise click.ClickException(f"aiperf: {(done.stdout + done.stderr)[-2000:]}")
        numbers = json.loads((out / "profile_export_aiperf.json").read_text())
        records = records_of(out, rows)
        good = numbers["good_request_count"]["avg"]
        return records, {
            "goodput": good / len(rows),
            "one_rule": good_numbers(out, targets) / len(rows),
            "judged_otherwise": _share(keeps(record, targets) for record in records),
            "formula": good - sum(good_for_aiperf(record, targets) for record in records),
            "answered": numbers["request_count"]["avg"],
        }

    def _client(self, command: Sequence[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run to its end on the clients' processors."""
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings
        ) as process:
            psutil.Process(process.pid).cpu_affinity(self._processors)
            out, errors = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, out, errors)

    def _cpu_s(self) -> float:
        """CPU seconds of the instance until now."""
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.served.workers(ingress=False))

    def _counts(self) -> dict[str, float]:
        """The ingress's samples by name, buckets by name and bound."""
        samples = samples_of(self._ingress, ("vllm:",))
        return {f"{one.name} {one.labels.get('le', '')}".rstrip(): one.value for one in samples}


def _share(good: Iterable[bool]) -> float:
    return statistics.fmean(map(float, good))


def _ms(seconds: float | None) -> str:
    assert seconds is not None
    return f"{1000 * seconds:.6g}"


def targets_of(records: Sequence[RequestRecord]) -> TokenTargets:
    """From a replay that is not counted."""
    ttft_s = np.quantile([record.ttft_s for record in records if record.ttft_s is not None], SHARE)
    tpot_s = np.quantile([record.tpot_s for record in records if record.tpot_s is not None], SHARE)
    return TokenTargets(min(BUCKETS_S, key=lambda bound: abs(np.log(bound / ttft_s))), round(float(tpot_s), 4))


def row_of(rows: Sequence[Row], targets: TokenTargets, turns: Sequence[Turn]) -> dict[str, Any]:
    """All figures of a trace."""
    of = {client: [one.figures for one in turns if one.figures["client"] == client] for client in ("aiperf", "ours")}
    mean = {(client, key): statistics.fmean(one[key] for one in of[client]) for client in of for key in KEYS}
    return {
        "requests": len(rows),
        "one_token": _share(row["output_length"] == 1 for row in rows),
        "ttft_ms": float(_ms(targets.ttft_s)),
        "tpot_ms": float(_ms(targets.tpot_s)),
        "goodput_aiperf": mean["aiperf", "goodput"],
        "goodput_ours": mean["ours", "goodput"],
        "difference_points": 100 * (mean["aiperf", "goodput"] - mean["ours", "goodput"]),
        "one_rule": {
            "goodput_aiperf": mean["aiperf", "one_rule"],
            "difference_points": 100 * (mean["aiperf", "one_rule"] - mean["ours", "goodput"]),
        },
        "same_run": {
            "aiperf": 100 * (mean["aiperf", "judged_otherwise"] - mean["aiperf", "one_rule"]),
            "ours": 100 * (mean["ours", "judged_otherwise"] - mean["ours", "one_rule"]),
        },
        "spread_points": {client: 100 * float(np.ptp([one["one_rule"] for one in of[client]])) for client in of},
        "turns": [one.figures for one in turns],
    }


KEYS = ("goodput", "one_rule", "judged_otherwise")


@benchmark
@click.option("--traces", callback=listed(choices=RATES), default=",".join(RATES), help="In turn, comma list.")
@data_option
@click.option("--seconds", type=click.FloatRange(5), default=34.0, help="Length of a replay.")
@click.option("--rounds", type=AT_LEAST_1, default=2, help="Replays by each client.")
@click.option("--cores", type=click.FloatRange(0.05, 1), default=0.5, help="Of the instance.")
@click.option("--program", help="aiperf.")
@seed_option
def main(
    traces: tuple[str, ...],
    data: Path | None,
    seconds: float,
    rounds: int,
    cores: float,
    program: str | None,
    seed: int,
) -> None:
    program = program or os.environ.get("SMOE_AIPERF") or shutil.which("aiperf")
    if program is None:
        raise click.UsageError("aiperf is not installed (docs/generation.md); --program names it")
    with run_folder("smoe-aiperf-") as folder, progress(len(traces)) as show:
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        build(folder, SHAPE, 0, characters())
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        (folder / "checkpoint" / "tokenizer_config.json").write_text(json.dumps(settings))
        gateway = local_gateway(folder / "state", cpu_scale=cores)
        deployment = DeploymentSettings(max_functions=2, ingress_cpu_cores=INGRESS_CORES / cores)
        serving, *processors = sorted(os.sched_getaffinity(0), reverse=True)
        os.sched_setaffinity(0, {serving})  # the gateway and its workers inherit it
        with running_pipeline(gateway, deployment, str(folder / "random")) as served:
            bench = Bench(served, folder, program, processors or [serving])
            results: dict[str, dict[str, Any]] = {}
            for number, name in enumerate(traces):
                show(name, number)
                results[name] = compared(bench, name, rows_of(name, catalog.data_folder(data), seconds, seed), rounds)
    print_table("goodput, judged by aiperf and by smoe replay", HEADS, [_cells(*item) for item in results.items()])
    print_result({"cores": cores, "seconds": seconds, "aiperf": version, "traces": results})


def compared(bench: Bench, name: str, rows: Sequence[Row], rounds: int) -> dict[str, Any]:
    """All figures of a trace, after as many turns of each client."""
    targets = targets_of(bench.turn("ours", rows, None).records)
    turns = []
    for number in range(rounds):
        for client in ("aiperf", "ours") if number % 2 else ("ours", "aiperf"):
            turns.append(bench.turn(client, rows, targets))
            click.echo(json.dumps({"trace": name, **turns[-1].figures}), err=True)
    return row_of(rows, targets, turns)


HEADS = ("trace", "requests", "TTFT, TPOT, ms", "aiperf", "one rule", "ours", "points", "same run", "spread")


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    shares = (row["goodput_aiperf"], row["one_rule"]["goodput_aiperf"], row["goodput_ours"])
    points = (row["difference_points"], row["one_rule"]["difference_points"])
    return [
        name,
        str(row["requests"]),
        f"{row['ttft_ms']:g}, {row['tpot_ms']:g}",
        *(f"{100 * share:.1f} %" for share in shares),
        ", ".join(f"{value:+.1f}" for value in points),
        ", ".join(f"{value:+.1f}" for value in row["same_run"].values()),
        ", ".join(f"{value:.1f}" for value in row["spread_points"].values()),
    ]


if __name__ == "__main__":
    main()
