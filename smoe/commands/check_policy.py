"""``smoe lab check-policy``: whether a policy of one's own does what the controller expects of it."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import orjson

from autoscaler.own_policy import TEMPLATE
from autoscaler.policies import Making, make_policy
from autoscaler.settings import ControllerSettings
from evaluation.comparison.policies import limits_of
from evaluation.policy_check import CHECKS, RATES, WINDOW_S, checked
from simulation.workloads.paper import paper_workload
from traces.options import json_option

WORKLOAD = "bert-4"
SETTING = "--world cores-only --relative-slo 5 --mean-rps 80 --no-bound --seeds 0"
"""In which policies differ."""


@click.command("check-policy")
@click.argument("policy", metavar="FILE.py:MAKER")
@click.option("--new", is_flag=True, help="Write FILE.py with a policy to begin with; a file that is there is kept.")
@click.option(
    "--policy-settings",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Settings of the policy (TOML).",
)
@json_option
def check_policy(policy: str, new: bool, policy_settings: Path | None, as_json: bool) -> None:
    """Say whether a policy does what the controller expects of one, in simulated windows.

    It is asked in windows of load that grows, falls and ends, each twice, and in ones in which metrics or
    configurations are missing. Exit status 1 where something is wrong. Takes about five seconds; the first time up to a
    minute, as the simulator is compiled then.
    """
    if new:
        _begin(policy)
    workload = paper_workload(WORKLOAD, mean_rps=max(RATES))
    settings = ControllerSettings(
        gateway_url="http://127.0.0.1:8080", manifest_dir=Path(), policy=policy, policy_settings=policy_settings,
        interval_s=WINDOW_S, slo_s=workload.slo_s, scale_segments=False, space=workload.space,
        max_replicas=workload.space.replicas_max,
    )  # fmt: skip
    made = make_policy(Making(settings, workload.topology, limits_of(workload), workload.prices))
    watched = checked(made, workload)
    if as_json:
        click.echo(orjson.dumps({"policy": policy, "windows": len(RATES), "faults": watched.faults}))
    else:
        for check in CHECKS:
            fault = watched.faults.get(check)
            click.echo(f"ok     {check}" if fault is None else f"WRONG  {check}\n       {fault}")
        if not watched.faults:
            others = ",".join(dict.fromkeys(("static", "hpa", policy)))
            click.echo(f"next: smoe lab evaluate {SETTING} --policies {others}")
    if watched.faults:
        sys.exit(1)


def _begin(policy: str) -> None:
    """Raises UsageError."""
    name, _, maker = policy.rpartition(":")
    if not name.endswith(".py") or maker != "make":
        raise click.UsageError(f"--new writes a file: name it as FILE.py:make, not {policy!r}")
    path = Path(name)
    if path.exists():
        raise click.UsageError(f"{path} is there already; without --new it is checked")
    path.write_text(TEMPLATE)
    click.echo(f"{path}: written", err=True)
