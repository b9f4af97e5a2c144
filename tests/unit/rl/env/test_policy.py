"""The learnt policy in the controller: the environment's numbers, wishes for every expert, held without data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from autoscaler.contract import Burst, Configuration, Observation, TickReport
from autoscaler.errors import SettingsError
from autoscaler.logger import FunctionLogger, read_parts
from autoscaler.policies import Making, make_policy
from autoscaler.settings import ControllerSettings
from evaluation.comparison.learnt_files import published_actor
from evaluation.comparison.policies import limits_of
from rl.agent.contract import Batch
from rl.agent.export import save
from rl.agent.policy import LearntPolicy, settled
from rl.agent.settings import NetworkSettings
from rl.agent.variants import actor
from rl.experience import STANDBYS, Experience, experiences, judged_p95_s, ticks
from rl.features import NODE_FEATURES, PIPELINE_FEATURES, Encoder, calls_of
from rl.reward import RewardSettings, penalty
from simulation.engine.controlled import Step, simulate_policy
from simulation.engine.simulation import Simulation
from simulation.workloads.paper import paper_workload
from tests.unit.rl.env.builders import START, requests, workload

NAMES = ("segments", "experts", "pipeline", "present", "least_memory")


class Scripted:
    """An actor that draws valid actions, and keeps the batches it was given."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._rng = np.random.default_rng(0)
        self.encoder = made_encoder()

    def decide(self, batch: Batch, temperature: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        self.batches.append(batch)
        configuration_index = self.encoder.configuration_index
        drawn = np.stack(
            [self._rng.integers(0, size, configuration_index.mask.shape) for size in configuration_index.sizes], axis=-1
        )
        within = configuration_index.within(drawn, batch.least_memory[0].numpy().astype(np.int16))
        return torch.from_numpy(within.astype(np.int64))[None]

    def relaxed(self, batch: Batch, executed: Tensor) -> Tensor:
        raise AssertionError("nothing is learnt in the controller")

    def explain(self, batch: Batch, executed: Tensor) -> tuple[Tensor, Tensor]:
        shape = executed.shape[:-1]
        return torch.full(shape, 0.25), torch.full(shape, 2.0)


def made_encoder() -> Encoder:
    one = workload()
    return Encoder(one.topology, limits_of(one), one.prices, one.slo_s, calls_of(one))


def episode_of(policy: LearntPolicy, folder: Path | None = None) -> list[Step]:
    """Five windows under the policy, through the controller's loop, logged into ``folder``."""
    one = workload()
    simulation = Simulation(one, requests(), one.initial(START))
    logger = None if folder is None else FunctionLogger(folder, {}, one.slo_s, windows_per_file=2)
    return simulate_policy(simulation, policy, limits_of(one), window_s=30.0, until_s=150.0, epoch_s=1e9, logger=logger)


def test_a_stored_tick_gives_the_environment_s_encoder_every_number_that_the_policy_saw(tmp_path: Path) -> None:
    scripted = Scripted()
    steps = episode_of(LearntPolicy(scripted, made_encoder()), tmp_path)
    stored, memory = list(ticks(tmp_path)), None
    assert len(stored) == len(steps) == len(scripted.batches) == 5
    for tick, step, batch in zip(stored, steps, scripted.batches, strict=True):
        assert tick.observation == step.report.observation
        state, memory = made_encoder().encode(tick.observation, memory)
        for name in NAMES:
            np.testing.assert_array_equal(getattr(state, name), getattr(batch, name)[0].numpy())


def test_experiences_are_the_windows_between_stored_ticks(tmp_path: Path) -> None:
    scripted = Scripted()
    steps = episode_of(LearntPolicy(scripted, made_encoder()), tmp_path)
    windows = list(experiences(tmp_path, made_encoder()))
    assert len(windows) == 4
    for one, before, step in zip(windows, steps, steps[1:], strict=False):
        check_experience(one, before, step)


def check_experience(one: Experience, before: Step, step: Step) -> None:
    decided = {decision.function: decision.target for decision in before.report.decisions}
    assert one.actions.tolist() == made_encoder().configuration_index.actions(decided).tolist()
    experts = {node.id for node in workload().experts}
    costs = [cost for node, cost in step.report.cost_by_node.items() if node in experts]
    assert one.busy.sum() == pytest.approx(sum(cost.busy or 0.0 for cost in costs))
    assert one.provisioned.sum() == pytest.approx(sum(cost.provisioned or 0.0 for cost in costs))
    assert one.p95_s == step.report.observation.latency_p95_s


def test_experiences_stop_at_gaps_and_stale_windows(tmp_path: Path) -> None:
    steps = episode_of(LearntPolicy(Scripted(), made_encoder()))
    reports = [step.report for step in steps]
    late = replace(
        reports[2].observation, start_s=reports[2].observation.start_s + 40, end_s=reports[2].observation.end_s + 40
    )
    with FunctionLogger(tmp_path, {}, 0.08) as logger:
        for report in (*reports[:2], replace(reports[2], observation=late)):
            logger.add(report)
        logger.add(moved(reports[3], 100, stale=True))
        logger.add(moved(reports[4], 130))
    assert len(list(experiences(tmp_path, made_encoder()))) == 1


def overlapping(folder: Path, reports: list[TickReport], name: str = "bert-4") -> None:
    """A log of windows of 30 s, one every 5 s as on Kubernetes, with what ``reports`` observed in turn."""
    with FunctionLogger(folder, {}, 0.08) as logger:
        for number, report in enumerate(reports):
            seen = replace(report.observation, start_s=5.0 * number, end_s=5.0 * number + 30, pipeline=name)
            logger.add(replace(report, observation=seen))


def test_windows_that_overlap_are_paired_one_window_apart(tmp_path: Path) -> None:
    report = episode_of(LearntPolicy(Scripted(), made_encoder()))[0].report
    counted = [
        replace(report, observation=replace(report.observation, requests=100.0 + number)) for number in range(15)
    ]
    overlapping(tmp_path, counted)
    windows = list(experiences(tmp_path, made_encoder()))
    at = [feature.name for feature in PIPELINE_FEATURES].index("requests")
    pairs = np.array([(one.state.pipeline[at], one.following.pipeline[at]) for one in windows])
    assert len(pairs) == 15 - 30 // 5 and (pairs[:, 1] > pairs[:, 0]).all()
    assert np.array_equal(pairs[:-6, 1], pairs[6:, 0])


def test_a_window_within_which_a_configuration_changed_shows_of_neither(tmp_path: Path) -> None:
    first, second = (step.report for step in episode_of(LearntPolicy(Scripted(), made_encoder()))[:2])
    overlapping(tmp_path, [first] * 9 + [second] * 11)
    windows = list(experiences(tmp_path, made_encoder()))
    assert len(windows) == (9 - 6) + (11 - 5)
    assert all(np.array_equal(one.actions, one.following.present) for one in windows)


def test_ticks_of_another_pipeline_in_the_same_folder_are_left_out(tmp_path: Path) -> None:
    scripted = Scripted()
    episode_of(LearntPolicy(scripted, made_encoder()), tmp_path)
    alone = list(experiences(tmp_path, made_encoder()))
    other = episode_of(LearntPolicy(Scripted(), made_encoder()))[0].report
    node = other.observation.nodes[0]._replace(node="expert-77-0")
    with FunctionLogger(tmp_path, {}, 0.08) as logger:
        for number in range(4):
            seen = moved(other, 30.0 * number + 7, pipeline="another", nodes=(node,)).observation
            logger.add(replace(other, observation=seen))
    both = list(experiences(tmp_path, made_encoder()))
    assert [one.actions.tolist() for one in both] == [one.actions.tolist() for one in alone]


SLEEPING = Burst(0, sleep_s=1.0)


@pytest.mark.parametrize(
    ("live", "trained", "kept"),
    [
        (None, None, True),
        (Burst(3), None, False),
        (SLEEPING, None, False),
        (Burst(0), None, True),
        (Burst(3, token_s=0.02), Burst(3), True),
        (Burst(3), Burst(2), False),
        (None, Burst(3), False),
    ],
)
def test_windows_of_standbys_that_are_not_trained_with_are_left_out_and_counted(
    tmp_path: Path, live: Burst | None, trained: Burst | None, kept: bool
) -> None:
    with FunctionLogger(tmp_path, {}, 0.08) as logger:
        for step in episode_of(LearntPolicy(Scripted(), made_encoder())):
            seen = step.report.observation
            nodes = [
                node
                if node.configuration is None
                else node._replace(configuration=replace(node.configuration, burst=live))
                for node in seen.nodes
            ]
            logger.add(replace(step.report, observation=replace(seen, nodes=tuple(nodes))))
    left_out = Counter[str]()
    assert len(list(experiences(tmp_path, made_encoder(), trained, left_out))) == (4 if kept else 0)
    assert left_out == ({} if kept else {STANDBYS: 4})


@pytest.mark.parametrize(
    ("more", "before", "p95_s"),
    [
        ({}, 0.0, 0.05),
        ({"requests": 0.0, "latency_p95_s": None}, 0.0, None),
        ({"requests": 0.0, "latency_p95_s": None}, 7.0, 30.0),
        ({"failed": 5.0}, 0.0, 0.05),
        ({"failed": 6.0}, 0.0, 30.0),
        ({"failed": 100.0, "latency_p95_s": 0.001}, None, 30.0),
        ({"latency_p95_s": 40.0}, 200.0, 40.0),
        ({"latency_p95_s": 40.0}, None, 40.0),
    ],
    ids=["all-well", "nobody-came", "nobody-answered", "few-errors", "errors", "errors-at-once", "backlog", "unknown"],
)
def test_requests_that_were_not_answered_count_in_a_window_s_p95(
    more: dict[str, Any], before: float | None, p95_s: float | None
) -> None:
    seen = replace(observed(), **{"requests": 100.0, "failed": 0.0, "latency_p95_s": 0.05, **more})
    assert judged_p95_s(seen, before, slo_s=0.08) == p95_s


def test_lost_requests_cost_as_much_as_any_where_windows_are_short() -> None:
    seen = replace(observed(), requests=10.0, failed=10.0, latency_p95_s=0.01)
    p95_s = judged_p95_s(seen, None, slo_s=100.0)
    assert penalty(p95_s, 100.0, RewardSettings()) == penalty(1e9, 100.0, RewardSettings())


def test_an_outage_is_no_window_without_a_penalty(tmp_path: Path) -> None:
    with FunctionLogger(tmp_path, {}, 0.08) as logger:
        for step in episode_of(LearntPolicy(Scripted(), made_encoder())):
            dead = replace(step.report.observation, requests=0.0, latency_p95_s=None, in_flight=9.0)
            logger.add(replace(step.report, observation=dead))
    assert [one.p95_s for one in experiences(tmp_path, made_encoder())] == [30.0] * 4


def test_a_long_log_is_read_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = episode_of(LearntPolicy(Scripted(), made_encoder()))[0].report
    with FunctionLogger(tmp_path, {}, 0.08, windows_per_file=1) as logger:
        for number in range(8):
            logger.add(moved(report, 30.0 * number))
    read = list[object]()

    def counted(folder: Path) -> Iterator[Any]:
        for part in read_parts(folder):
            read.append(part)
            yield part

    monkeypatch.setattr("rl.experience.read_parts", counted)
    stored = ticks(tmp_path)
    next(stored)
    assert len(read) == 2
    assert len(list(stored)) == 7


def test_ticks_of_two_controllers_at_once_come_by_time(tmp_path: Path) -> None:
    report = episode_of(LearntPolicy(Scripted(), made_encoder()))[0].report
    for later_s in (0.0, 10.0):
        with FunctionLogger(tmp_path, {}, 0.08, windows_per_file=3) as logger:
            for number in range(6):
                logger.add(moved(report, 30.0 * number + later_s))
    ends = [tick.observation.end_s for tick in ticks(tmp_path)]
    assert len(ends) == 12 and ends == sorted(ends)


def moved(report: TickReport, by_s: float, **more: Any) -> TickReport:
    seen = report.observation
    return replace(report, observation=replace(seen, start_s=seen.start_s + by_s, end_s=seen.end_s + by_s, **more))


def test_every_expert_gets_a_proposal_with_the_pointer_s_weight_and_score_and_nothing_else_does() -> None:
    steps = episode_of(LearntPolicy(Scripted(), made_encoder()))
    decisions = steps[0].report.decisions
    assert {decision.function for decision in decisions} == {node.function for node in workload().experts}
    assert all(decision.reason == "pointer 0.250, score 2.000" and decision.valid for decision in decisions)
    assert all(decision.target == decision.desired for decision in decisions)


def observed(**more: Any) -> Observation:
    seen = episode_of(LearntPolicy(Scripted(), made_encoder()))[0].report.observation
    return replace(seen, **more)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"stale": True, "problems": ("the scrape failed",)}, "no data: the scrape failed"),
        ({"requests": None}, "no data: the window's requests are not known"),
    ],
)
def test_without_data_all_experts_are_held_and_the_memory_is_kept(more: dict[str, Any], sentence: str) -> None:
    proposal = LearntPolicy(Scripted(), made_encoder()).propose(observed(**more), 0.0, "memory")
    assert not proposal.desired and proposal.memory == "memory"
    assert len(proposal.reasons) == 48 and set(proposal.reasons.values()) == {sentence}


@pytest.mark.parametrize(
    ("field", "what"),
    [("configuration", "configuration"), ("requests_per_s", "load"), ("peak_tokens", "peak of tokens")],
)
def test_an_expert_without_data_is_held_alone(field: str, what: str) -> None:
    seen = observed()
    nodes = tuple(node._replace(**{field: None}) if node.node == "expert-3-1" else node for node in seen.nodes)
    proposal = LearntPolicy(Scripted(), made_encoder()).propose(replace(seen, nodes=nodes), 0.0, None)
    assert proposal.reasons["bert-4-expert-3-1"] == f"no data: the {what} of bert-4-expert-3-1 is not known"
    assert len(proposal.desired) == 47 and "bert-4-expert-3-1" not in proposal.desired


@pytest.mark.parametrize(
    ("changed", "slots", "kept"),
    [
        ({"concurrency": 4}, 0.2, True),
        ({"concurrency": 4}, 0.3, False),
        ({"concurrency": 4}, None, False),
        ({"concurrency": 10}, 0.0, False),
        ({"concurrency": 4, "replicas": 3}, 0.0, False),
    ],
    ids=["far-more-than-come", "it-may-limit", "not-known", "more", "another-axis-too"],
)
def test_an_order_for_fewer_calls_at_once_is_left_out_where_fewer_still_come(
    changed: dict[str, Any], slots: float | None, kept: bool
) -> None:
    """With standbys as they are desired: they are no axis of the actor's."""
    now = Configuration(256, 1.0, 0.0, 2, 8, Burst(3))
    seen = observed()
    nodes = {node.node: node for node in seen.nodes}
    nodes["expert-3-1"] = one = nodes["expert-3-1"]._replace(configuration=now, concurrency_utilisation=slots)
    alone = replace(now, burst=None)
    desired = {one.function: replace(alone, **changed)}
    converged = settled(replace(seen, nodes=tuple(nodes.values())), desired)
    assert converged == ({one.function: alone} if kept else desired)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "actor.safetensors"
    save(path, actor(NetworkSettings(node_features=len(NODE_FEATURES), pipeline_features=len(PIPELINE_FEATURES))), {})
    return path


def making(folder: Path, text: str, **more: Any) -> Making:
    own = folder / "smoe.toml"
    own.write_text(text)
    values: dict[str, Any] = {"policy": "smoe", "slo_s": 0.08, "policy_settings": own, "scale_segments": False, **more}
    one, settings = workload(), ControllerSettings("http://127.0.0.1:9", folder, **values)
    return Making(settings, one.topology, limits_of(one), one.prices)


def test_an_exported_actor_decides_in_the_controller_s_loop_within_eq_2(exported: Path, tmp_path: Path) -> None:
    policy = make_policy(making(tmp_path, f'actor = "{exported}"\n'))
    assert isinstance(policy, LearntPolicy) and policy.name == "smoe"
    for step in episode_of(policy):
        assert len(step.report.decisions) == 48
        assert not [decision for decision in step.report.decisions if decision.limits_hit or not decision.valid]
        assert not step.report.failures


@pytest.mark.parametrize(
    ("text", "more", "sentence"),
    [
        ('meter = "cheap"', {}, "meter is 'cheap'; it should be 'busy' or 'provisioned'"),
        ("tokens = 3", {}, "'tokens' is not known"),
        ('workload = "bert-5"', {}, "workload is 'bert-5'"),
        ('workload = "bert-4"\nprofile = "x.parquet"', {}, "left out where workload is given"),
        ('actor = "nowhere.safetensors"', {}, "nowhere.safetensors"),
        ("", {"slo_s": None}, "slo_s is None"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(
    tmp_path: Path, text: str, more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingsError, match=sentence):
        make_policy(making(tmp_path, text, **more))


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("mean_tokens = 256", 256), ('workload = "gpt2-4"', None)])
def test_call_times_are_those_of_the_workload_and_its_lengths(
    exported: Path, tmp_path: Path, text: str, tokens: int | None
) -> None:
    policy = make_policy(making(tmp_path, f'actor = "{exported}"\n{text}\n'))
    assert isinstance(policy, LearntPolicy)
    expected = calls_of(paper_workload("gpt2-4" if tokens is None else "bert-4", mean_tokens=tokens or None))
    np.testing.assert_allclose(policy.encoder.calls.seconds, expected.seconds)


def test_whoever_names_no_actor_is_told_that_the_packaged_one_is_withdrawn(
    exported: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_policy(making(tmp_path, f'actor = "{exported}"\n'))
    assert "withdrawn" not in caplog.text
    make_policy(making(tmp_path, ""))
    assert "smoe-provisioned.safetensors learnt on arrivals that nobody could have sent" in caplog.text


def test_a_pipeline_s_own_published_actor_goes_before_the_one_for_all(tmp_path: Path) -> None:
    assert published_actor("minilm", "busy", tmp_path).name == "smoe-busy.safetensors"
    (tmp_path / "minilm-busy.safetensors").touch()
    assert published_actor("minilm", "busy", tmp_path).name == "minilm-busy.safetensors"


def test_states_of_the_policy_have_the_features_that_networks_are_made_for() -> None:
    scripted = Scripted()
    LearntPolicy(scripted, made_encoder()).propose(observed(), 0.0, None)
    batch = scripted.batches[0]
    assert batch.experts.shape == (1, 12, 4, len(NODE_FEATURES)) and batch.pipeline.shape == (1, len(PIPELINE_FEATURES))


def test_segments_are_hpa_s_where_the_controller_scales_them(exported: Path, tmp_path: Path) -> None:
    policy = make_policy(making(tmp_path, f'actor = "{exported}"\n', scale_segments=True))
    proposal = policy.propose(observed(), 0.0, None)
    kinds = {node.function: node.kind for node in workload().topology.nodes}
    assert {kinds[function] for function in proposal.desired} == {"segment", "expert"}
    assert all("pointer" in reason for function, reason in proposal.reasons.items() if kinds[function] == "expert")
