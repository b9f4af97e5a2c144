"""Where scaling pays: each way's cost against the ways that have less freedom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.contract import ConfigurationSpace
from evaluation.regimes.ways import ways
from simulation.engine.requests import Requests, draw_requests
from simulation.workloads.paper import paper_workload
from simulation.workloads.routing import zipf_routing
from simulation.workloads.workload import Workload

SMALL = ConfigurationSpace(512, 512, cpu_cores=(1, 4), gpu_shares=(), replicas_max=2, concurrency_max=1)


@pytest.fixture(scope="module")
def work() -> tuple[Workload, Requests]:
    """Twenty quiet seconds, twenty busy ones, and twenty quiet ones."""
    workload = paper_workload("bert-4", space=SMALL, routing=zipf_routing([4] * 12, exponent=1.2), mean_rps=30.0)
    rates = np.repeat((3.0, 30.0, 3.0), 20)
    seconds = np.repeat(np.arange(60), np.random.default_rng(0).poisson(rates))
    arrival_s = np.sort(seconds + np.random.default_rng(1).random(seconds.size))
    return workload, draw_requests(workload, arrival_s, seed=0, source="a minute")


@pytest.mark.slow
def test_more_freedom_never_costs_more(work: tuple[Workload, Requests]) -> None:
    workload, requests = work
    compared = ways(replace(workload, slo_s=0.4), requests, 10.0, 60.0, seed=0)
    assert compared is not None and compared.judged + compared.unmet == 5
    assert None not in (compared.constant, compared.constant_per_layer, compared.constant_per_expert, compared.window)
    assert compared.constant_per_expert <= compared.constant_per_layer <= compared.constant  # type: ignore[operator]
    assert compared.window_per_expert <= compared.window  # type: ignore[operator]


@pytest.mark.slow
def test_without_load_that_matters_a_constant_is_enough(work: tuple[Workload, Requests]) -> None:
    workload, requests = work
    compared = ways(replace(workload, slo_s=10.0), requests, 10.0, 60.0, seed=0)
    assert compared is not None and compared.unmet == 0 and compared.changes == 0
    assert compared.constant == pytest.approx(compared.window_per_expert)


def test_where_nothing_keeps_the_slo_there_is_nothing_to_compare(work: tuple[Workload, Requests]) -> None:
    workload, requests = work
    assert ways(replace(workload, slo_s=0.001), requests, 10.0, 60.0, seed=0) is None
