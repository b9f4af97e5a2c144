from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from functions.ingress.counts import Statistics
from functions.serving.instruments import IngressInstruments
from moe.manifest import load
from smoe.cli import cli


def run(pipeline: Path, tmp_path: Path, statistics: Any, *options: str) -> Result:
    path = tmp_path / "statistics.json"
    path.write_text(json.dumps(statistics))
    arguments = ["place", str(pipeline), "--statistics", str(path), "--state", str(tmp_path / "state")]
    return CliRunner().invoke(cli, [*arguments, *options])


def reported(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_every_expert_gets_a_place_and_the_busiest_a_second_one(minilm_pipeline: Path, tmp_path: Path) -> None:
    manifest = load(minilm_pipeline, verify=False)
    tokens = [[100.0, 10.0, 10.0, 10.0]] * manifest.layers
    options = ("--node", "a", "--node", "b", "--slots", "3", "--json")
    report = reported(run(minilm_pipeline, tmp_path, {"tokens": tokens}, *options))
    for layer in range(manifest.layers):
        places = [report["plan"][manifest.function_name(node.id)] for node in manifest.experts(layer)]
        assert places[0] == {"a": 1, "b": 1}
        assert all(places)
        assert sum(len(place) for place in places) == 6
    # Sharing evenly, the best split of 100, 10, 10, 10 over two nodes with expert 0 on both is 65 : 65.
    assert [report["nodes"][node]["of_mean"] for node in "ab"] == pytest.approx([1.0, 1.0], abs=0.16)


def test_the_plan_can_be_written_and_read_by_migrate(minilm_pipeline: Path, tmp_path: Path) -> None:
    manifest = load(minilm_pipeline, verify=False)
    shape = (manifest.layers, len(manifest.experts(0)))
    together = np.ones((*shape, shape[1])) - np.eye(shape[1])
    statistics = {"tokens": np.ones(shape).tolist(), "together": together.tolist()}
    out = tmp_path / "plan.json"
    result = run(minilm_pipeline, tmp_path, statistics, "--node", "a", "--node", "b", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "tokens-first" in result.output
    plan = json.loads(out.read_text())
    assert {name.rsplit("-expert-", 1)[0] for name in plan} == {manifest.name}
    assert all(set(places) <= {"a", "b"} and set(places.values()) == {1} for places in plan.values())


@pytest.mark.parametrize(
    ("statistics", "options", "sentence"),
    [
        pytest.param({"tokens": [[1.0]]}, ("--node", "a"), "shape", id="another-pipeline"),
        pytest.param({"other": 1}, ("--node", "a"), "}: tokens is missing", id="no-tokens"),
        pytest.param([1, 2], ("--node", "a"), "}: tokens is missing", id="list"),
        pytest.param({"tokens": []}, ("--node", "a", "--node", "a"), "twice", id="node-twice"),
        pytest.param({"tokens": []}, ("--node", "a=1,b"), "lower-case letters", id="odd-node"),
        pytest.param([1, 2], ("--node", "a"), "form", id="a-list"),
        pytest.param({"tokens": [[-1.0] * 4] * 6}, ("--node", "a"), "tokens holds a number", id="negative"),
        pytest.param({"tokens": [[float("inf")] * 4] * 6}, ("--node", "a"), "tokens holds a number", id="endless"),
        pytest.param({"tokens": [[1.0] * 4] * 6, "together": [[1]]}, ("--node", "a"), "together has", id="pairs-shape"),
        pytest.param(
            {"tokens": [[1.0] * 4] * 6, "together": [[[0, 1, 1, 1], *[[0] * 4] * 3]] * 6},
            ("--node", "a"),
            "not symmetric",
            id="one-sided-pairs",
        ),
    ],
)
def test_what_cannot_be_placed_gets_a_sentence(
    minilm_pipeline: Path, tmp_path: Path, statistics: Any, options: tuple[str, ...], sentence: str
) -> None:
    result = run(minilm_pipeline, tmp_path, statistics, *options)
    assert result.exit_code != 0
    assert sentence in str(result.exception)


@pytest.mark.parametrize(
    "options",
    [(), ("--node", "a", "--nodes", "FILE"), ("--nodes", "FILE", "--slots", "2"), ("--node", "a", "--method", "exact")],
)
def test_options_of_homogeneous_and_heterogeneous_machines_do_not_mix(tmp_path: Path, options: tuple[str, ...]) -> None:
    file = tmp_path / "some.json"
    file.write_text("{}")
    given = [str(file) if option == "FILE" else option for option in options]
    result = CliRunner().invoke(cli, ["place", "--statistics", str(file), *given])
    assert result.exit_code == 2
    assert "--node" in result.output


async def test_an_ingresss_statistics_are_taken_as_they_are(minilm_pipeline: Path, tmp_path: Path) -> None:
    manifest = load(minilm_pipeline, verify=False)
    loop = asyncio.get_running_loop()
    instruments = IngressInstruments("minilm", [node.id for node in manifest.nodes], manifest.layers, loop.time)
    for layer in range(manifest.layers):
        instruments.activations.add(layer, np.array([[0, 1]] * 5 + [[2, 3]]), loop.time())
    statistics = Statistics(instruments, loop)
    document = json.loads(statistics.document())
    statistics.close()
    report = reported(run(minilm_pipeline, tmp_path, document, "--node", "a", "--node", "b", "--json"))
    for layer in range(manifest.layers):
        first, second, *_ = (report["plan"][manifest.function_name(node.id)] for node in manifest.experts(layer))
        assert first != second, "experts chosen together are kept apart"
