"""From stored ticks of the function logger to windows of experience: what a policy saw, what was done, what came of it.

The rows hold every number of an observation, so states are made again by the encoder that the policy used, to the bit.
Where ticks follow each other without a gap, the second shows what came of the first's decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoscaler.contract import Arrivals, GenerationObservation, LayerObservation, NodeObservation, Observation
from autoscaler.logger import ARRIVALS, configuration_of, read_pipeline, read_windows
from rl.agent.contract import State
from rl.features import Encoder, History
from simulation.arrays import Floats

_NODE = tuple(name for name in NodeObservation._fields if name != "configuration")
_LAYER = tuple(entry.name for entry in fields(LayerObservation) if entry.name != "layer")
_UNSTORED = (
    "nodes", "layers", "problems", "stale", "generation", "arrivals", "taken_back", "redeployed", "decided_by", "news",
)  # fmt: skip
_WINDOW = tuple(entry.name for entry in fields(Observation) if entry.name not in _UNSTORED)
SLACK = 0.5
"""Share of a window by which the next one may begin late, or overlap, and still follow it."""


@dataclass(frozen=True)
class Tick:
    """One stored window."""

    observation: Observation
    busy: Mapping[str, float | None]
    """Node id → cost of the window, Eq. (7)."""
    provisioned: Mapping[str, float | None]
    policy: str


@dataclass(frozen=True, eq=False)
class Experience:
    """One decided window; arrays as of an ``rl.episodes.Outcome``."""

    state: State
    """Before the decisions."""
    actions: NDArray[np.int16]
    """[n, K, 4] in force at the window's end, the nearest of Φ."""
    busy: Floats
    """[n] currency."""
    provisioned: Floats
    """[n] currency."""
    p95_s: float | None
    """P95 of the requests answered, from the histogram."""
    following: State
    """After the window."""


def ticks(folder: Path) -> Iterator[Tick]:
    """All ticks stored in ``folder``, oldest first. Raises LogError."""
    rows: dict[tuple[float, float], list[dict[str, Any]]] = {}
    for row in read_windows(folder).to_pylist():
        rows.setdefault((row["start_s"], row["end_s"]), []).append(row)
    for whole in read_pipeline(folder).to_pylist():
        nodes = rows.get((whole["start_s"], whole["end_s"]), [])
        yield Tick(
            Observation(
                **{name: whole[name] for name in _WINDOW},
                nodes=tuple(_node(row) for row in nodes),
                layers=tuple(_layers(nodes)),
                problems=tuple(whole["problems"] or ()),
                stale=bool(whole["stale"]),
                generation=_generation(whole),
                arrivals=tuple(_arrivals(whole)),
            ),
            {row["node"]: row["cost_busy"] for row in nodes},
            {row["node"]: row["cost_provisioned"] for row in nodes},
            whole["policy"],
        )


def experiences(folder: Path, encoder: Encoder) -> Iterator[Experience]:
    """What the ticks stored in ``folder`` show of decisions, whichever policy took them.

    Windows with stale data, with an unknown cost or configuration, and those around a gap are left out; after a gap the
    history begins again. Raises LogError, and ValueError where the folder is of another pipeline.
    """
    before: tuple[Observation, State] | None = None
    memory: History | None = None
    for tick in ticks(folder):
        observation = tick.observation
        if observation.stale or observation.requests is None:
            before = None
            continue
        if before is not None and not _follows(before[0], observation):
            before, memory = None, None
        state, memory = encoder.encode(observation, memory)
        if before is not None:
            experience = _experience(encoder, tick, before[1], state)
            if experience is not None:
                yield experience
        before = (observation, state)


def _follows(before: Observation, following: Observation) -> bool:
    return abs(following.start_s - before.end_s) <= SLACK * following.window_s


def _experience(encoder: Encoder, tick: Tick, state: State, following: State) -> Experience | None:
    topology = encoder.topology
    layers = [[node.id for node in topology.experts(layer)] for layer in range(topology.layers)]
    names = [name for layer in layers for name in layer]
    has_costs = all(tick.busy.get(name) is not None and tick.provisioned.get(name) is not None for name in names)
    if not has_costs:
        return None

    def total(costs: Mapping[str, float | None]) -> Floats:
        return np.array([sum(costs[name] or 0.0 for name in layer) for layer in layers])

    return Experience(
        state, following.present, total(tick.busy), total(tick.provisioned), tick.observation.latency_p95_s, following
    )


def _generation(row: Mapping[str, Any]) -> GenerationObservation | None:
    """None also of files from before it was stored."""
    numbers = {entry.name: row.get(f"generation_{entry.name}") for entry in fields(GenerationObservation)}
    return None if numbers["running"] is None else GenerationObservation(**numbers)


def _arrivals(row: Mapping[str, Any]) -> Iterator[Arrivals]:
    """None of files from before they were stored."""
    for look_back_s in dict.fromkeys(look_back_s for look_back_s, _ in ARRIVALS.values()):
        numbers = [row.get(column) for column, (of, _) in ARRIVALS.items() if of == look_back_s]
        if None not in numbers:
            yield Arrivals._make((look_back_s, *numbers))


def _node(row: Mapping[str, Any]) -> NodeObservation:
    return NodeObservation(
        **{name: row.get(name) for name in _NODE},  # type: ignore[arg-type]
        configuration=configuration_of(row),
    )


def _layers(rows: list[dict[str, Any]]) -> Iterator[LayerObservation]:
    """Observations of each layer, as its experts' rows repeat it."""
    layer_rows: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["kind"] == "expert" and row["layer"] is not None:
            layer_rows.setdefault(row["layer"], row)
    for layer, row in sorted(layer_rows.items()):
        yield LayerObservation(layer, **{name: row[f"layer_{name}"] for name in _LAYER})
