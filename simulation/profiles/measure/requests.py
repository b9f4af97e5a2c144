"""Requests to a whole pipeline through its ingress, and their rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from functions.dispatch.client import request_head
from simulation.profiles.fit.rows import Row
from simulation.profiles.measure.load import Target
from simulation.profiles.measure.measurement_plan import ProfileSettings

INGRESS = "ingress"
WORDS = """
the people of this small town went down to the river early in the morning and found an old boat that had been left
there by two young men who wanted to see where the water goes when winter is over and the snow has gone
""".split()  # noqa: SIM905
"""One token each in most vocabularies; cut off or repeated they make texts of about any length."""


def request_to(address: str, tokens: int, first: int = 0) -> Target:
    """Requests of a text of about ``tokens`` tokens to the ingress; ``first``: the word that it begins with."""
    text = " ".join(WORDS[(first + place) % len(WORDS)] for place in range(tokens - 2))
    body = json.dumps({"inputs": text}).encode()
    return Target(address, request_head("/", "profile", "application/json", len(body), ()), body)


def blank(tokens: int, repeat: int, settings: ProfileSettings) -> Row:
    """The row of a pass that is still to be measured, and what rows of other points are made from."""
    return Row(
        node=INGRESS,
        family="pass",
        loop="closed",
        tokens=tokens,
        texts=1,
        cpu_cores=1.0 / settings.cpu_scale,
        share=1.0,
        period_s=None,
        memory_mib=settings.ample_mib,
        concurrency=1,
        rate_rps=0.0,
        seed=0,
        repeat=repeat,
        feasible=True,
        note="",
        n=0,
        errors=0,
        seconds=0.0,
        load1=os.getloadavg()[0],
    )


async def close_all(targets: Iterable[Target]) -> None:
    """On the loop that their connections belong to."""
    for target in targets:
        target.close()
