"""From stored ticks of the function logger to windows of experience: what a policy saw, what was done, what came of it.

The rows hold every number of an observation, so states are made again by the encoder that the policy used, to the bit.
The tick whose window begins where another's ends shows what came of that one's decisions. Where windows are longer than
the interval between ticks they overlap, and that is not the next tick.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from autoscaler.contract import (
    SLO_QUANTILE,
    Arrivals,
    Burst,
    GenerationObservation,
    LayerObservation,
    NodeObservation,
    Observation,
)
from autoscaler.logger import ARRIVALS, configuration_of, read_parts
from rl.agent.contract import State
from rl.features import Encoder, History
from rl.reward import RewardSettings
from simulation.arrays import Floats

_NODE = tuple(name for name in NodeObservation._fields if name != "configuration")
_LAYER = tuple(entry.name for entry in fields(LayerObservation) if entry.name != "layer")
_UNSTORED = (
    "nodes", "layers", "problems", "stale", "generation", "arrivals", "taken_back", "redeployed", "decided_by", "news",
)  # fmt: skip
_WINDOW = tuple(entry.name for entry in fields(Observation) if entry.name not in _UNSTORED)
SLACK = 0.5
"""Share of the time between ticks, at most of a window, by which the window that shows an outcome may begin late or
early. Where none begins within this share of a window after the one before has ended there is a gap."""

LOST = 1 + RewardSettings.most_excess
"""P95 of lost requests, in λ: beyond it the reward falls no more."""
CHANGED, STANDBYS, COST = "a change within", "standbys or sleep that are not trained with", "an unknown cost"
"""Why windows are left out."""


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
    """P95 of the requests answered, from the histogram, and of those lost (:func:`judged_p95_s`)."""
    following: State
    """After the window."""


def ticks(folder: Path, pipeline: str = "") -> Iterator[Tick]:
    """Ticks stored in ``folder``, oldest first, with ``pipeline`` those of the pipeline of that name. Files are read as
    they are needed. Raises LogError."""
    waiting: list[Tick] = []
    for wholes, nodes in read_parts(folder):
        part = [tick for tick in _ticks(wholes, nodes) if pipeline in ("", tick.observation.pipeline)]
        begin_s = part[0].observation.end_s if part else -math.inf
        yield from (tick for tick in waiting if tick.observation.end_s < begin_s)
        rest = [tick for tick in waiting if tick.observation.end_s >= begin_s]
        waiting = sorted([*rest, *part], key=lambda tick: tick.observation.end_s)  # two may have logged at once
    yield from waiting


def _ticks(wholes: pa.Table, nodes: pa.Table) -> Iterator[Tick]:
    """Those of one file, oldest first."""
    rows: dict[tuple[float, float], list[dict[str, Any]]] = {}
    for row in nodes.to_pylist():
        rows.setdefault((row["start_s"], row["end_s"]), []).append(row)
    for whole in wholes.to_pylist():
        of_nodes = rows.get((whole["start_s"], whole["end_s"]), [])
        yield Tick(
            Observation(
                **{name: whole[name] for name in _WINDOW},
                nodes=tuple(_node(row) for row in of_nodes),
                layers=tuple(_layers(of_nodes)),
                problems=tuple(whole["problems"] or ()),
                stale=bool(whole["stale"]),
                generation=_generation(whole),
                arrivals=tuple(_arrivals(whole)),
            ),
            {row["node"]: row["cost_busy"] for row in of_nodes},
            {row["node"]: row["cost_provisioned"] for row in of_nodes},
            whole["policy"],
        )


def states(folder: Path, encoder: Encoder) -> Iterator[tuple[Tick, State | None]]:
    """Ticks stored in ``folder`` of the encoder's pipeline, each with the state that its policy decided in; None where
    its data was stale or incomplete. After a gap the history begins again.

    Raises LogError, and ValueError where the pipeline had other nodes then.
    """
    memory: History | None = None
    end_s = -math.inf
    for tick in ticks(folder, encoder.topology.pipeline):
        observation, state = tick.observation, None
        if observation.start_s - end_s > SLACK * observation.window_s:
            memory = None
        end_s = observation.end_s
        if not observation.stale and observation.requests is not None:
            state, memory = encoder.encode(observation, memory)
        yield tick, state


def experiences(
    folder: Path, encoder: Encoder, burst: Burst | None = None, left_out: Counter[str] | None = None
) -> Iterator[Experience]:
    """What the ticks stored in ``folder`` show of decisions on the encoder's pipeline, whichever policy took them.

    Left out are windows with stale data and those that begin where no other ended; and, counted in ``left_out`` by the
    reason, those with an unknown cost or configuration, those within which a configuration changed (their P95 is of
    both), and those of functions with other standbys than ``burst``, which no action shows. Raises as :func:`states`
    does.
    """
    left_out = Counter() if left_out is None else left_out
    earlier: deque[tuple[Observation, State]] = deque()
    last_s = -math.inf
    for tick, state in states(folder, encoder):
        observation = tick.observation
        slack_s = SLACK * min(observation.window_s, observation.end_s - last_s)
        last_s = observation.end_s
        if state is None:
            continue
        while earlier and observation.start_s - earlier[0][0].end_s > slack_s:
            earlier.popleft()
        before = _before(earlier, observation.start_s, slack_s)
        if before is not None:
            experience = _experience(encoder, tick, before, state)
            if not _held(earlier, before[0], state):
                left_out[CHANGED] += 1
            elif not all(_has_burst(node, burst) for node in observation.nodes):
                left_out[STANDBYS] += 1
            elif experience is None:
                left_out[COST] += 1
            else:
                yield experience
        earlier.append((observation, state))


def _before(
    earlier: deque[tuple[Observation, State]], start_s: float, slack_s: float
) -> tuple[Observation, State] | None:
    """The one that ended where another begins."""
    nearest = min(earlier, key=lambda one: abs(one[0].end_s - start_s), default=None)
    return None if nearest is None or abs(nearest[0].end_s - start_s) > slack_s else nearest


def _held(earlier: deque[tuple[Observation, State]], before: Observation, state: State) -> bool:
    """Whether what is in force in ``state`` was so in all ticks since ``before``."""
    return all(np.array_equal(since.present, state.present) for one, since in earlier if one.end_s > before.end_s)


def _has_burst(node: NodeObservation, burst: Burst | None) -> bool:
    """Whether a function has the standbys that every expert has in training; others may have none."""
    if node.configuration is None or node.kind == "ingress":
        return True
    present, trained = _activated(node.configuration.burst), _activated(burst)
    return present == trained or (present is None and node.kind != "expert")


def _activated(burst: Burst | None) -> Burst | None:
    """None where nothing waits; without what a token costs, which is measured."""
    return None if burst is None or burst.waiting(1) == 0 else replace(burst, token_s=None)


def _experience(encoder: Encoder, tick: Tick, before: tuple[Observation, State], following: State) -> Experience | None:
    """None where a cost is not known."""
    topology = encoder.topology
    layers = [[node.id for node in topology.experts(layer)] for layer in range(topology.layers)]
    names = [name for layer in layers for name in layer]
    has_costs = all(tick.busy.get(name) is not None and tick.provisioned.get(name) is not None for name in names)
    if not has_costs:
        return None

    def total(costs: Mapping[str, float | None]) -> Floats:
        return np.array([sum(costs[name] or 0.0 for name in layer) for layer in layers])

    p95_s = judged_p95_s(tick.observation, before[0].in_flight, encoder.slo_s)
    return Experience(before[1], following.present, total(tick.busy), total(tick.provisioned), p95_s, following)


def judged_p95_s(observation: Observation, in_flight: float | None, slo_s: float) -> float | None:
    """P95 of the window's requests with those that were lost: answered with an error, or among the ``in_flight`` when
    it began and not answered within it, though it is longer than λ. Where they are more than a twentieth, the P95 is at
    least the window and ``LOST`` λ: what answers nobody, or with errors at once, is not fast. Else that of the
    histogram; None where nothing was answered."""
    answered = observation.requests or 0.0
    overdue = max(0.0, (in_flight or 0.0) - answered) if observation.window_s > slo_s else 0.0
    lost = (observation.failed or 0.0) + overdue
    if lost <= (1 - SLO_QUANTILE) * (answered + overdue):
        return observation.latency_p95_s
    return max(observation.latency_p95_s or 0.0, observation.window_s, LOST * slo_s)


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
