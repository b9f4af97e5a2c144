from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.checkpoints.bert import BertReader
from moe.checkpoints.reader import DenseFfn
from moe.checkpoints.source import FolderSource
from moe.convert import (
    Groups,
    activation_mass,
    apply_adapter,
    balanced_clusters,
    initial_router,
    split_neurons,
    upcycle_router,
)
from moe.distil.start import encoder_of
from moe.errors import CheckpointError
from tests.parameters import examples
from tests.unit.moe import tiny


def ffn(neurons: int = 24, width: int = 6, seed: int = 0) -> DenseFfn:
    g = torch.Generator().manual_seed(seed)
    return DenseFfn(
        torch.randn(neurons, width, generator=g),
        torch.randn(neurons, generator=g),
        torch.randn(width, neurons, generator=g),
    )


@settings(max_examples=examples(25), deadline=None)
@given(
    neurons=st.integers(8, 40),
    experts=st.integers(1, 5),
    shared=st.integers(0, 3),
    observed=st.booleans(),
    seed=st.integers(0, 3),
)
def test_groups_are_a_balanced_partition(neurons: int, experts: int, shared: int, observed: bool, seed: int) -> None:
    f = ffn(neurons, seed=seed)
    activations = F.gelu(torch.randn(50, 6, generator=torch.Generator().manual_seed(seed)) @ f.w_in.t() + f.b_in)
    groups = split_neurons(f.w_in, f.b_in, f.w_out, experts, seed, activations if observed else None, shared)
    assert sorted(torch.cat([*groups.experts, groups.shared]).tolist()) == list(range(neurons))
    sizes = [len(group) for group in groups.experts]
    assert len(groups.shared) == shared
    assert max(sizes) - min(sizes) <= 1


def test_the_same_seed_gives_the_same_groups() -> None:
    f, x = ffn(), torch.randn(40, 24, generator=torch.Generator().manual_seed(1))
    first = split_neurons(f.w_in, f.b_in, f.w_out, 3, 5, x, 4)
    again = split_neurons(f.w_in, f.b_in, f.w_out, 3, 5, x, 4)
    assert torch.equal(first.of_neurons(), again.of_neurons())


def test_neurons_that_fire_together_go_together() -> None:
    f = ffn(neurons=12)
    f = DenseFfn(f.w_in, f.b_in, torch.ones(6, 12))
    first = torch.rand(200, 1, generator=torch.Generator().manual_seed(2)) > 0.5
    one, other = first.float().expand(-1, 6), (~first).float().expand(-1, 6)
    activations = torch.stack((one, other), 2).reshape(200, 12)  # even neurons fire together, odd ones too
    groups = split_neurons(f.w_in, f.b_in, f.w_out, 2, 0, activations)
    assert {frozenset(g.tolist()) for g in groups.experts} == {frozenset(range(0, 12, 2)), frozenset(range(1, 12, 2))}


def test_the_neurons_that_move_the_output_most_are_shared() -> None:
    f = ffn(neurons=10)
    activations = torch.rand(30, 10, generator=torch.Generator().manual_seed(0))
    activations[:, [2, 7]] *= 100.0
    activations[:, 4] += 100.0  # constant: a bias does its work, so it is not shared
    assert split_neurons(f.w_in, f.b_in, f.w_out, 2, 0, activations, 2).shared.tolist() == [2, 7]


def test_encoders_that_the_student_does_not_compute_are_refused(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("roberta"), tmp_path / "c")
    with pytest.raises(CheckpointError, match="counts positions otherwise"):
        encoder_of(BertReader(FolderSource(checkpoint)))
    encoder_of(BertReader(FolderSource(tiny.store(tiny.build("distilbert"), tmp_path / "d"))))


def test_clusters_that_are_already_balanced_are_found() -> None:
    rows = torch.tensor([[0.0], [0.1], [5.0], [5.1], [9.0], [9.2]])
    labels = balanced_clusters(rows, 3, 0)
    assert labels[0] == labels[1] != labels[2] == labels[3] != labels[4] == labels[5]


def test_blocks_bound_the_memory_of_clustering_and_keep_the_sizes_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moe.convert.BLOCK", 100)
    rows = torch.randn(1999, 4, generator=torch.Generator().manual_seed(0))
    tracemalloc.start()
    labels = balanced_clusters(rows, 6, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1999**2 * 8 / 8  # an eighth of one matrix over all pairs of neurons
    sizes = np.bincount(labels, minlength=6)
    assert sizes.sum() == 1999
    assert sizes.max() - sizes.min() <= 1


def test_clusters_from_blocks_are_nearly_as_close_as_from_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(600, 4, generator=torch.Generator().manual_seed(1))

    def spread() -> float:
        labels = balanced_clusters(rows, 4, 0)
        parts = [rows[torch.from_numpy(labels == cluster)] for cluster in range(4)]
        return sum(float((part - part.mean(0)).pow(2).sum()) for part in parts)

    whole = spread()
    monkeypatch.setattr("moe.convert.BLOCK", 150)
    assert spread() < 1.03 * whole


@pytest.mark.parametrize(("experts", "shared"), [(0, 0), (3, 23), (25, 0), (2, -1)])
def test_numbers_that_do_not_fit_are_refused(experts: int, shared: int) -> None:
    f = ffn()
    with pytest.raises(CheckpointError, match="24 neurons cannot be"):
        split_neurons(f.w_in, f.b_in, f.w_out, experts, 0, None, shared)


def test_groups_survive_their_compact_form() -> None:
    groups = Groups((torch.tensor([0]), torch.tensor([3]), torch.tensor([2])), torch.tensor([1]))
    assert groups.of_neurons().tolist() == [0, -1, 2, 1]
    assert Groups.from_neurons(groups.of_neurons()).of_neurons().tolist() == [0, -1, 2, 1]


@pytest.mark.parametrize("owner", [[0, 2], [-1, -1], [0, 1, -2]])
def test_a_gap_in_the_experts_is_refused(owner: list[int]) -> None:
    with pytest.raises(CheckpointError, match="without a gap"):
        Groups.from_neurons(torch.tensor(owner, dtype=torch.int8))


def test_all_experts_and_the_shared_one_sum_to_the_dense_answer() -> None:
    f = ffn()
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(4))
    groups = split_neurons(f.w_in, f.b_in, f.w_out, 3, 0, None, 5)
    adapter = {"layers.0.groups": groups.of_neurons(), "layers.0.router.weight": torch.zeros(3, 6)}
    adapted = apply_adapter(adapter, 0, {}, f)
    parts = [(e["w_in.weight"], e["w_in.bias"], e["w_out.weight"]) for e in adapted.experts]
    s = adapted.segment
    parts.append((s["shared.w_in.weight"], s["shared.w_in.bias"], s["shared.w_out.weight"]))
    total = sum(F.gelu(x @ w.t() + b) @ o.t() for w, b, o in parts)
    torch.testing.assert_close(total, F.gelu(x @ f.w_in.t() + f.b_in) @ f.w_out.t(), rtol=1e-5, atol=1e-5)


def test_changes_are_added_where_they_belong() -> None:
    f = ffn()
    adapter = {
        "layers.1.groups": torch.zeros(24, dtype=torch.int8),
        "layers.1.router.weight": torch.ones(1, 6),
        "layers.1.ffn.w_in.up": torch.ones(24, 1),
        "layers.1.ffn.w_in.down": torch.full((1, 6), 0.5),
        "layers.1.attention.norm.bias": torch.full((6,), 2.0),
        "layers.0.finish.bias": torch.full((6,), 3.0),
        "layers.1.expert.bias": torch.full((1, 6), 4.0),
    }
    dense = {"attention.norm.bias": torch.ones(6), "finish.bias": torch.ones(6), "embed.words": torch.ones(2, 6)}
    adapted = apply_adapter(adapter, 1, dense, f)
    assert torch.equal(adapted.experts[0]["w_in.weight"], f.w_in + 0.5)
    assert torch.equal(adapted.experts[0]["w_out.bias"], torch.full((6,), 4.0))
    assert adapted.segment["attention.norm.bias"].tolist() == [3.0] * 6
    assert adapted.segment["finish.bias"].tolist() == [4.0] * 6
    assert torch.equal(adapted.segment["embed.words"], torch.ones(2, 6))


def test_an_adapter_of_another_model_is_refused() -> None:
    adapter = {"layers.0.groups": torch.zeros(23, dtype=torch.int8), "layers.0.router.weight": torch.zeros(1, 6)}
    with pytest.raises(CheckpointError, match="another model"):
        apply_adapter(adapter, 0, {}, ffn())


def test_half_a_low_rank_change_is_refused() -> None:
    adapter = {
        "layers.0.groups": torch.zeros(24, dtype=torch.int8),
        "layers.0.router.weight": torch.zeros(1, 6),
        "layers.0.ffn.w_in.up": torch.zeros(24, 2),
    }
    with pytest.raises(CheckpointError, match=r"layers\.0\.ffn\.w_in"):
        apply_adapter(adapter, 0, {}, ffn())


def test_the_first_router_finds_a_linear_law() -> None:
    g = torch.Generator().manual_seed(0)
    x, law = torch.randn(4000, 5, generator=g), torch.randn(3, 5, generator=g)
    weight, bias = initial_router(x, x @ law.t() + 2.0)
    torch.testing.assert_close(weight, law, rtol=0.05, atol=0.02)
    torch.testing.assert_close(bias, torch.full((3,), 2.0), rtol=0.05, atol=0.02)


def test_mass_is_the_norm_of_each_experts_output() -> None:
    groups = Groups((torch.tensor([0, 1]), torch.tensor([2])), torch.arange(0))
    mass = activation_mass(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[3.0, 0.0, 1.0], [0.0, 2.0, 0.0]]), groups)
    assert mass.tolist() == [[5.0, 3.0]]  # (3, 4) and (3, 0)


def test_the_upcycled_router_points_at_the_clusters() -> None:
    hidden = torch.tensor([[1.0, 0.0]] * 5 + [[0.0, 1.0]] * 5) + torch.arange(10)[:, None] * 1e-3
    router = upcycle_router(hidden, 2, 0)
    choice = (hidden @ router.t()).argmax(1)
    assert len(set(choice[:5].tolist())) == len(set(choice[5:].tolist())) == 1
    assert choice[0] != choice[-1]
