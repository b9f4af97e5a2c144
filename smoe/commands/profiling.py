"""``smoe lab profile``: measure a pipeline's functions on this machine, fit the latency model, draw its surface."""

from __future__ import annotations

import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from evaluation.progress import LongWork
from gateway.client.client import GatewayClient
from simulation.profiles.fit.report import closing_rows, conclude
from simulation.profiles.measure.gpu import GpuSettings, check_shares
from simulation.profiles.measure.machine import gpu_name, require_gpu, this_machine
from simulation.profiles.measure.measurement_plan import QUICK, ProfileSettings
from simulation.profiles.measure.session import measure_profile, measure_requests
from simulation.profiles.model.bundled import open_profile
from simulation.profiles.model.errors import ProfileError
from simulation.profiles.model.storage import Profile, save
from smoe import lifecycle
from smoe.commands.options import cpu_period_option, state_option
from smoe.commands.profile_gateway import ProfileGateway
from smoe.commands.profiling_decoder import decoder_settings, profile_decoder
from smoe.deployment import DeploymentSettings, function_deployments
from smoe.pipelines import ensure_pipeline

INGRESS_CONCURRENCY = 64
_OF_FUNCTIONS = ("tokens", "shares", "memory_mib", "concurrency", "seconds", "minutes")
_OF_FUNCTIONS_WORDS = "options of single functions (--tokens, --shares, --memory, --requests-again …)"


class _Numbers(click.ParamType[tuple[float, ...]]):
    """Comma-separated numbers above 0."""

    name = "numbers"

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple((int if self._whole else float)(part) for part in str(value).split(","))
        except ValueError:
            numbers = ()
        if not numbers or any(not 0 < number < 1e9 for number in numbers):
            kind = "whole numbers" if self._whole else "numbers"
            self.fail(f"{value!r} is not a comma list of {kind} above 0, such as 1,8,32", param, ctx)
        return tuple(sorted(set(numbers)))


@click.command()
@click.argument("pipeline", default="minilm")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Parquet file to write; the picture goes next to it as .png.",
)
@click.option(
    "--requests-again",
    is_flag=True,
    help="Measure only concurrent requests and requests after idle gaps (minutes), and update the profile OUT.",
)
@click.option("--quick", is_flag=True, help="Few points and short ones: shows that it works, too coarse to plan with.")
@click.option("--tokens", type=_Numbers(whole=True), default=None, help="Tokens per call. [default: 1,8,32,128,512]")
@click.option(
    "--shares",
    type=_Numbers(whole=False),
    default=None,
    help="CPU shares in real cores. [default: 0.03,0.06,0.12,0.25,0.5,1]",
)
@click.option(
    "--memory",
    "memory_mib",
    type=_Numbers(whole=True),
    default=None,
    help="Memory limits in MiB. [default: 8,12,16,24,32,48,64,128]",
)
@click.option("--concurrency", type=_Numbers(whole=True), default=None, help="Calls at once. [default: 2,4,8]")
@click.option("--repeats", type=click.IntRange(1, 100), default=None, help="Repeats of every point. [default: 3]")
@click.option(
    "--seconds", type=click.FloatRange(0.05, 60), default=None, help="Seconds of load on a point. [default: 0.8]"
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=1),
    default=None,
    help="Stop repeating after about so many minutes; every point is measured once. [default: no limit]",
)
@click.option(
    "--cpu-scale",
    type=click.FloatRange(0.001, 10),
    default=1.0,
    show_default=True,
    help="Real cores per configured core of the gateway that is started.",
)
@cpu_period_option
@click.option(
    "--gpu-shares",
    type=_Numbers(whole=False),
    default=None,
    help="Shares of a GPU under MPS, such as 0.1,0.5,1; needs a GPU. [default: none]",
)
@click.option(
    "--neighbour",
    type=click.IntRange(1, 200),
    default=None,
    help="Of a decoder: measure it on one core, and so many times next to a second one on another. [default: not]",
)
@click.option("--nodes", is_flag=True, help="Of a decoder, too, its functions one by one.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of all random choices.")
@state_option
def profile(
    pipeline: str,
    out: Path,
    requests_again: bool,
    quick: bool,
    state: Path,
    gpu_shares: tuple[float, ...] | None,
    neighbour: int | None,
    nodes: bool,
    **options: Any,
) -> None:
    """Measure the functions of PIPELINE in real workers under real limits, and write the profile to OUT.

    A gateway of its own is started for it, on a temporary state folder; pipelines are those of --state. Of a decoder
    prompts and tokens are measured, by their length, their number and the texts' context; --quick, --repeats, --seed
    and --cpu-scale hold for it.
    """
    if not nodes:
        folder, manifest = ensure_pipeline(pipeline, state / "pipelines")
        if manifest.task == "causal-lm":
            if requests_again or gpu_shares or any(options[key] for key in _OF_FUNCTIONS):
                raise click.UsageError(f"{manifest.name} is a decoder: {_OF_FUNCTIONS_WORDS} need --nodes")
            _make_room(out)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            chosen = decoder_settings(quick, options["repeats"], options["seed"])
            profile_decoder(folder, manifest, state, out, chosen, options["cpu_scale"], neighbour or 0)
            return
        if neighbour:
            raise click.UsageError(f"--neighbour is for decoders, and {manifest.name} is none")
    if requests_again and (quick or gpu_shares):
        raise click.UsageError("--requests-again measures whole requests alone, without --quick and --gpu-shares")
    gpu = _gpu_settings(gpu_shares, options["seed"]) if gpu_shares else None
    settings = _settings(quick, options)
    _make_room(out)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="smoe-profile-") as work:
        stored_profile = _known(pipeline, state, out) if requests_again else None
        measurement = _measure(pipeline, state, Path(work), settings, gpu, console, stored_profile)
    save(measurement, out)  # what was measured is safe whatever the fit makes of it
    concluded = conclude(measurement, out.with_suffix(".png"))
    save(concluded, out)
    _close(console, concluded, out)
    console.print(next_step(state, pipeline, out), markup=False, highlight=False, soft_wrap=True)


def next_step(state: Path, pipeline: str, out: Path) -> str:
    """What to do with a profile that was written."""
    folder, manifest = ensure_pipeline(pipeline, state / "pipelines")
    if manifest.task == "causal-lm":
        return (
            f"next: `smoe lab replay PROFILE --trace NAME --policies all --pipeline {folder} --nodes {out} "
            "--ttft-ms MS --tpot-ms MS` compares scaling policies; PROFILE is what it writes without --nodes"
        )
    return (
        f"next: `smoe lab evaluate --pipeline {folder} --profile {out} --slo-factor 5` compares scaling policies, "
        f"`smoe lab train --pipeline {folder} --profile {out} --slo-ms MS` learns one"
    )


def _gpu_settings(shares: tuple[float, ...], seed: int) -> GpuSettings:
    """Raises where there is no GPU, or MPS does not take the shares."""
    require_gpu(gpu_name())
    check_shares(shares)
    return GpuSettings(shares=shares, seed=seed)


def _known(pipeline: str, state: Path, out: Path) -> Profile:
    """The profile that is there. Raises ProfileError where it is of another pipeline or machine."""
    folder, _ = ensure_pipeline(pipeline, state / "pipelines")
    return open_profile(out, folder, this_machine())


def _make_room(out: Path) -> None:
    """Half an hour of measuring is not to end at a folder that cannot be written. Raises ProfileError."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise ProfileError(f"the profile cannot be written to {out}: {error.strerror or error}") from error


def _settings(quick: bool, options: dict[str, Any]) -> ProfileSettings:
    base = QUICK if quick else ProfileSettings()
    names = {
        "tokens": "tokens",
        "shares": "shares",
        "memory_mib": "memory_mib",
        "concurrency": "concurrencies",
        "repeats": "repeats",
        "seconds": "seconds_per_point",
        "minutes": "most_minutes",
    }
    given = {names[key]: value for key, value in options.items() if key in names and value is not None}
    return replace(
        base, cpu_scale=options["cpu_scale"], cpu_period_ms=options["cpu_period_ms"], seed=options["seed"], **given
    )


def _measure(
    pipeline: str,
    state: Path,
    work: Path,
    settings: ProfileSettings,
    gpu: GpuSettings | None,
    console: Console,
    measured: Profile | None,
) -> Profile:
    """The whole profile, or ``measured`` with whole requests measured again."""
    gateway = lifecycle.GatewaySettings(
        work,
        port=0,
        metrics_port=0,
        cpu_scale=settings.cpu_scale,
        cpu_period_ms=settings.cpu_period_ms,
        pipelines_dir=state / "pipelines",
        caller_keys=False,
    )
    folder, manifest = ensure_pipeline(pipeline, gateway.pipelines)
    with console.status("starting the gateway"):
        process = lifecycle.start_gateway(gateway, detach=False)
    try:
        client = GatewayClient.from_state(work)
        notes = client.info().get("notes", [])
        require_limits(notes)
        deployment = DeploymentSettings(ingress_concurrency=INGRESS_CONCURRENCY)
        deployments = {entry["envVars"]["smoe_nodes"]: entry for entry in function_deployments(manifest, deployment)}
        with _Bar(console) as bar:
            gateway_ = ProfileGateway(client)
            if measured is not None:
                return measure_requests(measured, gateway_, manifest, deployments, settings, bar)
            return measure_profile(gateway_, folder, manifest, deployments, settings, notes, bar, gpu)
    finally:
        lifecycle.stop_process(process)


def require_limits(notes: list[str]) -> None:
    """A profile without limits would be of something else."""
    for note in notes:
        if "not enforced" in note:
            raise ProfileError(f"a profile needs limits that hold, and this machine does not let us set them: {note}")


class _Bar:
    """Progress in expected seconds, with the time left."""

    def __init__(self, console: Console) -> None:
        self._progress = LongWork(
            console,
            TextColumn("{task.percentage:>3.0f} %"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        self._task: TaskID | None = None
        self._current_s = 0.0

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def plan(self, what: str, seconds: float) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(what, total=seconds)
        self._current_s = 0.0

    def step(self, what: str, seconds: float) -> None:
        if self._task is not None:
            self._progress.update(self._task, advance=self._current_s, description=what)
        self._current_s = seconds


def _close(console: Console, profile: Profile, out: Path) -> None:
    table = Table("node", "measured", "value", title=f"Profile of {profile.metadata.pipeline}")
    for row in closing_rows(profile):
        table.add_row(*row)
    console.print(table)
    for sentence in profile.metadata.findings:
        console.print(sentence)
    click.echo(f"{out} ({len(profile.rows)} rows) and {out.with_suffix('.png')}")
