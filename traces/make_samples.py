"""Makes the files of ``traces/samples`` again: ``python -m traces.make_samples``. All numbers are synthetic, none is
measured.

Each format has one file with the exact columns of the published data and contents that show its patterns;
identifiers are hashes of words such as ``made function 3``. `made_bursty_hour.csv.gz` is the hour that the main
job replays where the public traces are not there.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from traces.catalog import SAMPLES, SYNTHETIC_BURSTY_HOUR
from traces.formats.arrivals import write_arrivals
from traces.generate import synthetic

SEED = 7
TRIGGERS = {"timer": "timer", "steady": "http", "bursty": "queue", "normal": "http"}
BURSTY_REQUESTS, BURSTY_CV, BURSTY_SEED = 1500, 5.0, 11


def make_all(folder: Path) -> None:
    """Write every sample into ``folder``."""
    for name, lines in (
        ("made_azure_functions.csv", functions()),
        ("made_azure_rows.csv", rows()),
        ("made_azure_functions_2021.csv", invocations()),
        ("made_azure_llm.csv", llm()),
        ("made_azure_llm_2024.csv", llm_2024()),
        ("made_burstgpt.csv", burstgpt(sessions=False)),
        ("made_burstgpt_3.csv", burstgpt(sessions=True)),
        ("made_mooncake.jsonl", mooncake()),
        ("made_servegen.csv", servegen()),
        ("chunk-0-trace.csv", servegen_chunk()),
    ):
        (folder / name).write_text("\n".join(lines) + "\n")
    hour = synthetic(BURSTY_REQUESTS, 3600, BURSTY_CV, BURSTY_SEED)
    write_arrivals(
        hour,
        folder / SYNTHETIC_BURSTY_HOUR.name,
        (
            "Made, not measured: stands in for a real bursty hour where the public traces are not on the machine.",
            f"How: traces.generate.synthetic(requests={BURSTY_REQUESTS}, duration_s=3600, cv={BURSTY_CV}, "
            f"seed={BURSTY_SEED}); inter-arrival CV {hour.iat_cv:.2f}.",
        ),
    )


def functions() -> Iterator[str]:
    """Two hours of eight functions."""
    rng = np.random.default_rng(SEED)
    minutes = range(480, 600)
    yield "HashOwner,HashApp,HashFunction,Trigger," + ",".join(map(str, minutes))
    for index, kind in enumerate(("timer", "steady", "bursty", "normal", "bursty", "normal", "bursty", "steady")):
        names = (f"made owner {index // 3}", f"made app {index // 2}", f"made function {index}")
        cells = [hashlib.sha256(name.encode()).hexdigest() for name in names]
        yield ",".join([*cells, TRIGGERS[kind], *map(str, counts(kind, len(minutes), rng))])


def rows() -> Iterator[str]:
    """A whole day of three unnamed rows; RowId is a hash of the counts."""
    rng = np.random.default_rng(SEED + 1)
    yield "RowId,SourceBlob,SourcePath,Multiplicity," + ",".join(map(str, range(1, 1441)))
    for kind in ("steady", "normal", "bursty"):
        text = ",".join(map(str, counts(kind, 1440, rng)))
        row_id = hashlib.sha256(text.encode()).hexdigest()[:16]
        yield f"{row_id},{hashlib.sha256(b'made').hexdigest()[:40]},made/rows.csv,1,{text}"


def counts(kind: str, minutes: int, rng: np.random.Generator) -> list[int]:
    """Requests per minute of one of four kinds of function."""
    if kind == "timer":
        return [int(minute % 5 == 0) for minute in range(minutes)]
    if kind == "steady":
        return [int(count) for count in rng.poisson(4, minutes)]
    if kind == "bursty":
        per_minute = np.zeros(minutes, dtype=np.int64)
        bursts = rng.choice(minutes, max(1, minutes // 40), replace=False)
        per_minute[bursts] = rng.integers(30, 90, bursts.size)
        return [int(count) for count in per_minute]
    busy = np.cumsum(rng.random(minutes) < 0.15) % 2 == 1
    return [int(count) for count in rng.poisson(np.where(busy, 40.0, 3.0))]


def llm() -> Iterator[str]:
    """Ten minutes of 240 requests, CV about 4, tokens log-normal."""
    rng = np.random.default_rng(SEED + 2)
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    begin = datetime.datetime(2000, 1, 1, 12, tzinfo=datetime.UTC)
    for moment in synthetic(240, 600, 4.0, 3).arrival_s.tolist():
        ticks = round(moment * 1e7)
        stamp = begin + datetime.timedelta(seconds=ticks // 10**7)
        context, generated = int(rng.lognormal(6.5, 1)), int(rng.lognormal(4, 1)) + 1
        yield f"{stamp:%Y-%m-%d %H:%M:%S}.{ticks % 10**7:07d},{context},{generated}"


def invocations() -> Iterator[str]:
    """Half an hour of four functions of two apps, in order of their start, with their end and duration."""
    rng = np.random.default_rng(SEED + 4)
    yield "app,func,end_timestamp,duration"
    names = [[hashlib.sha256(f"made {kind} {i // 2 if kind == 'app' else i}".encode()).hexdigest() for i in range(4)]
             for kind in ("app", "function")]  # fmt: skip
    for start_s in synthetic(160, 1800, 2.0, 5).arrival_s.tolist():
        which, duration_s = int(rng.integers(4)), round(float(rng.lognormal(-1, 1.5)), 3)
        yield f"{names[0][which]},{names[1][which]},{start_s + duration_s!r},{duration_s!r}"


def llm_2024() -> Iterator[str]:
    """Two minutes before and after a midnight; whole seconds have no digits behind them, as published."""
    rng = np.random.default_rng(SEED + 5)
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    begin = datetime.datetime(2000, 1, 1, 23, 58, tzinfo=datetime.UTC)
    moments = synthetic(120, 240, 1.0, 4).arrival_s.copy()
    moments[::20] = moments[::20].round()
    for moment in np.sort(moments).tolist():
        stamp = begin + datetime.timedelta(microseconds=round(moment * 1e6))
        yield f"{stamp.isoformat(sep=' ')},{int(rng.lognormal(7, 1))},{int(rng.lognormal(4, 1)) + 1}"


def burstgpt(sessions: bool) -> Iterator[str]:
    """Two hours of 200 requests; in the form of the third file with sessions, days later and with fractions."""
    rng = np.random.default_rng(SEED + 6)
    begin_s = 19_440_000 if sessions else 0
    session_columns = "Session ID,Elapsed time," if sessions else ""
    yield f"Timestamp,{session_columns}Model,Request tokens,Response tokens,Total tokens,Log Type"
    for index, moment in enumerate(synthetic(200, 7200, 1.8, 6).arrival_s.tolist()):
        model, log = (
            ("ChatGPT", "GPT-4")[int(rng.random() < 0.2)],
            ("Conversation log", "API log")[int(rng.random() < 0.4)],
        )
        asked, answered = int(rng.lognormal(5.5, 1)), 0 if rng.random() < 0.05 else int(rng.lognormal(4.5, 1))
        session = hashlib.sha256(f"made session {index // 3}".encode()).hexdigest()[:32] if log[0] == "C" else ""
        extra = f"{session},{int(rng.integers(1, 60))}," if sessions else ""
        time_s = f"{begin_s + int(moment)}{'.0' if sessions else ''}"
        yield f"{time_s},{extra}{model},{asked},{answered},{asked + answered},{log}"


def mooncake() -> Iterator[str]:
    """Ten minutes of 150 requests, times batched to three seconds as the real traces' are."""
    rng = np.random.default_rng(SEED + 7)
    for index, moment in enumerate(synthetic(150, 600, 1.2, 7).arrival_s.tolist()):
        context, generated = int(rng.lognormal(8, 1)), int(rng.lognormal(5, 1))
        blocks = list(range(min(4, context // 512 + 1))) + [
            1000 * (index + 1) + i for i in range(context // 512 + 1 - 4)
        ]
        yield json.dumps(
            {
                "timestamp": int(moment // 3 * 3000),
                "input_length": context,
                "output_length": generated,
                "hash_ids": blocks,
            }
        )


def servegen() -> Iterator[str]:
    """Four hours of three clients (slow, normal, bursty); one window of client 0 is idle and has no row."""
    rng = np.random.default_rng(SEED + 3)
    yield "client,window_start_s,rate_rps,iat_cv,pattern,param1,param2"
    for window in range(24):
        for client, (rate, cv) in enumerate(((1.5, 0.6), (2.0, 1.6), (3.0, 6.0))):
            rate_rps = round(rate * rng.uniform(0.8, 1.2) * 600) / 600
            measured = cv * rng.uniform(0.9, 1.1)
            shape = 1 / measured**2
            fit = (
                ("Weibull", 0.4, 0.3 / rate_rps)
                if client == 2 and window % 2
                else ("Gamma", shape, 1 / rate_rps / shape)
            )
            if (client, window) != (0, 15):
                yield f"{client},{window * 600},{rate_rps:.6f},{measured:.5f},{fit[0]},{fit[1]:.6f},{fit[2]:.6f}"


def servegen_chunk() -> Iterator[str]:
    """Two hours of one client in the published form: no header, idle windows written out."""
    rng = np.random.default_rng(SEED + 8)
    for window in range(12):
        rate, cv = round(rng.uniform(0.5, 2.0) * 600) / 600, rng.uniform(0.8, 2.0)
        fit = f"{rate},{cv},Gamma,{1 / cv**2},{cv**2 / rate}" if window not in (4, 5) else "0,0,,0,0"
        yield f"{window * 600},{fit}"


if __name__ == "__main__":
    make_all(SAMPLES)
