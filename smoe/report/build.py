"""Reads a run, computes, draws, writes: ``report.html``, ``report.json`` and four PNG files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoe.errors import SmoeError
from smoe.report.log import prices_of, read_log
from smoe.report.measures import compute
from smoe.report.model import Run
from smoe.report.page import page
from traces.results import read_records


class ReportError(SmoeError):
    """The report's input is not there or its place cannot be written."""


@dataclass(frozen=True)
class ReportPaths:
    """What was written."""

    html: Path
    json: Path
    pictures: tuple[Path, ...]
    numbers: Mapping[str, Any]
    """The content of ``json``."""


def build(
    out_dir: Path, log_dir: Path, requests_csv: Path | None, slo_s: float, meta: Mapping[str, Any]
) -> ReportPaths:
    """Write the report of one run into ``out_dir``.

    ``log_dir``: the function logger's folder (``STATE/log``); it may hold nothing, then the parts that need it say
    so. ``requests_csv``: the replay's request file, or None when there was no replay.
    ``meta``: JSON-able settings that are carried over; known keys are ``pipeline``, ``policy``, ``planned``
    (requests), ``trace`` (as ``traces.results.describe``), ``seeds``, ``settings``, ``machine``, ``version``,
    ``commit``, ``since_s`` (Unix time before which log rows are left out). Raises ReportError, and TraceError
    for a damaged request file.
    """
    if not (math.isfinite(slo_s) and slo_s > 0):
        raise ReportError(f"the SLO must be a positive number of seconds, got {slo_s!r}")
    from smoe.report import figures  # matplotlib takes a second, and who starts a run needs it at its end only

    run = _run(log_dir, requests_csv, float(meta.get("since_s", 0.0)))
    numbers = compute(run, slo_s, meta)
    try:
        numbers_text = json.dumps(numbers, indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ReportError(f"meta holds something that is not JSON: {error}") from error
    pictures = {
        "latency": figures.latency(run, slo_s),
        "scale": figures.scale(run),
        "experts": figures.experts(run),
        "actions": figures.actions(run),
    }
    html = page(numbers, pictures, run.actions, run.start_s, slo_s)
    paths = ReportPaths(
        out_dir / "report.html", out_dir / "report.json", tuple(out_dir / f"{name}.png" for name in pictures), numbers
    )
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        paths.html.write_text(html, encoding="utf-8")
        paths.json.write_text(numbers_text, encoding="utf-8")
        for path, data in zip(paths.pictures, pictures.values(), strict=True):
            path.write_bytes(data)
    except OSError as error:
        raise ReportError(f"the report cannot be written to {out_dir}: {error.strerror or error}") from error
    return paths


def summary_of(log_dir: Path, requests_csv: Path, slo_s: float, since_s: float) -> dict[str, Any]:
    """The few numbers of one replay that another is compared with, JSON-ready: ``p95_s``, ``slo_attainment`` (share of
    all requests), ``provisioned_per_hour``, ``windows_over`` and ``windows``. Raises ReportError, TraceError."""
    numbers = compute(_run(log_dir, requests_csv, since_s), slo_s, {})
    latency = numbers["requests"]["latency_s"]
    return {
        "p95_s": latency["p95"] if latency else None,
        "slo_attainment": numbers["requests"]["slo_attainment"],
        "provisioned_per_hour": numbers["cost"]["provisioned_per_hour"],
        "windows_over": numbers["windows"]["violated"],
        "windows": numbers["windows"]["judged"],
    }


def _run(log_dir: Path, requests_csv: Path | None, since_s: float) -> Run:
    requests = () if requests_csv is None else tuple(read_records(requests_csv))
    return Run(*read_log(log_dir, since_s), requests, prices_of(log_dir).currency)
