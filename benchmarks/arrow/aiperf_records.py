"""Runs of ``aiperf`` as ``smoe replay`` would have recorded them, and both clients' rules for what counts as good."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from traces.completions import StreamError, TokenTargets, read_stream
from traces.results import RequestRecord
from traces.token_results import keeps

Row = dict[str, int]
"""``timestamp`` in ms, ``input_length`` and ``output_length`` in tokens, of one request."""
UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0}


def good_from_sending(record: RequestRecord, targets: TokenTargets) -> bool:
    """The rule of ``smoe replay``, but for TTFT, which counts from sending."""
    return record.sent_s is not None and keeps(replace(record, scheduled_s=record.sent_s), targets)


def good_for_aiperf(record: RequestRecord, targets: TokenTargets) -> bool:
    """aiperf's rule: TTFT from sending, and what has no time between tokens is not good."""
    return record.tpot_s is not None and good_from_sending(record, targets)


def records_of(folder: Path, rows: Sequence[Row]) -> list[RequestRecord]:
    """The events of ``--export-level raw`` as ``smoe replay`` reads them, in order of ``rows``. A request was due by
    its row; the schedule began when its least late request was issued. Raises ValueError where they are not those of
    ``rows``."""
    raw = sorted(_lines(folder / "profile_export_raw.jsonl"), key=_place)
    if len(raw) != len(rows) or not all(map(_is_of, raw, rows)):
        raise ValueError(f"{folder}: other requests than those of the trace")
    issued = zip((one["metadata"]["credit_issued_ns"] for one in raw), rows, strict=True)
    zero_ns = min(issued_ns - row["timestamp"] * 1_000_000 for issued_ns, row in issued)
    return [_record(one, row, zero_ns) for one, row in zip(raw, rows, strict=True)]


def good_numbers(folder: Path, targets: TokenTargets) -> int:
    """Requests that are good by aiperf's own numbers (``profile_export.jsonl``), where an answer of one token has to
    keep TTFT alone."""
    good = 0
    for one in _lines(folder / "profile_export.jsonl"):
        seconds = {name: _seconds(one["metrics"].get(name)) for name in ("time_to_first_token", "inter_token_latency")}
        ttft_s, tpot_s = seconds.values()
        answered = one.get("error") is None and ttft_s is not None
        record = RequestRecord(0, 0.0, 0.0, None, "ok" if answered else "broken", None, None, 0, 1, "", None)
        good += keeps(replace(record, ttft_s=ttft_s, tpot_s=tpot_s), targets)
    return good


def _lines(path: Path) -> Iterator[Any]:
    with path.open() as file:
        yield from map(json.loads, file)


def _seconds(metric: dict[str, Any] | None) -> float | None:
    """Raises KeyError for a unit that is no time's."""
    return None if metric is None else metric["value"] * UNITS_S[metric["unit"]]


def _place(one: dict[str, Any]) -> int:
    """The number of its row; requests of one moment are issued in any order."""
    return int(one["metadata"]["conversation_id"].rsplit("_", 1)[1])


def _is_of(one: dict[str, Any], row: Row) -> bool:
    """Whether the lengths are those of ``row``, a token being a character; failed requests have no payload."""
    asked = one.get("payload")
    return asked is None or (len(asked["prompt"]), asked["max_tokens"]) == (row["input_length"], row["output_length"])


def _record(one: dict[str, Any], row: Row, zero_ns: int) -> RequestRecord:
    meta = one["metadata"]
    record = RequestRecord(
        index=_place(one),
        scheduled_s=row["timestamp"] / 1000,
        sent_s=(meta["request_start_ns"] - zero_ns) / 1e9,
        latency_s=(meta["request_end_ns"] - meta["request_start_ns"]) / 1e9,
        outcome="broken",
        status=one.get("status"),
        tokens=None,
        words=0,
        tries=1,
        request_id=meta["x_request_id"] or "",
        sent_unix_s=meta["request_start_ns"] / 1e9,
        prompt_tokens=row["input_length"],
        max_tokens=row["output_length"],
    )
    try:
        streamed = asyncio.run(_streamed(one))
    except StreamError as error:
        return replace(record, outcome=error.outcome)
    if one.get("error") is not None:  # one that came after a whole answer
        return record
    return replace(record, outcome="ok", tokens=streamed.tokens, ttft_s=streamed.first_s, tpot_s=streamed.tpot_s)


async def _streamed(one: dict[str, Any]) -> Any:
    """Seconds since sending."""
    now_ns = one["start_perf_ns"]

    async def lines() -> AsyncIterator[bytes]:
        nonlocal now_ns
        for response in one.get("responses") or ():
            now_ns = response["perf_ns"]
            for packet in response.get("packets", ()):
                yield f"{packet['name']}: {packet['value']}".encode()

    return await read_stream(lines(), lambda: (now_ns - one["start_perf_ns"]) / 1e9)
