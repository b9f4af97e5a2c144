"""``smoe lab tune``: the deployment that a baseline starts from, result on a profiling window and stored as a plan."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import click
import optuna
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from autoscaler.policy.hpa import HpaSettings, hpa_of_windows
from autoscaler.prices import Meter, money
from autoscaler.stored_deployment import Plan, save_plan
from evaluation.bound.inputs import Asked, asked_for, input_options, trace_requests
from evaluation.bound.loads import WindowLoad
from evaluation.bound.physics import Physics
from evaluation.destination import make_writable
from evaluation.progress import LongWork
from evaluation.tuning.deployments import Deployments, Parameters
from evaluation.tuning.outcomes import Replay, tail_s
from evaluation.tuning.search import Found, Outcome, SearchSettings, Trial, search, write_trials
from evaluation.tuning.searches import METHOD, PLANNED
from simulation.engine.regions import measured_part_of
from simulation.engine.requests import Requests
from simulation.workloads.workload import Workload

WINDOW_S = 15.0
"""Length in seconds of the windows that the profile is judged in; a custom pipeline's are its own."""
WARM_UP_WINDOWS = 2


@click.command()
@click.option("--policy", type=click.Choice(tuple(PLANNED)), required=True, help="Baseline that the plan is for.")
@input_options
@click.option(
    "--profile-s", type=click.FloatRange(4 * WINDOW_S, 86400), default=120.0, help="Length of the profile in seconds."
)
@click.option("--meter", type=click.Choice(get_args(Meter)), default="provisioned", help="Cost to keep low.")
@click.option(
    "--trials", type=click.IntRange(3, 100_000), default=SearchSettings.trials, help="Most deployments judged."
)
@click.option("--groups", type=click.IntRange(1, 1000), default=4, help="Groups of experts by popularity.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/plans"),
    help="Folder of the plan and its trials.",
)
def tune(policy: str, trace: str, data: Path | None, out: Path, **options: Any) -> None:
    """Search the deployment of a baseline on the first seconds of a clip, and store it for `--plan`.

    Take a clip that the policy is not tested on. Writes POLICY.WORKLOAD.json and every trial to POLICY.WORKLOAD.csv.
    Everything is simulated: a workload of the paper's on the modelled cluster, a custom pipeline on the machine of its
    profile.
    """
    asked = asked_for(options)
    workload, meter, seed = asked.workload, options["meter"], options["seed"]
    requests = _profiled(asked, trace, data, options)
    make_writable(out)
    load = WindowLoad(
        Physics(workload, requests.most_tokens), requests, 0, requests.arrival_s.size, options["profile_s"]
    )
    deployments = Deployments((load,), meter, options["groups"], PLANNED[policy].axes)
    settings = SearchSettings(trials=options["trials"], seed=seed)
    result = _searched(deployments, _outcome_of(policy, asked, requests, deployments, options), workload, settings)
    chosen, best = deployments.build(result.parameters), result.best
    measured = measured_part_of(workload, requests, chosen, WARM_UP_WINDOWS * _window_s(asked)) or 0.0
    about: dict[str, object] = {
        "method": METHOD,
        "policy": policy,
        "workload": workload.name,
        "trace": requests.source,
        "requests_sha256": requests.sha256,
        "latency": workload.latency.name,
        "measured_part": measured,
        "prices": workload.prices.name,
    }
    if asked.custom is not None:
        about["sha256"] = asked.custom.sha256
    about |= {"profile_s": options["profile_s"], "slo_s": workload.slo_s, "meter": meter, "seed": seed, **asdict(best)}
    stem = f"{policy}.{workload.name}"
    write_trials(result.trials, out / f"{stem}.csv")
    save_plan(Plan(workload.topology.pipeline, chosen, about), out / f"{stem}.json")
    paid = money(best.cost, workload.prices.currency)
    click.echo(
        f"{out / stem}.json: {best.words}; {paid} ({meter}), 95 % of windows keep "
        f"{1000 * best.tail_s:.1f} ms of {1000 * workload.slo_s:g}; trial {best.number} of {len(result.trials)}, "
        f"{'converged' if result.converged else 'not converged: more trials may help'}; seconds of calls "
        f"{workload.latency.name}, {measured:.0%} of the calls lie where it was measured"
    )
    if not best.meets:
        click.echo("no trial met the SLO: more trials, more groups or less load may help", err=True)


def _window_s(asked: Asked) -> float:
    return WINDOW_S if asked.custom is None else asked.custom.window_s


def _profiled(asked: Asked, trace: str, data: Path | None, options: dict[str, Any]) -> Requests:
    """The clip's first seconds. Raises click.UsageError where there is nothing to judge deployments by."""
    clip = {key: options[key] for key in ("row", "start_s", "duration_s", "seed")}
    profile_s, begin_s = options["profile_s"], WARM_UP_WINDOWS * _window_s(asked)
    requests = trace_requests(
        asked.workload, trace, data, **clip, mean_rps=asked.mean_rps, speed=asked.speed, until_s=profile_s
    )
    if not (requests.arrival_s >= begin_s).any():
        raise click.UsageError(
            f"{requests.source} has no request between {begin_s:g} and {profile_s:g} s, where "
            "deployments are judged: take a longer --profile-s, another --start-s, or a longer --duration-s"
        )
    return requests


def _outcome_of(
    policy: str, asked: Asked, requests: Requests, deployments: Deployments, options: dict[str, Any]
) -> Outcome:
    """What a deployment costs, and the tail of its windows over the SLO, under what ``policy`` does in each window."""
    workload, window_s = asked.workload, _window_s(asked)
    until_s = options["profile_s"] // window_s * window_s
    replay = Replay(workload, requests, window_s, until_s, WARM_UP_WINDOWS, options["meter"], options["seed"])
    hpa = HpaSettings(kinds=frozenset(("expert",)), max_replicas=workload.space.replicas_max)
    if asked.speed > 1:
        hpa = replace(hpa, **hpa_of_windows(window_s))

    def outcome(parameters: Parameters) -> tuple[float, float]:
        deployment = deployments.build(parameters)
        alone = policy == "serverlessmoe"
        cost, values = replay.static(deployment) if alone else replay.with_hpa(deployment, hpa)
        return cost, tail_s(values)

    return outcome


def _searched(deployments: Deployments, outcome: Outcome, workload: Workload, settings: SearchSettings) -> Found:
    """The search, with a bar on stderr."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with LongWork(Console(stderr=True), *columns) as progress:
        task = progress.add_task("trials", total=settings.trials)

        def on_trial(trial: Trial) -> None:
            progress.update(task, advance=1)

        return search(deployments.spans, outcome, workload.slo_s, settings, deployments.words, on_trial)
