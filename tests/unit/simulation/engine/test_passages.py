"""Deployments that never change, one after the other: the answers are those of a simulation of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.contract import Configuration
from simulation.engine import passages as module
from simulation.engine.passages import Passages
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.engine.tables import ResourceTables
from simulation.latency.contract import Noise
from tests.parameters import some_fast
from tests.unit.simulation.engine.builders import SPAN_S, WINDOW_S, Arithmetic, initial, random_limited, workload
from tests.unit.simulation.engine.test_bursts import random_bursts, with_standbys

ENDS_S = tuple(float(moment) for moment in np.arange(WINDOW_S, SPAN_S + WINDOW_S, WINDOW_S))


@pytest.mark.parametrize("seed", some_fast(range(16)))
def test_answers_are_those_of_a_simulation_of_each_deployment_to_the_last_bit(seed: int) -> None:
    """With standbys, and CPU limits for odd seeds, under more load than some deployments serve."""
    generator = np.random.default_rng(seed)
    model = random_limited(generator) if seed % 2 else Arithmetic(power=0.3, scatter=Noise.lognormal(0.3))
    pipeline = workload((3, 2, 3), model)
    rate = generator.uniform(20, 150)
    arrivals = np.cumsum(generator.gamma(0.3, 1 / (0.3 * rate), int(rate * SPAN_S)))
    requests = draw_requests(pipeline, arrivals, seed=seed)
    functions = [node.function for node in (*pipeline.segments, *pipeline.experts)]
    tables = ResourceTables(pipeline, requests.most_tokens, pipeline.space.concurrency_max)
    passages = Passages(pipeline, requests, ENDS_S, seed, tables)
    bursts, settings = random_bursts(generator, functions)
    deployment: dict[str, Configuration] = with_standbys(initial(pipeline), bursts)
    for _ in range(6):
        answers = passages.answers(deployment, settings)
        simulation = Simulation(pipeline, requests, deployment, seed=seed, bursts=settings)
        for end_s, one in zip(ENDS_S, answers, strict=True):
            window = simulation.advance(end_s)
            assert one.latency_s.tobytes() == window.latency_s.tobytes()
            assert one.activated_s.tobytes() == window.activated_s.tobytes()
            assert (one.in_flight, one.quantile_s(0.95)) == (window.in_flight, window.quantile_s(0.95))
        changed = functions[int(generator.integers(len(functions)))]
        burst = bursts.get(changed) if generator.random() < 0.7 else None
        now = deployment[changed]
        deployment |= {changed: replace(now, replicas=1 + now.replicas % 3, concurrency=now.concurrency, burst=burst)}


def test_stages_before_the_first_that_differs_are_not_simulated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = workload((2, 2))
    requests = draw_requests(pipeline, np.arange(0.0, SPAN_S, 0.05), seed=0)
    tables = ResourceTables(pipeline, requests.most_tokens, pipeline.space.concurrency_max)
    passages, start = Passages(pipeline, requests, ENDS_S, 0, tables), initial(pipeline)
    simulated: list[int] = []
    through = module._StageByStage.through

    def counted(self: module._StageByStage, number: int, *rest: object) -> object:
        simulated.append(number)
        return through(self, number, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module._StageByStage, "through", counted)
    settings = random_bursts(np.random.default_rng(0), [])[1]
    passages.answers(start, settings)
    assert simulated == [0, 1, 2, 3, 4]
    second_layer = pipeline.topology.experts(1)[0].function
    passages.answers(start | {second_layer: start[second_layer].with_replicas(3)}, settings)
    assert simulated == [0, 1, 2, 3, 4, 3, 4]
