"""A simulated decoder as a metrics source: the ingress' metrics of texts next to those of its functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autoscaler.state.readings import Readings, Series
from simulation.arrays import Floats
from simulation.engine.metrics import SimulatedMetrics, histogram_of
from simulation.engine.simulation import Window
from simulation.generation.meters import TextsWindow


class DecoderMetrics(SimulatedMetrics):
    """As of any simulation, with texts; windows are :class:`simulation.generation.meters.TextsWindow`."""

    def _readings(self, windows: Sequence[Window]) -> Readings:
        readings, model = super()._readings(windows), (self._simulation.workload.topology.pipeline,)
        texts = [window for window in windows if isinstance(window, TextsWindow)]
        ttft_s, tpot_s = _all([one.ttft_s for one in texts]), _all([one.tpot_s for one in texts])
        last = texts[-1]
        numbers: dict[Series, float] = {
            Series.TEXTS_RUNNING: last.running,
            Series.TEXTS_WAITING: last.waiting,
            Series.KV_USAGE: last.kv_usage,
            Series.PROMPT_TOKENS: sum(one.prompt_tokens for one in texts),
            Series.WRITTEN_TOKENS: ttft_s.size + tpot_s.size,
            Series.PREEMPTIONS: sum(one.preemptions for one in texts),
        }
        values = dict(readings.values) | {series: {model: float(value)} for series, value in numbers.items()}
        spans = {Series.TTFT_SECONDS: ttft_s, Series.TPOT_SECONDS: tpot_s}
        histograms = dict(readings.histograms) | {name: {model: histogram_of(one)} for name, one in spans.items()}
        return replace(readings, values=values, histograms=histograms)


def _all(parts: Sequence[Floats]) -> Floats:
    return np.concatenate([*parts, np.zeros(0)])
