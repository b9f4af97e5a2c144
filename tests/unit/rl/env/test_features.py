"""Features: what every number is, what no data looks like, and that scale cancels out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.contract import Configuration, ConfigurationSpace, MemoryNeed, Observation
from autoscaler.decision.limits import LimitSettings
from evaluation.comparison.policies import limits_of
from rl.agent.contract import CONFIGURATION_FEATURES, State
from rl.features import (
    NODE_FEATURES,
    PIPELINE_FEATURES,
    CallTimes,
    ConfigurationIndex,
    Encoder,
    Feature,
    History,
    calls_of,
    calls_of_cores,
)
from rl.features.catalogue import Scales
from tests.unit.autoscaler.builders import PRICES, observation, topology
from tests.unit.rl.env.builders import episode, workload

NODE = {feature.name: place for place, feature in enumerate(NODE_FEATURES)}
PIPELINE = {feature.name: place for place, feature in enumerate(PIPELINE_FEATURES)}
SLO_S = 0.2
SPACE = ConfigurationSpace()
CALLS = CallTimes(np.full(16, 0.02), 10.0, "made up: 20 ms everywhere")


def encoder(**more: object) -> Encoder:
    """Of the small pipeline: two layers of two and three experts, λ / n = 0.1 s."""
    return Encoder(topology(), LimitSettings(), PRICES, SLO_S, CALLS, **more)  # type: ignore[arg-type]


def log(value: float, feature: Feature) -> float:
    assert feature.log
    inside = min(max(value, feature.low), feature.high)
    return float(2 * np.log(inside / feature.low) / np.log(feature.high / feature.low) - 1)


def of_node(state: State, name: str, layer: int = 0, expert: int = 0) -> float:
    return float(state.experts[layer, expert, NODE[name]])


BUSY = {
    "cpu_utilisation": 0.6, "memory_utilisation": 0.3, "concurrency_utilisation": 0.25, "latency_p95_s": 0.05,
    "latency_mean_s": 0.03, "tokens_per_s": 200.0, "requests_per_s": 5.0, "in_flight": 1.0, "waiting": 0.5,
    "peak_tokens": 40.0, "token_share": 0.7, "request_share": 0.4, "straggler_ratio": 0.9,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("latency_p95", 0.05 / 0.1),
        ("latency_mean", 0.03 / 0.1),
        ("tokens_per_s", 200 * 0.02 / 10),
        ("requests_per_s", 5 * 0.02),
        ("calls", 50.0),
        ("in_flight", 1.0),
        ("waiting", 0.5),
        ("tokens_per_call", 40.0),
        ("token_share", 1.4),
        ("request_share", 0.8),
        ("call_time", 0.02 / 0.1),
        ("memory", 256.0),
        ("siblings", 2.0),
        ("peak", ((10 + 64) * 2**20 + 2 * 4096 * 40) / 0.9 / 2**20),
        ("weights", (10 + 64) / 0.9),
        ("load_mean_5", 5 * 0.02),
    ],
)
def test_a_node_s_numbers_are_those_worked_out_by_hand(name: str, raw: float) -> None:
    state, _ = encoder().encode(observation({"expert-0-0": BUSY}))
    assert of_node(state, name) == pytest.approx(log(raw, NODE_FEATURES[NODE[name]]), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expert", 1.0),
        ("position", 0.25),
        ("cpu_utilisation", 0.6),
        ("memory_utilisation", 0.3),
        ("concurrency_utilisation", 0.25),
        ("cpu_cores", 1 / 6),
        ("gpu_share", 0.0),
        ("on_gpu", 0.0),
        ("replicas", 1 / 8),
        ("concurrency", 0.4),
        ("price", (2.0 + 0.25) / (6 * 2.0 + 10)),
        ("ready", 1.0),
        ("straggler", 0.9),
        ("gpu_unknown", 1.0),
        ("cpu_unknown", 0.0),
        ("load_unknown", 0.0),
    ],
)
def test_linear_numbers_stay_as_they_are(name: str, value: float) -> None:
    state, _ = encoder().encode(observation({"expert-0-0": BUSY}))
    assert of_node(state, name) == pytest.approx(value, rel=1e-6)


def test_the_most_expensive_replica_of_the_space_has_the_price_one() -> None:
    found = encoder()
    most_expensive = max(
        PRICES.unit_per_s(one) for one in (Configuration(10240, 6, 0, 1, 1), Configuration(10240, 0, 1, 1, 1))
    )
    assert found.configuration_index.unit_per_s.max() == pytest.approx(most_expensive)
    assert float(found.space.resource_memory[..., CONFIGURATION_FEATURES.index("price")].max()) == 1.0


def test_a_number_that_is_not_known_is_zero_with_its_flag_and_a_zero_is_not() -> None:
    idle = {**BUSY, "requests_per_s": 0.0, "tokens_per_s": 0.0, "latency_p95_s": None}
    gone = {**BUSY, "requests_per_s": None, "tokens_per_s": None, "peak_tokens": None, "configuration": None}
    state, _ = encoder().encode(observation({"expert-0-0": idle, "expert-0-1": gone}))
    assert of_node(state, "requests_per_s") == -1.0 and of_node(state, "load_unknown") == 0.0
    assert of_node(state, "latency_p95") == 0.0 and of_node(state, "latency_unknown") == 1.0
    assert of_node(state, "length_unknown") == 1.0
    for name, flag in (
        ("requests_per_s", "load_unknown"),
        ("peak", "peak_unknown"),
        ("memory", "configuration_unknown"),
    ):
        assert of_node(state, name, 0, 1) == 0.0 and of_node(state, flag, 0, 1) == 1.0
    assert of_node(state, "call_time_unknown", 0, 1) == 1.0 and not state.present[0, 1].any()


def test_every_number_that_can_be_missing_has_a_flag_and_every_flag_a_number() -> None:
    for features in (NODE_FEATURES, PIPELINE_FEATURES):
        names = [feature.name for feature in features]
        flags = {feature.flag for feature in features if feature.flag}
        assert len(set(names)) == len(names) and flags == {name for name in names if name.endswith("_unknown")}


def test_segments_have_the_expert_level_alone() -> None:
    measured = {**BUSY, "token_share": None, "request_share": None, "straggler_ratio": None}
    state, _ = encoder().encode(observation({"segment-1": measured}))
    row = state.segments[1]
    assert row[NODE["expert"]] == 0 and row[NODE["position"]] == 0.5
    for flag in ("shares_unknown", "straggler_unknown", "spread_unknown", "layer_unknown", "barrier_unknown"):
        assert row[NODE[flag]] == 1.0
    assert row[NODE["requests_per_s"]] > -1 and row[NODE["latency_p95"]] != 0


def test_padding_is_zeros() -> None:
    state, _ = encoder().encode(observation({"expert-0-0": BUSY}))
    assert state.experts.shape == (2, 3, len(NODE_FEATURES)) and not state.experts[0, 2].any()
    assert not state.present[0, 2].any() and not state.least_memory[0, 2].any()


def test_pipeline_numbers_are_relative_to_lambda() -> None:
    state, _ = encoder().encode(observation(failed=1.0, in_flight=3.0))
    row = state.pipeline
    for name, raw in (
        ("latency_p95", 1.0), ("latency_p99", 1.5), ("requests", 10.0), ("tokens_per_request", 20.0), ("window", 50.0),
        ("unfinished", 3.0), ("unfinished_share", 15.0), ("layers", 2.0), ("experts", 2.5), ("load_mean_1", 0.2),
        ("fastest", 0.2),
    ):  # fmt: skip
        assert row[PIPELINE[name]] == pytest.approx(log(raw, PIPELINE_FEATURES[PIPELINE[name]]), abs=1e-6), name
    assert row[PIPELINE["failed"]] == pytest.approx(0.1) and row[PIPELINE["over"]] == 0.0
    assert row[PIPELINE["barriers_unknown"]] == 1.0 and row[PIPELINE["load_unknown"]] == 0.0


def later(seen: Observation, rate: float, p95_s: float | None) -> Observation:
    return replace(seen, requests_per_s=rate, latency_p95_s=p95_s)


def test_the_history_holds_means_peaks_and_violations_of_so_many_windows() -> None:
    found, memory, seen = encoder(), None, observation()
    for rate, p95_s in [(100.0, None)] * 3 + [(10.0, 0.5), (20.0, 0.1), (30.0, 0.1), (40.0, 0.1), (60.0, 0.3)]:
        state, memory = found.encode(later(seen, rate, p95_s), memory)
    row = {name: state.pipeline[place] for name, place in PIPELINE.items()}
    for name, raw in (
        ("load_mean_1", 60.0), ("load_mean_2", 50.0), ("load_mean_5", 32.0), ("load_peak_5", 60.0),
        ("load_mean_10", 460 / 8), ("load_peak_30", 100.0),
    ):  # fmt: skip
        assert row[name] == pytest.approx(log(raw * SLO_S, PIPELINE_FEATURES[PIPELINE[name]]), abs=1e-6), name
    assert row["over_5"] == pytest.approx(2 / 5) and row["over_30"] == pytest.approx(2 / 5)
    assert row["p95_peak_5"] == pytest.approx(log(2.5, PIPELINE_FEATURES[PIPELINE["p95_peak_5"]]), abs=1e-6)
    assert row["remembered"] == pytest.approx(8 / 30)


def test_encoding_is_pure_and_remembers_at_most_thirty_windows() -> None:
    found, memory = encoder(), None
    for _ in range(40):
        state, memory = found.encode(observation({"expert-0-0": BUSY}), memory)
    again, _ = encoder().encode(observation({"expert-0-0": BUSY}), memory)
    assert isinstance(memory, History) and memory.load.size == 30 and memory.nodes.shape == (5, 8)
    np.testing.assert_array_equal(again.pipeline, state.pipeline)


def test_pipelines_that_differ_in_speed_alone_look_the_same() -> None:
    """All seconds ten times as long, as many calls in a window: the same state."""
    slow = Encoder(
        topology(),
        LimitSettings(),
        PRICES,
        10 * SLO_S,
        CallTimes(10 * CALLS.seconds, CALLS.tokens, "ten times as slow"),
    )
    seen = observation({"expert-0-0": BUSY})
    slower = {
        **BUSY, "latency_p95_s": 0.5, "latency_mean_s": 0.3, "tokens_per_s": 20.0, "requests_per_s": 0.5,
    }  # fmt: skip
    stretched = observation(
        {"expert-0-0": slower}, start_s=seen.end_s - 100, requests_per_s=0.1, tokens_per_s=2.0, latency_p50_s=1.0,
        latency_p95_s=2.0, latency_p99_s=3.0,
    )  # fmt: skip
    one, two = encoder().encode(seen)[0], slow.encode(stretched)[0]
    np.testing.assert_allclose(one.experts, two.experts, atol=1e-6)
    np.testing.assert_allclose(one.pipeline, two.pipeline, atol=1e-6)
    np.testing.assert_allclose(encoder().space.resource_memory, slow.space.resource_memory, atol=1e-6)


def test_all_numbers_of_an_episode_are_within_their_bounds() -> None:
    one = episode()
    while True:
        state = one.state()
        for rows, features in (
            (state.segments, NODE_FEATURES),
            (state.experts.reshape(-1, len(NODE_FEATURES)), NODE_FEATURES),
            (state.pipeline[None], PIPELINE_FEATURES),
        ):
            low, high = np.array([feature.bounds for feature in features]).T
            assert np.isfinite(rows).all() and rows.dtype == np.float32
            assert (rows >= np.minimum(low, 0) - 1e-6).all() and (rows <= np.maximum(high, 0) + 1e-6).all()
        if not one.windows_left:
            return
        one.step(state.present)


@given(
    st.lists(st.floats(1, 60000), min_size=1, max_size=5), st.floats(0, 5e5), st.floats(0.3, 1.0), st.integers(0, 8192)
)
def test_the_table_of_eq_2_is_the_space_s_own_mask(
    weights_mb: list[float], peak: float, alpha: float, bytes_per_token: int
) -> None:
    configuration_index = ConfigurationIndex(topology(), SPACE, PRICES)
    runtime = [int(mb * 2**20) for mb in weights_mb]
    least = configuration_index.least_memory(
        np.array(runtime, dtype=np.float64),
        np.full(len(runtime), float(bytes_per_token)),
        np.full(len(runtime), peak),
        alpha,
    )
    for row, runtime_bytes in zip(least, runtime, strict=True):
        mask = SPACE.mask(MemoryNeed(runtime_bytes, bytes_per_token, peak, alpha))
        expected = [
            len(SPACE.memory_sizes_mb) if mb is None else SPACE.memory_sizes_mb.index(mb) for mb in mask.values()
        ]
        assert row.tolist() == expected


SPACES = (
    SPACE,
    ConfigurationSpace(gpu_shares=()),
    ConfigurationSpace(cpu_cores=()),
    ConfigurationSpace(cpu_cores=(0.25, 0.5)),
)


@given(
    st.sampled_from(SPACES), st.integers(1, 20000), st.booleans(), st.floats(0.05, 1.0), st.integers(0, 20),
    st.integers(0, 20),
)  # fmt: skip
def test_positions_are_those_of_the_space_s_nearest(
    space: ConfigurationSpace, memory_mb: int, gpu: bool, amount: float, replicas: int, concurrency: int
) -> None:
    desired = Configuration(memory_mb, 0.0 if gpu else 8 * amount, amount if gpu else 0.0, replicas, concurrency)
    configuration_index = ConfigurationIndex(topology(), space, PRICES)
    positions = configuration_index.actions({"m-expert-0-1": desired})
    assert configuration_index.configurations(positions)["m-expert-0-1"] == space.nearest(desired)
    assert not positions[0, 0].any() and not positions[1].any()


@given(st.data())
def test_any_action_is_moved_within_eq_2_and_a_valid_one_is_left_alone(data: st.DataObject) -> None:
    configuration_index = ConfigurationIndex(topology(), SPACE, PRICES)
    least = np.sort(data.draw(st.lists(st.integers(0, 159), min_size=8, max_size=8)))[::-1].astype(np.int16)
    table = np.tile(least, (2, 3, 1))
    positions = data.draw(st.tuples(*(st.integers(0, size - 1) for size in configuration_index.sizes)))
    desired = np.tile(np.array(positions, dtype=np.int16), (2, 3, 1))
    within = configuration_index.within(desired, table)[1, 2]
    memory, resource, replicas, concurrency = positions
    if memory >= least[replicas]:
        assert tuple(within) == positions
    elif least.min() < 159:
        assert (
            within[0] >= least[within[2]] and within[2] >= replicas and tuple(within[[1, 3]]) == (resource, concurrency)
        )
    else:
        assert (within[0], within[2]) == (158, 7)


def test_configurations_and_positions_are_inverse() -> None:
    one, rng = episode(), np.random.default_rng(0)
    configuration_index = one.encoder.configuration_index
    drawn = np.stack(
        [rng.integers(0, size, configuration_index.mask.shape) for size in configuration_index.sizes], axis=-1
    )
    np.testing.assert_array_equal(configuration_index.actions(configuration_index.configurations(drawn)), drawn)


def test_the_space_s_tables_are_the_configurations_own_numbers() -> None:
    encoder_ = episode().encoder
    space, limits = encoder_.space, limits_of(workload())
    configuration_index, prices = encoder_.configuration_index, workload().prices
    at = {name: place for place, name in enumerate(CONFIGURATION_FEATURES)}
    for memory, resource in [(0, 0), (40, 5), (158, 15), (3, 6)]:
        cores, share = limits.space.resources[resource]
        one = Configuration(limits.space.memory_sizes_mb[memory], cores, share, 1, 1)
        row = space.resource_memory[memory, resource]
        assert float(row[at["cpu_cores"]]) == pytest.approx(cores / 6)
        assert float(row[at["gpu_share"]]) == pytest.approx(share) and float(row[at["on_gpu"]]) == (share > 0)
        assert float(row[at["price"]]) == pytest.approx(
            prices.unit_per_s(one) / configuration_index.unit_per_s.max(), rel=1e-6
        )
    assert space.sizes == (159, 16, 8, 10) and len(space.edges) == 2 * 48
    assert float(space.replicas[-1]) == 1.0 and float(space.concurrencies[-1]) == 1.0


def test_edges_number_segments_first_then_experts() -> None:
    assert encoder().space.edges[:4] == ((0, 3), (3, 1), (0, 4), (4, 1)) and (2 + 3, 2) in encoder().space.edges


def test_call_times_are_the_latency_model_s_and_fall_with_cores_where_nothing_is_known() -> None:
    seconds = calls_of(workload())
    node = workload().experts[0]
    alone = workload().latency.seconds(workload().costs[node.id], workload().typical_tokens(node), 3.0, 0.0)
    assert seconds.seconds[2] == pytest.approx(float(alone)) and seconds.tokens == pytest.approx(
        workload().typical_tokens(node)
    )
    assumed = calls_of_cores(SPACE, 0.1, 10).seconds
    assert assumed[1] == pytest.approx(assumed[0] / 2) and assumed[0] == pytest.approx(0.005)


def test_a_pipeline_whose_functions_serve_several_nodes_is_refused() -> None:
    grouped = topology()
    nodes = tuple(replace(node, function="m-shared") if node.kind == "expert" else node for node in grouped.nodes)
    with pytest.raises(ValueError, match="m-shared serves several nodes"):
        Encoder(replace(grouped, nodes=nodes), LimitSettings(), PRICES, SLO_S, CALLS)


def test_an_observation_of_other_nodes_is_refused_and_another_order_is_not() -> None:
    seen = observation({"expert-0-0": BUSY})
    turned = replace(seen, nodes=tuple(reversed(seen.nodes)))
    np.testing.assert_array_equal(encoder().encode(seen)[0].experts, encoder().encode(turned)[0].experts)
    with pytest.raises(ValueError, match="other nodes"):
        encoder().encode(replace(seen, nodes=seen.nodes[:-1]))


def test_scales_cut_off_and_keep_order() -> None:
    scales = Scales(
        (Feature("a", "", "", 1, 100, True), Feature("b", "", "", 0, 2, flag="c"), Feature("c", "", "", 0, 1))
    )
    encoded = scales.encode(np.array([[0.0, 5.0, 9.0], [10.0, 1.0, 9.0], [1e9, np.nan, 9.0]]))
    np.testing.assert_allclose(encoded, [[-1, 2, 0], [0, 1, 0], [1, 0, 1]])
