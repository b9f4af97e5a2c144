"""``smoe tune``: the deployment that a baseline starts from, found on a profiling window and stored as a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
import optuna
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from autoscaler.plan import save_plan
from autoscaler.policy.hpa import HpaSettings
from rl.bound.inputs import input_options, trace_requests
from rl.bound.loads import Meter, WindowLoad
from rl.bound.physics import Physics
from rl.tuning.search import SearchSettings, Trial, hpa_outcome, search, static_outcome, write_trials
from rl.workload_paper import paper_workload

HPA_WINDOW_S = 15.0


@click.command()
@click.option("--policy", type=click.Choice(("serverlessmoe", "tuned-hpa")), required=True)
@input_options
@click.option(
    "--profile-s", type=click.FloatRange(1, 86400), default=120.0, show_default=True, help="Profiling window."
)
@click.option("--meter", type=click.Choice(get_args(Meter)), default="provisioned", show_default=True)
@click.option("--trials", type=click.IntRange(3, 100_000), default=300, show_default=True)
@click.option("--groups", type=click.IntRange(1, 1000), default=4, show_default=True, help="Experts by popularity.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/plans"), show_default=True)
def tune(policy: str, name: str, trace: str, data: Path | None, out: Path, **options: Any) -> None:
    """Search the deployment of a baseline on the first seconds of a clip, and store it for `--plan`.

    Take a clip that the policy is not tested on. Writes POLICY.WORKLOAD.json and every trial to POLICY.WORKLOAD.csv.
    Everything is simulated on the modelled cluster.
    """
    workload = paper_workload(name, mean_tokens=options["input_size"])
    clip = {key: options[key] for key in ("row", "start_s", "duration_s", "mean_rps", "seed")}
    requests = trace_requests(workload, trace, data, **clip, until_s=options["profile_s"])
    last = int(np.searchsorted(requests.arrival_s, options["profile_s"]))
    load = WindowLoad(Physics(workload, requests.most_tokens), requests, 0, last, options["profile_s"])
    seed, meter = options["seed"], options["meter"]
    outcome = static_outcome(load, meter, seed)
    if policy == "tuned-hpa":
        hpa = HpaSettings(kinds=frozenset(("expert",)), max_replicas=workload.space.replicas_max)
        outcome = hpa_outcome(load, meter, seed, hpa, HPA_WINDOW_S)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    settings = SearchSettings(trials=options["trials"], groups=options["groups"], seed=seed)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("trials", total=settings.trials)

        def on_trial(trial: Trial) -> None:
            progress.update(task, advance=1)

        found = search(load, outcome, settings, on_trial)
    stem = f"{policy}.{name}"
    about: dict[str, object] = {
        "policy": policy,
        "workload": name,
        "trace": requests.source,
        "requests_sha256": requests.sha256,
    }
    about |= {"profile_s": options["profile_s"], "slo_s": workload.slo_s, "meter": meter, "seed": seed}
    write_trials(found.trials, out / f"{stem}.csv")
    save_plan(
        found.plan(workload.topology.pipeline, "optuna TPE with random and local trials", about), out / f"{stem}.json"
    )
    best = found.best
    click.echo(
        f"{out / stem}.json: {best.groups}; {best.cost:.4g} {workload.prices.currency} ({meter}), P95 "
        f"{1000 * best.p95_s:.1f} ms of {1000 * workload.slo_s:g}, trial {best.number} of {len(found.trials)}"
    )
    if not best.meets:
        click.echo("no trial met the SLO: more trials, more groups or less load may help", err=True)
