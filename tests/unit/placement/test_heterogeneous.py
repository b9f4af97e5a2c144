"""Profiles of unlike nodes, Prism's plan for a running pipeline, and when it is worth its move."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from moe.manifest import Manifest, load
from placement.errors import InfeasibleError, PlacementError
from placement.heterogeneous import (
    MIB,
    Profile,
    chosen,
    expert_bytes,
    held_now,
    places_of,
    planned,
    read_profile,
    seen_by,
)
from smoe.cli import cli


@pytest.fixture
def manifest(minilm_pipeline: Path) -> Manifest:
    return load(minilm_pipeline, verify=False)


def profile_of(tmp_path: Path, experts: dict[str, int], size: int, **more: Any) -> Profile:
    """Nodes with room for so many experts each."""
    nodes = {name: {"memory_mb": (count * size + size // 2) / MIB} for name, count in experts.items()}
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({"nodes": nodes, "mbit_per_s": 500, **more}))
    return read_profile(path)


def document(manifest: Manifest, node: str, tokens: list[float], window_s: float = 300.0) -> tuple[str, Any]:
    return node, {"node": node, "window_s": window_s, "tokens": [tokens] * manifest.layers}


def test_a_profile_gives_every_gpu_of_a_node_what_the_node_has(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    nodes = {"a": {"memory_mb": 8}, "b": {"memory_mb": [4, 2], "speed": 2, "load_mb_per_s": 100}}
    path.write_text(json.dumps({"nodes": nodes, "mbit_per_s": {"a": {"b": 80}, "b": {"a": 8}}}))
    profile = read_profile(path)
    assert profile.names == ("a", "b")
    assert profile.cluster.node.tolist() == [0, 1, 1]
    assert profile.cluster.memory_bytes.tolist() == [8 * MIB, 4 * MIB, 2 * MIB]
    assert profile.cluster.speed.tolist() == [1, 2, 2]
    assert profile.cluster.load_bytes_per_s.tolist() == [1e9, 1e8, 1e8]
    assert (profile.cluster.bandwidth[0, 1], profile.cluster.bandwidth[1, 0]) == (1e7, 1e6)
    assert profile.nodes_as_gpus().memory_bytes.tolist() == [8 * MIB, 6 * MIB]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not a profile of nodes in JSON"),
        ("[]", "takes an object"),
        ('{"nodes": {"a": {"memory_mb": 1}}, "mbit_per_s": 1}', "fewer than two"),
        ('{"nodes": {"a": {"memory_mb": -1}, "b": {"memory_mb": 1}}, "mbit_per_s": 1}', "memory_mb is -1"),
        ('{"nodes": {"a": {"memory_mb": []}, "b": {"memory_mb": 1}}, "mbit_per_s": 1}', r"memory_mb is \[\]"),
        ('{"nodes": {"a": {"memory_mb": NaN}, "b": {"memory_mb": 1}}, "mbit_per_s": 1}', "memory_mb is nan"),
        ('{"nodes": {"a": {}, "b": {"memory_mb": 1}}, "mbit_per_s": 1}', "memory_mb is missing"),
        ('{"nodes": {"a": {"memory_mb": 1, "ram": 1}, "b": {"memory_mb": 1}}}', "'ram' is not known"),
        ('{"nodes": {"A b": {"memory_mb": 1}, "b": {"memory_mb": 1}}}', "lower-case letters"),
        ('{"nodes": {"a": {"memory_mb": 1}, "b": {"memory_mb": 1}}}', "mbit_per_s is missing"),
        ('{"nodes": {"a": {"memory_mb": 1}, "b": {"memory_mb": 1}}, "mbit_per_s": {"a": {"b": 1}}}', "b is missing"),
        ('{"nodes": {"a": {"memory_mb": 1}, "b": {"memory_mb": 1}}, "mbit_per_s": {"c": 1}}', "'c' is no node"),
        ('{"nodes": {"a": {"memory_mb": 1}, "b": {"memory_mb": 1}}, "mbit_per_s": true}', "mbit_per_s is True"),
    ],
)
def test_a_profile_that_cannot_be_gets_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(text)
    with pytest.raises(PlacementError, match=sentence):
        read_profile(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"node": "z"}, "node is 'z'"),
        ({"node": ""}, "each ingress names its own"),
        ({"tokens": [[1.0]]}, "tokens must be"),
        ({"tokens": "many"}, "tokens must be"),
        ({"window_s": 0}, "window_s is 0"),
    ],
)
def test_statistics_that_cannot_be_get_a_sentence(
    manifest: Manifest, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    profile = profile_of(tmp_path, {"a": 12, "b": 12}, expert_bytes(manifest))
    where, found = document(manifest, "a", [1.0, 1, 1, 1])
    with pytest.raises(PlacementError, match=sentence):
        seen_by([(where, {**found, **change})], profile, manifest)


def test_ingresses_of_one_node_are_added_and_a_pipeline_without_any_is_reported(
    manifest: Manifest, tmp_path: Path
) -> None:
    profile = profile_of(tmp_path, {"a": 12, "b": 12}, expert_bytes(manifest))
    documents = [document(manifest, "b", [1.0, 2, 3, 4]), document(manifest, "b", [1.0, 0, 0, 0], 60.0)]
    seen = seen_by(documents, profile, manifest)
    assert seen.frequency[:, 0].tolist() == [[0, 0, 0, 0], [2, 2, 3, 4]]
    assert seen.window_s == 300.0
    with pytest.raises(PlacementError, match="no ready ingress"):
        seen_by([], profile, manifest)


@pytest.mark.slow
def test_the_plan_keeps_as_many_calls_on_their_nodes_as_any_within_memory(manifest: Manifest, tmp_path: Path) -> None:
    layers = manifest.layers
    profile = profile_of(tmp_path, {"a": 3 * layers, "b": 2 * layers}, expert_bytes(manifest))
    tokens = {"a": [9.0, 5, 4, 1], "b": [2.0, 8, 3, 7]}
    seen = seen_by([document(manifest, node, calls) for node, calls in tokens.items()], profile, manifest)
    held = planned(seen, profile, manifest)
    assert held.any(axis=0).all()
    assert held.sum(axis=(1, 2)).tolist() == [3 * layers, 2 * layers]
    # The best choice for one layer, taken in all of them, is one plan; sharing places among layers can only add.
    best = max(
        sum(tokens["a"][expert] for expert in on_a) + sum(tokens["b"][expert] for expert in on_b)
        for on_a in itertools.combinations(range(4), 3)
        for on_b in itertools.combinations(range(4), 2)
        if set(on_a) | set(on_b) == {0, 1, 2, 3}
    )
    assert float(seen.frequency[held].sum()) >= best * layers


def test_what_does_not_fit_names_the_memory(manifest: Manifest, tmp_path: Path) -> None:
    profile = profile_of(tmp_path, {"a": 1, "b": 1}, expert_bytes(manifest))
    with pytest.raises(InfeasibleError, match="GPU memory"):
        planned(seen_by([document(manifest, "a", [1.0] * 4)], profile, manifest), profile, manifest)


@pytest.mark.parametrize(("calls", "worth"), [(1.0, False), (1e9, True)])
def test_experts_move_to_their_callers_only_when_that_saves_more_than_it_costs(
    manifest: Manifest, tmp_path: Path, calls: float, worth: bool
) -> None:
    half = 2 * manifest.layers
    profile = profile_of(tmp_path, {"a": half, "b": half}, expert_bytes(manifest))
    seen = seen_by(
        [document(manifest, "a", [calls, calls, 0, 0]), document(manifest, "b", [0, 0, calls, calls])],
        profile,
        manifest,
    )
    contrary = {
        manifest.function_name(node.id): {"b": 1} if (node.expert or 0) < 2 else {"a": 1}
        for layer in range(manifest.layers)
        for node in manifest.experts(layer)
    }
    choice = chosen(seen, held_now(contrary, profile, manifest), profile, manifest, horizon_s=300.0)
    assert choice.fits
    assert choice.worth is worth
    row_bytes = manifest.experts(0)[0].bytes_in_per_token + manifest.experts(0)[0].bytes_out_per_token
    assert choice.verdict.now_s == pytest.approx(4 * calls * manifest.layers * row_bytes / 62.5e6)
    assert choice.verdict.then_s == 0
    assert choice.verdict.move_s == pytest.approx(4 * manifest.layers * expert_bytes(manifest) / 1e9)
    target = places_of(choice.held, profile, manifest, contrary)
    assert all(target[name] == ({"a": 1} if now == {"b": 1} else {"b": 1}) for name, now in contrary.items())


def test_nothing_is_copied_to_a_node_that_does_not_call_it(manifest: Manifest, tmp_path: Path) -> None:
    layers = manifest.layers
    profile = profile_of(tmp_path, {"a": 4 * layers, "b": 4 * layers}, expert_bytes(manifest))
    documents = [document(manifest, "a", [9.0, 9, 9, 0]), document(manifest, "b", [0.0, 0, 9, 0])]
    now = np.zeros((2, layers, 4), dtype=bool)
    now[0, :, :2] = now[1, :, 2:] = True
    choice = chosen(seen_by(documents, profile, manifest), now, profile, manifest, horizon_s=300.0)
    assert choice.held[0, 0].tolist() == [True, True, True, False]
    assert choice.held[1, 0].tolist() == [False, False, True, True]
    assert choice.verdict.copied == layers
    nowhere = chosen(seen_by(documents, profile, manifest), ~now & False, profile, manifest, horizon_s=300.0)
    assert nowhere.held[:, 0].sum(axis=0).tolist() == [1, 1, 2, 1]


def test_what_runs_beyond_the_profiles_memory_moves_whatever_it_costs(manifest: Manifest, tmp_path: Path) -> None:
    half = 2 * manifest.layers
    profile = profile_of(tmp_path, {"a": half, "b": half}, expert_bytes(manifest))
    seen = seen_by([document(manifest, "a", [1.0] * 4)], profile, manifest)
    everything = np.zeros((2, manifest.layers, 4), dtype=bool)
    everything[0] = True
    choice = chosen(seen, everything, profile, manifest, horizon_s=300.0)
    assert (choice.fits, choice.verdict.worth, choice.worth) == (False, False, True)


def test_a_plan_as_places_keeps_how_many_replicas_a_node_has_and_leaves_the_rest_alone(
    manifest: Manifest, tmp_path: Path
) -> None:
    profile = profile_of(tmp_path, {"a": 24, "b": 24}, expert_bytes(manifest))
    held = np.zeros((2, manifest.layers, 4), dtype=bool)
    held[0] = True
    held[1, :, 0] = True
    names = [[manifest.function_name(node.id) for node in manifest.experts(at)] for at in range(manifest.layers)]
    now = {name: {"a": 3} for layer in names for name in layer}
    assert places_of(held, profile, manifest, now) == {layer[0]: {"a": 3, "b": 3} for layer in names}
    assert places_of(held, profile, manifest)[names[0][1]] == {"a": 1}
    with pytest.raises(PlacementError, match="node 'z'"):
        held_now({**now, names[0][0]: {"z": 1}}, profile, manifest)
    with pytest.raises(PlacementError, match="share a function"):
        held_now({}, profile, manifest)


def test_place_takes_a_profile_and_every_ingresss_statistics(
    manifest: Manifest, minilm_pipeline: Path, tmp_path: Path
) -> None:
    half = 2 * manifest.layers
    profile_of(tmp_path, {"a": half, "b": half}, expert_bytes(manifest))
    for node, tokens in (("a", [9.0, 9, 0, 0]), ("b", [0.0, 0, 9, 9])):
        (tmp_path / f"{node}.json").write_text(json.dumps(document(manifest, node, tokens)[1]))
    arguments = ["place", str(minilm_pipeline), "--nodes", str(tmp_path / "nodes.json"), "--state", str(tmp_path)]
    given = ["--statistics", str(tmp_path / "a.json"), "--statistics", str(tmp_path / "b.json")]
    result: Result = CliRunner().invoke(cli, [*arguments, *given, "--json"])
    assert result.exit_code == 0, result.output
    parsed = json.loads(result.output)
    assert {row["local_share"] for row in parsed["nodes"].values()} == {1.0}
    assert {row["entropy_bits"] for row in parsed["nodes"].values()} == {1.0}
    for layer in range(manifest.layers):
        names = [manifest.function_name(node.id) for node in manifest.experts(layer)]
        assert [parsed["plan"][name] for name in names] == [{"a": 1}, {"a": 1}, {"b": 1}, {"b": 1}]
    table = CliRunner().invoke(cli, [*arguments, *given])
    assert table.exit_code == 0 and "local share" in table.output
