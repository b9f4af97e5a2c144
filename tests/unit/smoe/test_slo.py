"""The SLO of ``smoe run`` comes from what is known of a prompt, so no other load moves it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moe.manifest import Manifest, load
from smoe.commands.demo import SEGMENT_CORES, SLO_FACTOR, RunSettings
from smoe.slo import CALL_S, FLOPS_PER_S, ROUND_MS, TPOT_TIMES, TTFT_TIMES, known_pass_s, round_slo_s, token_targets_ms

CPU_SCALE = RunSettings.cpu_scale


@pytest.fixture(scope="module")
def manifest(minilm_pipeline: Path) -> Manifest:
    return load(minilm_pipeline, verify=False)


@pytest.mark.parametrize("tokens", [25.0, 33.4, 45.0])
def test_the_default_run_has_an_slo_of_a_second_and_a_half_whatever_the_prompts(
    manifest: Manifest, tokens: float
) -> None:
    pass_s = known_pass_s(manifest, tokens, SEGMENT_CORES * CPU_SCALE, CPU_SCALE)
    assert round_slo_s(SLO_FACTOR * pass_s) == 1.5


def test_a_pass_is_the_work_of_its_segments_and_of_one_expert_a_layer(manifest: Manifest) -> None:
    segments = [CALL_S + 20 * node.flops_per_token / FLOPS_PER_S for node in manifest.segments]
    # Top-2 of 4: an expert gets half of a layer's tokens.
    experts = [CALL_S + 10 * manifest.experts(layer)[0].flops_per_token / FLOPS_PER_S for layer in range(6)]
    assert known_pass_s(manifest, 20.0, 0.5, 0.1) == pytest.approx(sum(segments) / 0.5 + sum(experts) / 0.1)


def test_the_slowest_expert_of_a_layer_counts(manifest: Manifest) -> None:
    node = manifest.node("expert-2-1")
    nodes = tuple(
        replace(one, flops_per_token=5 * one.flops_per_token) if one is node else one for one in manifest.nodes
    )
    more_s = 4 * 10 * node.flops_per_token / FLOPS_PER_S
    pass_s = known_pass_s(manifest, 20.0, 1.0, 0.1)
    assert known_pass_s(replace(manifest, nodes=nodes), 20.0, 1.0, 0.1) == pytest.approx(pass_s + more_s / 0.1)


def test_a_call_uses_one_core_at_most(manifest: Manifest) -> None:
    assert known_pass_s(manifest, 20.0, 6.0, 6.0) == known_pass_s(manifest, 20.0, 1.0, 1.0)


@pytest.mark.parametrize(("least_s", "slo_s"), [(0.6, 1.0), (1.0, 1.0), (1.01, 1.5), (1.51, 2.5), (99.0, 99.0)])
def test_an_slo_is_a_round_number_or_what_was_asked_for_beyond_them(least_s: float, slo_s: float) -> None:
    assert round_slo_s(least_s) == slo_s


@pytest.mark.parametrize(("ttft_s", "tpot_s"), [(0.25, 0.06), (0.0001, 0.004), (3.0, 0.9)])
def test_targets_of_a_decoder_are_round_and_leave_a_lone_text_room(ttft_s: float, tpot_s: float) -> None:
    ttft_ms, tpot_ms = token_targets_ms(ttft_s, tpot_s)
    assert {ttft_ms, tpot_ms} <= set(ROUND_MS)
    assert TTFT_TIMES * ttft_s * 1000 <= ttft_ms < 2 * max(TTFT_TIMES * ttft_s * 1000, 1)
    assert TPOT_TIMES * tpot_s * 1000 <= tpot_ms < 2 * TPOT_TIMES * tpot_s * 1000


def test_targets_beyond_all_round_numbers_are_as_they_come() -> None:
    assert token_targets_ms(1e3, 1e3) == (5e6, 3e6)
