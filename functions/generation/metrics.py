"""The generation loop's metrics under vLLM's names: what scalers, gateways and dashboards for language models expect.

Names and meaning: vLLM's ``docs/usage/metrics.md``; the label is ``model_name`` as there.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from functions.generation.generator import Generator
from functions.serving import generation_metric_names as names

_LABEL = ["model_name"]


class GenerationMetrics(Collector):
    """A Prometheus collector."""

    def __init__(self, model: str, generator: Generator) -> None:
        self._model = model
        self._generator = generator

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape."""
        generator, measures, label = self._generator, self._generator.measures, [self._model]
        waiting = generator.waiting
        used = sum(run.pages for run in generator.runs)
        room = sum(run.instance.pages for run in generator.runs)
        for metric, words, value in (
            (names.TEXTS_RUNNING, "Texts in iterations", sum(len(run.texts) for run in generator.runs)),
            (names.TEXTS_WAITING, "Texts that wait", len(waiting.texts) + len(waiting.parked)),
            (names.KV_USAGE, "Part of the pages in use", used / room if room else 0.0),
        ):
            gauge = GaugeMetricFamily(metric, words, labels=_LABEL)
            gauge.add_metric(label, value)
            yield gauge
        for metric, words, count in (
            (names.PREEMPTIONS, "Texts preempted", measures.preemptions),
            ("vllm:prefix_cache_queries", "Tokens of texts that begin", measures.asked_tokens),
            ("vllm:prefix_cache_hits", "Those whose keys and values were kept", measures.found_tokens),
            (names.PROMPT_TOKENS, "Tokens of prompts", measures.prompt_tokens),
            (names.WRITTEN_TOKENS, "Tokens written", measures.written_tokens),
        ):
            counter = CounterMetricFamily(metric, words, labels=_LABEL)
            counter.add_metric(label, count)
            yield counter
        reasons = [*_LABEL, "finished_reason"]
        ended = CounterMetricFamily("vllm:request_success", "Texts by how they ended", labels=reasons)
        for reason in ("stop", "length", "abort"):
            ended.add_metric([self._model, reason], measures.ended.get(reason, 0))
        yield ended
        for metric, words, distribution in (
            (names.TTFT_SECONDS, "Arrival to first token", measures.first_token),
            (names.TPOT_SECONDS, "From one token to the next", measures.next_token),
            ("vllm:e2e_request_latency_seconds", "Arrival to last token", measures.whole),
        ):
            histogram = HistogramMetricFamily(metric, words, labels=_LABEL)
            histogram.add_metric(label, distribution.cumulative(), distribution.total_s)
            yield histogram
