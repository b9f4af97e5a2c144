"""Kinds of pipelines that are trained on."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from rl.episodes import training_clips, work_of
from rl.train.training_workloads import KINDS, QUICK
from traces.catalog import data_folder


@pytest.mark.parametrize("gpu", [False, True])
def test_a_quick_kind_starts_replicas_in_the_same_part_of_its_window(gpu: bool) -> None:
    for kind in QUICK:
        quick, plain = kind.workload(0).lifecycle, KINDS[kind.paper].workload(0).lifecycle
        part = KINDS[kind.paper].window_s / kind.window_s
        assert part == kind.speed
        assert quick.cold_s(19e6, gpu) == pytest.approx(plain.cold_s(19e6, gpu) / part)
        assert (quick.resize_s, quick.drain_s) == pytest.approx((plain.resize_s / part, plain.drain_s / part))


@pytest.mark.slow
@pytest.mark.skipif(data_folder() is None, reason="needs the public traces: generated hours have no minutes to keep")
def test_a_quick_window_is_of_an_hour_of_a_fifth_of_the_rate_five_times_as_fast() -> None:
    quick, arrivals = KINDS["bert-4-quick"], []
    for seconds, speed in ((600.0, 1.0), (120.0, quick.speed)):
        clips = training_clips(
            ("bert-4",), ("normal",), seed=3, split="validation", seconds=seconds,
            mean_rps=(20.0 * speed, 20.0 * speed),
            speed=speed, window_s=30.0 / speed,
        )  # fmt: skip
        work = work_of(next(islice(clips, 0, None)), None, KINDS["bert-4"].workload(0))
        arrivals.append(work.requests.arrival_s * speed)
    assert quick.speed == 5.0 and arrivals[0].size > 1000
    assert np.allclose(arrivals[0], arrivals[1], atol=1e-6)
