"""``smoe run``: the main job. Default pipeline up, real prompts at the arrival times of a bursty trace, first as
deployed, then with the controller scaling every function; a live view, and a report that opens with a verdict."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from pydantic import Field
from rich.console import Console

from autoscaler.build import check_policy
from autoscaler.checked import Checked, Flag, Rule, read_toml
from autoscaler.errors import SettingsError
from autoscaler.options import options_of
from evaluation.provenance import commit
from gateway.client.client import GatewayClient
from moe.manifest import Manifest
from moe.reference import WholeModel
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.measure.process_tree import own_cpu_s
from smoe import __version__, lifecycle
from smoe.commands.lines import print_lines
from smoe.commands.options import state_option
from smoe.deployment import DeploymentSettings
from smoe.errors import SmoeError
from smoe.load import BUSY_S, CALLERS, busiest_over_mean, in_length_and_rate, mean_rps_of, measure_capacity
from smoe.parity import Parity, compare_with_whole_model, send
from smoe.pipelines import ensure_pipeline
from smoe.prometheus import SCRAPES_A_WINDOW, prometheus
from smoe.report import ReportPaths, build, closing, kept, summary_of
from smoe.scaled_replay import ScaledReplay, policy_part
from smoe.slo import known_pass_s, round_slo_s
from traces import catalog, loading, prompts
from traces.model import Trace
from traces.options import data_option
from traces.replay import ReplayResult
from traces.results import describe

SLO_FACTOR = 1.25
SLOW = 0.5
"""Part of the SLO that a warm prompt alone may take; where it takes more, the plan line states it."""
SEGMENT_CORES = 6.0
"""Segments have the cores for the busiest minute from the start: what load moves is left to the experts."""
LEFT_OUT_S = 18 * 60
"""The bursty hour's first minutes, with next to no requests, are left out: the rest moves between 11 and 547 a
minute."""


@dataclass(frozen=True)
class RunSettings(Checked):
    """Everything a run is made from, and the options of ``smoe run``; carried into the report."""

    error = SmoeError
    pipeline: Annotated[str, Flag(hidden=True)]
    state: Annotated[Path, Flag(hidden=True)]
    data: Annotated[Path | None, Flag(hidden=True)]
    out: Path = Path("out")
    """Folder of the report, its numbers and logs."""
    policy: Literal["auto", "staffing", "hpa", "smoe", "static"] = "auto"
    """auto: staffing, where it fits, by what prompts take, with standbys for bursts; hpa: replicas of each function by
    CPU and calls in flight; smoe: the learnt policy sizes experts."""
    plan: Annotated[Path | None, Flag(file=True)] = None
    """static: stored configurations (docs/policies.md) that it holds."""
    profile: Annotated[Path | None, Flag(file=True)] = None
    """staffing: what the functions of a pipeline of your own cost, measured by `smoe lab profile`."""
    policy_file: Annotated[Path | None, Flag("--policy-settings", file=True)] = None
    """Settings of the policy (TOML, docs/policies.md), in place of its defaults."""
    baseline: Annotated[bool, Flag("--baseline/--no-baseline")] = True
    """Replay as deployed first, without scaling, and compare; or do not."""
    seconds: Annotated[float, Field(ge=10, le=86400)] = 120.0
    """Length of the replay in seconds."""
    mean_rps: Annotated[float | None, Field(ge=0.1, le=1000)] = None
    """Requests per second on average. [default: whatever overloads the pipeline as deployed]"""
    cpu_scale: Annotated[float, Field(ge=0.001, le=10)] = 0.01
    """Real cores per configured core: how a cluster's configurations are emulated on this machine."""
    cpu_period_ms: Annotated[float, Field(ge=1, le=1000)] = 200.0
    """CFS period of CPU limits: as on whole cores, a call fits into what a replica may use in one (decision 7)."""
    interval_s: Annotated[float, Field(ge=0.5)] = 2.0
    """Seconds between decisions."""
    slo_ms: Annotated[float | None, Field(ge=0.1)] = None
    """P95 target in milliseconds. [default: by --slo-factor]"""
    slo_factor: Annotated[float, Field(ge=1)] = SLO_FACTOR
    """Least SLO over a prompt's known work at the deployed limits; the SLO is the next round number."""
    max_replicas: Annotated[int, Field(ge=1, le=64)] = 8
    """Most replicas of a function."""
    trace: str | None = None
    """Trace file or data set. [default: a bursty hour of the public traces]"""
    prometheus: Annotated[bool, Flag("--prometheus/--no-prometheus")] = True
    """Read the metrics through a Prometheus of its own, where one is on PATH; or from the targets."""
    fail_on_miss: bool = False
    """Exit with 1 where the SLO was missed, as CI wants."""
    max_words: Annotated[int, Field(ge=1, le=200)] = 24
    """Longest prompt in words."""
    seed: int = 0
    """Seed of all random choices."""

    def rules(self) -> Iterable[Rule]:
        return (
            ("plan", self.plan is None or self.policy == "static", "for --policy static"),
            ("profile", self.profile is None or self.policy in ("auto", "staffing"), "for --policy staffing"),
            ("policy_file", self.policy_file is None or self.policy != "static", "not for --policy static"),
        )

    @property
    def plans(self) -> bool:
        """Whether the policy plans with what a configured core is here."""
        return self.policy in ("smoe", "staffing")

    @property
    def policy_settings(self) -> dict[str, Any]:
        """Those that are not the policy's defaults. Raises SettingsError for a file that is none."""
        given: dict[str, Any] = {"cpu_scale": self.cpu_scale} if self.plans else {}
        if self.profile is not None:
            given["profile"] = str(self.profile)
        return given if self.policy_file is None else {**given, **read_toml(self.policy_file, "policy settings")}


@click.command()
@click.argument("pipeline", default="minilm")
@state_option
@options_of(RunSettings)
@data_option
def run(**options: Any) -> None:
    """Bring PIPELINE up, replay a bursty trace as deployed, then scaled, and write a report to OUT.

    Experts have one configured core each, which the busiest minutes overload: first the run shows what the prompts meet
    without scaling, then the same prompts with the controller at work."""
    _run(RunSettings(**options), "step by step: smoe up; your own checkpoint: smoe pipeline split FOLDER --out FOLDER")


@click.command()
@click.option("--seconds", type=click.FloatRange(min=10), default=20.0, help="Length of the replay.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("smoe-demo"),
    help="Folder of the report; what it needs to run goes into OUT/state.",
)
def demo(seconds: float, out: Path) -> None:
    """The main job in short: the default pipeline up, checked against the whole model, a replay under the controller,
    a report. `smoe run` compares with the pipeline as deployed, too, and takes all options."""
    settings = RunSettings(pipeline="minilm", state=out / "state", data=None, out=out, seconds=seconds, baseline=False)
    _run(settings, "smoe run (longer, and compared with no scaling), or step by step: smoe up")


def _run(settings: RunSettings, next_step: str) -> None:
    console = Console()
    _check_out(settings.out, console)
    with console.status("reading the trace and the prompts"):
        hour, chosen = _hour(settings), _prompts(settings)
    gateway = lifecycle.GatewaySettings(
        settings.state, port=0, metrics_port=0, cpu_scale=settings.cpu_scale, cpu_period_ms=settings.cpu_period_ms
    )
    directory, manifest = ensure_pipeline(settings.pipeline, gateway.pipelines)
    with console.status("preparing the policy"):
        policy, table = _check_policy(settings, directory, console)
    begun_s = time.monotonic()
    with _running(gateway, console) as client:
        _deploy(client, manifest, settings, console)
        ready = f"{len(manifest.nodes) + 1} functions ready at {client.url} after {time.monotonic() - begun_s:.1f} s"
        console.print(f"[bold]{manifest.name}[/]: {ready}")
        with console.status("comparing answers with the whole model's"):
            parity = compare_with_whole_model(client, manifest.name, directory, chosen.choose(8, settings.seed))
        console.print(_parity_line(parity))
        calling = chosen.choose(CALLERS, settings.seed)
        calls: list[Callable[[], object]] = [partial(send, client, manifest.name, text) for text in calling]
        mean_rps = overload_of(calls, own_cpu_s, settings, hour, console)
        trace = in_length_and_rate(hour, settings.seconds, mean_rps, settings.seed)
        texts = chosen.choose(trace.requests, settings.seed)
        with console.status("choosing the SLO"):
            slo_s = settings.slo_ms / 1000 if settings.slo_ms else default_slo_s(settings, manifest, directory, texts)
        console.print(_plan_line(settings, policy, trace, chosen.source, slo_s, parity))
        scaled = ScaledReplay(
            manifest.name, directory, settings.state, settings.out, trace, texts, slo_s, policy,
            table, settings.interval_s, settings.max_replicas, settings.seed, plan=settings.plan,
        )  # fmt: skip
        with _metrics(settings, client.url, console) as prometheus_url:
            scaled = replace(scaled, prometheus_url=prometheus_url)
            compared = settings.baseline and policy != "static"
            baseline = measure_baseline(scaled, client, console) if compared else None
            console.print(f"the same prompts, scaled by [bold]{policy}[/]:")
            since_s = time.time()
            result = scaled.run(client, console)
    with console.status("writing the report"):
        paths = _report(settings, policy, manifest, trace, chosen.source, result, slo_s, since_s, parity, baseline)
    report = f"report      {paths.html} (numbers: {paths.json})"
    print_lines(console, (*closing(paths.numbers, slo_s), report, f"next        {next_step}"))
    if not result.summary["complete"]:
        raise SystemExit(130)
    if settings.fail_on_miss and not kept(paths.numbers, slo_s):
        raise SmoeError("the SLO was missed (--fail-on-miss)")


@contextmanager
def _running(gateway: lifecycle.GatewaySettings, console: Console) -> Iterator[GatewayClient]:
    """A gateway of its own for as long as the block lasts."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    with console.status("starting the gateway"):
        process = lifecycle.start_gateway(gateway, detach=False)
    try:
        yield GatewayClient.from_state(gateway.state)
    finally:
        with console.status("stopping the pipeline"):
            lifecycle.stop_process(process)


@contextmanager
def _metrics(settings: RunSettings, url: str, console: Console) -> Iterator[str | None]:
    """Where the controller reads; None: the targets, as also where a Prometheus cannot be had."""
    read, why = None, "as asked for"
    with ExitStack() as stack:
        if settings.prometheus:
            try:
                with console.status("starting a Prometheus"):
                    read = stack.enter_context(prometheus(url, settings.state, settings.interval_s))
            except SmoeError as error:
                why = str(error)
        where = f"a Prometheus, scraped {SCRAPES_A_WINDOW} times a window" if read else f"the targets themselves: {why}"
        console.print(f"the controller reads {where}")
        yield read


def default_slo_s(settings: RunSettings, manifest: Manifest, directory: Path, texts: list[str]) -> float:
    """The SLO for these texts on the pipeline as deployed, the same whatever else the machine does."""
    tokens = statistics.fmean(map(len, WholeModel(directory).tokenizer.encode_all(texts)))
    pass_s = known_pass_s(manifest, tokens, SEGMENT_CORES * settings.cpu_scale, settings.cpu_scale)
    return round_slo_s(settings.slo_factor * pass_s)


def measure_baseline(scaled: ScaledReplay, client: GatewayClient, console: Console) -> dict[str, Any]:
    """What the same prompts meet where nothing is scaled. Raises SystemExit where it was stopped: a part of them is no
    baseline."""
    console.print("first as deployed, nothing scaled:")
    static = replace(scaled, policy="static", policy_settings={}, plan=None, out=scaled.out / "baseline")
    since_s = time.time()
    if not static.run(client, console).summary["complete"]:
        console.print("stopped before the run that is scaled; there is nothing to report")
        raise SystemExit(130)
    return summary_of(static.out / "log", static.out / "requests.csv", scaled.slo_s, since_s)


def _hour(settings: RunSettings) -> Trace:
    """The trace in its own length and rate. Raises TraceError."""
    folder = catalog.data_folder(settings.data)
    if settings.trace is not None:
        return loading.load(catalog.resolve(settings.trace, folder), seed=settings.seed)
    hour = catalog.bursty_hour(folder, "uniform", settings.seed)
    return hour.clip(LEFT_OUT_S, hour.duration_s)


def _prompts(settings: RunSettings) -> prompts.PromptSet:
    folder = catalog.data_folder(settings.data)
    return prompts.load_prompts(catalog.text_folder(folder), settings.max_words)


def _check_out(out: Path, console: Console) -> None:
    """States which report is replaced. Raises SmoeError where a file is in the way of the folders that a run writes."""
    for folder in (*reversed(out.parents), out, out / "log", out / "baseline"):
        if folder.exists() and not folder.is_dir():
            raise SmoeError(f"--out {out}: {folder} is a file; a folder is needed there")
    if (report := out / "report.html").is_file():
        written = datetime.fromtimestamp(report.stat().st_mtime).strftime("%Y-%m-%d %H:%M")
        console.print(f"{out}: replaces the report of {written}", markup=False, highlight=False)


def _check_policy(settings: RunSettings, directory: Path, console: Console) -> tuple[str, dict[str, Any]]:
    """The policy that runs, and its settings; where it was to be chosen, the reason is shown. Raises SmoeError for what
    it cannot use, before a minute is spent on bringing the pipeline up."""
    try:
        choice = check_policy(
            policy_part(
                directory, policy=settings.policy, policy_settings=settings.policy_settings, plan=settings.plan,
                interval_s=settings.interval_s, slo_s=(settings.slo_ms or 1000.0) / 1000,
                max_replicas=settings.max_replicas, cpu_scale=settings.cpu_scale,
            )
        )  # fmt: skip
    except SettingsError as error:
        hint = "; `smoe lab profile PIPELINE --out FILE` measures one for --profile" if settings.plans else ""
        raise SmoeError(f"--policy {settings.policy}: {error}{hint}") from error
    if not choice.sentence:
        return settings.policy, settings.policy_settings
    console.print(choice.sentence, markup=False)
    return choice.making.settings.policy, dict(choice.making.whole_table())


def overload_of(
    calls: Sequence[Callable[[], object]],
    spent_s: Callable[[], float],
    settings: RunSettings,
    hour: Trace,
    console: Console,
) -> float:
    """The mean rate, by default one whose busiest seconds are more than the pipeline answers as deployed
    (:mod:`smoe.load`). What it answers is measured in any case: runs at a given rate begin as others do."""
    with console.status("measuring how many prompts a second it answers as deployed"):
        capacity = measure_capacity(calls, spent_s)
    cores = len(os.sched_getaffinity(0))
    rate_rps = settings.mean_rps or mean_rps_of(hour, settings.seconds, capacity.overload_rps(cores))
    busiest_rps = rate_rps * busiest_over_mean(hour, settings.seconds)
    console.print(
        f"as deployed it answers {capacity.rps:.1f} prompts a second, each {1000 * capacity.cpu_s:.0f} ms of CPU; "
        f"{rate_rps:.1f} a second on average ask for {busiest_rps / capacity.rps:.2g} times that in the busiest "
        f"{BUSY_S:g} s, {busiest_rps / capacity.most_rps(cores):.0%} of what {cores} cores can do"
    )
    if busiest_rps <= capacity.rps:
        console.print("that is no overload: these cores are busy as deployed, so give experts less (--cpu-scale)")
    return rate_rps


def _deploy(client: GatewayClient, manifest: Manifest, settings: RunSettings, console: Console) -> None:
    """The pipeline as deployed, whatever an earlier run of the same state folder scaled it to."""
    deployment = DeploymentSettings(
        segment_cpu_cores=SEGMENT_CORES,
        ingress_cpu_cores=max(1, math.ceil(1 / settings.cpu_scale)),
        max_replicas=settings.max_replicas,
    )
    with console.status("deploying") as status:
        total = len(manifest.nodes) + 1
        lifecycle.remove_pipeline(client, manifest.name)
        lifecycle.deploy_pipeline(
            client, manifest, deployment, lambda ready: status.update(f"{ready} of {total} functions ready")
        )


def _report(
    settings: RunSettings,
    policy: str,
    manifest: Manifest,
    trace: Trace,
    source: str,
    result: ReplayResult,
    slo_s: float,
    since_s: float,
    parity: Parity,
    baseline: dict[str, Any] | None,
) -> ReportPaths:
    shown = {key: str(value) if isinstance(value, Path) else value for key, value in vars(settings).items()}
    meta = {
        "pipeline": manifest.name,
        "policy": policy,
        "planned": trace.requests,
        "trace": describe(trace),
        "texts": source,
        "seeds": [settings.seed],
        "settings": shown,
        "command": shlex.join(["smoe", *sys.argv[1:]]),
        "begun": datetime.fromtimestamp(since_s, UTC).isoformat(timespec="minutes"),
        "machine": this_machine().to_json(),
        "version": __version__,
        "commit": commit(),
        "since_s": since_s,
        "parity": parity.to_json(),
        "baseline": baseline,
    }
    (settings.out / "replay.json").write_text(json.dumps(result.summary, indent=1) + "\n")
    return build(settings.out, settings.out / "log", settings.out / "requests.csv", slo_s, meta)


def _parity_line(parity: Parity) -> str:
    warm = "" if parity.warm else ", still getting faster"
    return (
        f"answers of {parity.texts} real prompts equal the whole model's within {parity.max_rel_err:.1e}; one prompt "
        f"takes {parity.unloaded_p50_s * 1000:.0f} ms through the functions (after {parity.warm_up_passes} to warm up, "
        f"which began at {parity.cold_p50_s * 1000:.0f} ms{warm}), {parity.whole_p50_s * 1000:.0f} ms whole"
    )


def _plan_line(settings: RunSettings, policy: str, trace: Trace, source: str, slo_s: float, parity: Parity) -> str:
    of_prompt, of_whole = slo_s / parity.unloaded_p50_s, slo_s / parity.whole_p50_s
    slow = ""
    if parity.unloaded_p50_s > SLOW * slo_s:
        slow = f" (a warm prompt alone takes {1 / of_prompt:.0%} of it: this machine is slow, or in use)"
    return (
        f"replaying {trace.requests} prompts ({source}) at the arrivals of {trace.source}, "
        f"CV {trace.iat_cv:.1f}, in {settings.seconds:.0f} s; SLO: P95 within {slo_s * 1000:.0f} ms{slow}, "
        f"{of_prompt:.3g} times a warm prompt through the functions, {of_whole:.3g} times the whole model's; policy "
        f"{policy}, a decision every {settings.interval_s:g} s"
    )
