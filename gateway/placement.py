"""Annotation ``smoe.placement``: how many replicas of a function each machine gets. Both backends read it here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.contract import FunctionSpec, InvalidSpecError
from platform_words.labels import PLACEMENT


def parse_placement(spec: FunctionSpec) -> dict[str, int]:
    """Replicas by machine, machines without any left out; empty without the annotation. Raises InvalidSpecError."""
    return places_in(spec.annotations.get(PLACEMENT, ""))


def places_in(annotation: str) -> dict[str, int]:
    """:func:`parse_placement` of the annotation's text."""
    text = annotation.strip()
    places: dict[str, int] = {}
    if not text:
        return places
    for part in text.split(","):
        name, equals, count = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not re.fullmatch(r"\d{1,4}", count, re.ASCII) or name in places:
            raise InvalidSpecError(
                f"annotation {PLACEMENT} is {text[:80]!r}; it takes MACHINE=REPLICAS, such as a=2,b=1"
            )
        places[name] = int(count)
    if not any(places.values()):
        raise InvalidSpecError(f"annotation {PLACEMENT} is {text[:80]!r}; one machine or more must get a replica")
    return {name: count for name, count in places.items() if count}


def spread(places: Mapping[str, int], desired: int) -> dict[str, int]:
    """``desired`` replicas over machines in the proportions of ``places``: exact where they add up to it.

    Largest remainders; equal ones in the order of ``places``. Worked example: {a: 2, b: 1} and 4 → {a: 3, b: 1}.
    """
    total = sum(places.values())
    whole = {machine: count * desired // total for machine, count in places.items()}
    by_remainder = sorted(places, key=lambda machine: -(places[machine] * desired % total))
    for machine in by_remainder[: desired - sum(whole.values())]:
        whole[machine] += 1
    return whole
