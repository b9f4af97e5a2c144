"""``smoe lab profile`` of a decoder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from evaluation.progress import LongWork
from functions.scheduling.settings import CHUNK_TOKENS
from gateway.client.client import GatewayClient
from moe.cache import PAGE_TOKENS
from moe.manifest import Manifest
from moe.names import INGRESS
from simulation.generation.hardware import ALONE
from simulation.generation.measured import FitError, Measured, Sample, errors, fit
from simulation.profiles.generation.interference import PHASES, Turn, cpu_of, measure_interference, slowdown
from simulation.profiles.generation.measure import QUICK, Decoder, Settings, kv_tokens, measure, points, warm_up
from simulation.profiles.generation.storage import GenerationProfile, save
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.model.errors import ProfileError
from smoe import lifecycle
from smoe.deployment import DeploymentSettings

WALL = attrgetter("wall_s")


def profile_decoder(
    folder: Path, manifest: Manifest, state: Path, out: Path, settings: Settings, cpu_scale: float, neighbour: int = 0
) -> None:
    """Deploy a decoder as ``smoe up`` does on a gateway of its own, measure it, write the profile and say what it is.
    ``neighbour``: repeats of measuring it next to a second one, each on a core of its first.

    Raises ProfileError."""
    console, load1 = Console(stderr=True), os.getloadavg()[0]
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    cores = sorted(os.sched_getaffinity(0))
    if neighbour and len(cores) < 2:
        raise ProfileError("two instances side by side need two cores, and there is one")
    samples, turns, room = _measured(manifest, state, settings, cpu_scale, cores, neighbour, console)
    slowed = slowdown(turns) if neighbour else ALONE
    try:
        measured = replace(fit(samples, CHUNK_TOKENS, room), slowdown=slowed)
    except FitError as error:
        raise ProfileError(str(error)) from error
    digest = sha256((folder / "pipeline.json").read_bytes()).hexdigest()
    fit_errors = errors(measured, samples)
    save(
        GenerationProfile(manifest.name, digest, this_machine(), measured, fit_errors, begun, load1, tuple(samples)),
        out,
    )
    _report(measured, fit_errors)
    if neighbour:
        click.echo(f"next to a second instance, CPU time {_slower(slowed)}; duration {_slower(slowdown(turns, WALL))}")
    if load1 > 0.5:
        click.echo(f"other programs ran meanwhile (load {load1:.1f}): measure again on an idle machine", err=True)
    click.echo(f"{out} ({len(samples)} samples)")
    click.echo(next_step(out), err=True)


def next_step(out: Path) -> str:
    """What to do with a decoder's profile that was written."""
    return f"next: `smoe lab replay {out} --trace NAME` simulates a token trace (`smoe traces list`) on it"


def _measured(
    manifest: Manifest,
    state: Path,
    settings: Settings,
    cpu_scale: float,
    cores: Sequence[int],
    neighbour: int,
    console: Console,
) -> tuple[list[Sample], list[Turn], int]:
    """Samples of an instance alone, its turns next to a second one (none without ``neighbour``), and the tokens that
    its pages have room for."""
    turns: list[Turn] = []
    with ExitStack() as stack:
        first = stack.enter_context(_running(manifest, state, cpu_scale, {cores[0]} if neighbour else set(cores)))
        decoder = first.decoder
        warm_up(decoder, settings)
        key = first.client.caller_key(manifest.function_name(INGRESS))
        room = kv_tokens(_ingress_url(first.client, manifest), PAGE_TOKENS, key)
        bar = stack.enter_context(LongWork(console))
        tokens = sum(max(texts, 1) * length for texts, length in points(decoder, settings))
        task = bar.add_task("measuring", total=tokens * settings.repeats)
        samples = measure(decoder, settings, lambda what, size: bar.update(task, advance=size, description=what))
        if neighbour:
            other = stack.enter_context(_running(manifest, state, cpu_scale, {cores[1]}))
            task = bar.add_task("next to a second instance", total=neighbour)
            used_s = partial(cpu_of, first.pid)
            turns = measure_interference(
                decoder, other.decoder, used_s, neighbour, settings.seed, lambda _: bar.advance(task)
            )
    return samples, turns, room


def _report(measured: Measured, fit_errors: dict[str, float]) -> None:
    click.echo(f"a prompt   {_times([(0, tokens) for tokens in (32, 256, 1024)], measured)}   to the first token")
    click.echo(f"a token    {_times([(1, 100), (4, 400), (16, 1600)], measured)}   of 100 tokens each")
    click.echo(
        f"the fit is within {fit_errors['prompts']:.1%} of prompts and {fit_errors['decodes']:.1%} of tokens measured"
    )


def _slower(times: tuple[float, ...]) -> str:
    pairs = [(phase, other) for phase in PHASES for other in PHASES]
    return ", ".join(f"{phase} next to {other} × {one:.2f}" for (phase, other), one in zip(pairs, times, strict=True))


@dataclass(frozen=True)
class _Running:
    client: GatewayClient
    decoder: Decoder
    pid: int


@contextmanager
def _running(manifest: Manifest, state: Path, cpu_scale: float, cores: set[int]) -> Iterator[_Running]:
    """The decoder on a gateway of its own, all of whose processes run on ``cores``."""
    with tempfile.TemporaryDirectory(prefix="smoe-profile-") as work:
        gateway = lifecycle.GatewaySettings(
            Path(work), port=0, metrics_port=0, cpu_scale=cpu_scale, pipelines_dir=state / "pipelines"
        )
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # what is started from here on inherits it
        try:
            process = lifecycle.start_gateway(gateway, detach=False)
        finally:
            os.sched_setaffinity(0, before)
        try:
            client = GatewayClient.from_state(Path(work))
            lifecycle.deploy_pipeline(client, manifest, DeploymentSettings())
            yield _Running(client, Decoder.of(manifest, f"{client.url}/function/{manifest.name}"), process.pid)
        finally:
            lifecycle.stop_process(process)


def _ingress_url(client: GatewayClient, manifest: Manifest) -> str:
    """Address of a ready ingress itself. Raises ProfileError."""
    replicas = client.replicas().get(manifest.function_name(INGRESS), [])
    for replica in replicas:
        if replica["state"] == "ready":
            return f"http://{replica['address']}"
    raise ProfileError(f"{manifest.name} has no ready ingress")


def _times(sizes: list[tuple[int, int]], measured: Any) -> str:
    return ", ".join(
        f"{texts} texts: {1000 * measured.iteration(texts, tokens, ()):.0f} ms"
        if texts
        else f"of {tokens} tokens: {1000 * (measured.prefill_s(tokens) + measured.front_s):.0f} ms"
        for texts, tokens in sizes
    )


def decoder_settings(quick: bool, repeats: int | None, seed: int) -> Settings:
    """Settings by the options of the command."""
    base = QUICK if quick else Settings()
    return Settings(base.prompts, base.decodes, base.tokens, repeats or base.repeats, base.timeout_s, seed)
