"""Standbys as a part of a configuration: through space, limits, budget, capacity, plans and logs, and from settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from autoscaler.build import build_controller
from autoscaler.capacity import needs
from autoscaler.contract import Bound, Burst, Configuration, ConfigurationSpace, Memory, Observation, Proposal
from autoscaler.decision.budget import per_hour
from autoscaler.decision.limits import LimitSettings, LimitState, decide
from autoscaler.errors import PlatformError, SettingsError
from autoscaler.logger import configuration_of
from autoscaler.loop import Controller, short
from autoscaler.platforms.openfaas import OpenFaasPlatform
from autoscaler.platforms.quantities import annotations_with, burst_from
from autoscaler.platforms.shadow import ShadowPlatform
from autoscaler.policy.bursting import BurstingPolicy
from autoscaler.prices import load_prices
from autoscaler.settings import ControllerSettings
from autoscaler.state.features import observe
from autoscaler.state.readings import Readings, Series
from autoscaler.stored_deployment import Plan, load_plan, save_plan
from tests.contract.platform.server import AUTH, OpenFaas, status
from tests.doubles.fake_platform import FakePlatform
from tests.unit.autoscaler.builders import observation, topology
from tests.unit.autoscaler.manifests import write_pipeline
from tests.unit.autoscaler.servers import serve

BURST = Burst(7, headroom=1.5, spare=2.0, hold_s=10.0)
PLAIN = Configuration(512, 1.0, 0.0, 2, 4)
BURSTING = replace(PLAIN, burst=BURST)


@dataclass(frozen=True)
class Always:
    """A policy that desires the same in every window."""

    desired: dict[str, Configuration]
    name: str = "always"

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        return Proposal(self.desired, {}, memory)


def test_the_nearest_configuration_has_the_same_standbys() -> None:
    assert ConfigurationSpace().nearest(replace(BURSTING, replicas=99)) == replace(BURSTING, replicas=8)


def test_a_bound_on_replicas_leaves_standbys() -> None:
    assert Bound("no room", replicas=2).possible(PLAIN, replace(BURSTING, replicas=5)) == BURSTING


def test_a_budget_counts_a_waiting_standbys_memory() -> None:
    """Seven times half a GiB, for an hour."""
    prices = load_prices()
    more = per_hour(BURSTING, prices) - per_hour(PLAIN, prices)
    assert more == pytest.approx(7 * 0.5 * prices.memory_gib_s * 3600)


def test_a_cluster_must_have_the_cores_of_activated_standbys() -> None:
    assert needs(BURSTING) == needs(PLAIN.with_replicas(9))


def test_replicas_that_sleep_count_in_a_budget_and_a_cluster_as_if_they_ran() -> None:
    """Two replicas of a core and seven standbys, half a GiB each: nine that wait, and the two run under any load."""
    prices, waiting = load_prices(), replace(PLAIN, burst=replace(BURST, sleep_s=2.0))
    assert (waiting.replicas, waiting.running, waiting.standbys) == (2, 0, 9)
    assert per_hour(waiting, prices) == pytest.approx((2 * prices.cpu_core_s + 9 * 0.5 * prices.memory_gib_s) * 3600)
    assert needs(waiting) == needs(BURSTING)


@pytest.mark.parametrize("burst", [None, BURST, replace(BURST, sleep_s=2.0), Burst(0, sleep_s=2.0)])
def test_an_annotation_holds_all_of_a_rule(burst: Burst | None) -> None:
    annotations = annotations_with({"other": "1"}, burst)
    assert burst_from(annotations) == burst
    assert ("sleep_s" in str(annotations)) == (burst is not None and burst.sleep_s is not None)


def test_the_ingress_always_runs() -> None:
    """Nobody sees a request before it does."""
    seen = observation()
    desired = {node.function: PLAIN for node in seen.nodes}
    policy = BurstingPolicy(Always(desired), replace(BURST, sleep_s=2.0))
    proposed = policy.propose(seen, 0.0, None).desired
    kinds = {node.function: node.kind for node in seen.nodes}
    assert {"ingress", "expert"} <= set(kinds.values())
    assert all((one.running == 0) == (kinds[name] != "ingress") for name, one in proposed.items())


def busy_window(**more: Any) -> Observation:
    """Every expert's two replicas at a third of their limit for the 2 s in which 60 tokens were answered."""
    used = {"cpu_utilisation": 1 / 3, "measured_replicas": 2}
    names = [node.node for node in observation().nodes if node.kind == "expert"]
    return replace(observation(dict.fromkeys(names, used)), start_s=0.0, end_s=2.0, tokens_per_s=30.0, **more)


def costs_of(proposal: Proposal) -> dict[str, float | None]:
    return {name: None if one.burst is None else one.burst.token_s for name, one in proposal.desired.items()}


def test_standbys_of_functions_that_run_open_by_the_cpu_time_of_a_token() -> None:
    window = busy_window()
    experts = {node.function for node in window.nodes if node.kind == "expert"}
    desired = dict.fromkeys(experts, PLAIN)
    policy = BurstingPolicy(Always(desired), BURST, by_cpu_time=True)
    first = policy.propose(window, 2.0, None)
    assert list(costs_of(first).values()) == pytest.approx([2 / 3 / 30] * len(experts), rel=5e-3)
    nothing = replace(window, tokens_per_s=0.0)
    assert costs_of(policy.propose(nothing, 4.0, first.memory)) == costs_of(first)
    ordered = nothing.nodes[0]._replace(function="x", configuration=first.desired[min(experts)])
    after_start = replace(nothing, nodes=(ordered,))
    started = BurstingPolicy(Always({"x": PLAIN}), BURST, by_cpu_time=True).propose(after_start, 0.0, None)
    assert set(costs_of(started).values()) == set(costs_of(first).values()), "a restart forgets nothing"


@pytest.mark.parametrize(("by_cpu_time", "given"), [(False, None), (True, 0.5), (False, 0.5)])
def test_a_cost_that_is_given_or_left_to_the_ingress_stays(by_cpu_time: bool, given: float | None) -> None:
    window = busy_window()
    desired = {node.function: PLAIN for node in window.nodes if node.kind == "expert"}
    policy = BurstingPolicy(Always(desired), replace(BURST, token_s=given), by_cpu_time=by_cpu_time)
    assert set(costs_of(policy.propose(window, 2.0, None)).values()) == {given}


def test_a_plan_keeps_standbys_and_a_plan_without_them_is_stored_as_before(tmp_path: Path) -> None:
    save_plan(Plan("tiny", {"a": BURSTING, "b": PLAIN}), tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json").configurations == {"a": BURSTING, "b": PLAIN}
    save_plan(Plan("tiny", {"b": PLAIN}), tmp_path / "plain.json")
    assert "burst" not in (tmp_path / "plain.json").read_text()


def test_rows_of_a_log_from_before_standbys_have_none() -> None:
    row = {"wish_memory_mb": 512, "wish_cpu_cores": 1.0, "wish_gpu_share": 0.0, "wish_replicas": 2}
    assert configuration_of({**row, "wish_concurrency": 4}, "wish_") == PLAIN
    assert configuration_of({**row, "wish_concurrency": None}, "wish_") is None


def test_people_read_the_number_of_standbys() -> None:
    assert short(BURSTING) == "512MiB/1cpu/2+7x4"


def test_openfaas_is_refused_in_words_and_a_gateway_that_announces_standbys_gets_them() -> None:
    world = OpenFaas({"a": status("a", annotations={"kept": "1"})})
    with serve(world.reply) as server:
        platform = OpenFaasPlatform(server.url, "m", AUTH)
        with pytest.raises(PlatformError, match="function a cannot have 7 standbys: OpenFaaS has none"):
            platform.apply("a", PLAIN, BURSTING)
        assert not world.writes
        world.standbys = True
        platform = OpenFaasPlatform(server.url, "m", AUTH)
        platform.apply("a", PLAIN, BURSTING)
        assert platform.configurations()["a"] == BURSTING
        text = "standbys=7,headroom=1.5,spare=2.0,hold_s=10.0,look_back_s=0.5"
        assert world.functions["a"]["annotations"] == {"kept": "1", "smoe.burst": text}
        platform.apply("a", BURSTING, PLAIN)
        assert world.functions["a"]["annotations"] == {"kept": "1"}
        world.functions["a"]["annotations"] = {"smoe.burst": "many"}
        assert platform.configurations()["a"].burst is None


def test_fake_and_shadow_platforms_show_the_standbys_they_were_given() -> None:
    fake = FakePlatform({"a": PLAIN})
    shadow = ShadowPlatform(fake)
    shadow.apply("a", PLAIN, BURSTING)
    assert shadow.configurations() == {"a": BURSTING} and fake.configurations() == {"a": PLAIN}
    fake.apply("a", PLAIN, BURSTING)
    assert fake.configurations() == {"a": BURSTING}


def controller_with(folder: Path, policy: str, table: dict[str, Any], platform: FakePlatform | None) -> Controller:
    settings = ControllerSettings(
        "http://127.0.0.1:9", write_pipeline(folder / "m"), policy=policy, policy_settings=table
    )
    return build_controller(settings, platform)[0]


@pytest.mark.parametrize("policy", ["static", "hpa", "kpa"])
def test_every_policy_takes_standbys_from_its_settings(policy: str, tmp_path: Path) -> None:
    platform = FakePlatform({"tiny-expert-0-0": PLAIN})
    table = {"burst": {"standbys": 7, "headroom": 1.5, "spare": 2.0, "hold_s": 10.0}}
    made = controller_with(tmp_path, policy, table, platform).policy
    assert made.name == policy
    observed = observation({"expert-0-0": {"configuration": PLAIN}})
    desired = made.propose(observed, observed.end_s, None).desired
    assert desired and all(one.burst == BURST for one in desired.values())


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"standbys": -1}, "standbys is -1; allowed is 0 or more"),
        ({"standbys": 2, "hold": 3}, "hold"),
        ({"headroom": 1.0}, "standbys is missing"),
    ],
)
def test_a_table_that_makes_no_standbys_is_refused(table: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=sentence):
        controller_with(tmp_path, "static", {"burst": table}, FakePlatform({}))


def test_activated_seconds_are_read_and_waiting_standbys_are_not_measured() -> None:
    name = "m-expert-0-0.openfaas-fn"
    values: dict[Series, dict[tuple[str, ...], float]] = {
        Series.STANDBY_ACTIVATED_SECONDS: {(name,): 4.5},
        Series.REPLICAS_BY_STATE: {(name, "ready"): 1.0, (name, "standby"): 2.0},
        Series.REPLICA_CPU_SECONDS: {(name,): 3.0},
    }
    readings = Readings(0.0, 10.0, values, counts={Series.REPLICA_CPU_SECONDS: {(name,): 4.0}})
    node = observe(topology(), readings).node("expert-0-0")
    assert node is not None
    assert (node.activated_s, node.ready_replicas, node.measured_replicas) == (4.5, 1, 2)
    other = observe(topology(), readings).node("expert-0-1")
    assert other is not None and other.activated_s is None


def test_decisions_carry_standbys_and_stay_in_the_space() -> None:
    observed, function = observation({"expert-0-0": {"peak_tokens": 1.0}}), "m-expert-0-0"
    proposal = Proposal({function: replace(BURSTING, replicas=99)}, {function: "test"})
    (decision,) = decide(
        topology(), observed, proposal, {function: PLAIN}, observed.end_s, LimitState(), LimitSettings(), load_prices()
    )
    assert decision.changes and decision.target == replace(BURSTING, replicas=8)
