"""Tokens that end a text: what the checkpoint's configuration and its settings for generation state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moe.errors import CheckpointError
from moe.manifest import MANIFEST_FILE, Tokenizer, load
from moe.preset import byte_tokenizer
from moe.split import split
from tests.unit.moe import tiny
from tests.unit.moe.stored import change_config


def tokenizer_of(folder: Path, stated: Any, generation: Any) -> Tokenizer:
    """That of a pipeline whose checkpoint states these ends in its configuration and in its settings for generation."""
    checkpoint = tiny.store(tiny.build("mixtral", vocab_size=300), folder / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / "tokenizer.json"))
    change_config(checkpoint, eos_token_id=stated)
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    split(checkpoint, folder / "tiny", "tiny")
    tokenizer = load(folder / "tiny").tokenizer
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize(
    ("stated", "generation", "ends"),
    [
        pytest.param([290, 291, 292], None, {290, 291, 292}, id="several"),
        pytest.param(290, [290, 295], {290, 295}, id="generation"),
        pytest.param([290, 999], 291, {290, 291}, id="outside-the-vocabulary"),
    ],
)
def test_a_text_ends_with_any_token_that_the_checkpoint_states(
    stated: Any, generation: Any, ends: set[int], tmp_path: Path
) -> None:
    tokenizer = tokenizer_of(tmp_path, stated, generation)
    assert tokenizer.end_tokens == ends
    assert tokenizer.special["eos"] == 290


def test_one_end_is_written_as_before_there_were_several(tmp_path: Path) -> None:
    assert tokenizer_of(tmp_path, 290, 290).end_tokens == {290}
    assert "ends" not in json.loads((tmp_path / "tiny" / MANIFEST_FILE).read_text())["tokenizer"]


def test_settings_for_generation_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"generation_config.json.*'eos_token_id' is \"end\""):
        tokenizer_of(tmp_path, 290, "end")
