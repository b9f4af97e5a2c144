"""The layered DAGNN against the general one on torch-geometric, and that against a hand-worked node.

torch-geometric is imported by the tests: it takes seconds, and one worker has them all.
"""

from __future__ import annotations

import pytest
import torch

from rl.agent.dagnn import Dagnn
from rl.agent.errors import NetworkError
from tests.unit.rl.agent.conftest import make_space

WIDTH = 12


@pytest.mark.parametrize("experts", [(3,), (4, 4, 4), (1, 5, 2), (8,) * 12], ids=["one", "even", "unequal", "bert"])
def test_both_forms_are_equal_with_the_same_weights(experts: tuple[int, ...]) -> None:
    from rl.agent.dagnn_pyg import GeneralDagnn

    space = make_space(experts)
    fast, general = Dagnn(WIDTH, 2), GeneralDagnn(WIDTH, 2)
    general.load_state_dict(fast.state_dict())
    segments = torch.randn(2, len(experts) + 1, WIDTH)
    own = torch.randn(2, len(experts), max(experts), WIDTH)
    of_segments, of_experts = fast(segments, own, space.mask)
    embedded = general(torch.cat((segments, own[:, space.mask]), 1), space.edges)
    assert torch.allclose(embedded[:, : len(experts) + 1], of_segments, atol=1e-6)
    assert torch.allclose(embedded[:, len(experts) + 1 :], of_experts[:, space.mask], atol=1e-6)


def test_both_forms_have_the_same_gradients() -> None:
    from rl.agent.dagnn_pyg import GeneralDagnn

    space = make_space((3, 2))
    fast, general = Dagnn(WIDTH, 2), GeneralDagnn(WIDTH, 2)
    general.load_state_dict(fast.state_dict())
    segments, own = torch.randn(2, 3, WIDTH), torch.randn(2, 2, 3, WIDTH)
    of_segments, of_experts = fast(segments, own, space.mask)
    (of_segments.square().sum() + of_experts[:, space.mask].square().sum()).backward()
    general(torch.cat((segments, own[:, space.mask]), 1), space.edges).square().sum().backward()
    for (name, one), (_, other) in zip(fast.named_parameters(), general.named_parameters(), strict=True):
        assert one.grad is not None and torch.allclose(one.grad, other.grad, atol=1e-4), name


def test_a_node_of_two_predecessors_is_the_gru_of_their_weighted_sum() -> None:
    from rl.agent.dagnn_pyg import GeneralDagnn

    network = GeneralDagnn(WIDTH, 1)
    nodes = torch.randn(1, 3, WIDTH)
    embedded = network(nodes, ((0, 2), (1, 2)))[0, :, WIDTH:]
    layer = network.layers[0]
    first = layer.gru(nodes[0, :2], torch.zeros(2, WIDTH))  # type: ignore[operator]
    weights = (first @ layer.key.weight[0]).softmax(0)  # type: ignore[union-attr, index]
    message = (weights.unsqueeze(-1) * first).sum(0, keepdim=True)
    assert torch.allclose(embedded[:2], first, atol=1e-6)
    assert torch.allclose(embedded[2:], layer.gru(nodes[0, 2:], message), atol=1e-6)  # type: ignore[operator]


def test_generations_alternate_between_segments_and_experts() -> None:
    from rl.agent.dagnn_pyg import generations

    assert generations(6, make_space((2, 1)).edges) == [[0], [3, 4], [1], [5], [2]]


def test_a_cycle_is_refused() -> None:
    from rl.agent.dagnn_pyg import generations

    with pytest.raises(NetworkError, match="cycle"):
        generations(3, ((0, 1), (1, 2), (2, 1)))
