"""Price sheets, and both cost meters by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.contract import Cost
from autoscaler.errors import SettingsError
from autoscaler.prices import DEFAULT_SHEET, function_cost, load_prices, money, total_cost
from functions.dispatch.activation import Burst
from tests.unit.autoscaler.builders import PRICES, configuration, info, observation, observed

NODE = info("expert-0-0", "expert", 0, 0)
SHEET = """
name = "mine"
source = "my cluster"
currency = "EUR"
cpu_core_s = 0.5
memory_gib_s = 0.25
gpu_s = 4
"""


def test_the_default_sheet_names_its_source_and_prices_all_three_resources() -> None:
    sheet = load_prices(DEFAULT_SHEET)
    assert "cloud.google.com/run/pricing" in sheet.source and sheet.currency == "USD"
    assert sheet.cpu_core_s > 0 and sheet.memory_gib_s > 0 and sheet.gpu_s > 0


def test_a_unit_is_memory_and_compute_of_one_replica() -> None:
    assert PRICES.unit_per_s(configuration(5, memory_mb=512, cpu_cores=3.0)) == 3 * 2.0 + 0.5 * 1.0
    assert PRICES.unit_per_s(configuration(cpu_cores=0.0, gpu_share=0.5)) == 0.5 * 10.0 + 0.25 * 1.0


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [(15.234, "USD", "$15.2"), (0.41, "USD", "$0.410"), (99.97, "USD", "$100"), (1234.5, "EUR", "EUR 1,234")],
)
def test_an_amount_has_three_significant_digits_and_its_currency(amount: float, currency: str, text: str) -> None:
    assert money(amount, currency) == text


@pytest.mark.parametrize(
    ("fields", "busy_s", "paid_s"),
    [
        pytest.param({"busy_s": 4.0}, 4, 10, id="one replica busy for 4 of 10 s"),
        pytest.param({"busy_s": 40.0}, 10, 10, id="calls that share a replica make it busy once"),
        pytest.param({"busy_s": 15.0, "configuration": configuration(2), "ready_replicas": 2}, 15, 20, id="two"),
        pytest.param({"busy_s": 0.0, "configuration": configuration(3)}, 0, 30, id="wanted ones are paid for"),
        pytest.param({"busy_s": 0.0, "ready_replicas": 4}, 0, 40, id="so are those that still run"),
        pytest.param({"busy_s": 9.0, "busy_replica_s": 5.0}, 5, 10, id="a source that knows exactly is believed"),
        pytest.param({"busy_s": None}, None, 10, id="no data"),
    ],
)
def test_both_meters_of_a_function(fields: dict[str, object], busy_s: float | None, paid_s: float) -> None:
    cost = function_cost([observed(NODE, **fields)], 10.0, PRICES)
    unit = 2.0 + 0.25
    assert cost == Cost(None if busy_s is None else busy_s * unit, paid_s * unit)


@pytest.mark.parametrize(("activated_s", "paid_s"), [(0.0, 30 * 0.25), (4.0, 26 * 0.25 + 4 * 2.25), (None, 30 * 2.25)])
def test_a_standby_costs_its_memory_and_a_replica_while_it_is_activated(
    activated_s: float | None, paid_s: float
) -> None:
    """Three standbys for ten seconds beside one replica, a quarter of a GiB each; what is not known counts in full."""
    node = observed(NODE, activated_s=activated_s, configuration=replace(configuration(), burst=Burst(3)))
    cost = function_cost([node], 10.0, PRICES)
    assert (cost.provisioned, cost.standbys) == (pytest.approx(10 * 2.25 + paid_s), pytest.approx(paid_s))


def test_nothing_that_always_runs_costs_memory_and_what_was_activated() -> None:
    """One replica that waits and three standbys for ten seconds, activated for four of the forty."""
    waiting = replace(configuration(), burst=Burst(3, sleep_s=2.0))
    node = observed(NODE, activated_s=4.0, configuration=waiting)
    assert function_cost([node], 10.0, PRICES).provisioned == pytest.approx(36 * 0.25 + 4 * 2.25)


@pytest.mark.parametrize(("sleep_s", "busy_s"), [(None, 10 + 24), (2.0, 24)])
def test_activated_standbys_are_busy_too_as_long_as_they_were_activated(sleep_s: float | None, busy_s: float) -> None:
    """One replica and three standbys of which 24 replica-seconds were activated, with calls for 50 s in 10."""
    node = observed(NODE, busy_s=50.0, activated_s=24.0)
    node = node._replace(configuration=replace(configuration(), burst=Burst(3, sleep_s=sleep_s)))
    assert function_cost([node], 10.0, PRICES).busy == pytest.approx(busy_s * 2.25)
    assert function_cost([node._replace(activated_s=None)], 10.0, PRICES).busy == pytest.approx(40 * 2.25)


def test_more_concurrency_alone_makes_nothing_cheaper() -> None:
    costs = [
        function_cost([observed(NODE, busy_s=4.0, configuration=configuration(concurrency=n))], 10.0, PRICES)
        for n in (1, 10)
    ]
    assert costs[0] == costs[1]


def test_a_sum_with_a_part_unknown_is_unknown() -> None:
    total, by_node = total_cost(observation({"expert-0-0": {"busy_s": None}}), PRICES)
    assert total.busy is None and total.provisioned == pytest.approx(9 * 10 * 2.25)
    assert by_node["expert-0-1"] == Cost(0.0, 22.5)
    total, _ = total_cost(observation({"expert-0-0": {"configuration": None}}), PRICES)
    assert total == Cost(None, None)


def test_nodes_that_share_a_function_pay_for_it_once() -> None:
    seen = observation({"expert-0-0": {"busy_s": 3.0}, "expert-1-0": {"busy_s": 4.0}})
    nodes = tuple(
        node._replace(function="m-experts") if node.node in ("expert-0-0", "expert-1-0") else node
        for node in seen.nodes
    )
    total, by_node = total_cost(replace(seen, nodes=nodes), PRICES)
    assert total == Cost(pytest.approx(7 * 2.25), pytest.approx(8 * 10 * 2.25))
    assert by_node["expert-0-0"] == by_node["expert-1-0"] == Cost(7 * 2.25 / 2, 22.5 / 2)


def test_a_sheet_of_one_s_own_is_read(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(SHEET)
    assert load_prices(tmp_path / "prices.toml").gpu_s == 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SHEET.replace("gpu_s = 4", "gpu_s = -1"), "gpu_s is -1"),
        (SHEET.replace("gpu_s = 4", "gpu_s = 'much'"), "gpu_s is 'much'"),
        (SHEET.replace("gpu_s = 4", "gpu_s = nan"), "gpu_s is nan"),
        (SHEET.replace("gpu_s = 4", "gpu_s = true"), "gpu_s is True"),
        (SHEET.replace("gpu_s = 4", ""), "gpu_s is missing"),
        (SHEET + "tax = 1", "'tax' is not known; the keys are cpu_core_s"),
        (SHEET + "]", "cannot be read"),
    ],
)
def test_a_sheet_with_a_mistake_is_refused_by_key(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=sentence):
        load_prices(path)


def test_a_sheet_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.toml cannot be read"):
        load_prices(tmp_path / "none.toml")
