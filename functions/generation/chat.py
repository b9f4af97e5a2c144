"""A conversation as one text, by the template of the model's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from functions.wire.errors import BadInputError
from moe.chat_template import compile_template
from moe.errors import ManifestError
from moe.tokenize import TextTokenizer


class ChatTemplate:
    """Renders as transformers does, with the tokenizer's special tokens."""

    def __init__(self, path: Path, tokenizer: TextTokenizer) -> None:
        """Raises ManifestError for a file that is no template."""
        try:
            self._template = compile_template(path.read_text(encoding="utf-8"))
        except (OSError, TemplateError) as error:
            raise ManifestError(f"{path}: is not a readable chat template ({error}).") from error
        special = tokenizer.settings.special
        words = {f"{role}_token": tokenizer.word(special[role]) for role in ("bos", "eos") if role in special}
        self._given: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": True, **words}

    def render(self, messages: list[dict[str, Any]]) -> str:
        """The text that the model's answer to ``messages`` goes on from. Raises BadInputError."""
        try:
            return self._template.render(messages=messages, **self._given)
        except TemplateError as error:
            raise BadInputError(f"the model's chat template refuses these messages: {error}") from None
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise BadInputError(f"the model's chat template fails on these messages: {error}") from None
