"""Routers, scatter and sum, and attention over packed texts, against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.families.attention import attend
from moe.families.linear import Linear
from moe.families.packing import Packing
from moe.families.routing import RouterProgram, dispatch
from moe.manifest import Router
from tests.parameters import examples


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.data())
def test_dispatch_sums_as_a_loop_over_tokens(tokens: int, experts: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, experts))
    generator = torch.Generator().manual_seed(tokens * 100 + experts * 10 + k)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:k] for _ in range(tokens)])
    gates = torch.rand(tokens, k, generator=generator)
    x, residual = torch.randn(2, tokens, 5, generator=generator)
    groups = dispatch(ids, gates)
    assert sum(groups.counts) == tokens * k and list(groups.experts) == sorted(set(ids.flatten().tolist()))
    parts = groups.scatter(x)
    assert [len(part) for part in parts] == list(groups.counts)
    outputs = [part * (expert + 2) for expert, part in zip(groups.experts, parts, strict=True)]
    expected = residual.clone()
    for t in range(tokens):
        for j in range(k):
            expected[t] += gates[t, j] * x[t] * (int(ids[t, j]) + 2)
    assert torch.allclose(groups.combine(residual, outputs), expected, atol=1e-5)


def test_half_precision_sums_are_rounded_once() -> None:
    ids, gates = torch.arange(4)[None], torch.full((1, 4), 0.25)
    residual = torch.full((1, 1), 256.0, dtype=torch.bfloat16)
    groups = dispatch(ids, gates)
    outputs = [torch.ones(1, 1, dtype=torch.bfloat16) for _ in range(4)]
    outputs[0] += 3
    assert groups.combine(residual, outputs).item() == 258.0  # 256 + 1.75; adding one by one would stay at 256


@pytest.mark.parametrize(
    ("settings_", "expected"),
    [
        pytest.param(Router(2, "softmax-topk"), [math.e**2, math.e], id="probabilities"),
        pytest.param(Router(2, "softmax-topk", True), None, id="normalised"),
        pytest.param(Router(2, "topk-softmax"), None, id="softmax-of-best"),
        pytest.param(Router(2, "ones"), [1.0, 1.0], id="ones"),
        pytest.param(Router(2, "ones", scale=0.5), [0.5, 0.5], id="scaled"),
    ],
)
def test_gates_are_what_the_setting_says(settings_: Router, expected: list[float] | None) -> None:
    logits = torch.tensor([[0.0, 2.0, -1.0, 1.0]])
    ids, gates = RouterProgram(Linear(torch.eye(4), None), settings_)(logits)
    assert ids.tolist() == [[1, 3]] and gates.dtype == torch.float32
    total = sum(math.exp(value) for value in logits[0].tolist())
    if settings_.gates == "softmax-topk" and not settings_.normalise:
        wanted = [value / total for value in expected or []]
    elif settings_.gates == "ones":
        wanted = expected or []
    else:
        wanted = [math.e / (math.e + 1), 1 / (math.e + 1)]
    assert gates[0].tolist() == pytest.approx(wanted, rel=1e-5)


def test_plain_sum_over_all_experts_needs_no_logits() -> None:
    ids, gates = RouterProgram(Linear(torch.zeros(3, 4), None), Router(4, "ones"))(torch.zeros(2, 3))
    assert ids.tolist() == [[0, 1, 2, 3]] * 2 and gates.tolist() == [[1.0] * 4] * 2


def slow_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window: int) -> torch.Tensor:
    """One text, head by head and token by token."""
    out = torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    for head in range(q.shape[1]):
        for t in range(q.shape[0]):
            first = max(0, t - window + 1) if causal else 0
            last = t + 1 if causal else k.shape[0]
            keys, values = k[first:last, head // group], v[first:last, head // group]
            weights = torch.softmax(keys @ q[t, head] / math.sqrt(q.shape[2]), 0)
            out[t, head] = weights @ values
    return out.flatten(1)


@settings(deadline=None, max_examples=examples(40))
@given(
    lengths=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=5),
    kv_heads=st.sampled_from([1, 2, 4]),
    kind=st.sampled_from(["full", "causal", "window", "cross"]),
)
def test_packed_attention_equals_slow_attention(lengths: list[tuple[int, int]], kv_heads: int, kind: str) -> None:
    queries = Packing([a for a, _ in lengths])
    keys = Packing([b for _, b in lengths]) if kind == "cross" else queries
    torch.manual_seed(queries.total)
    q, k, v = torch.randn(queries.total, 4, 6), *torch.randn(2, keys.total, kv_heads, 6)
    causal, window = kind in ("causal", "window"), 3 if kind == "window" else None
    ours = attend(q, k, v, queries, keys, causal=causal, window=window)
    parts = zip(q.split(queries.lengths), k.split(keys.lengths), v.split(keys.lengths), strict=True)
    expected = torch.cat([slow_attention(*part, causal, window or 100) for part in parts])
    assert torch.allclose(ours, expected, atol=1e-5)


def test_packing_knows_positions_and_ends() -> None:
    packing = Packing([3, 2])
    assert packing.positions.tolist() == [0, 1, 2, 0, 1]
    assert packing.ends.tolist() == [2, 4]
    assert not packing.even and Packing([2, 2]).even


def test_sparsemixer_gates_each_choice_among_those_near_it() -> None:
    logits = torch.tensor([[1.0, 0.9, -3.0, 0.97]])
    ids, gates = RouterProgram(Linear(torch.eye(4), None), Router(2, "sparsemixer", jitter=0.04))(logits)
    assert ids.tolist() == [[0, 3]]
    first = math.exp(1.0) / (math.exp(1.0) + math.exp(0.97))  # 0.9 is a tenth away, more than twice the jitter
    second = math.exp(0.97) / (math.exp(0.97) + math.exp(0.9))
    assert gates[0].tolist() == pytest.approx([first, second], rel=1e-5)


@settings(deadline=None)
@given(st.integers(0, 1000), st.sampled_from([(6, 1, 1), (6, 3, 1), (6, 2, 2), (8, 4, 2)]), st.booleans())
def test_groups_limit_the_choice_as_a_search_over_all_of_them(
    seed: int, sizes: tuple[int, int, int], sigmoid: bool
) -> None:
    experts, groups, best = sizes
    generator = torch.Generator().manual_seed(seed)
    logits, correction = torch.randn(experts, generator=generator), torch.randn(experts, generator=generator)
    kind, k, size = "sigmoid-topk" if sigmoid else "softmax-topk", 2, experts // groups
    settings_ = Router(k, kind, groups=groups, top_groups=best)  # type: ignore[arg-type]
    program = RouterProgram(Linear(torch.eye(experts), None), settings_, correction if sigmoid else None)
    ids, gates = program(logits[None])
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
    choice = (scores + correction if sigmoid else scores).tolist()
    rows = [sorted(choice[group * size : (group + 1) * size], reverse=True) for group in range(groups)]
    ranked = sorted(range(groups), key=lambda group: -sum(rows[group][: 2 if sigmoid else 1]))[:best]
    allowed = [expert for expert in range(experts) if expert // size in ranked]
    expected = sorted(sorted(allowed, key=lambda expert: -choice[expert])[:k])
    assert sorted(ids[0].tolist()) == expected
    assert sorted(gates[0].tolist()) == pytest.approx(sorted(float(scores[expert]) for expert in expected))
