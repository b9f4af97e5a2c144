"""``aiperf``'s exports become records, and each client's rule judges them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.arrow.aiperf import characters
from benchmarks.arrow.aiperf_records import Row, good_for_aiperf, good_from_sending, good_numbers, records_of
from traces.completions import TokenTargets
from traces.token_results import keeps

ROWS: list[Row] = [
    {"timestamp": 0, "input_length": 3, "output_length": 3},
    {"timestamp": 100, "input_length": 4, "output_length": 1},
    {"timestamp": 100, "input_length": 5, "output_length": 2},
]
BEGUN_NS = 7_000_000_000
TARGETS = TokenTargets(0.25, 0.05)


def event(at_ms: float, text: str, tokens: int | None = None, end: str | None = None) -> dict[str, Any]:
    document: dict[str, Any] = {"choices": [{"text": text, "finish_reason": end}]}
    if tokens is not None:
        document = {"choices": [], "usage": {"completion_tokens": tokens}}
    return {"perf_ns": round(at_ms * 1e6), "packets": [{"name": "data", "value": json.dumps(document)}]}


def answer(row: int, place: int, issued_ms: float, sent_ms: float, moments_ms: list[float]) -> dict[str, Any]:
    """A whole answer; ``place`` in the order in which they were issued, moments since sending."""
    events = [event(50 + at_ms, "x", end="length" if at_ms == moments_ms[-1] else None) for at_ms in moments_ms]
    events.append(event(50 + moments_ms[-1] + 500, "", tokens=len(moments_ms)))
    events.append({"perf_ns": 10**12, "packets": [{"name": "data", "value": "[DONE]"}]})
    return {
        "metadata": meta(row, place, issued_ms, sent_ms),
        "start_perf_ns": 50_000_000,
        "status": 200,
        "responses": events,
        "payload": {"prompt": "p" * ROWS[row]["input_length"], "max_tokens": ROWS[row]["output_length"]},
    }


def meta(row: int, place: int, issued_ms: float, sent_ms: float) -> dict[str, Any]:
    sent_ns = BEGUN_NS + round(sent_ms * 1e6)
    return {
        "session_num": place,
        "conversation_id": f"session_{row:06d}",
        "x_request_id": None,
        "credit_issued_ns": BEGUN_NS + round(issued_ms * 1e6),
        "request_start_ns": sent_ns,
        "request_end_ns": sent_ns + 10**9,
    }


def stored(folder: Path, name: str, entries: list[dict[str, Any]]) -> Path:
    (folder / name).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def test_events_are_timed_from_sending_and_requests_were_due_by_their_rows(tmp_path: Path) -> None:
    refused = {"metadata": meta(2, 1, 101, 102), "start_perf_ns": 1, "status": 400, "responses": None}
    refused |= {"error": {"code": 400}, "payload": None}
    raw = [answer(0, 0, 1, 3, [200, 240, 300]), refused, answer(1, 2, 101, 161, [200])]
    first, one, failed = records_of(stored(tmp_path, "profile_export_raw.jsonl", raw), ROWS)
    assert (first.ttft_s, first.tpot_s, first.tokens) == pytest.approx((0.2, 0.05, 3))
    assert first.scheduled_s == 0.0 and first.sent_s == pytest.approx(0.002)  # the schedule begins with the first issue
    assert one.scheduled_s == 0.1 and one.sent_s == pytest.approx(0.16) and (one.tokens, one.tpot_s) == (1, None)
    assert failed.outcome != "ok" and failed.ttft_s is None
    verdicts = [(keeps(r, TARGETS), good_from_sending(r, TARGETS), good_for_aiperf(r, TARGETS)) for r in (first, one)]
    assert verdicts == [(True, True, True), (False, True, False)]  # the second left 60 ms late and has one token
    assert not any(rule(failed, TARGETS) for rule in (keeps, good_from_sending, good_for_aiperf))


def test_other_requests_than_the_traces_are_an_error(tmp_path: Path) -> None:
    raw = [answer(row, row, 0, 0, [1.0, 2.0]) for row in range(3)]
    raw[1]["payload"]["prompt"] = "p"
    with pytest.raises(ValueError, match="other requests"):
        records_of(stored(tmp_path, "profile_export_raw.jsonl", raw), ROWS)
    with pytest.raises(ValueError, match="other requests"):
        records_of(stored(tmp_path, "profile_export_raw.jsonl", raw[:1]), ROWS)


def test_by_its_numbers_an_answer_of_one_token_has_to_keep_ttft_alone(tmp_path: Path) -> None:
    def numbers(ttft_ms: float | None, itl_ms: float | None, **more: Any) -> dict[str, Any]:
        named = {"time_to_first_token": ttft_ms, "inter_token_latency": itl_ms}
        metrics = {name: {"value": value, "unit": "ms"} for name, value in named.items() if value is not None}
        return {"metadata": {}, "metrics": metrics, **more}

    entries = [numbers(250, 50), numbers(250, None), numbers(251, 1), numbers(1, 51), numbers(1, 1, error={"code": 1})]
    entries.append(numbers(None, None))
    assert good_numbers(stored(tmp_path, "profile_export.jsonl", entries), TARGETS) == 2


def test_every_character_is_a_token() -> None:
    tokenizer, text = characters(), "To be,\n\n  or é"
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text) and tokenizer.decode(ids) == text.replace("é", "?")
