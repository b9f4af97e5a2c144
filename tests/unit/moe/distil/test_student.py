from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moe.distil.start import observe, start
from moe.distil.student import Batch, DenseEncoder, Student, dense_pass
from moe.distil.train import Recipe, batches, factor, loss_of, train

RECIPE = Recipe(experts=4, top_k=2, shared=8, rank=4, tokens=12_000, batch_tokens=256, crop=20, rate=5e-3)


def texts(count: int = 64) -> list[list[int]]:
    g = torch.Generator().manual_seed(9)
    sizes = torch.randint(3, 18, (count,), generator=g).tolist()
    return [torch.randint(1, 64, (size,), generator=g).tolist() for size in sizes]


def student_of(dense: DenseEncoder, top_k: int) -> Student:
    work = batches(texts(), RECIPE, 0)
    return start(dense, work[:3], experts=4, top_k=top_k, shared=8, rank=4, seed=0)


def test_the_teacher_is_the_model_of_transformers(tiny: Path, dense: DenseEncoder) -> None:
    from transformers import BertModel

    batch = Batch.of(texts(5))
    model = BertModel.from_pretrained(str(tiny), add_pooling_layer=False)
    with torch.inference_mode():
        states = model(batch.ids, attention_mask=batch.attended.long()).last_hidden_state
        ours = dense_pass(dense, batch).hidden[-1]
    torch.testing.assert_close(ours[batch.attended], states[batch.attended], rtol=1e-5, atol=1e-5)


def test_with_every_expert_the_student_starts_at_zero_loss(dense: DenseEncoder) -> None:
    student, batch = student_of(dense, top_k=4), Batch.of(texts(8))
    with torch.no_grad():
        loss, cosine = loss_of(student(batch), dense_pass(dense, batch), batch.attended, replace(RECIPE, collapse=0.0))
    assert float(loss) == pytest.approx(0.0, abs=1e-5)
    assert float(cosine) == pytest.approx(1.0, abs=1e-6)


def test_the_first_biases_help_a_student_that_drops_experts(dense: DenseEncoder) -> None:
    student, batch = student_of(dense, top_k=2), Batch.of(texts(32))
    teacher = dense_pass(dense, batch)
    with torch.no_grad():
        helped = loss_of(student(batch), teacher, batch.attended, RECIPE)[0]
        for layer in student.layers:
            layer.expert_bias.zero_()
            layer.shift["finish-bias"].zero_()
        assert float(helped) < float(loss_of(student(batch), teacher, batch.attended, RECIPE)[0])


@pytest.mark.slow
def test_training_lowers_the_loss(dense: DenseEncoder) -> None:
    student, work = student_of(dense, top_k=2), batches(texts(), RECIPE, 0)
    steps = train(student, dense, work, RECIPE)
    assert steps[-1].done == 1.0
    first, last = (sum(step.loss for step in part) for part in (steps[:5], steps[-5:]))
    assert last < 0.7 * first


def test_the_same_seed_trains_the_same_adapter(dense: DenseEncoder) -> None:
    recipe = replace(RECIPE, tokens=600)
    results = []
    for _ in range(2):
        student = student_of(dense, top_k=2)
        train(student, dense, batches(texts(), recipe, 0), recipe)
        results.append(student.adapter())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_gradients_reach_experts_that_were_not_chosen(dense: DenseEncoder) -> None:
    student, batch = student_of(dense, top_k=1), Batch.of(texts(4))
    loss_of(student(batch), dense_pass(dense, batch), batch.attended, RECIPE)[0].backward()
    assert bool((student.layers[0].router_weight.grad.abs().sum(1) > 0).all())


def test_padding_changes_nothing(dense: DenseEncoder) -> None:
    short, long = texts(2)[0], [*range(1, 19)]
    student = student_of(dense, top_k=2)
    with torch.no_grad():
        alone = student(Batch.of([short])).embedding[0]
        beside = student(Batch.of([short, long])).embedding[0]
    torch.testing.assert_close(alone, beside, rtol=1e-5, atol=1e-5)


def test_observing_counts_only_real_tokens(dense: DenseEncoder) -> None:
    seen = observe(dense, [Batch.of([[1, 2, 3], [4]])])
    assert [tuple(x.shape) for x, _ in seen] == [(4, 16), (4, 16)]
    assert all(active.shape == (4, 32) for _, active in seen)


def test_batches_keep_marks_and_respect_the_crop() -> None:
    rows = [[1, *range(5, 5 + size), 2] for size in range(1, 60)]
    for batch in batches(rows, RECIPE, 3):
        assert batch.ids.shape[1] <= RECIPE.crop
        assert batch.ids[:, 0].tolist() == [1] * len(batch.ids)
        ends = batch.attended.sum(1) - 1
        assert batch.ids.gather(1, ends[:, None]).flatten().tolist() == [2] * len(batch.ids)


def test_the_learning_rate_rises_then_falls() -> None:
    values = [factor(share, 0.1) for share in (0.0, 0.05, 0.1, 0.5, 1.0)]
    assert values[0] < values[1] < values[2] == pytest.approx(1.0)
    assert values[2] > values[3] > values[4] == pytest.approx(0.02)
