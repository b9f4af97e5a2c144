"""What to run for a trace: the simplest way whose cost comes near that of all others."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.prices import money
from evaluation.regimes.ways import Ways

ENOUGH = 0.05
"""A simpler way is taken while no other would save more than this share of its cost."""
NAMES = {
    "constant": "one constant for all experts",
    "constant_per_layer": "a constant for each layer",
    "constant_per_expert": "a constant for each expert",
    "constant_burst": "one constant for all, with burst activation",
    "constant_per_expert_burst": "a constant for each expert, with burst activation",
    "window": "one choice for all experts in each window",
    "window_burst": "one choice for all in each window, with burst activation",
    "window_per_expert": "each expert its own choice in each window",
    "window_per_expert_burst": "each expert its own choice in each window, with burst activation",
}
"""Ways in words, from the simplest on."""


@dataclass(frozen=True)
class Advice:
    """The way that is recommended."""

    way: str
    sentences: tuple[str, ...]


def advice(ways: Ways, currency: str) -> Advice:
    """The first of :data:`NAMES` that is within :data:`ENOUGH` of the cheapest, and why."""
    costs = {way: cost for way in NAMES if (cost := getattr(ways, way)) is not None}
    cheapest = min(costs, key=lambda way: costs[way])
    way = next(way for way, cost in costs.items() if (1 - ENOUGH) * cost <= costs[cheapest])
    sentences = [f"{NAMES[way].capitalize()}: {money(costs[way], currency)} an hour for the experts."]
    if way != "constant" and "constant" in costs:
        sentences.append(f"That is {1 - costs[way] / costs['constant']:.0%} less than {NAMES['constant']}.")
    elif way != "constant":
        sentences.append("No constant that is the same for all experts keeps the SLO in these windows.")
    if costs[cheapest] < costs[way]:
        sentences.append(f"Nothing else that was tried would save more than {1 - costs[cheapest] / costs[way]:.0%}.")
    if way.startswith("window"):
        sentences.append(
            "This knows each window beforehand and changes for nothing, so it is the most that a policy can reach: "
            "compare policies with `smoe lab evaluate`."
        )
    if ways.unmet:
        sentences.append(f"In {ways.unmet} of {ways.unmet + ways.judged} windows nothing was found that keeps the SLO.")
    return Advice(way, tuple(sentences))
