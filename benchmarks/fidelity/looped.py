"""``benchmarks.fidelity`` with the autoscaler in the loop: the same replay under several policies, live and simulated.

Both sides begin with the same configurations, decide by the same code and are billed by the same meters. The simulation
gets when requests were sent, the routing that the model gives their texts, and the machine's speed: what lone requests
took, times how much faster or slower a fixed piece of work was in the run than while they were sent (``clock``).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
import numpy as np

from autoscaler.contract import Configuration
from autoscaler.topology import load_topology
from benchmarks.closed_loop.contenders import contender
from benchmarks.closed_loop.runs import SPACE, Outcome, Run, check_period, measured, simulated
from benchmarks.fidelity.clock import SpeedClock, typical_s
from benchmarks.fidelity.machine import SINGLES, Singles, Usage, cpu_pace_of
from benchmarks.fidelity.runs import MEMORY_MB, Bench, routing_of, send_singles
from benchmarks.harness.replay_process import ReplayProcess
from benchmarks.harness.running import local_gateway, running_pipeline
from benchmarks.harness.stepped_load import is_high, stepped
from benchmarks.two_layers import paper_experts
from moe.manifest import Manifest
from moe.reference import WholeModel
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.model.bundled import fitting, open_profile
from simulation.profiles.model.pipeline import measured_workload
from simulation.profiles.model.storage import Profile
from simulation.workloads.workload import Workload
from smoe.deployment import DeploymentSettings
from smoe.lifecycle import GatewaySettings
from smoe.pipelines import ensure_pipeline
from traces import catalog, prompts

POLICIES = ("static-1", "static-2", "static-3", "hpa", "kpa", "keda", "apa", "slo-aware", "last-window")
SECONDS, PERIOD_S, WINDOW_S, SETTLED_S = 60.0, 30.0, 2.0, 10.0
SEED, SIMULATIONS = 3, 20
SINGLES_EVERY = 5
"""Runs between two sets of lone requests."""


@dataclass(frozen=True)
class Setting:
    """A pipeline, and what all policies meet on it."""

    cpu_scale: float
    """Real cores per configured core."""
    mean_rps: float
    slo_s: float
    max_words: int
    """Most words of a text."""
    make: Callable[[Path], Manifest] | None = None
    """Puts the pipeline into a folder; None: the default one."""
    cpu_period_ms: float = GatewaySettings.cpu_period_ms
    """CFS period of CPU limits; the profile's own is simulated."""

    @property
    def full(self) -> Configuration:
        """A real core for every function, while lone requests are sent."""
        return Configuration(MEMORY_MB, 1 / self.cpu_scale, 0.0, 1, 8)

    def other(
        self, cpu_scale: float | None, mean_rps: float | None, slo_ms: float | None, cpu_period_ms: float | None = None
    ) -> Setting:
        """The same with what is given: machines differ by a factor of three in what a call takes."""
        return replace(
            self,
            cpu_scale=cpu_scale or self.cpu_scale,
            mean_rps=mean_rps or self.mean_rps,
            slo_s=self.slo_s if slo_ms is None else slo_ms / 1000,
            cpu_period_ms=cpu_period_ms or self.cpu_period_ms,
        )

    def pipeline(self, folder: Path) -> str:
        """What to deploy, made in ``folder`` where that is needed."""
        if self.make is None:
            return "minilm"
        self.make(folder / "made")
        return str(folder / "made")


SETTINGS = {
    "minilm": Setting(0.006, 10.0, 1.05, 24),
    "paper-experts": Setting(0.06, 7.0, 0.85, 60, paper_experts),
}
"""Load and target: the simulation has policies far apart, and on both sides of λ, at any pace from 0.85 (MiniLM; 0.9 of
the paper's experts) to 1.

MiniLM's 24 experts: at six thousandths of a core replicas are what decides; at 0.012 and above the two real cores are,
and more replicas make requests slower. A call then takes about half a quota (the kernel's least is 1 ms, every 167 ms
here). Of the paper's eight experts it takes several."""


@dataclass(frozen=True)
class LoopedRecord:
    """One policy, measured once."""

    policy: str
    repeat: int
    sent_s: list[float]
    """When each request was sent, after the controller's first look."""
    measured: Outcome
    others_cores: float
    """Cores that processes outside this benchmark used meanwhile."""
    singles: Singles | None
    """Lone requests just before; of every ``SINGLES_EVERY``-th run."""
    clock: list[tuple[float, float]]
    """(seconds since the replay began, CPU seconds of a fixed piece of work), once a second."""
    texts_sha256: str = ""
    """Digest of what was sent: which texts there are depends on the public traces. Older records do not know it."""

    @property
    def clock_s(self) -> float:
        """Median CPU seconds of it with the low rate, at which the pipeline itself hardly slows the piece down."""
        return typical_s([one for one in self.clock if not is_high(np.array(one[0]), PERIOD_S)])


def the_run(setting: Setting, directory: Path, profile: Path | None) -> Run:
    """Load, texts and target of all policies. ``profile``: None takes this machine's of the tree."""
    trace = stepped(SECONDS, setting.mean_rps, PERIOD_S, SEED)
    chosen = prompts.load_prompts(catalog.text_folder(catalog.data_folder(None)), setting.max_words)
    texts = tuple(chosen.choose(trace.requests, SEED))
    tokenizer = WholeModel(directory).tokenizer
    tokens = round(float(np.mean([len(ids) for ids in tokenizer.encode_all(texts)])))
    profile = profile or fitting(directory, this_machine())
    check_period(profile, setting.cpu_period_ms)
    return Run(trace, texts, tokens, setting.slo_s, WINDOW_S, setting.cpu_scale, profile, SEED, PERIOD_S, SETTLED_S)


def run_policies(
    setting: Setting, policies: Sequence[str], repeats: int, show: Callable[[str, float], object], kept: Path | None,
    profile: Path | None,
) -> list[LoopedRecord]:  # fmt: skip
    """Every policy ``repeats`` times, in turns; what the file ``kept`` has already is not measured again, and it gets
    every record as soon as it is there."""
    records = load_looped(kept) if kept is not None and kept.exists() else []
    done = {(record.policy, record.repeat) for record in records}
    turns = [(policy, repeat) for repeat in range(repeats) for policy in policies if (policy, repeat) not in done]
    if not turns:
        return records
    with tempfile.TemporaryDirectory(prefix="smoe-fidelity-") as folder:
        gateway = local_gateway(
            Path(folder) / "state", cpu_scale=setting.cpu_scale, cpu_period_ms=setting.cpu_period_ms
        )
        cores, pipeline = 1 / setting.cpu_scale, setting.pipeline(Path(folder))
        deployment = DeploymentSettings(cpu_cores=cores / 3, ingress_cpu_cores=cores, ingress_concurrency=512)
        with running_pipeline(gateway, deployment, pipeline) as served, ReplayProcess(served.url, SEED) as sender:
            run, topology = the_run(setting, served.directory, profile), load_topology(served.directory)
            lone, digest = run.texts[:SINGLES], texts_sha256(run.texts)
            tokens = routing_of(WholeModel(served.directory), lone)
            bench = Bench(served.client, sender, topology, served.gateway.state, SECONDS, setting.full)
            for number, (policy, repeat) in enumerate(turns):
                show(policy, number)
                singles = send_singles(bench, lone, tokens) if number % SINGLES_EVERY == 0 else None
                usage = Usage()
                with SpeedClock() as clock:
                    one, sent_s, begun_s = measured(
                        run, contender(policy, WINDOW_S, 1), served.directory, served.client, bench.auth[1]
                    )
                others = usage.cores()[1]
                samples = [
                    (at_s - begun_s, cpu_s) for at_s, cpu_s in clock.samples if begun_s <= at_s < begun_s + SECONDS
                ]
                record = LoopedRecord(policy, repeat, sent_s.tolist(), one, others, singles, samples, digest)
                records.append(record)
                if kept is not None:
                    with kept.open("a") as file:
                        file.write(json.dumps(asdict(record)) + "\n")
    return records


def load_looped(path: Path) -> list[LoopedRecord]:
    """What :func:`run_policies` kept. Raises ClickException for a record without the machine's speed."""
    records = []
    for line in path.read_text().splitlines():
        document = json.loads(line)
        if "clock" not in document:
            raise click.ClickException(f"{path} is of an older form, which does not know how fast the machine was")
        singles = document.pop("singles")
        document["measured"] = Outcome(**document["measured"])
        records.append(LoopedRecord(**document, singles=None if singles is None else Singles(**singles)))
    return records


def texts_sha256(texts: Sequence[str]) -> str:
    return sha256("\n".join(texts).encode()).hexdigest()


def same_texts(records: Sequence[LoopedRecord], texts: Sequence[str]) -> None:
    """Raises ClickException where a record was measured with others than ``texts``."""
    if any(record.texts_sha256 not in ("", texts_sha256(texts)) for record in records):
        raise click.ClickException(
            "the records were measured with other texts than there are now; simulate them with the public traces that "
            "were there then (SMOE_TRACES names their folder), or measure again"
        )


def simulate_all(setting: Setting, records: Sequence[LoopedRecord], profile_path: Path | None) -> list[dict[str, Any]]:
    """For each policy its outcomes, measured and simulated (the mean over ``SIMULATIONS`` draws for each record)."""
    with tempfile.TemporaryDirectory(prefix="smoe-fidelity-") as folder:
        directory, _ = ensure_pipeline(setting.pipeline(Path(folder)), Path(folder) / "pipelines")
        run = the_run(setting, directory, profile_path)
        profile = open_profile(run.profile, directory, this_machine())
        same_texts(records, run.texts)
        counts = routing_of(WholeModel(directory), run.texts)
        sets = [record.singles for record in records if record.singles is not None]
        rows = []
        for policy in dict.fromkeys(record.policy for record in records):
            one = contender(policy, WINDOW_S, 1)
            kept_runs = [record for record in records if record.policy == policy]
            paced = [workload_of(setting, directory, profile, run, counts[0], record, sets) for record in kept_runs]
            ours = [
                simulated(run, one, directory, workload, np.array(record.sent_s), counts, SEED + draw)
                for record, workload in zip(kept_runs, paced, strict=True)
                for draw in range(SIMULATIONS)
            ]
            rows.append(
                {
                    "policy": policy,
                    "measured": [record.measured for record in kept_runs],
                    "simulated": ours,
                    "pace": [workload.host.pace for workload in paced if workload.host is not None],
                    "others_cores": [record.others_cores for record in kept_runs],
                }
            )
        return rows


def workload_of(
    setting: Setting,
    directory: Path,
    profile: Profile,
    run: Run,
    tokens: np.ndarray,
    record: LoopedRecord,
    sets: Sequence[Singles],
) -> Workload:
    """The pipeline on the profile's machine at the speed it had in the record. ``tokens`` [requests]."""
    front_s = float(np.mean([one.front_s for one in sets]))
    front_cpu_s = min(front_s, float(np.mean([one.front_cpu_s for one in sets])))
    workload = measured_workload(
        directory, profile, tokens, slo_s=run.slo_s, cpu_scale=run.cpu_scale, space=SPACE, shared=True,
        front_s=front_s - front_cpu_s, segment_configuration=run.segment,
    )  # fmt: skip
    assert workload.host is not None
    paces, waits_s = zip(*(cpu_pace_of([one], workload, setting.full) for one in sets), strict=True)
    by_clock = np.array(paces) / [one.clock_s for one in sets]
    host = replace(workload.host, pace=float(np.median(by_clock)) * record.clock_s, front_s=front_cpu_s)
    return replace(workload, host=host, request_s=workload.request_s + float(np.median(waits_s)))
