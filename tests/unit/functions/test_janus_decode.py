"""A decode batch on attention and expert instances: times by hand, and what balanced dispatch does to the fullest."""

from __future__ import annotations

import pytest

from benchmarks.janus import decode
from benchmarks.placement.synthetic_routing import synthetic


def test_a_layer_reads_weights_keys_and_values_moves_tokens_and_reads_experts() -> None:
    taken_s = decode.layer_s(64, 2, 8, 10.0, 1000, 130e-6)
    read_s = (0.39e9 + 32 * 1000 * 1152 + 10 * 47_185_920) / (0.8 * 3.35e12)
    assert taken_s == pytest.approx(read_s + 130e-6)
    # With one expert activated, computing 4,096 tokens' experts takes longer than reading it.
    assert decode.layer_s(4096, 1, 8, 1.0, 1, 0.0) > 4096 * 6 / 8 * 2 * 23.59e6 / (0.5 * 990e12)


def test_slots_are_the_experts_of_all_layers_that_fit_80_gb() -> None:
    assert decode.V2.slots == 27  # 160 experts on six instances, as the paper's 1A6E
    assert decode.Model(200, 8, 1536).slots * 8 >= 200
    assert decode.Model(160, 8, 1024).slots == 40


def test_two_phases_by_hand_on_one_attention_and_six_expert_instances() -> None:
    """Nothing to exchange, one message there, a multicast; a ring of sums, one message back."""
    row_s, inside_row_s = 10_240 / 45e9, 10_240 / 360e9
    there_s = 15e-6 + 60 * row_s + 7e-6 + 60 * inside_row_s
    # Of 60 rows each of six sums ten: it takes in five siblings' tens, and then the other five tens' sums.
    sums_s = 2 * (6e-6 + 5 * (1e-6 + 10 * inside_row_s))
    assert decode.two_phase_s(60, 1, 6) == pytest.approx(there_s + sums_s + 15e-6 + 60 * row_s)


def test_the_fewest_gpus_keep_the_slo_and_eights_are_no_fewer() -> None:
    fullest = {expert: {("aebs", 64): 160 / expert} for expert in decode.EXPERT}
    one = decode.fewest(64, "aebs", fullest, 0.045, 1000, whole=False)
    eights = decode.fewest(64, "aebs", fullest, 0.045, 1000, whole=True)
    assert one is not None and eights is not None
    assert one["tpot_ms"] <= 45 and one["gpus"] < eights["gpus"] == 16
    assert decode.fewest(64, "aebs", fullest, 0.001, 1000, whole=False) is None


def test_balanced_dispatch_has_the_least_full_instance() -> None:
    drawn = synthetic("lognormal", 2 * decode.SAMPLES * 64, 1, decode.V2.experts, decode.V2.top_k, 1)
    fullest = decode.fullest_of(8, drawn, (16, 64))
    for batch in (16, 64):
        assert fullest["aebs", batch] < min(fullest["random", batch], fullest["random-expert", batch])
