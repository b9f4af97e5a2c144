"""``smoe lab replay``: a token trace through the simulation of a decoder, as it is or under scaling policies."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import Field
from rich.console import Console
from rich.table import Table

from autoscaler.checked import Checked, Flag, NotNegative
from autoscaler.contract import ConfigurationSpace
from autoscaler.errors import SettingsError
from autoscaler.options import options_of
from autoscaler.platforms.quantities import configuration_from
from autoscaler.prices import money
from autoscaler.state.targets import Targets as Lambda
from evaluation.comparison.tables import always_failed, failure_sentences
from evaluation.generation import CONSTANT, Setting, constants, run_policy
from functions.scheduling.settings import SchedulingError, Targets
from moe.errors import MoeError
from moe.manifest import load as load_manifest
from simulation.engine.errors import SimulationError
from simulation.generation.engine import Outcome, Request
from simulation.generation.replayed import SCHEDULES, simulate
from simulation.profiles.generation.storage import GenerationProfile, load
from simulation.profiles.model.bundled import open_profile
from simulation.profiles.model.errors import ProfileError, ProfileMismatchError
from simulation.profiles.model.pipeline import measured_workload
from simulation.workloads.workload import TokenLengths
from smoe.commands.lines import print_table
from smoe.commands.options import chunk_option, json_option
from smoe.deployment import DeploymentSettings, function_deployments
from smoe.errors import SmoeError
from traces import catalog, loading
from traces.completions import Lengths, TokenTargets, lengths_of
from traces.options import clip_options, data_option, seed_option
from traces.results import RequestRecord
from traces.scale import thin
from traces.token_results import summarise_tokens, token_rows

MORE_THAN_0 = click.FloatRange(min=0, min_open=True)
ALL = (CONSTANT, "hpa", "kpa", "keda", "apa", "slo-aware", "autoscaler.policy.attainment:make", "staffing")


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What is replayed, and with which targets."""
    for option in reversed(
        (
            click.option("--trace", "trace_name", required=True, help="Token trace: data set or file."),
            clip_options,
            data_option,
            click.option(
                "--lengths",
                type=click.Path(path_type=Path, exists=True, dir_okay=False),
                default=None,
                help="ServeGen: table that requests get their token counts from.",
            ),
            click.option("--speed", type=MORE_THAN_0, default=1.0, show_default=True, help="Time compression."),
            click.option(
                "--keep",
                type=click.FloatRange(min=0, max=1, min_open=True),
                default=1.0,
                show_default=True,
                help="Share of the requests that is kept, drawn by --seed.",
            ),
            click.option(
                "--length-divisor", type=click.FloatRange(min=1), default=1.0, show_default=True, help="Of its lengths."
            ),
            click.option(
                "--context", type=click.IntRange(2), default=8192, show_default=True, help="Of the model, tokens."
            ),
            click.option("--ttft-ms", type=MORE_THAN_0, default=None, help="Goodput: longest time to the first token."),
            click.option("--tpot-ms", type=MORE_THAN_0, default=None, help="Goodput: longest time per output token."),
            click.option(
                "--instances",
                type=click.IntRange(1, 1000),
                default=1,
                show_default=True,
                help="Of the decoder, or at the begin.",
            ),
            click.option("--schedule", type=click.Choice(sorted(SCHEDULES)), default="colocated", show_default=True),
            chunk_option("Most tokens of an iteration with parts of prompts. [default: as measured]", default=None),
            seed_option,
            json_option,
        )
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class ScalingSettings(Checked):
    """Options with which policies are simulated."""

    policies: tuple[str, ...] = ()
    """Scaling policies with the controller in the loop: names (docs/policies.md), constant for the fewest instances
    that would do, constant-4 for four, constant-4x2 for four and two replicas of every expert, all for those that scale
    a decoder. The next options are for them."""
    pipeline: Annotated[Path | None, Flag(folder=True)] = None
    """The decoder's folder."""
    nodes: Annotated[Path | None, Flag(file=True)] = None
    """Profile of its functions one by one (smoe lab profile --nodes)."""
    window_s: Annotated[float, Field(ge=0.1, le=3600)] = 5.0
    """Seconds between decisions."""
    warm_up_s: NotNegative = 300.0
    """Seconds that do not count."""
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = 8
    """Most of a function."""
    policy_settings: Annotated[Path | None, Flag(folder=True)] = None
    """Folder of policies' settings, POLICY.toml."""


@click.command()
@click.argument("profile", type=click.Path(path_type=Path))
@_options
@options_of(ScalingSettings)
def replay(profile: Path, **options: Any) -> None:
    """Simulate a token trace on instances of a decoder that `smoe lab profile` has measured.

    Each instance has the machine to itself; keys and values move between them at no cost. With --policies the
    controller scales instances and experts; cost, goodput and tails of each policy are printed, and how often it
    failed. Exit status 1 where one failed in every window.
    """
    stored = load(profile)
    measured = stored.measured
    if options["chunk_tokens"] is not None:
        if options["chunk_tokens"] > measured.chunk_tokens:
            raise SmoeError(
                f"--chunk-tokens is {options['chunk_tokens']}; this profile was measured with iterations of at most "
                f"{measured.chunk_tokens} tokens and does not show what larger ones take"
            )
        measured = replace(measured, chunk_tokens=options["chunk_tokens"])
        stored = replace(stored, measured=measured)
    requests, asked = _requests(options)
    if options["policies"]:
        _scaled(stored, requests, options)
        return
    targets = TokenTargets(_seconds(options["ttft_ms"]), _seconds(options["tpot_ms"]))
    instances, schedule = options["instances"], options["schedule"]
    try:
        # where none are asked for, schedules that need some have these
        needed = Targets(targets.ttft_s or 1.0, targets.tpot_s or 0.1)
        outcome = simulate(requests, measured.drawing(options["seed"]), needed, schedule, instances)
    except SchedulingError as error:
        raise SmoeError(str(error)) from error
    summary = summarise(requests, outcome, targets) | {
        "length_divisor": options["length_divisor"], "context": options["context"], "ignore_eos": True,
        "cut_to_context": asked.cut, "instances": instances, "schedule": schedule,
        "chunk_tokens": measured.chunk_tokens, "lost": outcome.lost,
        "flips": outcome.flips, "simulated": True,
    }  # fmt: skip
    if options["as_json"]:
        click.echo(json.dumps(summary))
        return
    table = Table("simulated", f"{len(requests)} requests in {requests[-1].arrival_s:.0f} s", show_header=True)
    for line in token_rows(summary):
        table.add_row(*line)
    if outcome.lost:
        table.add_row("lost", f"{outcome.lost} requests that no instance has room for")
    print_table(table)


def _requests(options: dict[str, Any]) -> tuple[list[Request], Lengths]:
    """In order of arrival. Raises SmoeError."""
    path = catalog.resolve(options["trace_name"], catalog.data_folder(options["data"]))
    part = {name: options[name] for name in ("row", "start_s", "duration_s", "seed", "lengths")}
    trace = thin(loading.load(path, **part), options["keep"], options["seed"])
    if not trace.requests:
        raise SmoeError(f"{options['trace_name']} has no request in that part")
    asked = lengths_of(trace, options["length_divisor"], options["context"])
    rows = zip(trace.arrival_s / options["speed"], asked.prompt, asked.answer, strict=True)
    return [Request(float(at), int(prompt), int(answer)) for at, prompt, answer in rows], asked


def _scaled(stored: GenerationProfile, requests: list[Request], options: dict[str, Any]) -> None:
    """Every policy on the same requests, one row each. Raises SmoeError."""
    missing = [name for name in ("pipeline", "nodes", "ttft_ms", "tpot_ms") if options[name] is None]
    if missing:
        option = missing[0].replace("_", "-")
        raise SmoeError(f"policies need a pipeline, a profile of its functions and targets: --{option} is missing")
    if options["schedule"] != "colocated":
        raise SmoeError(f"policies are simulated with schedule colocated, not {options['schedule']}")
    names = [name for one in options["policies"] for name in (ALL if one == "all" else (one,))]
    summaries: list[dict[str, Any]] = []
    console = Console(stderr=True)
    try:
        setting = _setting(stored, requests, options)
        with console.status("simulating") as status:
            for name in dict.fromkeys(names):
                status.update(f"simulating {name}")
                summaries += constants(setting) if name == CONSTANT else [run_policy(setting, name)]
    except (SettingsError, SimulationError, ProfileError, MoeError, ValueError) as error:
        raise SmoeError(str(error)) from error
    if options["as_json"]:
        click.echo(json.dumps(summaries))
    else:
        print_table(_table(summaries, len(requests)))
        for sentence in failure_sentences(summaries):
            click.echo(sentence)
    if failed := always_failed(summaries):
        raise SmoeError("; ".join(f"{name} failed in every window ({first})" for name, first in failed.items()))


def _setting(stored: GenerationProfile, requests: list[Request], options: dict[str, Any]) -> Setting:
    """As ``smoe up`` deploys the pipeline. Raises ProfileError, MoeError."""
    folder, tpot_s = options["pipeline"], options["tpot_ms"] / 1000
    workload = measured_workload(
        folder,
        open_profile(options["nodes"], folder, None),
        TokenLengths.fixed(1),
        slo_s=tpot_s,
        space=ConfigurationSpace(gpu_shares=()),
    )
    if stored.manifest_sha256 != workload.topology.manifest_sha256:
        raise ProfileMismatchError(f"the profile is of another pipeline than {folder}, or of another split of it")
    deployments = function_deployments(load_manifest(folder, verify=False), DeploymentSettings())
    parts = [
        (one["service"], configuration_from(one["limits"], 1, int(one["envVars"]["max_inflight"])))
        for one in deployments
    ]
    start = {name: one for name, one in parts if one is not None}
    targets = Lambda(None, options["ttft_ms"] / 1000, tpot_s)
    setting = Setting(
        folder, options["nodes"], workload, stored.measured, requests, targets, start,
        options["window_s"], options["warm_up_s"], options["max_replicas"], options["policy_settings"], options["seed"],
    )  # fmt: skip
    return setting.with_instances(options["instances"])


def _table(summaries: list[dict[str, Any]], requests: int) -> Table:
    table = Table(title=f"simulated: {requests} requests")
    heads = ("policy", "per hour", "goodput", "windows over", "TTFT P50, P95", "TPOT P50, P95", "instances", "experts")
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place == 0 else "right")
    for one in summaries:
        over = "-" if one["windows_over"] is None else f"{one['windows_over']:.1%}"
        mean, most = one["instances_mean"], one["instances_max"]
        table.add_row(
            one["policy"], money(one["cost_per_hour"], one["currency"]), f"{one['goodput']:.1%}", over,
            _pair(one["ttft_s"]), _pair(one["tpot_s"]), f"{mean:.1f}, at most {most}",
            f"{one['expert_replicas_mean']:.2f}",
        )  # fmt: skip
    return table


def _pair(quantiles: dict[str, float] | None) -> str:
    return "-" if quantiles is None else f"{1000 * quantiles['p50']:.0f}, {1000 * quantiles['p95']:.0f} ms"


def summarise(requests: list[Request], outcome: Outcome, targets: TokenTargets) -> dict[str, Any]:
    """As :func:`traces.token_results.summarise_tokens`, of simulated requests."""
    records = [
        RequestRecord(
            index, one.arrival_s, one.arrival_s, None, "broken" if tpot is None else "ok", None, one.output, 0, 1, "",
            None, one.prompt, one.output, ttft, tpot if one.output > 1 else None,
        )
        for index, (one, ttft, tpot) in enumerate(zip(requests, outcome.ttft_s, outcome.tpot_s, strict=True))
    ]  # fmt: skip
    ends_s = [
        (one.sent_s or 0.0) + (one.ttft_s or 0.0) + (one.tpot_s or 0.0) * ((one.tokens or 0) - 1)
        for one in records
        if one.outcome == "ok"
    ]
    return summarise_tokens(records, max(ends_s, default=0.0), targets)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
