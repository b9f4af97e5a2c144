"""Annotation ``smoe.burst``: a function's standbys and the rule that activates them, such as
``standbys=7,headroom=1.2,spare=1,hold_s=15,look_back_s=0.5``.

With ``token_s=0.002`` the controller states how many seconds of a replica a token costs, which the ingress measures
otherwise. With ``sleep_s=2`` the desired replicas wait, too, after two seconds without a request. The controller writes
it, the gateway keeps so many and hands the text to the ingress in the replica feed. What the numbers mean stands in
``functions.dispatch.activation.Burst``, whose fields these are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

MAX_STANDBYS = 100
_NUMBERS = ("headroom", "spare", "hold_s", "look_back_s", "token_s", "sleep_s")


def parse_burst(text: str) -> tuple[int, dict[str, float]]:
    """Standbys, and those of the rule's numbers that are given. Raises ValueError with a sentence."""
    numbers: dict[str, float] = {}
    standbys: int | None = None
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name == "standbys" and standbys is None and re.fullmatch(r"\d{1,3}", value, re.ASCII):
            standbys = int(value)
        elif name in _NUMBERS and name not in numbers and _allowed(name, value):
            numbers[name] = float(value)
        else:
            raise ValueError(_sentence(text))
    if standbys is None or standbys > MAX_STANDBYS:
        raise ValueError(_sentence(text))
    return standbys, numbers


def burst_text(standbys: int, numbers: Mapping[str, float]) -> str:
    """What :func:`parse_burst` reads back."""
    return ",".join([f"standbys={standbys}", *(f"{name}={numbers[name]!r}" for name in _NUMBERS if name in numbers)])


def pods_in_all(ordered: int, standbys: int) -> int:
    """Pods of a Deployment: ordered replicas and standbys; a function that was scaled to zero has none of either."""
    return ordered + standbys if ordered else 0


def ordered_among(pods: int, standbys: int) -> int:
    """Ordered replicas of a Deployment of so many ``pods``, by whoever these were set."""
    return min(pods, max(1, pods - standbys))


def _allowed(name: str, value: str) -> bool:
    try:
        number = float(value)
    except ValueError:
        return False
    return math.isfinite(number) and number >= 0 and (number > 0 or name not in ("look_back_s", "token_s", "sleep_s"))


def _sentence(text: str) -> str:
    return (
        f"{text[:80]!r} is no burst rule; it takes standbys=N (0 to {MAX_STANDBYS}) and, where wanted, "
        f"{', '.join(_NUMBERS)}, such as standbys=7,headroom=1.2,hold_s=15"
    )
