"""Whether the gateway's doors hold: ``python -m tests.attacks``.

Starts a gateway with commands on loopback and attacks it: the control API without a password, pages of other sites,
commands that read what is not theirs, workers called past the gateway, bodies, connections, heads, callbacks and queues
that grow or never end. Then a pipeline: idle connections next to calls, calls to containers that were sent SIGTERM,
broken weights, a stage that is missing. Each attack is bounded; what is promised is in ``docs/security.md``. Attacks
that need root (to be another user) are left out without it. The last line is one JSON object with ``held`` of
``tried``.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.harness.options import benchmark
from benchmarks.harness.report import print_result, print_table, progress
from benchmarks.harness.running import local_gateway, running_pipeline
from smoe.deployment import DeploymentSettings
from tests.attacks import denial, doors, pipeline
from tests.attacks.containers import calls_after_sigterm_behind_a_watchdog
from tests.attacks.memory import memory_filled_to_its_bounds
from tests.attacks.target import running_target

FILES = 16384
"""Descriptors of the attacker and the gateway, for as many connections."""
OF_OTHERS = (*denial.ATTACKS, memory_filled_to_its_bounds)
PIPELINE_ATTACKS = (calls_after_sigterm_behind_a_watchdog, *pipeline.ATTACKS)
Row = tuple[str, bool | None, str]
"""Name of an attack, whether the gateway held (None: it could not be tried here), and what was seen."""
Show = Callable[[str, float], None]


def attack(*, thorough: bool, preset: str = "minilm") -> list[Row]:
    """Every attack, in turn. ``preset``: or the folder of a pipeline; in the short form four functions serve it."""
    with progress(len(doors.ATTACKS) + len(OF_OTHERS) + len(PIPELINE_ATTACKS), "attacks") as show:
        of_pipeline = attack_pipeline(preset, thorough, show)  # first: its gateway has the files that a user's has
        return attack_gateway(thorough, show) + of_pipeline


def attack_gateway(thorough: bool, show: Show) -> list[Row]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(FILES, hard)), hard))
    rows: list[Row] = []
    with running_target() as target:
        for one in doors.ATTACKS:
            show(_title(one.__name__), len(PIPELINE_ATTACKS) + len(rows))
            rows.append((_title(one.__name__), *(one(target) or (None, "needs root"))))
        for other in OF_OTHERS:
            show(_title(other.__name__), len(PIPELINE_ATTACKS) + len(rows))
            rows.append((_title(other.__name__), *other(target, thorough)))
    return rows


def attack_pipeline(preset: str, thorough: bool, show: Show) -> list[Row]:
    rows: list[Row] = []
    deployment = DeploymentSettings(max_functions=0 if thorough else 4)
    with tempfile.TemporaryDirectory(prefix="smoe-attacks-") as folder:
        show("a pipeline comes up", 0)
        with running_pipeline(local_gateway(Path(folder) / "state"), deployment, preset) as running:
            for one in PIPELINE_ATTACKS:
                show(_title(one.__name__), len(rows))
                rows.append((_title(one.__name__), *one(running, thorough)))
    return rows


def _title(name: str) -> str:
    return name.replace("_", " ")


@benchmark
@click.option("--quick", is_flag=True, help="Fewer connections and bodies.")
def main(quick: bool) -> None:
    rows = attack(thorough=not quick)
    words = {True: "held", False: "BROKEN", None: "not tried"}
    print_table(
        "attacks",
        ("attack", "result", "outcome"),
        [(name, words[held], outcome) for name, held, outcome in rows],
        texts=3,
    )
    tried = [held for _, held, _ in rows if held is not None]
    broken = [name for name, held, _ in rows if held is False]
    print_result({"held": sum(tried), "tried": len(tried), "broken": broken})
    if broken:
        sys.exit(1)


if __name__ == "__main__":
    main()
