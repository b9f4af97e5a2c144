"""A decode batch on attention and expert instances: times by hand, and what balanced dispatch does to the fullest."""

from __future__ import annotations

import pytest

from benchmarks.janus import decode
from benchmarks.placement.synthetic_routing import synthetic


def test_a_layer_reads_weights_keys_and_values_moves_tokens_and_reads_experts() -> None:
    taken_s = decode.layer_s(64, 2, 8, 10.0, 1000)
    read_s = (0.39e9 + 32 * 1000 * 1152 + 10 * 47.2e6) / (0.8 * 3.35e12)
    assert taken_s == pytest.approx(read_s + 2 * (20e-6 + 32 * 10240 * 6 / 50e9))
    # With one expert activated, computing 4,096 tokens' experts takes longer than reading it.
    assert decode.layer_s(4096, 1, 8, 1.0, 1) > 4096 * 6 / 8 * 2 * 23.6e6 / (0.5 * 990e12)


def test_the_fewest_gpus_keep_the_slo_and_eights_are_no_fewer() -> None:
    fullest = {expert: {("aebs", 64): 160 / expert} for expert in decode.EXPERT}
    one = decode.fewest(64, "aebs", fullest, 0.045, 1000, whole=False)
    eights = decode.fewest(64, "aebs", fullest, 0.045, 1000, whole=True)
    assert one is not None and eights is not None
    assert one["tpot_ms"] <= 45 and one["gpus"] < eights["gpus"] == 16
    assert decode.fewest(64, "aebs", fullest, 0.001, 1000, whole=False) is None


def test_balanced_dispatch_has_the_least_full_instance() -> None:
    drawn = synthetic("lognormal", 2 * decode.SAMPLES * 64, 1, decode.EXPERTS, decode.TOP_K, 1)
    fullest = decode.fullest_of(8, drawn, (16, 64))
    for batch in (16, 64):
        assert fullest["aebs", batch] < min(fullest["random", batch], fullest["random-expert", batch])
