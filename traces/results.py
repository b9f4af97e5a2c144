"""What a replay leaves behind: one record per request, the CSV of them, and the summary."""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np

from traces.dispersion import dispersions
from traces.errors import ReplayError, broken
from traces.model import IntArray, Trace

Outcome = Literal[
    "ok", "rejected", "client_error", "server_error", "unexpected_status",
    "timeout", "connect", "broken", "no_connection", "cancelled",
]  # fmt: skip
"""ok: 2xx · rejected: 429 · client_error: other 4xx · server_error: 5xx · unexpected_status: 1xx, 3xx · timeout:
no whole answer in time · connect: no connection · broken: connection lost or nonsense before the answer was whole
· no_connection: all of the client's connections were busy for the whole timeout, never sent · cancelled: the
replay was stopped first."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclasses.dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request; the fields are the CSV's columns. Times in seconds since the replay began; empty means unknown."""

    index: int
    scheduled_s: float
    sent_s: float | None
    """When the (first) try was handed to a connection."""
    latency_s: float | None
    """From ``sent_s`` until the whole answer was there (or the failure was known)."""
    outcome: Outcome
    status: int | None
    tokens: int | None
    """``tokens`` of the answer's JSON; of completions the tokens that were written."""
    words: int
    tries: int
    request_id: str
    sent_unix_s: float | None
    prompt_tokens: int | None = None
    """This field and those after it: of completions only. Tokens of the prompt sent."""
    max_tokens: int | None = None
    """Tokens asked for."""
    ttft_s: float | None = None
    """From ``sent_s`` until the first token's event."""
    tpot_s: float | None = None
    """Seconds per token after the first."""


CSV_COLUMNS = tuple(field.name for field in dataclasses.fields(RequestRecord))
_OLDER_COLUMNS = CSV_COLUMNS[: CSV_COLUMNS.index("prompt_tokens")]
"""The header of files written before there were completions; they are still read."""


class CsvSink:
    """Writes records as they come, so that a killed replay leaves what it had. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = path.open("w", newline="", encoding="utf-8")
        except OSError as error:
            raise ReplayError(f"{path}: cannot be written ({error.strerror or error})") from error
        self._writer = csv.writer(self._file)
        self._writer.writerow(CSV_COLUMNS)

    def __enter__(self) -> CsvSink:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, record: RequestRecord) -> None:
        self._writer.writerow(
            f"{value:.6f}" if isinstance(value, float) else value for value in dataclasses.astuple(record)
        )


def read_records(path: Path) -> list[RequestRecord]:
    """The CSV back as records, by index. Raises ReplayError for a missing file, TraceError for a damaged line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            header = next(reader, None)
            if header is None or tuple(header) not in (CSV_COLUMNS, _OLDER_COLUMNS):
                raise ReplayError(f"{path}: not a replay's request file, its header is {','.join(CSV_COLUMNS)}")
            records = [_record(path, reader.line_num, header, cells) for cells in reader]
    except OSError as error:
        raise ReplayError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ReplayError(f"{path}: not readable as CSV ({error})") from error
    return sorted(records, key=lambda record: record.index)


def _record(path: Path, line: int, header: Sequence[str], cells: Sequence[str]) -> RequestRecord:
    if len(cells) != len(header):
        raise broken(path, line, f"{len(cells)} fields, {len(header)} are needed")
    cell = dict.fromkeys(CSV_COLUMNS, "") | dict(zip(header, cells, strict=True))
    outcome = next((name for name in OUTCOMES if name == cell["outcome"]), None)
    if outcome is None:
        raise broken(path, line, f"outcome {cell['outcome'][:40]!r}, allowed are {', '.join(OUTCOMES)}")
    try:
        return RequestRecord(
            index=int(cell["index"]),
            scheduled_s=float(cell["scheduled_s"]),
            sent_s=float(cell["sent_s"]) if cell["sent_s"] else None,
            latency_s=float(cell["latency_s"]) if cell["latency_s"] else None,
            outcome=outcome,
            status=int(cell["status"]) if cell["status"] else None,
            tokens=int(cell["tokens"]) if cell["tokens"] else None,
            words=int(cell["words"]),
            tries=int(cell["tries"]),
            request_id=cell["request_id"],
            sent_unix_s=float(cell["sent_unix_s"]) if cell["sent_unix_s"] else None,
            prompt_tokens=int(cell["prompt_tokens"]) if cell["prompt_tokens"] else None,
            max_tokens=int(cell["max_tokens"]) if cell["max_tokens"] else None,
            ttft_s=float(cell["ttft_s"]) if cell["ttft_s"] else None,
            tpot_s=float(cell["tpot_s"]) if cell["tpot_s"] else None,
        )
    except ValueError as error:
        raise broken(path, line, f"not a number where one is needed ({error})") from error


def percentiles(values: Iterable[float]) -> dict[str, float] | None:
    """P50, P95, P99, mean and max in the values' unit; None without values."""
    array = np.fromiter(values, dtype=np.float64)
    if array.size == 0:
        return None
    p50, p95, p99 = np.quantile(array, (0.5, 0.95, 0.99))
    return {
        "p50": float(p50), "p95": float(p95), "p99": float(p99), "mean": float(array.mean()), "max": float(array.max())
    }  # fmt: skip


def summarise(records: Sequence[RequestRecord], planned: int, slo_s: float | None) -> dict[str, Any]:
    """Counts and percentiles of a replay; ``latency_s`` is over answers that were ok. JSON-ready.

    ``from_schedule_s`` counts from the moment a request was due, so a client that could not keep up, or had no free
    connection, cannot hide it. ``slo_attainment`` is ok answers within the SLO over all records (cancelled ones
    left out).
    """
    ok = [record for record in records if record.outcome == "ok"]
    sent = [record for record in records if record.sent_s is not None]
    judged = [record for record in records if record.outcome != "cancelled"]
    within = sum(1 for record in ok if slo_s is not None and (record.latency_s or 0.0) <= slo_s)
    tokens = [record.tokens for record in ok if record.tokens is not None]
    span_s = max(
        (record.sent_s + (record.latency_s or 0.0) for record in sent if record.sent_s is not None), default=0.0
    )
    return {
        "planned": planned,
        "requests": len(records),
        "complete": len(judged) == planned,
        "ok": len(ok),
        "failed": len(judged) - len(ok),
        "outcomes": dict(sorted(Counter(record.outcome for record in records).items())),
        "statuses": dict(sorted(Counter(str(r.status) for r in records if r.status is not None).items())),
        "span_s": span_s,
        "answered_rps": len(ok) / span_s if span_s else None,
        "latency_s": percentiles(record.latency_s for record in ok if record.latency_s is not None),
        "from_schedule_s": percentiles(
            record.sent_s - record.scheduled_s + record.latency_s
            for record in ok
            if record.sent_s is not None and record.latency_s is not None
        ),
        "lateness_s": percentiles(r.sent_s - r.scheduled_s for r in sent if r.sent_s is not None),
        "slo_s": slo_s,
        "slo_attainment": within / len(judged) if judged and slo_s is not None else None,
        "tokens": sum(tokens) if tokens else None,
        "tries": sum(record.tries for record in records),
    }


def describe(trace: Trace) -> dict[str, Any]:
    """A trace in numbers, JSON-ready."""
    busiest = np.bincount(trace.arrival_s.astype(np.int64)).max() if trace.requests else 0
    return {
        "source": trace.source,
        "sha256": trace.sha256,
        "requests": trace.requests,
        "duration_s": trace.duration_s,
        "mean_rps": trace.mean_rps,
        "busiest_second_requests": int(busiest),
        "iat_cv": trace.iat_cv,
        "dispersion": dispersions(trace),
        "pattern": trace.pattern,
        "mean_context_tokens": _mean(trace.context_tokens),
        "mean_generated_tokens": _mean(trace.generated_tokens),
    }


def _mean(tokens: IntArray | None) -> float | None:
    """None where tokens are not known, and of no request."""
    return None if tokens is None or not tokens.size else float(tokens.mean())
