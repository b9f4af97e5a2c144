"""The opponents' own rules: who takes a prompt that is late, who changes, and what a known length is worth."""

from __future__ import annotations

import pytest

from benchmarks.arrow.rules import ConvertibleDecoders, OracleArrow, XllmRule
from functions.scheduling.cluster import Role, Scheduler
from functions.scheduling.predictor import DecodeModel, PrefillModel, Profile
from functions.scheduling.settings import Targets
from simulation.generation.engine import GenerationSimulation, Request
from simulation.generation.hardware import Hardware

PROFILES = dict.fromkeys(range(4), Profile(PrefillModel(0.0, 1e-3, 0.0), DecodeModel(0.0, 1e-4)))
TARGETS = Targets(ttft_s=1.0, tpot_s=0.1)


def by_tokens(texts: int, tokens: int) -> float:
    return tokens * 1e-4


def test_xllm_sends_a_late_prompt_to_a_decode_instance_with_room() -> None:
    scheduler = XllmRule(PROFILES, TARGETS, 2, by_tokens)
    assert [scheduler.prefill(at, 900, 0.0) for at in range(3)] == [0, 1, 2]
    assert scheduler.decode(2, 0.0) == 2 and scheduler.flips == 0


def test_xllm_flips_a_prefill_instance_when_no_decode_keeps_tpot_and_an_empty_decode_back() -> None:
    scheduler = XllmRule(PROFILES, TARGETS, 2, by_tokens)
    names = []
    for request in range(3):
        scheduler.prefill(request, 990, 0.0)
        names.append(scheduler.decode(request, 0.0))
    assert names == [2, 3, 0] and scheduler.flips == 1
    scheduler.finish(0, 0)
    assert scheduler.instances[2].role is Role.PREFILL and scheduler.flips == 2


def test_a_convertible_decoder_takes_what_would_be_late() -> None:
    scheduler = ConvertibleDecoders(PROFILES, TARGETS, 2)
    assert [scheduler.prefill(at, 900, 0.0) for at in range(4)] == [0, 1, 2, 0]
    assert scheduler.decode(2, 0.0) == 2 and scheduler.decode(0, 0.0) == 3


def test_a_known_length_keeps_a_decode_off_an_instance_that_will_be_full() -> None:
    scheduler = OracleArrow(PROFILES, TARGETS, 2, [800, 800])
    for request in (0, 1):
        scheduler.prefill(request, 100, 0.0)
    assert [scheduler.decode(request, 0.0) for request in (0, 1)] == [2, 3]
    scheduler.finish(0, 0)
    assert scheduler.decode_cost(0, scheduler.instances[2])[1] < scheduler.decode_cost(0, scheduler.instances[3])[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda profiles, outputs: XllmRule(profiles, TARGETS, 2, Hardware().decode_s),
        lambda profiles, outputs: ConvertibleDecoders(profiles, TARGETS, 2),
        lambda profiles, outputs: OracleArrow(profiles, TARGETS, 2, outputs),
    ],
)
def test_no_request_is_lost_under_any_of_them(make) -> None:
    requests = [Request(at * 0.02, 50 + 37 * at % 900, 1 + 13 * at % 200) for at in range(200)]
    hardware = Hardware()
    profiles = dict.fromkeys(range(4), hardware.profile())
    scheduler: Scheduler = make(profiles, [one.output for one in requests])
    assert GenerationSimulation(requests, scheduler, hardware).run().lost == 0
