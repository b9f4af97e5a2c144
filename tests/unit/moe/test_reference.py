"""The whole model: what is generated with it, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from moe.errors import ProgramInputError, TextError
from moe.preset import byte_tokenizer
from moe.reference import WholeModel, choose
from moe.split import split
from tests.doubles.generation import generate
from tests.unit.moe import tiny
from tests.unit.moe.conftest import Case

END = 256


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> tuple[WholeModel, object]:
    """A tiny GPT-2 that knows bytes, and transformers' model of it."""
    root = tmp_path_factory.mktemp("speaker")
    model = tiny.build("gpt2", vocab_size=260, bos_token_id=END, eos_token_id=END)
    checkpoint = tiny.store(model, root / "c")
    byte_tokenizer(END).save(str(checkpoint / "tokenizer.json"))
    split(checkpoint, root / "p", "tiny", 3, 3)
    return WholeModel(root / "p"), model


def test_greedy_continuation_is_transformers_own(speaker: tuple[WholeModel, object]) -> None:
    ours, model = speaker
    ids = ours.tokenizer.encode("abc")
    theirs = model.generate(  # type: ignore[attr-defined]
        torch.tensor([ids]), max_new_tokens=12, do_sample=False, pad_token_id=END, attention_mask=torch.ones(1, 3)
    )[0, 3:].tolist()
    texts = generate(ours, ["abc"], 12)[0]
    assert texts.token_ids == [token for token in theirs if token != END]
    assert texts.finished == (END in theirs)


def test_generation_stops_at_the_longest_text(speaker: tuple[WholeModel, object]) -> None:
    ours, _ = speaker
    texts = generate(ours, ["a" * 37], 50, temperature=5.0, seed=1)[0]
    assert texts.finished or len(texts.token_ids) == 3


def test_choosing_follows_temperature_and_top_k() -> None:
    logits = torch.tensor([0.0, 1.0, 3.0, 2.9])
    generator = torch.Generator().manual_seed(0)
    assert choose(logits, 0.0, 0, generator) == 2
    drawn = [choose(logits, 1.0, 2, generator) for _ in range(400)]
    assert set(drawn) == {2, 3}
    share = drawn.count(2) / len(drawn)
    assert share == pytest.approx(1 / (1 + 2.718281828 ** (-0.1)), abs=0.08)


def test_tasks_refuse_each_others_questions(bert_case: Case, speaker: tuple[WholeModel, object]) -> None:
    with pytest.raises(ProgramInputError, match="does embedding, not causal-lm"):
        bert_case.pipeline().logits_ids([[1]])
    with pytest.raises(ProgramInputError, match="does causal-lm, not embedding"):
        speaker[0].embed(["a"])
    with pytest.raises(TextError, match="has no tokenizer"):
        bert_case.pipeline().embed(["a"])


def test_several_threads_may_ask_one_model(speaker: tuple[WholeModel, object]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    ours, _ = speaker
    texts = [f"text {i}" for i in range(12)]
    alone = [ours.logits([text]) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda text: ours.logits([text]), texts))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
