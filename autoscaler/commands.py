"""``smoe autoscale``: the controller as a process."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from autoscaler.contract import TickReport
from autoscaler.describe import line, summary
from autoscaler.errors import SettingsError
from autoscaler.options import options_of
from autoscaler.platforms.shadow import ShadowBill
from autoscaler.process import ControllerProcess
from autoscaler.settings import ControllerSettings
from autoscaler.topology import load_topology

DEFAULT_STATE = Path(".smoe")


@click.command()
@click.argument("named", metavar="[PIPELINE]", required=False)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=DEFAULT_STATE,
    help="State folder: address, passwords, pipelines, logs.",
)
@click.option("--pipeline", hidden=True, help="The same as PIPELINE.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with the gateway's password. [default: the state folder's]",
)
@options_of(ControllerSettings)
@click.option(
    "--ticks",
    type=click.IntRange(min=1),
    help="Stop after this many ticks; with exit status 1 where none could decide, or the lease is not to be had.",
)
@click.option(
    "--log-level",
    type=click.Choice(("info", "debug")),
    default="info",
    help="debug: a line with all inputs for each decision, also for those that change nothing.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a tick on standard output.")
def autoscale(
    named: str | None,
    state: Path,
    pipeline: str | None,
    password_file: Path | None,
    ticks: int | None,
    log_level: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Watch PIPELINE (by default minilm) and scale every function of it until interrupted.

    Changes go to standard error as one line each, ticks to standard output, and both as parquet files to the log
    folder. Missing or old data holds the present scale.
    """
    if named and pipeline and named != pipeline:
        raise click.UsageError(f"two pipelines are named, {named} and --pipeline {pipeline}; name one")
    pipeline = named or pipeline or "minilm"
    _log_to_stderr(log_level)
    given["view_dir"] = given["view_dir"] or (None if given["gateway_url"] else state / "view")
    if not given["gateway_url"]:
        given |= _gateway(state)
    given["manifest_dir"] = given["manifest_dir"] or state / "pipelines" / pipeline
    given["log_dir"] = given["log_dir"] or state / "log"
    try:
        settings = ControllerSettings(password=_password(state, password_file), **given)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    topology = load_topology(settings.manifest_dir, settings.max_functions)
    if topology.pipeline != pipeline:
        raise click.UsageError(
            f"{settings.manifest_dir} holds the pipeline {topology.pipeline!r}, not {pipeline!r}; "
            f"say smoe autoscale {topology.pipeline}"
        )

    def report_tick(report: TickReport, bill: ShadowBill | None, conditions: Sequence[object]) -> None:
        if as_json:
            click.echo(json.dumps(summary(report, bill, conditions)))
        else:
            click.echo(line(report, bill, conditions, settings.targets, process.currency))

    process = ControllerProcess(settings, pipeline, report_tick, ticks)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: process.stop())
    if ticks is None and not as_json and settings.platform == "openfaas":  # in a cluster nobody is at the terminal
        click.echo(next_step(pipeline, "" if state == DEFAULT_STATE else f" --state {state}"), err=True)
    process.run()


def next_step(pipeline: str, of_state: str) -> str:
    """What to do next to a controller; ``of_state``: the option that names the state folder."""
    return (
        f"next: in another terminal `smoe top {pipeline}{of_state}` shows what it does, and "
        f"`smoe replay {pipeline}{of_state}` sends a bursty hour; Ctrl-C ends it"
    )


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("smoe.autoscaler").setLevel(level.upper())
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # who does not answer is logged once


def _gateway(state: Path) -> dict[str, Any]:
    """Settings by what the gateway of the state folder wrote about itself."""
    try:
        document = json.loads((state / "gateway.json").read_text())
        return {"gateway_url": str(document["url"]), "cpu_scale": document.get("cpu_scale")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise click.UsageError(f"no gateway runs on {state}; say --gateway URL or start one with `smoe up`") from None


def _password(state: Path, given: Path | None) -> str | None:
    path = given or state / "secrets" / "basic-auth-password"
    return path.read_text().strip() if path.exists() else None
