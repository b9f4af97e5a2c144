"""Decision limits: each one by hand, and none ever broken by any proposal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.contract import MIB, Configuration, ConfigurationSpace, Observation, Proposal
from autoscaler.decision.budget import no_worse, per_hour
from autoscaler.decision.limits import LimitSettings, LimitState, decide, limits_in_step, memory_need
from platform_words.memory import CONTAINER, container_memory
from tests.unit.autoscaler.builders import NOW_S, PRICES, configuration, observation
from tests.unit.autoscaler.deciding import FUNCTION, NODE, NODES, SETTINGS, SPACE, TOPOLOGY, decision, decisions


def test_a_configuration_inside_all_limits_is_granted() -> None:
    allowed = decision(configuration(3, memory_mb=512, concurrency=8))
    assert allowed.target == allowed.desired and allowed.limits_hit == () and allowed.valid and allowed.changes
    assert (allowed.node, allowed.reason) == (NODE, "scripted")


@pytest.mark.parametrize(
    ("desired", "target"),
    [
        pytest.param(configuration(9), configuration(8), id="replicas"),
        pytest.param(configuration(0), configuration(1), id="not to zero"),
        pytest.param(configuration(memory_mb=300), configuration(memory_mb=320), id="memory rounds up"),
        pytest.param(configuration(concurrency=60), configuration(concurrency=10), id="concurrency"),
        pytest.param(
            configuration(cpu_cores=0.0, gpu_share=0.17), configuration(cpu_cores=0.0, gpu_share=0.2), id="GPU share"
        ),
    ],
)
def test_a_configuration_outside_the_space_becomes_the_nearest_which_is_reported(
    desired: Configuration, target: Configuration
) -> None:
    allowed = decision(desired)
    assert allowed.target == target and allowed.limits_hit == ("configuration space",)


def test_axes_deployed_outside_the_space_stay_unless_the_policy_changes_them() -> None:
    odd = configuration(1, memory_mb=200, cpu_cores=0.5, concurrency=64)
    assert decision(odd.with_replicas(3), odd).target == odd.with_replicas(3)


def test_replicas_change_by_at_most_a_step() -> None:
    settings = LimitSettings(max_step_replicas=2)
    up = decision(configuration(8), configuration(2), settings=settings)
    down = decision(configuration(1), configuration(8), settings=settings)
    assert (up.target.replicas, down.target.replicas) == (4, 6)
    assert up.limits_hit == down.limits_hit == ("at most 2 replicas a step",)


@pytest.mark.parametrize(
    ("now", "desired", "target"),
    [
        pytest.param(configuration(), configuration(memory_mb=2048), configuration(memory_mb=512), id="memory up"),
        pytest.param(configuration(memory_mb=2048), configuration(), configuration(memory_mb=1024), id="memory down"),
        pytest.param(configuration(), configuration(cpu_cores=6.0), configuration(cpu_cores=2.0), id="cores"),
        pytest.param(
            configuration(cpu_cores=0.0, gpu_share=0.2),
            configuration(cpu_cores=0.0, gpu_share=1.0),
            configuration(cpu_cores=0.0, gpu_share=0.4),
            id="GPU share",
        ),
        pytest.param(configuration(), configuration(7, memory_mb=384), configuration(7, memory_mb=384), id="within"),
        pytest.param(
            configuration(),
            configuration(cpu_cores=0.0, gpu_share=1.0),
            configuration(cpu_cores=0.0, gpu_share=1.0),
            id="",
        ),
    ],
)
def test_limits_change_by_at_most_a_factor_where_one_is_set(
    now: Configuration, desired: Configuration, target: Configuration
) -> None:
    allowed = decision(desired, now, settings=LimitSettings(max_step_factor=2.0))
    assert allowed.target == target
    assert allowed.limits_hit == (() if target == desired else ("limits at most 2 times a step",))


@given(
    factor=st.floats(1.001, 8.0),
    begin=st.sampled_from(SPACE.memory_sizes_mb),
    end=st.sampled_from(SPACE.memory_sizes_mb),
    cores=st.tuples(st.sampled_from(SPACE.cpu_cores), st.sampled_from(SPACE.cpu_cores)),
)
def test_step_by_step_every_desired_scale_is_reached_and_never_passed(
    factor: float, begin: int, end: int, cores: tuple[float, float]
) -> None:
    now, desired = configuration(memory_mb=begin, cpu_cores=cores[0]), configuration(memory_mb=end, cpu_cores=cores[1])
    for _ in range(len(SPACE.memory_sizes_mb) + 1):
        after = limits_in_step(now, desired, factor, SPACE)
        for axis, least in (("memory_mb", 64), ("cpu_cores", 1)):
            one, two, goal = getattr(now, axis), getattr(after, axis), getattr(desired, axis)
            assert min(one, goal) <= two <= max(one, goal)
            assert max(one, two) <= factor * min(one, two) * 1.0001 or abs(one - two) == least
        now = after
    assert now == desired


def test_eq_2_goes_before_the_rate_of_change() -> None:
    seen = observation({NODE: {"peak_tokens": 120_000.0}})
    tight = LimitSettings(max_step_factor=1.1)
    allowed = decision(configuration(2, memory_mb=1024), configuration(5, memory_mb=512), seen=seen, settings=tight)
    need = memory_need([NODES[FUNCTION]], [seen.node(NODE)], SETTINGS)
    assert need is not None and need.holds(allowed.target) and allowed.target.memory_mb > 1.1 * 512


def test_a_function_changed_a_moment_ago_stays_until_the_cool_down_is_over() -> None:
    settings = LimitSettings(cooldown_s=30.0)
    state = LimitState().after([FUNCTION], NOW_S - 29)
    held = decision(configuration(2), settings=settings, state=state)
    assert held.target == held.present and held.limits_hit == ("cool-down of 30 s",) and held.valid
    for over_s in (NOW_S - 30, NOW_S + 3600):  # the clock was set back by an hour
        assert decision(configuration(2), settings=settings, state=LimitState().after([FUNCTION], over_s)).changes


def test_only_changes_that_were_made_start_the_cool_down() -> None:
    assert LimitState({"a": 1.0}).after(["b"], 2.0) == LimitState({"a": 1.0, "b": 2.0})
    assert LimitState().after([], 2.0) == LimitState()


def peak(tokens: float | None) -> Observation:
    return observation({NODE: {"peak_tokens": tokens}})


def test_equation_2_raises_the_memory_of_fewer_replicas() -> None:
    # M_e = 10 MiB weights + 64 MiB; D = 4 KiB; P = 32,768: (74 + 256 / replicas) / 0.9 MiB
    allowed = decision(configuration(1), configuration(2), seen=peak(32768.0))
    assert allowed.target == configuration(1, memory_mb=384)
    assert allowed.limits_hit == ("memory of Eq. (2)",)


def test_equation_2_keeps_the_present_where_the_space_has_too_little_memory() -> None:
    space = ConfigurationSpace(memory_max_mb=256)
    allowed = decision(configuration(1), configuration(2), seen=peak(32768.0), settings=LimitSettings(space=space))
    assert allowed.target == allowed.present and allowed.limits_hit == ("memory of Eq. (2)",)


def test_equation_2_never_forbids_what_is_no_worse_than_the_present() -> None:
    allowed = decision(configuration(2, memory_mb=128), configuration(1, memory_mb=128), seen=peak(1e9))
    assert allowed.target == allowed.desired and allowed.limits_hit == ()


def test_without_data_of_the_peak_neither_memory_nor_replicas_shrink() -> None:
    allowed = decision(configuration(1, memory_mb=128, concurrency=2), configuration(3), seen=peak(None))
    assert allowed.target == configuration(3, concurrency=2)
    assert "not known" in allowed.limits_hit[0]


def test_the_memory_need_of_nodes_that_share_a_function_is_their_sum() -> None:
    nodes = [NODES["m-expert-0-0"], NODES["m-expert-1-0"]]
    seen = observation({"expert-0-0": {"peak_tokens": 3.0}, "expert-1-0": {"peak_tokens": 4.0}})
    need = memory_need(nodes, [seen.node(node.id) for node in nodes], SETTINGS)
    assert need is not None and need.peak_tokens == 7 and need.runtime_bytes == (20 + 64) * MIB


def test_stale_data_holds_everything_and_says_why() -> None:
    seen = observation(stale=True, problems=("the ingress does not answer",))
    allowed = decision(configuration(5), seen=seen)
    assert not allowed.valid and allowed.target == allowed.present and allowed.limits_hit == ("no or old data",)
    assert allowed.reason == "present scale held: the ingress does not answer"


def test_a_function_the_policy_cannot_judge_is_held_and_says_why() -> None:
    allowed = decisions({}, {FUNCTION: configuration(3)}, reasons={FUNCTION: "no data of cpu"})[FUNCTION]
    assert (
        not allowed.valid
        and allowed.target == configuration(3)
        and allowed.reason == "present scale held: no data of cpu"
    )


def test_functions_that_are_not_managed_or_not_deployed_get_no_decision() -> None:
    assert decisions({FUNCTION: configuration()}, {"m-expert-0-1": configuration()}) == {}


def test_a_budget_takes_growth_back_replica_by_replica_and_leaves_the_present() -> None:
    present = {"m-expert-0-0": configuration(1), "m-expert-0-1": configuration(1)}
    one = per_hour(configuration(1), PRICES)
    desired = {"m-expert-0-0": configuration(4), "m-expert-0-1": configuration(2)}
    allowed = decisions(desired, present, LimitSettings(budget_per_hour=4 * one))
    assert [allowed[function].target.replicas for function in present] == [2, 2]
    assert allowed["m-expert-0-0"].limits_hit == ("budget",) and allowed["m-expert-0-1"].limits_hit == ()
    tight = decisions(desired, present, LimitSettings(budget_per_hour=one))
    assert all(not one_.changes for one_ in tight.values())


def test_a_part_of_a_growth_that_could_not_hold_its_tokens_is_taken_back_whole() -> None:
    # (74 + 256 / replicas) / 0.9 MiB: 128 MiB are enough for seven replicas, not for six.
    present, desired = configuration(1, memory_mb=384), configuration(8, memory_mb=128)
    budget = 4.5 * per_hour(desired.with_replicas(1), PRICES)
    allowed = decision(desired, present, seen=peak(32768.0), settings=LimitSettings(budget_per_hour=budget))
    assert allowed.target == present and allowed.limits_hit == ("budget",)
    free = decision(desired, present, seen=peak(32768.0))
    assert free.target == desired


def test_a_budget_counts_functions_that_are_not_managed() -> None:
    one = per_hour(configuration(1), PRICES)
    present = {FUNCTION: configuration(1), "m-segment-0": configuration(3)}
    allowed = decisions({FUNCTION: configuration(4)}, present, LimitSettings(budget_per_hour=5 * one))
    assert allowed[FUNCTION].target.replicas == 2


any_configuration = st.builds(
    lambda memory, resource, replicas, concurrency: Configuration(memory, *resource, replicas, concurrency),
    st.integers(1, 12_000),
    st.one_of(st.tuples(st.floats(0.1, 9), st.just(0.0)), st.tuples(st.just(0.0), st.floats(0.01, 1))),
    st.integers(0, 12),
    st.integers(0, 14),
)
functions = st.sampled_from(sorted(NODES))


@given(
    desired=st.dictionaries(functions, any_configuration, max_size=9),
    present=st.dictionaries(functions, any_configuration, min_size=1, max_size=9),
    tokens=st.one_of(st.none(), st.floats(0, 1e6)),
    step=st.integers(0, 5),
    budget=st.one_of(st.none(), st.floats(1, 1e6)),
    changed=st.dictionaries(functions, st.floats(NOW_S - 100, NOW_S), max_size=4),
    stale=st.booleans(),
)
def test_no_proposal_breaks_a_limit(
    desired: dict[str, Configuration],
    present: dict[str, Configuration],
    tokens: float | None,
    step: int,
    budget: float | None,
    changed: dict[str, float],
    stale: bool,
) -> None:
    settings = LimitSettings(max_step_replicas=step, cooldown_s=50.0, budget_per_hour=budget)
    changes: dict[str, dict[str, Any]] = {node.id: {"peak_tokens": tokens} for node in TOPOLOGY.nodes}
    seen = observation(changes, stale=stale)
    allowed = decisions(desired, present, settings, seen, LimitState(changed))
    assert set(allowed) == set(desired) & set(present)
    for function, one in allowed.items():
        now, target = one.present, one.target
        if target == now:
            continue
        assert not stale and one.valid
        assert NOW_S - changed.get(function, -1e12) >= 50
        assert target in settings.space or _axes_kept(target, now, settings.space)
        # A present outside the bounds may be brought inside at once; otherwise the step holds.
        assert not step or abs(target.replicas - now.replicas) <= step
        need = memory_need([NODES[function]], [seen.node(NODES[function].id)], settings)
        assert no_worse(now, target) or (need is not None and need.holds(target))
        assert target == one.desired or one.limits_hit
    if budget is not None and any(
        per_hour(one.target, PRICES) > per_hour(one.present, PRICES) for one in allowed.values()
    ):
        after = present | {function: one.target for function, one in allowed.items()}
        assert sum(per_hour(one, PRICES) for one in after.values()) <= budget * (1 + 1e-9)


def _axes_kept(target: Configuration, now: Configuration, space: ConfigurationSpace) -> bool:
    """Every axis is on the lattice, or as it was."""
    return (
        (target.memory_mb in space.memory_sizes_mb or target.memory_mb == now.memory_mb)
        and (
            (target.cpu_cores, target.gpu_share) in space.resources
            or (target.cpu_cores, target.gpu_share) == (now.cpu_cores, now.gpu_share)
        )
        and (target.replicas in space.replica_counts or now.replicas not in space.replica_counts)
        and (target.concurrency in space.concurrencies or target.concurrency == now.concurrency)
    )


def test_deciding_is_pure() -> None:
    desired, present = {FUNCTION: configuration(4)}, {FUNCTION: configuration()}
    assert decisions(desired, present) == decisions(desired, present)
    assert present == {FUNCTION: configuration()} and replace(SETTINGS) == SETTINGS


# memory in use


@pytest.mark.parametrize(
    ("used", "memory_mb", "hits"),
    [
        pytest.param(0.66, 192, ("memory in use",), id="below what is used"),
        pytest.param(0.98, 256, ("memory in use",), id="nothing smaller holds it"),
        pytest.param(1.02, 256, ("memory in use",), id="above its limit, as page cache may be counted"),
        pytest.param(0.4, 128, (), id="above what is used"),
        pytest.param(None, 128, (), id="not measured"),
    ],
)
def test_memory_never_shrinks_below_what_replicas_use(
    used: float | None, memory_mb: int, hits: tuple[str, ...]
) -> None:
    seen = observation({NODE: {"memory_utilisation": used, "peak_tokens": 0.0}})
    allowed = decision(configuration(memory_mb=128), configuration(), seen=seen)
    assert (allowed.target.memory_mb, allowed.limits_hit) == (memory_mb, hits)


@pytest.mark.parametrize(("generates", "memory_mb"), [(True, 1024), (False, 192)])
def test_memory_of_a_decoder_s_segments_never_shrinks_as_keys_and_values_are_in_it(
    generates: bool, memory_mb: int
) -> None:
    node = next(node for node in TOPOLOGY.nodes if node.kind == "segment")
    seen = observation({node.id: {"memory_utilisation": 0.18, "peak_tokens": 0.0}})
    desired = {node.function: configuration(memory_mb=128)}
    topology, present = replace(TOPOLOGY, generates=generates), {node.function: configuration(memory_mb=1024)}
    (allowed,) = decide(
        topology, seen, Proposal(desired, {}), present, NOW_S, LimitState(), SETTINGS, PRICES
    )  # fmt: skip
    assert (allowed.target.memory_mb, allowed.limits_hit) == (memory_mb, ("memory in use",))


def test_what_a_worker_has_besides_weights_depends_on_where_it_runs() -> None:
    seen = observation({NODE: {"memory_utilisation": None, "peak_tokens": 0.0}})
    settings = replace(SETTINGS, runtime=container_memory("bfloat16"))
    allowed = decision(configuration(memory_mb=128), configuration(memory_mb=1024), seen=seen, settings=settings)
    assert allowed.target.memory_mb >= CONTAINER.segment_mb / 0.9 and allowed.limits_hit == ("memory of Eq. (2)",)
