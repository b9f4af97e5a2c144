"""Chat templates are rendered as transformers renders them, and refused at the split where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from functions.generation.chat import ChatTemplate
from moe.errors import CheckpointError
from moe.manifest import Tokenizer
from moe.preset import byte_tokenizer
from moe.split import split
from moe.tokenize import TOKENIZER_FILE, TextTokenizer
from tests.unit.moe import tiny

MESSAGES = [{"role": "user", "content": "<grün>"}, {"role": "assistant", "content": "yes"}]
TEMPLATES = {
    "loop controls": "{% for m in messages %}{% if m.role != 'user' %}{% break %}{% endif %}{{ m.content }}{%endfor%}",
    "generation": "{% for m in messages %}\n{% generation %}\n{{ m.content }}|{% endgeneration %}\n{% endfor %}",
    "a generation's own names": "{% generation %}{% set a = 1 %}{% endgeneration %}{{ a is defined }}",
    "no tools": "{% if tools is not none or documents is not none %}tools{% endif %}{{ messages[0] | tojson }}",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_gives_the_text_that_transformers_gives(template: str, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    path, tokenizer = tmp_path / "chat_template.jinja", byte_tokenizer(256)
    path.write_text(template)
    tokenizer.save(str(tmp_path / TOKENIZER_FILE))
    ours = ChatTemplate(path, TextTokenizer(tmp_path, Tokenizer(TOKENIZER_FILE, 99))).render(MESSAGES)
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    wanted = theirs.apply_chat_template(MESSAGES, chat_template=template, tokenize=False, add_generation_prompt=True)
    assert ours == wanted


def test_a_template_that_is_none_is_refused_at_the_split(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("mixtral", vocab_size=300), tmp_path / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / TOKENIZER_FILE))
    (checkpoint / "chat_template.jinja").write_text("{% for m in messages %}")
    with pytest.raises(CheckpointError, match="the chat template cannot be read"):
        split(checkpoint, tmp_path / "tiny", "tiny")
    assert not (tmp_path / "tiny").exists()
