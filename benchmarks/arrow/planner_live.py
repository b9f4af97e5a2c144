"""The load at which an SLA planner is reported to fail, on a running decoder.

The live half of ``benchmarks.arrow.planner``, in shape: ``python -m benchmarks.arrow.planner_live``. A random decoder
of two segments and a layer of four experts, an instance of it one process that is limited to ``--cores``; embedded
gateway, real ingress, real controller, whose policy is one of that benchmark's rules. First one instance is measured
(or read from ``--instance``). From it follow, in the ratios of the scenario: TTFT and TPOT targets (28.5 and 3.1 times
what a lone request takes), and the sine (at its peak 9.2 instances' rate, at its lowest a 24th of that, ``--period``
for its 900 s; prompts eight times as long as answers). The rules' times are shortened as the period is, and both know
the instance's times. Instances start at once here; so each order waits for ``--start`` first (default: 60 s of 900, as
there), and is paid meanwhile.

``planner``: the published rule, prefill and decode instances together, all of which compute both phases here;
``planner-arrivals``: its best variant there (arrivals, Kalman filter, every 60 s of 900); ``at-input``: this project's,
``at-input-patient`` the same where requests may wait for half of TTFT and instances are planned full;
``constant-N``. All but constants begin with two instances. ``goodput``: texts within both targets; ``strict``: with a
TTFT target of 3 s, the scenario's own; ``missed``: texts that were not within both, by 20ths in order of arrival;
``simulated``: in simulation.generation, with instances as the measured one. ``replica_s``: from order to end of
process, as the gateway's feed shows it, up to the end of arrivals. ``different``: of ``--checked`` texts those that the
same model writes otherwise in one process. ``others``: cores that processes outside this benchmark used. The last line
is one JSON object.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from autoscaler.build import build_controller
from autoscaler.contract import ConfigurationSpace
from autoscaler.platforms.openfaas import OpenFaasPlatform
from autoscaler.settings import ControllerSettings
from benchmarks.arrow import planner
from benchmarks.arrow.live_scenario import ANSWER, PROMPT, WORDS, Instance, Scenario, request, simulated
from benchmarks.arrow.running_rules import LiveFrontEnd, RulePolicy, SlowStarts, Together, counts_of, line
from benchmarks.decoder_live.loads import Request, send
from benchmarks.decoder_live.runs import WARM, different, whole_model
from benchmarks.fidelity.machine import Usage
from benchmarks.harness.controlling import controlling
from benchmarks.harness.cores import cores_busy
from benchmarks.harness.options import AT_LEAST_1, benchmark, listed
from benchmarks.harness.report import print_result, print_table, progress
from benchmarks.harness.run_folder import run_folder
from benchmarks.harness.running import RunningPipeline, local_gateway, running_pipeline
from benchmarks.harness.scaling_watch import FeedWatch, Picture
from benchmarks.harness.streams import WHOLE, Stream
from evaluation.processes import worker_processes
from functions.scheduling.settings import CHUNK_TOKENS
from functions.serving import generation_metric_names as names
from moe.cache import PAGE_TOKENS
from moe.reference import WholeModel
from simulation.generation.hardware import Hardware
from smoe.deployment import DeploymentSettings

SHAPE: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1536, "moe_intermediate_size": 768,
    "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": [1, 2, 3], "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}  # fmt: skip
INGRESS_CORES = 1.0
"""Real cores of the ingress: it is not what is compared."""
ALONE, TURNS = 6, 3
"""Texts that are sent one by one to measure an instance, and turns of several at once."""
SETTLE_S = 120.0
COUNTED = {"moved_bytes": names.KV_MOVED_BYTES, "recomputed_tokens": names.RECOMPUTED_TOKENS}
"""Figures of a run that are an ingress's counters."""


class Bench:
    """A pipeline that runs, and what it takes to send and to scale."""

    def __init__(
        self, served: RunningPipeline, watch: FeedWatch, pool: Any, model: WholeModel, kv_mib: int, most: int
    ) -> None:
        self.served, self.watch, self.model, self.kv_mib, self.most = served, watch, model, kv_mib, most
        self.function = served.functions[1]
        self._pool = pool
        self._platform = OpenFaasPlatform(served.client.url, served.manifest.name, served.gateway.auth)

    def send(self, requests: Sequence[Request], begun_s: float | None = None) -> list[Stream]:
        """From a process of its own; ``begun_s``: monotonic, default at once."""
        begun_s = time.monotonic() + 0.2 if begun_s is None else begun_s
        streams: list[Stream] = self._pool.submit(
            send, self.served.url, self.served.manifest.name, requests, begun_s
        ).result()
        return streams

    def have(self, count: int) -> float:
        """So many instances and no others; seconds until they are there."""
        present = self._platform.configurations()[self.function]
        begun_s = time.monotonic()
        self._platform.apply(self.function, present, present.with_replicas(count))
        return max(0.0, self.watch.until(lambda picture: self._in(picture) == (count, count), SETTLE_S) - begun_s)

    def _in(self, picture: Picture) -> tuple[int, int]:
        return len(picture.ready.get(self.function, ())), picture.alive.get(self.function, 0)

    def ready(self) -> int:
        return self._in(self.watch.pictures[-1])[0]

    def front_end(self) -> LiveFrontEnd:
        """What the one ingress shows."""
        (ingress,) = self.served.client.replicas()[self.served.functions[0]]
        address = str(ingress["address"])
        return LiveFrontEnd(PROMPT, ANSWER, lambda: counts_of(address), self.ready)

    def instance(self, rng: np.random.Generator) -> Instance:
        """Measured: lone requests, and texts at once, whose intervals count once all have begun."""
        self.have(1)
        self.send([request(0.5 * at, rng) for at in range(WARM)])
        lone = [self.send([request(0.0, rng)])[0] for _ in range(ALONE)]
        ttft_s = statistics.median(one.tokens_s[0] - one.due_s for one in lone)
        gaps_s = {1: statistics.median(_tpot_s(one) for one in lone)}
        for count in range(2, self.room + 1):
            gaps_s[count] = statistics.median(self._together_s(count, rng) for _ in range(TURNS))
        start_s = [self.have(2), self.have(1), self.have(2), self.have(1)][::2]
        iteration_s, text_s = line(list(gaps_s), list(gaps_s.values()))
        token_s = min(text_s, max(1e-6, (ttft_s - gaps_s[1]) / PROMPT))
        context_s = (text_s - token_s) / (PROMPT + ANSWER / 2)
        hardware = Hardware(iteration_s, token_s, 0.0, context_s, CHUNK_TOKENS, self.room * (PROMPT + ANSWER))
        return Instance(hardware, ttft_s, gaps_s[1], statistics.median(start_s))

    def _together_s(self, count: int, rng: np.random.Generator) -> float:
        """Mean interval of so many texts at once."""
        streams = self.send([request(0.0, rng) for _ in range(count)])
        from_s = max(one.tokens_s[0] for one in streams)
        later = [np.diff([at_s for at_s in one.tokens_s if at_s >= from_s]) for one in streams]
        return float(np.mean(np.concatenate(later)))

    @property
    def room(self) -> int:
        """Texts at once in an instance, whose segments share the bound."""
        caches = [self.model.programs[segment.id].cache for segment in self.model.manifest.segments]
        pages = (self.kv_mib << 20) // (sum(one.bytes_per_token for one in caches if one) * PAGE_TOKENS)
        return pages // -(-(PROMPT + ANSWER) // PAGE_TOKENS)

    def run(self, name: str, scenario: Scenario, seed: int, checked: int) -> dict[str, Any]:
        """One period under one rule, JSON-ready."""
        rule, begin = scenario.rule(name)
        requests = scenario.requests(seed)
        self.have(begin)
        self.send([request(0.25 * at, np.random.default_rng(seed + 1)) for at in range(WARM)])
        front_end = self.front_end()
        before = front_end.read()
        begun_s, clock_s = time.monotonic() + 1.0, time.time() - time.monotonic()
        front_end.look(0.0)
        interval_s = 10 * scenario.shorter
        platform = SlowStarts(self._platform, self.function, scenario.start_s)
        controller, window_s = build_controller(self._settings(interval_s), platform)
        policy = RulePolicy(name, Together(rule, self.most), front_end, self.function, begun_s + clock_s)
        controller.policy = policy
        usage = Usage()
        with cores_busy() as busy, platform, controlling(controller, interval_s, window_s) as reports:
            streams = self.send(requests, begun_s)
        row = figures(streams, scenario) | {"simulated": simulated(name, scenario, requests, self.most)}
        row |= self._scale(begun_s, begun_s + scenario.period_s, platform.waits)
        row |= {"decided": policy.decided, "orders_failed": sum(len(report.failures) for report in reports)}
        after = front_end.read()
        row |= {word: int(after[name] - before[name]) for word, name in COUNTED.items()}
        row |= {"cores_p95": float(np.quantile(busy, 0.95)), "others": usage.cores()[1]}
        return row | {"different": different(self.model, requests, streams, checked), "checked": checked}

    def _settings(self, interval_s: float) -> ControllerSettings:
        return ControllerSettings(
            gateway_url=self.served.client.url,
            password=self.served.gateway.auth[1],
            manifest_dir=self.served.directory,
            max_functions=2,
            policy="static",
            interval_s=interval_s,
            fallback_windows=0,
            max_replicas=self.most,
            space=ConfigurationSpace(gpu_shares=()),
        )

    def _scale(self, from_s: float, until_s: float, waits: Sequence[tuple[float, float]]) -> dict[str, Any]:
        """Replica-seconds, those of waiting orders among them, and (ready, paid) instances every 20th of the time."""
        pictures = list(self.watch.pictures)
        ends_s = [*(one.at_s for one in pictures[1:]), max(until_s, pictures[-1].at_s)]
        spans = [(one.at_s, end_s, self._in(one)[1]) for one, end_s in zip(pictures, ends_s, strict=True)]
        spans += [(ordered_s, end_s, 1) for ordered_s, end_s in waits]
        paid_s = sum(max(0.0, min(end_s, until_s) - max(since_s, from_s)) * count for since_s, end_s, count in spans)
        shown = []
        for at_s in np.linspace(from_s, until_s - 0.1, 21):
            ready = next(self._in(one)[0] for one in reversed(pictures) if one.at_s <= at_s)
            shown.append((ready, sum(count for since_s, end_s, count in spans if since_s <= at_s < end_s)))
        return {"replica_s": paid_s, "instances": shown}


def _tpot_s(one: Stream) -> float:
    """Mean of a whole text."""
    return (one.tokens_s[-1] - one.tokens_s[0]) / (len(one.tokens_s) - 1)


def figures(streams: Sequence[Stream], scenario: Scenario) -> dict[str, Any]:
    """What clients saw; a text that did not come whole is within nothing, and its times count where it had any."""
    whole = np.array([one.outcome == WHOLE and len(one.tokens_s) == one.asked for one in streams])
    ttft_s = np.array([one.tokens_s[0] - one.due_s if one.tokens_s else np.inf for one in streams])
    tpot_s = np.array([_tpot_s(one) if ok else np.inf for one, ok in zip(streams, whole, strict=True)])
    targets = scenario.targets
    in_time = whole & (ttft_s <= targets.ttft_s), tpot_s <= targets.tpot_s
    strict = ttft_s <= planner.TARGETS.ttft_s
    return {
        "texts": len(streams),
        "failed": int((~whole).sum()),
        "reasons": sorted({one.outcome for one in streams} - {WHOLE}),
        "goodput": float((in_time[0] & in_time[1]).mean()),
        "strict": float((strict & in_time[1]).mean()),
        "missed": [int(part.sum()) for part in np.array_split(~(in_time[0] & in_time[1]), 20)],
        "ttft_kept": float(in_time[0].mean()),
        "tpot_kept": float(in_time[1].mean()),
        "ttft_s": {"mean": float(ttft_s[whole].mean()), "p50": _q(ttft_s, 0.5), "p95": _q(ttft_s, 0.95)},
        "tpot_s": {"p50": _q(tpot_s, 0.5), "p95": _q(tpot_s, 0.95)},
    }


def _q(values: np.ndarray, quantile: float) -> float | None:
    """None where that is a text that did not come."""
    value = float(np.quantile(values, quantile, method="higher"))
    return value if np.isfinite(value) else None


def instance_of(bench: Bench, stored: Path | None, seed: int) -> Instance:
    """Read from ``stored`` where it is, else measured and written there."""
    if stored is not None and stored.exists():
        table = json.loads(stored.read_text())
        hardware = Hardware(**{**table["hardware"], "kv_tokens": bench.room * (PROMPT + ANSWER)})
        return Instance(**{**table, "hardware": hardware})
    one = bench.instance(np.random.default_rng((seed, 2)))
    if stored is not None:
        stored.write_text(json.dumps(asdict(one)))
    return one


@benchmark
@click.option(
    "--rules", callback=listed(), default="planner,at-input,constant-5,constant-10", help="In turn, comma list."
)
@click.option("--period", "period_s", type=click.FloatRange(20), default=300.0, help="Seconds of the sine.")
@click.option("--start", "start_s", type=click.FloatRange(0), help="Seconds that an order waits.")
@click.option("--cores", type=click.FloatRange(0.02, 1), default=0.06, help="Of an instance.")
@click.option("--kv-mib", type=AT_LEAST_1, default=2, help="Room of an instance, a text for each.")
@click.option("--most", type=AT_LEAST_1, default=12, help="Instances.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of arrivals and prompts.")
@click.option("--checked", type=AT_LEAST_1, default=20, help="Texts of a run that are computed again.")
@click.option(
    "--instance", "stored", type=click.Path(path_type=Path, dir_okay=False), help="JSON file of a measured one."
)
@click.option("--simulated", "seeds", callback=listed(int), default="", help="These seeds, simulated alone.")
@click.option("--quick", is_flag=True, help="A smoke test: one period of 30 s, planner and at-input.")
def main(
    rules: tuple[str, ...],
    period_s: float,
    start_s: float | None,
    cores: float,
    kv_mib: int,
    most: int,
    seed: int,
    checked: int,
    stored: Path | None,
    seeds: tuple[int, ...],
    quick: bool,
) -> None:
    if seeds:
        only_simulated(rules, (period_s, start_s), most, stored, seeds)
        return
    if quick:
        rules, period_s, checked = ("planner", "at-input"), 30.0, 5
    with run_folder("smoe-planner-live-") as folder, progress(len(rules)) as show:
        scenario, rows = run_all(folder, rules, (period_s, start_s), cores, kv_mib, most, seed, checked, stored, show)
    print_table("an SLA planner's load on a running decoder", HEADS, [_cells(name, row) for name, row in rows.items()])
    print_result({**asdict(scenario), "cores": cores, "rules": rows})


def only_simulated(
    rules: Sequence[str], times_s: tuple[float, float | None], most: int, stored: Path | None, seeds: Sequence[int]
) -> None:
    """The simulated side of every rule, by seed, for the instance in ``stored``. Raises UsageError."""
    if stored is None or not stored.exists():
        raise click.UsageError("--simulated needs a measured instance: --instance FILE")
    table = json.loads(stored.read_text())
    scenario = Scenario.of(Instance(**{**table, "hardware": Hardware(**table["hardware"])}), *times_s)
    rows = {name: [simulated(name, scenario, scenario.requests(seed), most) for seed in seeds] for name in rules}
    print_table(
        "an SLA planner's load, simulated",
        ["rule", *(f"seed {seed}: goodput, replica-s" for seed in seeds)],
        [[name, *(f"{one['goodput']:.1%}, {one['replica_s']:.0f}" for one in row)] for name, row in rows.items()],
    )
    print_result({**asdict(scenario), "simulated": True, "rules": rows}, seed=list(seeds))


def run_all(
    folder: Path,
    rules: Sequence[str],
    times_s: tuple[float, float | None],
    cores: float,
    kv_mib: int,
    most: int,
    seed: int,
    checked: int,
    stored: Path | None,
    show: Callable[[str, float], None],
) -> tuple[Scenario, dict[str, dict[str, Any]]]:
    model = whole_model(folder, SHAPE, kv_mib)
    deployment = DeploymentSettings(
        max_functions=2, kv_mib=kv_mib, ingress_cpu_cores=INGRESS_CORES / cores, max_replicas=most
    )
    gateway = local_gateway(folder / "state", cpu_scale=cores)
    rows: dict[str, dict[str, Any]] = {}
    with (
        running_pipeline(gateway, deployment, str(folder / "random")) as served,
        FeedWatch(served.gateway.connect) as watch,
        worker_processes(1) as pool,
    ):
        bench = Bench(served, watch, pool, model, kv_mib, most)
        show("one instance", 0)
        scenario = Scenario.of(instance_of(bench, stored, seed), *times_s)
        click.echo(json.dumps(asdict(scenario)), err=True)
        for name in rules:
            show(name, len(rows))
            rows[name] = bench.run(name, scenario, seed, checked)
            click.echo(json.dumps({"rule": name, **rows[name]}), err=True)
    return scenario, rows


HEADS = (
    "rule", "goodput", "simulated", "strict", "TTFT kept", "TPOT kept", "TTFT P50, P95, s", "TPOT P95, ms", "replica-s",
    "failed", "different", "cores, others",
)  # fmt: skip


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    parts = [f"{100 * row[key]:.1f} %" for key in ("goodput", "strict", "ttft_kept", "tpot_kept")]
    first, later = row["ttft_s"], row["tpot_s"]["p95"]
    return [
        name,
        parts[0],
        f"{100 * row['simulated']['goodput']:.1f} %, {row['simulated']['replica_s']:.0f} s",
        *parts[1:],
        ", ".join("-" if first[key] is None else f"{first[key]:.2f}" for key in ("p50", "p95")),
        "-" if later is None else f"{1000 * later:.0f}",
        f"{row['replica_s']:.0f}",
        f"{row['failed']} of {row['texts']}",
        f"{row['different']} of {row['checked']}",
        f"{row['cores_p95']:.2f}, {row['others']:.2f}",
    ]


if __name__ == "__main__":
    main()
