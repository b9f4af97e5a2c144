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
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()
        labels = [*_LABEL, "instance", "role", "state"]
        texts = GaugeMetricFamily(names.INSTANCE_TEXTS, "Texts of an instance", labels=labels)
        for one in self._generator.document()["instances"]:
            for state in ("running", "queue", "arriving"):
                texts.add_metric([self._model, str(one["instance"]), one["role"], state], one[state])
        yield texts

    def _gauges(self) -> Iterator[Metric]:
        generator = self._generator
        used = sum(run.pages for run in generator.runs)
        room = sum(run.instance.pages for run in generator.runs)
        for metric, words, value in (
            (names.TEXTS_RUNNING, "Texts in iterations", sum(len(run.texts) for run in generator.runs)),
            (names.TEXTS_WAITING, "Texts that wait to be scheduled", generator.unscheduled),
            (names.KV_USAGE, "Part of the pages in use", used / room if room else 0.0),
        ):
            gauge = GaugeMetricFamily(metric, words, labels=_LABEL)
            gauge.add_metric([self._model], value)
            yield gauge

    def _counters(self) -> Iterator[Metric]:
        measures, phases = self._generator.measures, self._generator.phases
        for metric, words, count in (
            (names.PREEMPTIONS, "Texts preempted", measures.preemptions),
            (names.PREFIX_QUERIES, "Tokens of texts that begin", measures.asked_tokens),
            (names.PREFIX_HITS, "Those whose keys and values were kept", measures.found_tokens),
            (names.PROMPT_TOKENS, "Tokens of prompts", measures.prompt_tokens),
            (names.WRITTEN_TOKENS, "Tokens written", measures.written_tokens),
            (names.KV_MOVED_BYTES, "Keys and values that moved between instances", measures.moved_bytes),
            (names.KV_LOST_SOURCES, "Texts computed again, as theirs could not be had", measures.lost_sources),
            (names.RECOMPUTED_TOKENS, "Tokens computed again, as their instance ended", measures.recomputed_tokens),
            (names.ROLE_FLIPS, "Changes of instances' roles", phases.scheduler.flips if phases else 0),
        ):
            counter = CounterMetricFamily(metric, words, labels=_LABEL)
            counter.add_metric([self._model], count)
            yield counter
        reasons = [*_LABEL, "finished_reason"]
        ended = CounterMetricFamily(names.ENDED, "Texts by how they ended", labels=reasons)
        for reason in ("stop", "length", "abort"):
            ended.add_metric([self._model, reason], measures.ended.get(reason, 0))
        yield ended

    def _histograms(self) -> Iterator[Metric]:
        measures = self._generator.measures
        for metric, words, distribution in (
            (names.TTFT_SECONDS, "Arrival to first token", measures.first_token),
            (names.TPOT_SECONDS, "From one token to the next", measures.next_token),
            (names.ITL_SECONDS, "From one token to the next", measures.next_token),
            (names.QUEUE_SECONDS, "Arrival to an instance", measures.queue),
            (names.PREFILL_SECONDS, "From there to the first token", measures.prefill),
            (names.DECODE_SECONDS, "First to last token", measures.decode),
            (names.PROMPT_SIZES, "Tokens of a prompt", measures.prompt_sizes),
            (names.WRITTEN_SIZES, "Tokens written of a text", measures.written_sizes),
            (names.MOST_WRITTEN, "Tokens written of a request's longest text", measures.most_written),
            (names.E2E_SECONDS, "Arrival to last token", measures.whole),
            (names.KV_MOVE_WAIT_SECONDS, "First token until keys and values begin to move", measures.move_wait),
            (names.KV_MOVE_SECONDS, "Until they are there", measures.move),
        ):
            histogram = HistogramMetricFamily(metric, words, labels=_LABEL)
            histogram.add_metric([self._model], distribution.cumulative(), distribution.total)
            yield histogram
