"""``smoe lab compare``: every opponent tuned on validation hours, all of them compared on test hours."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import orjson
from pydantic import Field
from rich.console import Console

from autoscaler.checked import Flag
from autoscaler.options import options_of
from evaluation.compared import Tuning, result_of
from evaluation.compared import compare as run_all
from evaluation.comparison.episode import BOUND
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.report import write_report
from evaluation.destination import make_writable
from simulation.workloads.custom_options import custom_options, prices_option, slo_option
from smoe.commands.evaluate import (
    REFUSED,
    GridSettings,
    check_all_judged,
    custom_of,
    given_of,
    grid_of,
    progress_bar,
    show,
)
from smoe.errors import SmoeError
from traces.options import data_option, json_option
from traces.traffic import REPLAYED_PATTERNS

OPPONENTS = (
    *("constant", "constant-per-layer", "constant-per-expert"),
    *("constant+burst", "constant-per-layer+burst", "constant-per-expert+burst"),
    *("hpa", "hpa+burst", "vpa", "kpa", "keda", "apa", "slo-aware", "last-window", "last-window+burst"),
)
ALL = "all"
SECONDS = 600.0
"""Length of each test hour's part, where no pipeline is given."""


@dataclass(frozen=True)
class CompareSettings(GridSettings):
    """Options of ``smoe lab compare``."""

    patterns: Annotated[tuple[str, ...], Flag(allowed=REPLAYED_PATTERNS)] = ("normal", "bursty", "diurnal")
    """Hours of these patterns are replayed."""
    policies: tuple[str, ...] = (ALL,)
    """Names (docs/policies.md), MODULE:MAKER, FILE.py:MAKER, and with +burst at the end the same with standbys; all:
    the opponents of the short setting, so all,mine.py:make adds yours."""
    out: Path = Path("out/compare")
    """Folder of the results; what is there is not computed again."""
    seconds: Annotated[float | None, Field(ge=10, le=86400)] = None
    """Length of each test hour's part that is replayed, in seconds. [default: 600; with --pipeline at most an hour of
    the trace]"""
    trials: Annotated[int, Field(ge=3, le=100_000)] = 60
    """Most deployments that a search of a plan judges."""
    tune_seconds: Annotated[float, Flag("--tune-seconds"), Field(ge=10, le=86400)] = 600.0
    """Length of each validation hour's part that policies are tuned on."""


@click.command()
@options_of(CompareSettings)
@custom_options(slo_option)
@data_option
@prices_option
@click.option("--workers", type=click.IntRange(0), default=0, help="Processes; 0: one a core.")
@json_option
def compare(**options: Any) -> None:
    """Tune every opponent on validation hours, then compare all of them, and the bound, on test hours.

    Opponents are the best constants (one for all experts, for each layer, for each expert), the rules that people run
    (HPA, VPA, KPA, KEDA, AIBrix's, llm-d's) and the last window's optimum, some with burst activation, too. Each gets
    the cheapest settings or plan that break the P95 target in at most 5 % of the validation windows. The table has
    their cost above the bound, and the windows over the target, with intervals: a policy is cheaper than another only
    at no more windows over it.

    Everything is simulated. The default takes seven minutes of one core. It may be stopped and goes on where it was; a
    custom pipeline is compared as by `smoe lab evaluate`, whose exit status it has, too.
    """
    console = Console(stderr=True)
    custom, given = custom_of(options), given_of(CompareSettings, options)
    trials, tune_seconds, out = given.pop("trials"), given.pop("tune_seconds"), given["out"]
    named = [name for name in given["policies"] if name != ALL]
    names = [name for one in given["policies"] for name in (OPPONENTS if one == ALL else (one,))]
    given["policies"] = tuple(dict.fromkeys(names))
    if custom is None and given["seconds"] is None:
        given["seconds"] = SECONDS
    try:
        grid = grid_of(options, given, custom)
        make_writable(out)
        with progress_bar(console) as bar:
            task = bar.add_task("plans", total=None)
            summaries, tuned, left_out = run_all(
                grid, Tuning(grid.workloads, trials, tune_seconds), out, options["workers"],
                lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
            )  # fmt: skip
        if all(summary["policy"] == BOUND for summary in summaries):
            raise EvaluationError("; ".join(dict.fromkeys(left_out.values())))
        paths = write_report(tuned, summaries, out, left_out)
    except REFUSED as error:
        raise SmoeError(str(error)) from error
    if options["as_json"]:
        result = result_of(tuned, summaries, left_out, out)
        sys.stdout.buffer.write(orjson.dumps(result, option=orjson.OPT_APPEND_NEWLINE))
    else:
        show(Console(), summaries, left_out)
        console.print(f"report: {paths.html}")
        console.print(next_step(out), markup=False, highlight=False, soft_wrap=True)
    check_all_judged(tuned, summaries, left_out, named)


def next_step(out: Path) -> str:
    """What to do with opponents that were compared."""
    return (
        "next: `smoe up` and `smoe autoscale --policy NAME --policy-settings FILE` run one of them on a live pipeline; "
        f"tuned settings are the files NAME.*.toml in {out / 'settings'}"
    )
