"""The watch over a policy: HPA takes over when it shrinks while the SLO is missed, and gives back when all is calm."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from autoscaler.contract import Burst, Configuration, Observation, Proposal
from autoscaler.policy.fallback import FallbackPolicy, FallbackSettings, wants_less
from autoscaler.policy.hpa import HpaPolicy
from autoscaler.state.targets import Targets
from tests.unit.autoscaler.builders import NOW_S, configuration, observation

SLO_S = 0.1
LESS = configuration(1)
FUNCTION = "m-expert-0-0"
PRESENT = {node: {"configuration": configuration(3)} for node in ("expert-0-0",)}


@dataclass
class Fixed:
    """A policy that always desires the same for one function, and counts how often it was asked."""

    name: str
    desired: Configuration
    asked: list[object] = field(default_factory=list)
    decided_by: list[str] = field(default_factory=list)
    """What each window's observation names."""
    doubts: str = ""
    """One letter a window: ``d`` where it doubts itself."""

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        self.asked.append(memory)
        self.decided_by.append(observation.decided_by)
        doubted = self.doubts[len(self.asked) - 1 :][:1] == "d"
        doubt = "it has not met the like" if doubted else ""
        return Proposal({FUNCTION: self.desired}, {FUNCTION: self.name}, len(self.asked), doubt)


def window(p95_s: float | None, **more: Any) -> Observation:
    return observation(PRESENT, latency_p95_s=p95_s, **more)


def replicas(policy: FallbackPolicy, windows: list[Observation]) -> list[int]:
    """What is desired in each window."""
    memory: object = None
    replicas = []
    for one in windows:
        proposal = policy.propose(one, NOW_S, memory)
        memory = proposal.memory
        replicas.append(proposal.desired[FUNCTION].replicas)
    return replicas


def policy(desired: Configuration = LESS, **settings: int) -> FallbackPolicy:
    return FallbackPolicy(
        Fixed("learnt", desired), Fixed("hpa", configuration(5)), FallbackSettings(Targets(SLO_S), **settings)
    )


MISSED, KEPT = window(0.2), window(0.05)


def test_hpa_takes_over_in_the_third_window_of_missing_the_slo_and_wanting_less() -> None:
    assert replicas(policy(), [MISSED, MISSED, MISSED, MISSED]) == [1, 1, 5, 5]


def test_missed_windows_add_up_and_many_that_are_kept_make_up_for_one() -> None:
    assert replicas(policy(), [MISSED, MISSED, KEPT, MISSED, MISSED]) == [1, 1, 1, 1, 5]
    now_and_then = [*[KEPT] * 28, MISSED] * 10
    assert set(replicas(policy(), now_and_then)) == {1}, "one in 29 is 3.4 %"
    too_often = [*[KEPT] * 9, MISSED] * 10
    assert 5 in replicas(policy(), too_often), "one in ten"


def test_a_policy_that_grows_or_holds_is_judged_at_loads_that_it_should_have_been_ready_for() -> None:
    doubling = [window(0.2, requests_per_s=2.5**number) for number in range(8)]
    for desired in (configuration(8), configuration(3)):
        assert set(replicas(policy(desired), doubling)) == {desired.replicas}
        assert replicas(policy(desired), [MISSED] * 5) == [desired.replicas] * 3 + [5, 5]  # the first load is new


def test_the_policy_comes_back_after_calm_windows_in_a_row() -> None:
    story = [MISSED] * 3 + [KEPT, MISSED, KEPT, KEPT, KEPT]
    assert replicas(policy(calm_windows=2), story) == [1, 1, 5, 5, 5, 5, 1, 1]


@pytest.mark.parametrize(
    "blind",
    [window(None, requests=0.0), window(None, requests=None), window(0.2, stale=True)],
    ids=["no request", "no count", "stale"],
)
def test_windows_without_data_count_for_nothing(blind: Observation) -> None:
    assert replicas(policy(), [MISSED, MISSED, blind, blind, MISSED]) == [1, 1, 1, 1, 5]


@pytest.mark.parametrize("p95_s", [None, float("nan"), -1.0], ids=["not known", "not a number", "negative"])
def test_a_policy_whose_latency_nobody_sees_goes_after_two_windows(p95_s: float | None) -> None:
    blind = window(p95_s, requests=10.0)
    watched = policy(calm_windows=1)
    assert replicas(watched, [KEPT, blind, KEPT, blind, blind, blind, KEPT, KEPT]) == [1, 1, 1, 1, 5, 5, 1, 1]


@dataclass
class Failing(Fixed):
    """Raises in the windows that ``doubts`` names."""

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        proposal = super().propose(observation, now_s, memory)
        if proposal.doubt:
            raise ValueError("no such expert")
        return replace(proposal, doubt="")


def test_a_policy_that_fails_keeps_its_memory_and_goes_after_two_windows() -> None:
    failing = Failing("learnt", LESS, doubts="-ddd----")
    watched = FallbackPolicy(failing, Fixed("hpa", configuration(5)), FallbackSettings(Targets(SLO_S), calm_windows=1))
    memory: object = None
    desired = []
    for _ in range(6):
        proposal = watched.propose(KEPT, NOW_S, memory)
        memory = proposal.memory
        desired.append(proposal.desired[FUNCTION].replicas if FUNCTION in proposal.desired else None)
        assert bool(proposal.failure) == (1 < len(desired) <= 4)
    assert desired == [1, None, 5, 5, 1, 1], "held in the first failed window"
    assert failing.asked == [None, 1, 1, 1, 1, 5]


def test_a_policy_that_fails_from_the_first_window_on_holds_every_function_with_a_reason() -> None:
    failing = Failing("learnt", LESS, doubts="ddd----")
    watched = FallbackPolicy(failing, Fixed("hpa", configuration(5)), FallbackSettings(Targets(SLO_S), calm_windows=1))
    proposals, memory = [], None
    for _ in range(7):
        proposals.append(watched.propose(KEPT, NOW_S, memory))
        memory = proposals[-1].memory
    assert set(proposals[0].reasons) == {node.function for node in KEPT.nodes}
    assert [one.desired[FUNCTION].replicas if FUNCTION in one.desired else None for one in proposals] == [
        None, 5, 5, 1, 1, 1, 1
    ]  # fmt: skip


def test_windows_that_overlap_count_once() -> None:
    """Six windows of 30 s, read every 5 s, show the same late burst."""
    missed, kept = window(0.2, news=1 / 6), window(0.05, news=1 / 6)
    assert set(replicas(policy(), [kept, *[missed] * 17, *[kept] * 6])) == {1}
    assert replicas(policy(), [missed] * 18)[-2:] == [1, 5]
    assert replicas(doubting("d" * 12), [kept] * 12) == [8] * 11 + [5]
    assert replicas(policy(calm_windows=2), [*[MISSED] * 3, *[kept] * 12])[-2:] == [5, 1]


def test_requests_that_wait_for_longer_than_the_slo_without_any_answer_miss_it() -> None:
    silent = [window(None, requests=0.0, in_flight=2.0, start_s=10.0 * n, end_s=10.0 * n + 10) for n in range(6)]
    assert replicas(policy(), silent) == [1, 1, 1, 5, 5, 5], "what is in flight after the first may have just come"
    answered = window(None, requests=1.0, start_s=30.0, end_s=40.0, in_flight=2.0)
    assert 5 not in replicas(policy(), [*silent[:3], answered, *silent[4:5]])
    slow = FallbackPolicy(Fixed("learnt", LESS), Fixed("hpa", configuration(5)), FallbackSettings(Targets(60.0)))
    assert set(replicas(slow, silent)) == {1}


def test_both_policies_see_every_window_with_their_own_memory() -> None:
    chosen, other = Fixed("learnt", configuration(1)), Fixed("hpa", configuration(5))
    replicas(FallbackPolicy(chosen, other, FallbackSettings(Targets(SLO_S))), [MISSED] * 4)
    assert chosen.asked == other.asked == [None, 1, 2, 3]


def test_the_policy_knows_in_which_windows_another_had_decided() -> None:
    chosen, other = Fixed("learnt", configuration(1)), Fixed("hpa", configuration(5))
    settings = FallbackSettings(Targets(SLO_S), calm_windows=2)
    replicas(FallbackPolicy(chosen, other, settings), [*[MISSED] * 3, *[KEPT] * 4])
    assert chosen.decided_by == ["", "", "", "hpa", "hpa", "", ""]


def test_the_reason_names_who_decided_and_why() -> None:
    watched = policy(windows=1)
    reason = watched.propose(MISSED, NOW_S, None).reasons[FUNCTION]
    assert reason == "hpa (hpa instead of learnt: it wanted less while the SLO was missed)"
    assert watched.name == "learnt"


@pytest.mark.parametrize("hpa_desires", [True, False], ids=["HPA scales", "HPA holds"])
def test_the_sizes_from_before_the_policys_first_decision_come_back_with_hpa(hpa_desires: bool) -> None:
    deployed, small = configuration(3, cpu_cores=2.0), configuration(1, cpu_cores=0.5)
    watched = FallbackPolicy(Fixed("learnt", small), Silent(hpa_desires), FallbackSettings(Targets(SLO_S), windows=1))
    before = observation({"expert-0-0": {"configuration": deployed}}, latency_p95_s=0.05)
    decided = observation({"expert-0-0": {"configuration": replace(small, replicas=2)}}, latency_p95_s=0.2)
    first = watched.propose(before, NOW_S, None)
    assert first.desired == {FUNCTION: small} and first.by == ""
    second = watched.propose(decided, NOW_S, first.memory)
    assert second.by == "hpa"
    assert second.desired == {FUNCTION: replace(deployed, replicas=5 if hpa_desires else 3)}
    back = observation({"expert-0-0": {"configuration": second.desired[FUNCTION]}}, latency_p95_s=0.05)
    third = watched.propose(back, NOW_S, second.memory)
    assert third.by == "hpa" and third.desired == ({FUNCTION: replace(deployed, replicas=5)} if hpa_desires else {})


def test_sizes_that_somebody_deployed_later_come_back_and_not_those_from_before() -> None:
    small, larger = configuration(1, cpu_cores=0.5), configuration(2, cpu_cores=4.0)
    watched = FallbackPolicy(Fixed("learnt", small), Silent(False), FallbackSettings(Targets(SLO_S), windows=1))
    story = ((configuration(3, cpu_cores=2.0), 0.05, ()), (larger, 0.05, (FUNCTION,)), (small, 0.2, ()))
    memory: object = None
    for now, p95_s, redeployed in story:
        one = observation({"expert-0-0": {"configuration": now}}, latency_p95_s=p95_s, redeployed=frozenset(redeployed))
        proposal = watched.propose(one, NOW_S, memory)
        memory = proposal.memory
    assert (proposal.by, proposal.desired) == ("hpa", {FUNCTION: larger})


def test_hpa_is_asked_as_if_the_sizes_had_stayed_that_come_back_with_it() -> None:
    """Three small replicas at 0.6 of a core each are 1.8 cores: 0.9 of one replica of two cores, 0.45 of two."""
    deployed, small = configuration(1, cpu_cores=2.0), configuration(3, cpu_cores=1.0)
    watched = FallbackPolicy(Fixed("learnt", small), HpaPolicy(), FallbackSettings(Targets(SLO_S), windows=1))
    memory: object = None
    for now, use, p95_s in ((deployed, 0.5, 0.05), (small, 0.6, 0.05), (small, 0.6, 0.2)):
        node = {"configuration": now, "ready_replicas": now.replicas, "measured_replicas": now.replicas}
        row = {**node, "cpu_utilisation": use, "in_flight": 2.0, "waiting": 0.0}
        proposal = watched.propose(observation({"expert-0-0": row}, latency_p95_s=p95_s), NOW_S, memory)
        memory = proposal.memory
    assert proposal.by == "hpa"
    assert proposal.desired[FUNCTION] == deployed.with_replicas(2)
    assert "cpu 45% (target 80%) asks for 2" in proposal.reasons[FUNCTION]


@pytest.mark.parametrize("gpu_share", [0.0, 0.2], ids=["from cores", "from a GPU"])
def test_calls_take_longer_on_fewer_cores_and_the_use_of_cores_is_not_known_of_a_gpu(gpu_share: float) -> None:
    deployed = configuration(1, cpu_cores=4.0)
    other = configuration(2, cpu_cores=0.0 if gpu_share else 1.0, gpu_share=gpu_share)
    hpa = Watching("hpa", deployed)
    watched = FallbackPolicy(Fixed("learnt", other), hpa, FallbackSettings(Targets(SLO_S)))
    memory: object = None
    for now in (deployed, other):
        row = {"configuration": now, "ready_replicas": now.replicas, "cpu_utilisation": 0.4, "in_flight": 3.0}
        memory = watched.propose(observation({"expert-0-0": row}, latency_p95_s=0.05), NOW_S, memory).memory
    seen = hpa.seen[-1].node("expert-0-0")
    assert seen is not None and seen.configuration == deployed and seen.ready_replicas == 1
    assert seen.cpu_utilisation == (None if gpu_share else pytest.approx(0.2))
    assert seen.in_flight == (3.0 if gpu_share else 0.75)


@dataclass
class Watching(Fixed):
    """Keeps what it was shown."""

    seen: list[Observation] = field(default_factory=list)

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        self.seen.append(observation)
        return super().propose(observation, now_s, memory)


@dataclass
class Silent:
    """Five replicas of what there is, or nothing."""

    desires: bool
    name: str = "hpa"

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        present = next(node.configuration for node in observation.nodes if node.function == FUNCTION)
        assert present is not None
        desired = {FUNCTION: present.with_replicas(5)} if self.desires else {}
        return Proposal(desired, {FUNCTION: self.name}, None)


def test_hpa_gets_as_many_standbys_as_the_policy_desires_of_any_function() -> None:
    """What the policy left out for want of room it did for sizes of its own."""
    few, many = configuration(1, burst=Burst(2)), configuration(1, burst=Burst(6, hold_s=1.0))

    class Uneven(Fixed):
        def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
            desired = {FUNCTION: few, "m-expert-0-1": many, "m-expert-1-0": configuration(1)}
            return Proposal(desired, dict.fromkeys(desired, "a"))

    watched = FallbackPolicy(
        Uneven("staffing", few), Fixed("hpa", configuration(5)), FallbackSettings(Targets(SLO_S), windows=1)
    )
    memory: object = None
    for one in (KEPT, MISSED, KEPT):
        proposal = watched.propose(one, NOW_S, memory)
        memory = proposal.memory
    assert proposal.by == "hpa"
    assert proposal.desired[FUNCTION].burst == Burst(6)
    assert proposal.desired["m-expert-0-1"].burst == proposal.desired["m-expert-1-0"].burst == Burst(6, hold_s=1.0)


def doubting(doubts: str, **settings: int) -> FallbackPolicy:
    chosen = Fixed("learnt", configuration(8), doubts=doubts)
    return FallbackPolicy(chosen, Fixed("hpa", configuration(5)), FallbackSettings(Targets(SLO_S), **settings))


def test_hpa_takes_over_in_the_second_window_of_doubt_and_gives_back_after_calm_ones() -> None:
    assert replicas(doubting("ddd..d...", calm_windows=3), [KEPT] * 9) == [8, 5, 5, 5, 5, 5, 5, 5, 8]


def test_a_single_window_of_doubt_changes_nothing() -> None:
    assert replicas(doubting("d.d.d."), [KEPT] * 6) == [8] * 6


def test_doubt_counts_in_windows_without_a_latency_but_calm_does_not() -> None:
    assert replicas(doubting("dd...", calm_windows=2), [window(None)] * 5) == [8, 5, 5, 5, 5]
    assert replicas(doubting("dd", calm_windows=2), [window(0.2, stale=True)] * 3) == [8] * 3


def test_a_p95_above_the_target_at_less_than_twice_a_load_that_was_seen_is_a_missed_prediction() -> None:
    over = window(0.11, requests_per_s=9.0)
    story = [window(0.05, requests_per_s=5.0), over, over, over]
    assert replicas(policy(configuration(8)), story) == [8, 8, 8, 5]
    assert replicas(policy(configuration(8)), [window(0.05, requests_per_s=4.0), over, KEPT, KEPT]) == [8] * 4


def test_a_policy_that_came_back_goes_at_its_first_missed_window_and_for_twice_as_long() -> None:
    story = [*[MISSED] * 3, *[KEPT] * 2, MISSED, *[KEPT] * 4]
    assert replicas(policy(calm_windows=2), story) == [1, 1, 5, 5, 1, 5, 5, 5, 5, 1]


def test_a_window_of_doubt_may_order_more_and_not_less() -> None:
    for desired, ordered in ((configuration(1), 3), (configuration(8), 8)):
        chosen = Fixed("learnt", desired, doubts=".d.")
        watched = FallbackPolicy(chosen, Fixed("hpa", configuration(5)), FallbackSettings(Targets(SLO_S)))
        assert replicas(watched, [KEPT] * 3) == [desired.replicas, ordered, desired.replicas]


def test_the_first_window_without_an_answer_is_no_reason_to_order_less_and_the_second_is() -> None:
    empty = window(None, requests=0.0, requests_per_s=0.0)
    assert replicas(policy(), [KEPT, empty, empty, KEPT]) == [1, 3, 1, 1]
    assert replicas(policy(configuration(8)), [KEPT, empty]) == [8, 8]


@pytest.mark.parametrize("own", [None, Burst(4)], ids=["of the policy", "of HPA"])
def test_sizes_come_back_alone_and_standbys_a_window_later(own: Burst | None) -> None:
    """What is deployed may only just have room for them."""
    small = configuration(1, burst=Burst(2))
    watched = FallbackPolicy(
        Fixed("staffing", small), Fixed("hpa", configuration(5, burst=own)), FallbackSettings(Targets(SLO_S), windows=1)
    )
    memory: object = None
    bursts = []
    for one in (KEPT, MISSED, KEPT, KEPT):
        proposal = watched.propose(one, NOW_S, memory)
        memory = proposal.memory
        bursts.append(proposal.desired[FUNCTION].burst)
    assert bursts == [Burst(2), None, own or Burst(2), own or Burst(2)]


def test_the_proposal_names_who_decided() -> None:
    watched = policy(windows=1)
    assert watched.propose(KEPT, NOW_S, None).by == ""
    assert watched.propose(MISSED, NOW_S, None).by == "hpa"


@pytest.mark.parametrize(
    ("desired", "less"),
    [
        pytest.param(configuration(2), True, id="replicas"),
        pytest.param(configuration(3, cpu_cores=0.5), True, id="cores"),
        pytest.param(configuration(3, concurrency=2), True, id="concurrency"),
        pytest.param(configuration(3, memory_mb=128), False, id="memory is no speed"),
        pytest.param(configuration(6, cpu_cores=0.5), False, id="the same cores, more slots"),
        pytest.param(configuration(3, cpu_cores=0.0, gpu_share=0.3), False, id="cores for a GPU share"),
    ],
)
def test_wanting_less_is_less_capacity_and_none_more(desired: Configuration, less: bool) -> None:
    assert wants_less(window(0.2), {FUNCTION: desired}) is less
