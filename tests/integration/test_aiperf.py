"""NVIDIA's ``aiperf`` replays a trace against a pipeline: what it measures from outside is what was asked for.

It is no dependency: 1.2 GB. ``SMOE_AIPERF`` names the program where it is not on the path (docs/generation.md).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.harness.local_pipeline import LocalPipeline
from moe.preset import byte_tokenizer
from moe.split import split
from tests.unit.moe import tiny

AIPERF = os.environ.get("SMOE_AIPERF") or shutil.which("aiperf")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(AIPERF is None, reason="aiperf is not installed (docs/generation.md)"),
]
ROWS = [{"timestamp": 200 * number, "input_length": 20 + number, "output_length": 6} for number in range(8)]


def test_a_fixed_schedule_gives_ttft_lengths_and_goodput(tmp_path: Path) -> None:
    model = tiny.build("mixtral", vocab_size=300, max_position_embeddings=2048, eos_token_id=299)
    checkpoint = tiny.store(model, tmp_path / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / "tokenizer.json"))
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    split(checkpoint, tmp_path / "tiny", "tiny", 4, None)
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out"
    trace.write_text("\n".join(map(json.dumps, ROWS)))
    with LocalPipeline(tmp_path / "tiny", environ={"smoe_timeout": "120s"}) as pipeline:
        asked = ["--model", "tiny", "--url", pipeline.url, "--endpoint-type", "completions", "--streaming"]
        replayed = ["--input-file", str(trace), "--custom-dataset-type", "mooncake_trace", "--fixed-schedule"]
        judged = ["--goodput", "time_to_first_token:300000 inter_token_latency:300000"]
        counted = ["--tokenizer", str(checkpoint), "--use-server-token-count", "--extra-inputs", "temperature:0"]
        written = ["--artifact-dir", str(out), "--ui", "none"]
        assert AIPERF is not None
        subprocess.run(
            [AIPERF, "profile", *asked, *replayed, *judged, *counted, *written],
            check=True, capture_output=True, text=True, timeout=800, cwd=tmp_path,
        )  # fmt: skip
    numbers = json.loads((out / "profile_export_aiperf.json").read_text())
    assert "error_request_count" not in numbers and numbers["request_count"]["avg"] == len(ROWS)
    assert numbers["good_request_count"]["avg"] == len(ROWS) and numbers["goodput"]["avg"] > 0
    lengths = [row["input_length"] for row in ROWS]
    inputs, outputs = numbers["input_sequence_length"], numbers["output_sequence_length"]
    assert (inputs["min"], inputs["max"], inputs["sum"]) == (min(lengths), max(lengths), sum(lengths))
    assert 0 < outputs["min"] <= outputs["max"] <= 6
    assert 0 < numbers["time_to_first_token"]["p50"] <= numbers["request_latency"]["max"]
    assert numbers["benchmark_duration"]["avg"] > ROWS[-1]["timestamp"] / 1000
