"""Whether the gateway's doors hold: ``python -m benchmarks.attacks``.

Starts a gateway with commands on loopback and attacks it: the control API without a password, pages of other sites,
commands that read what is not theirs, workers called past the gateway, bodies, connections, heads, callbacks and queues
that grow or never end. Each attack is bounded; what is promised is in ``docs/security.md``. Attacks that need root (to
be another user) are left out without it. The last line is one JSON object with ``held`` of ``tried``.
"""

from __future__ import annotations

import resource
import sys

import click

from benchmarks.attacks import denial, doors
from benchmarks.attacks.target import running_target
from benchmarks.harness.options import benchmark
from benchmarks.harness.report import print_result, print_table, progress

FILES = 16384
"""Descriptors of the attacker and the gateway, for as many connections."""


def attack(*, thorough: bool) -> list[tuple[str, bool | None, str]]:
    """(name, held, what was seen) of each attack; None: it could not be tried here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(FILES, hard)), hard))
    rows: list[tuple[str, bool | None, str]] = []
    every = len(doors.ATTACKS) + len(denial.ATTACKS)
    with running_target() as target, progress(every, "attacks") as show:
        for one in doors.ATTACKS:
            show(_title(one.__name__), len(rows))
            rows.append((_title(one.__name__), *(one(target) or (None, "needs root"))))
        for other in denial.ATTACKS:
            show(_title(other.__name__), len(rows))
            rows.append((_title(other.__name__), *other(target, thorough)))
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
