"""What the comparison on a running decoder sends, and what it makes of streams."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from autoscaler.contract import Configuration
from benchmarks.decoder_live import loads
from benchmarks.decoder_live.loads import Load, Request, keep_up, requests_of
from benchmarks.decoder_live.runs import Setting, clients_figures, contender
from benchmarks.harness.streams import Stream
from traces.model import Trace, make_trace

SETTING = Setting(10.0, 2.0, 2.0, 1.0, 0.25, 4, Configuration(256, 1.0, 0.0, 1, 10), 1)


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    """Ten requests a second, with prompts of 640 tokens and answers of 80."""
    at_s = np.arange(0.05, 2000, 0.1)
    whole = make_trace(
        at_s, duration_s=2000.0, source="test", context_tokens=np.full(at_s.size, 640), generated_tokens=at_s * 0 + 80
    )
    monkeypatch.setattr(loads.catalog, "resolve", lambda name, folder: name)
    monkeypatch.setattr(
        loads.loading, "load", lambda name, start_s, duration_s: whole.clip(start_s, start_s + duration_s)
    )
    return whole


def test_lengths_are_divided_apart_and_parts_of_two_seeds_are_not_the_same(trace: Trace) -> None:
    load = Load("x", 0.5, 64.0, 8.0)
    first, second = (requests_of(load, None, seed, 100.0) for seed in (0, 1))
    assert {(len(one.prompt), one.answer) for one in first} == {(10, 10)}
    assert len(first) == pytest.approx(500, abs=60) and [one.at_s for one in first] != [one.at_s for one in second]
    assert not {one.prompt for one in first} & {one.prompt for one in second}
    assert requests_of(load, None, 0, 100.0) == first


def test_a_synthetic_day_keeps_the_least_at_its_ends_and_all_in_its_middle(trace: Trace) -> None:
    counts, _ = np.histogram([one.at_s for one in requests_of(Load("x", 1.0, 64.0, 8.0, 100.0), None, 0, 100.0)], 10)
    assert counts[4:6].sum() > 190 and counts[[0, 9]].sum() == pytest.approx(2 * 100 * loads.LEAST, abs=25)


def test_figures_are_of_tokens_and_texts_in_the_judged_time_only() -> None:
    early = Stream(0.0, 3, [0.5, 1.0, 1.9], "a", "whole")  # before the judged time: TPOT 0.5 and 0.9
    good = Stream(2.0, 3, [2.5, 2.7, 2.9], "a", "whole")
    slow = Stream(5.0, 3, [5.5, 6.0, 6.5], "a", "whole")
    late = Stream(7.0, 2, [8.5, 8.6], "a", "whole")
    lost = Stream(8.0, 5, [8.2, 8.3], "a", "broken: x")
    found = clients_figures([early, good, slow, late, lost], (2.0, 10.0), SETTING)
    assert (found["texts"], found["failed"], found["within"]) == (4, 1, 0.25)
    assert found["tokens_per_s"] == pytest.approx(10 / 8)
    assert found["tpot_ms_p50"] == pytest.approx(200) and found["ttft_ms_p95"] == pytest.approx(1000 * (1.5 - 0.15))


def test_windows_with_few_tokens_are_not_judged_and_others_by_their_p95() -> None:
    def steady(from_s: float, gap_s: float, tokens: int) -> Stream:
        return Stream(from_s, tokens, [from_s + gap_s * place for place in range(tokens)], "a", "whole")

    fast, slow, few = steady(2.0, 0.1, 15), steady(4.0, 0.3, 6), steady(6.1, 0.9, 2)
    assert clients_figures([fast, slow, few], (2.0, 10.0), SETTING)["windows_over"] == 0.5


def test_names_say_what_a_contender_is() -> None:
    held = contender("constant-3-2", (2, 1), 5.0)
    assert (held.policy, held.instances, held.replicas) == ("static", 3, 2)
    assert (
        contender("janus-0.75", (2, 1), 5.0).table == {"headroom": 0.75} and not contender("janus", (2, 1), 5.0).table
    )
    hpa = contender("hpa-0.4-6", (2, 1), 5.0)
    assert hpa.table == {
        "cpu_target": 0.4, "concurrency_target": 0.4, "down_stabilisation_s": 30.0, "period_s": 5.0
    }  # fmt: skip
    assert contender("hpa", (2, 1), 5.0).table == {"down_stabilisation_s": 100.0, "period_s": 5.0}


@pytest.mark.slow
def test_a_batch_is_kept_up_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most = 0, 0

    async def read(shared: object, url: str, body: dict[str, Any], stream: Stream) -> None:
        nonlocal under_way, most
        under_way, most = under_way + 1, max(most, under_way + 1)
        await asyncio.sleep(0.05 * body["max_tokens"])
        under_way, stream.outcome = under_way - 1, "whole"

    monkeypatch.setattr(loads, "read", read)
    requests = [Request(0.0, (1, 2), 1 + number % 2) for number in range(100)]
    streams = keep_up("", "m", requests, time.monotonic(), 3, 0.5)
    assert most == 3 and under_way == 0 and 9 <= len(streams) < 40
    assert [one.asked for one in streams] == [one.answer for one in requests[: len(streams)]]
    assert len(keep_up("", "m", requests[:4], time.monotonic(), 3, 60.0)) == 4
