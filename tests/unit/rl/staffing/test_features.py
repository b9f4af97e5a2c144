"""What the policy sees of arrivals and standbys, against what was simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.contract import Arrivals
from functions.dispatch.activation import token_rates
from rl.agent.contract import State
from rl.features import NODE_FEATURES, PIPELINE_FEATURES
from rl.features.ranges import Ranges
from rl.staffing.env import StaffingEnv
from rl.staffing.features import FEATURES, NODES, PIPELINE, StaffingEncoder
from tests.unit.rl.staffing.test_env import VALUES, actions, episodes

AT = {feature.name: place for place, feature in enumerate(PIPELINE)}


def test_arrivals_are_quantiles_of_the_rates_at_every_request() -> None:
    episode = next(episodes())
    begin_s, end_s = episode.observation.start_s, episode.observation.end_s
    requests = episode.requests
    first, last = np.searchsorted(requests.arrival_s, [begin_s, end_s])
    assert [one.look_back_s for one in episode.observation.arrivals] == [0.25, 1.0]
    for one in episode.observation.arrivals:
        exact = token_rates(requests.arrival_s[:last], requests.tokens[:last], int(first), one.look_back_s)
        for quantile, value in ((0.5, one.p50), (0.95, one.p95), (0.99, one.p99)):
            low, high = np.quantile(exact, [max(0.0, quantile - 0.1), min(1.0, quantile + 0.01)])
            assert low / 1.3 <= value <= 1.3 * high  # buckets are 1.3 apart


def test_a_state_begins_with_the_agents_numbers_and_ends_with_arrivals_and_standbys() -> None:
    state = next(episodes()).state()
    assert state.experts.shape[-1] == len(NODES) > len(NODE_FEATURES)
    assert state.pipeline.shape == (len(PIPELINE),) and len(PIPELINE) > len(PIPELINE_FEATURES)
    assert state.pipeline[AT["arrivals_unknown"]] == 0 and state.pipeline[AT["arrivals_p95_0.25"]] != 0


def test_faster_arrivals_raise_the_present_number_and_stay_in_the_look_back() -> None:
    episode = next(episodes())
    encoder, seen = episode.encoder, episode.observation
    assert isinstance(encoder, StaffingEncoder)
    fast = replace(seen, arrivals=tuple(one._replace(p95=20 * one.p95) for one in seen.arrivals))
    calm, memory = encoder.encode(seen)
    burst, memory = encoder.encode(fast, memory)
    after, _ = encoder.encode(seen, memory)

    def number(state: State, name: str) -> float:
        return float(state.pipeline[AT[name]])

    assert number(burst, "arrivals_p95_0.25") > number(calm, "arrivals_p95_0.25") == number(after, "arrivals_p95_0.25")
    assert (
        number(after, "arrivals_p95_0.25_5") == number(burst, "arrivals_p95_0.25") > number(calm, "arrivals_p95_0.25_5")
    )


def test_without_arrivals_the_flag_is_set_and_nothing_else() -> None:
    episode = next(episodes())
    state, _ = episode.encoder.encode(replace(episode.observation, arrivals=()))
    assert state.pipeline[AT["arrivals_unknown"]] == 1
    assert not state.pipeline[[AT[name] for name in AT if name.startswith("arrivals_p")]].any()


def test_ranges_know_the_further_numbers() -> None:
    episode = next(episodes())
    seen = episode.observation
    ranges = Ranges.of([episode.state()], FEATURES)
    assert ranges.outside(episode.state()) == ""
    fast = replace(seen, arrivals=(Arrivals(0.25, 1e6, 1e7, 1e7), *seen.arrivals[1:]))
    beyond, _ = episode.encoder.encode(fast)
    assert Ranges.from_json(ranges.as_json(), FEATURES).outside(beyond).startswith("arrivals_")


@pytest.mark.parametrize("standbys", [0, 4])
def test_standbys_of_the_last_window_are_seen(standbys: int) -> None:
    episode = next(episodes())
    place = next(at for at, feature in enumerate(NODES) if feature.name == "standbys")
    assert set(episode.state().experts[..., place].ravel()) == {0.0}
    desired = actions(VALUES | {"standbys": float(standbys)})
    env = StaffingEnv(iter([episode]))
    observed = env.step(desired)[0]["experts"].reshape(*env.mask.shape, len(NODES))
    assert observed[env.mask][:, place] == pytest.approx(standbys / 8)
