from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
import torch

from moe.distil.measure import LoadMeter, busiest_over_mean, chosen_texts, summary
from moe.distil.mixing import dressed, joined, mix
from moe.distil.run import training_texts
from moe.distil.texts import SAMPLES, Texts, articles, divide, docstrings, entries, gather, glosses, is_held_out
from moe.errors import TextError


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    folder = tmp_path / "prompts"
    folder.mkdir()
    rows = [json.dumps({"question": f"How many apples are {n} apples and two?"}) for n in range(200)]
    (folder / "gsm8k_test_first_900.jsonl").write_text("\n".join(rows))
    return folder


@pytest.mark.slow
def test_no_text_is_trained_on_and_measured_with(prompts: Path, tmp_path: Path) -> None:
    texts = gather(prompts, tmp_path)
    trained = {text for kind in texts.training.values() for text in kind}
    measured = {text for side in (texts.held_out, texts.foreign) for kind in side.values() for text in kind}
    assert trained
    assert len(texts.held_out["school"]) + len(texts.training["school"]) == 200
    assert not trained & measured


@pytest.mark.slow
def test_foreign_kinds_are_never_among_the_training_kinds(prompts: Path, tmp_path: Path) -> None:
    texts = gather(prompts, tmp_path)
    assert set(texts.foreign) == {"documentation", "everyday"}
    assert not set(texts.foreign) & set(texts.training)


def test_all_texts_of_a_document_are_on_one_side() -> None:
    documents = [(f"title {n}", [f"text {n} of part {part} and more" for part in range(3)]) for n in range(100)]
    training, held_out = divide(documents)
    for n in range(100):
        side = held_out if is_held_out(f"title {n}") else training
        assert sum(text.startswith(f"text {n} ") for text in side) == 3


def test_a_text_that_occurs_again_is_used_once() -> None:
    training, held_out = divide([("a", ["The same   words again."]), ("b", ["The same words again."])])
    assert len(training) + len(held_out) == 1


def test_the_committed_dictionary_sample_was_never_trained_on() -> None:
    lines = (SAMPLES / "dictionary.txt").read_text().splitlines()
    assert len(lines) >= 150
    assert all(is_held_out(line) for line in lines)


def test_everyday_sentences_are_there() -> None:
    assert len((SAMPLES / "everyday.txt").read_text().splitlines()) == 720


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="none of the text files known"):
        gather(tmp_path)


@pytest.mark.slow
def test_a_machine_without_texts_to_train_on_is_reported_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moe.distil.texts.default_folder", lambda: None)
    with pytest.raises(TextError, match="wordnet-base"):
        training_texts(None, tmp_path, 0)


def test_paragraphs_belong_to_their_article(tmp_path: Path) -> None:
    line = "The <unk> was 3 @.@ 5 metres long , and so was the other one that lay beside it ."
    (tmp_path / "w").write_text(f" = First = \n \n {line}\n = = Part = = \n = Second = \n {line}\n")
    documents = dict(articles(tmp_path / "w"))
    assert documents["First"][0].strip().startswith("The something was 3.5 metres long, and")
    assert len(documents["Second"]) == 1


def test_glosses_follow_the_bar(tmp_path: Path) -> None:
    (tmp_path / "data.noun").write_text('  1 licence text\n00001 03 n | a thing; "a thing of beauty"\n')
    assert list(glosses(tmp_path)) == [('a thing; "a thing of beauty"', [' a thing; "a thing of beauty"'])]


def test_dictionary_entries_lose_their_marks(tmp_path: Path) -> None:
    body = "".join(f"word{n} {{linked}} [1913 Webster] " + "meaning " * 10 + "\n" for n in range(52))
    with gzip.open(tmp_path / "g.dz", "wt") as file:
        file.write(body)
    texts = [text for _, [text] in entries(tmp_path / "g.dz")]
    assert len(texts) == 2
    assert "[" not in texts[0] and "{" not in texts[0]


def test_docstrings_are_found_in_modules_classes_and_functions(tmp_path: Path) -> None:
    words = "a sentence that is long enough to be called a piece of documentation"
    (tmp_path / "a.py").write_text(
        f'"""Module, {words}."""\nclass A:\n    """Class, {words}."""\n    def f(self):\n        """Short."""\n'
    )
    (tmp_path / "b.py").write_text("this is no Python (")
    assert docstrings(tmp_path) == [f"Module, {words}.", f"Class, {words}."]


def test_made_texts_repeat_with_their_seed_and_keep_the_words() -> None:
    texts = [f"number {n} is followed by something else entirely" for n in range(20)]
    assert mix(texts, 10, 0.5, random.Random(1)) == mix(texts, 10, 0.5, random.Random(1))
    made = dressed(texts[0], ["alpha", "beta"], random.Random(2)).split()
    plain = iter(made)
    assert all(word in plain for word in texts[0].split())  # in order, with terms in between
    assert joined("a b c", "d e f", random.Random(0)).split()[0] in "abc"


@pytest.mark.parametrize(("loads", "skew"), [([5, 5, 5, 5], 1.0), ([6, 2, 2, 2], 2.0), ([9, 0, 0], 3.0)])
def test_skew_is_busiest_over_mean(loads: list[int], skew: float) -> None:
    assert busiest_over_mean(torch.tensor(loads)) == pytest.approx(skew)


def test_the_meter_counts_tokens_of_experts_and_idle_experts_as_zero() -> None:
    meter = LoadMeter()
    for node, tokens in (("segment-0", 3), ("expert-0-0", 2), ("expert-0-2", 4), ("expert-1-1", 5), ("expert-0-0", 1)):
        meter(node, {"x": torch.zeros(tokens, 2)}, {})
    assert [layer.tolist() for layer in meter.loads(2)] == [[3, 0, 4], [0, 5, 0]]


def test_summaries_give_mean_and_low_percentile() -> None:
    result = summary(torch.linspace(0.0, 1.0, 101))
    assert result == {"mean": 0.5, "p5": 0.05, "texts": 101}


def test_texts_are_drawn_the_same_each_time() -> None:
    texts = Texts({}, {"a": [str(n) for n in range(50)]}, {"f": ["x"]}, {})
    rows = chosen_texts(texts, 5)
    assert rows == chosen_texts(texts, 5)
    assert [(kind, len(drawn), foreign) for kind, drawn, foreign in rows] == [("a", 5, False), ("f", 1, True)]
