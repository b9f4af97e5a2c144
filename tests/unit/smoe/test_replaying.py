"""``smoe lab replay --policies``: the controller's policies on a simulated decoder, from profiles on disk."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from moe.preset import byte_tokenizer
from moe.split import split
from simulation.generation.measured import Measured
from simulation.profiles.generation.storage import GenerationProfile
from simulation.profiles.generation.storage import save as save_decoder
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.model.storage import save
from smoe.cli import cli
from tests.unit.moe import tiny
from tests.unit.simulation.profiles import truth

TIMES = Measured((1, 64, 256), (0.05, 0.9, 3.0), 0.002, 1e-6, 0.0, 0.01, (0.9, 1.0, 1.1), 256, 8000)
"""Three texts a second of 20 and 12 tokens are too many for one instance, and few for three."""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command for a small decoder, with synthetic profiles of it, and a trace that is busy in its midst."""
    folder = tmp_path_factory.mktemp("replaying")
    checkpoint = tiny.store(tiny.build("mixtral", vocab_size=300, eos_token_id=299), folder / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / "tokenizer.json"))
    split(checkpoint, folder / "tiny", "tiny", 4, None)
    made = truth.of_folder(folder / "tiny", 2.0, truth.PASSES)
    digest = made.metadata.manifest_sha256
    save_decoder(GenerationProfile("tiny", digest, this_machine(), TIMES, {}, "", 0.0, ()), folder / "decoder.parquet")
    save(made, folder / "nodes.parquet")
    drawn = np.random.default_rng(0)
    gaps_s = np.concatenate([drawn.exponential(1 / rate, count) for rate, count in ((0.5, 30), (3.0, 180), (0.5, 30))])
    lines = [
        json.dumps({"timestamp": round(1000 * at_s), "input_length": 20, "output_length": 12, "hash_ids": []})
        for at_s in np.cumsum(gaps_s).tolist()
    ]
    (folder / "trace.jsonl").write_text("\n".join(lines))
    given = {"trace": "trace.jsonl", "pipeline": "tiny", "nodes": "nodes.parquet"}
    files = [part for name, file in given.items() for part in (f"--{name}", str(folder / file))]
    return [str(folder / "decoder.parquet"), *files, "--ttft-ms", "1500", "--tpot-ms", "400", "--warm-up", "0"]


def run(*more: str) -> Result:
    return CliRunner().invoke(cli, ["lab", "replay", *more])


@pytest.mark.slow
def test_policies_and_the_fewest_instances_that_would_do_stand_side_by_side(asked: list[str]) -> None:
    result = run(*asked, "--policies", "constant,hpa,slo-aware,staffing", "--json")
    assert result.exit_code == 0, result.output
    rows = {row["policy"]: row for row in json.loads(result.output)}
    enough = [name for name in rows if name.startswith("constant")][-1]
    assert rows["constant 1"]["goodput"] < 0.95 <= rows[enough]["goodput"]
    assert rows[enough]["instances_mean"] == rows[enough]["instances_max"] == float(enough.split()[1])
    for name in ("hpa", "slo-aware", "staffing"):
        assert rows[name]["instances_max"] > 1 and rows[name]["changes"] > 0
        assert rows["constant 1"]["goodput"] < rows[name]["goodput"]
    assert rows["constant 1"]["cost_per_hour"] < rows["hpa"]["cost_per_hour"]
    assert rows["hpa"]["expert_replicas_mean"] == 1.0
    table = run(*asked, "--policies", "static")
    assert "static" in table.output and "simulated: 240 requests" in table.output
    assert re.search(r"static .*\$\d", table.output) and "USD" not in table.output


def test_a_share_of_the_requests_is_kept_by_the_seed(asked: list[str]) -> None:
    half = [*asked[:3], "--keep", "0.5", "--json"]
    counts = [json.loads(run(*half, "--seed", seed).output)["prompt_tokens"] / 20 for seed in ("1", "1", "2")]
    assert counts[0] == counts[1] != counts[2] and all(90 < count < 150 for count in counts)


def test_fewer_tokens_an_iteration_make_first_tokens_later(asked: list[str]) -> None:
    measured, small = (json.loads(run(*asked[:3], "--json", *more).output) for more in ([], ["--chunk-tokens", "16"]))
    assert (measured["chunk_tokens"], small["chunk_tokens"]) == (TIMES.chunk_tokens, 16)
    assert small["ttft_s"]["p50"] > measured["ttft_s"]["p50"]
    refused = run(*asked[:3], "--chunk-tokens", "2000")
    assert refused.exit_code == 2 and "16<=x<=1024" in refused.output
    assert "iterations of at most 256 tokens" in str(run(*asked[:3], "--chunk-tokens", "257").exception)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        pytest.param(["--policies", "nobody"], "nobody", id="unknown-policy"),
        pytest.param(["--policies", "hpa", "--schedule", "arrow"], "schedule colocated", id="schedule"),
        pytest.param(["--policies", "static", "--warm-up", "300"], "it may be 0 to 200 s", id="nothing-after-warm-up"),
    ],
)
def test_what_cannot_be_simulated_is_refused(asked: list[str], more: list[str], sentence: str) -> None:
    result = run(*asked, *more)
    assert result.exit_code != 0 and sentence in str(result.exception or "") + result.output


@pytest.mark.slow
def test_a_policy_that_fails_in_every_window_is_counted_and_ends_the_command(asked: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from autoscaler.own_policy import per_function\n\ndef rule(row, window):\n    return 1 / 0\n\n"
        "make = per_function(rule)\n"
    )
    own = f"{tmp_path / 'mine.py'}:make"
    result = run(*asked, "--keep", "0.2", "--policies", f"static,{own}")
    assert result.exit_code != 0 and f"{own} failed in every window (ZeroDivisionError" in str(result.exception)
    (line,) = [line for line in result.output.splitlines() if "failed in" in line]
    counted = re.match(rf"{re.escape(own)} failed in (\d+) of (\d+) windows", line)
    assert counted and counted[1] == counted[2] != "0"


def test_what_is_missing_is_named(asked: list[str]) -> None:
    result = run(*asked[:3], "--policies", "hpa")
    assert result.exit_code != 0 and "--pipeline is missing" in str(result.exception or "") + result.output
