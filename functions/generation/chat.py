"""A conversation as one text, by the template of the model's checkpoint."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from functions.wire.errors import BadInputError
from moe.errors import ManifestError
from moe.tokenize import TextTokenizer


class ChatTemplate:
    """Renders as transformers does: Jinja in a sandbox, blocks trimmed, with the tokenizer's special tokens."""

    def __init__(self, path: Path, tokenizer: TextTokenizer) -> None:
        """Raises ManifestError for a file that is no template."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        try:
            self._template = environment.from_string(path.read_text(encoding="utf-8"))
        except (OSError, TemplateError) as error:
            raise ManifestError(f"{path}: is not a readable chat template ({error}).") from error
        special = tokenizer.settings.special
        self._words = {f"{role}_token": tokenizer.word(special[role]) for role in ("bos", "eos") if role in special}

    def render(self, messages: list[dict[str, Any]]) -> str:
        """The text that the model's answer to ``messages`` goes on from. Raises BadInputError."""
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._words)
        except TemplateError as error:
            raise BadInputError(f"the model's chat template refuses these messages: {error}") from None
        except (TypeError, ValueError, KeyError) as error:
            raise BadInputError(f"the model's chat template fails on these messages: {error}") from None


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
