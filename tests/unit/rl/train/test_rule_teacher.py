"""The teacher that is a rule: it plans what the rule proposes, and knows nothing that the actor does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evaluation.bound.last_window import LastWindowPolicy, LastWindowSettings
from rl.episodes import Episode
from rl.episodes.sizes import resized
from rl.train.rule_teacher import RuleTeacher
from rl.train.teacher import PLANS, TeacherSettings
from rl.train.warm_start import teacher_of
from simulation.engine.requests import draw_requests
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Workload
from tests.unit.rl.env.builders import REFERENCE, START

SETTINGS = TeacherSettings(kind="last-window", headroom=0.5)
WORKLOAD: Workload = replace(resized(paper_workload("bert-4"), 2, 2, seed=0), slo_s=0.2)


def ended_window(rate: float, seed: int = 0) -> Episode:
    """After a first window of half a minute at ``rate``; the next ones are drawn with ``seed``."""
    coming = np.random.default_rng(seed).uniform(30, 90, 300)
    arrival_s = np.sort(np.concatenate([np.random.default_rng(7).uniform(0, 30, round(30 * rate)), coming]))
    requests = draw_requests(WORKLOAD, arrival_s, seed=1)
    episode = Episode(WORKLOAD, requests, WORKLOAD.initial(START), reference=REFERENCE, seconds=90.0)
    episode.step(episode.state().present)
    return episode


def price(plan: PLANS) -> float:
    return sum(one.replicas * WORKLOAD.prices.unit_per_s(one) for one in plan.values())


def test_the_careful_plan_is_what_the_rule_proposes() -> None:
    episode = ended_window(20.0)
    teacher = teacher_of(episode, SETTINGS)
    assert isinstance(teacher, RuleTeacher)
    rule = LastWindowPolicy(WORKLOAD, LastWindowSettings(headroom=0.5))
    proposal = rule.propose(episode.observation, episode.observation.end_s, None)
    assert proposal.desired
    assert teacher.plan(episode.observation) == (proposal.desired, proposal.desired)


def test_a_bolder_plan_is_no_more_expensive_and_a_timid_one_no_cheaper() -> None:
    episode = ended_window(40.0)
    careful, bold = RuleTeacher(WORKLOAD, SETTINGS).plan(episode.observation, 1.8)
    again, timid = RuleTeacher(WORKLOAD, SETTINGS).plan(episode.observation, 0.3)
    assert careful == again
    assert price(bold) <= price(careful) <= price(timid) and price(bold) < price(timid)


def test_what_comes_next_changes_no_plan() -> None:
    one, other = (ended_window(20.0, seed) for seed in (1, 2))
    assert RuleTeacher(WORKLOAD, SETTINGS).plan(one.observation) == RuleTeacher(WORKLOAD, SETTINGS).plan(
        other.observation
    )
