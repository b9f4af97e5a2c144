"""Text to token ids and back, with limits and clear errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Protocol, runtime_checkable

from tokenizers import Tokenizer as FastTokenizer

from moe import manifest as m
from moe.checkpoints.reader import Reader
from moe.checkpoints.source import Fields, FolderSource, Source, read_json
from moe.errors import CheckpointError, ManifestError, TextError
from moe.manifest_proof import sha256_of

SHORT = 4096
"""Characters of a text that takes about a millisecond. A longer one is encoded as a batch, which alone lets go of the
interpreter's lock: a million characters hold it for 1.6 s, as a batch for 0.02."""
TOKENIZER_FILE = "tokenizer.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
GENERATION_FILE = "generation_config.json"
SPECIAL_TEXTS: dict[str, tuple[str, ...]] = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>", "<|endoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
}


class TextTokenizer:
    """A pipeline's tokenizer. Raises TextError for texts it cannot take."""

    def __init__(self, directory: str | Path, settings: m.Tokenizer) -> None:
        self.settings = settings
        self._path = Path(directory) / settings.file

    @cached_property
    def _tokenizer(self) -> FastTokenizer:
        try:
            return FastTokenizer.from_file(str(self._path))
        except Exception as error:  # the library raises plain Exception for bad files
            raise ManifestError(f"{self._path}: is not a readable tokenizer ({error}).") from error

    def encode(self, text: str) -> list[int]:
        """Token ids of one text, special tokens included; 1 to ``max_tokens`` of them."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text. Raises TextError that names the text by its index."""
        if not texts:
            raise TextError("There is no text; send at least one.")
        for index, text in enumerate(texts):
            if len(text) > self._most_characters:
                raise TextError(
                    f"Text {index} has {len(text)} characters, too many for {self.settings.max_tokens} tokens."
                )
            if not text.strip() and not self._tokenizer.encode(text, add_special_tokens=False).ids:
                raise TextError(f"Text {index} is empty; send at least one character that is not blank.")
        result = self._encoded(texts)
        for index, ids in enumerate(result):
            if len(ids) > self.settings.max_tokens:
                raise TextError(
                    f"Text {index} has {len(ids)} tokens, special ones included; at most "
                    f"{self.settings.max_tokens} are allowed."
                )
            if not ids:
                raise TextError(f"Text {index} holds nothing this tokenizer knows.")
        return result

    def encode_rendered(self, text: str) -> list[int]:
        """Token ids of a text that holds its special tokens already, as chat templates write them. Raises TextError."""
        if len(text) > self._most_characters:
            raise TextError(f"The text has {len(text)} characters, too many for {self.settings.max_tokens} tokens.")
        [ids] = self._encoded([text], special=False)
        if not 1 <= len(ids) <= self.settings.max_tokens:
            raise TextError(f"The text has {len(ids)} tokens; allowed are 1 to {self.settings.max_tokens}.")
        return ids

    def _encoded(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        if len(texts) == 1 and len(texts[0]) <= SHORT:
            return [self._tokenizer.encode(texts[0], add_special_tokens=special).ids]
        batch = self._tokenizer.encode_batch(list(texts), add_special_tokens=special)
        return [encoding.ids for encoding in batch]

    def word(self, token: int) -> str:
        """A token as the vocabulary writes it; empty where it has none of this id."""
        return self._tokenizer.id_to_token(token) or ""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special ones."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    @property
    def _most_characters(self) -> int:
        """More than any tokenizer needs; stops work on absurd input early."""
        return 100 * self.settings.max_tokens


@runtime_checkable
class HasTokenizer(Protocol):
    """A checkpoint that is one file, tokenizer and chat template inside."""

    tokenizer: FastTokenizer
    chat_template: str | None


def adopt_tokenizer(
    manifest: m.Manifest, source: Source, reader: Reader, fallback: str | Path | FastTokenizer | None, folder: Path
) -> m.Manifest:
    """Copy the checkpoint's tokenizer.json (or ``fallback``) into ``folder`` and describe it."""
    template = None
    if isinstance(source, FolderSource):
        template = chat_template(source.folder)
        if (source.folder / TOKENIZER_FILE).is_file():
            fallback = source.folder / TOKENIZER_FILE
    elif isinstance(source, HasTokenizer):
        fallback, template = source.tokenizer, source.chat_template
    if fallback is None:
        return manifest
    where = "the tokenizer given" if isinstance(fallback, FastTokenizer) else str(fallback)
    try:
        tokenizer = fallback if isinstance(fallback, FastTokenizer) else FastTokenizer.from_file(where)
    except Exception as error:  # the library raises plain Exception for bad files
        raise CheckpointError(f"{where}: is not a readable tokenizer ({error}).") from error
    vocab = manifest.architecture.get("encoder", manifest.architecture)["vocab_size"]
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= vocab:
        raise CheckpointError(f"{where}: has token id {largest}, the model's vocabulary ends at {vocab - 1}.")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.save(str(folder / TOKENIZER_FILE), pretty=False)
    copied = folder / TOKENIZER_FILE
    copied.chmod(0o644)
    files = {**manifest.files, TOKENIZER_FILE: m.FileRef(sha256_of(copied), copied.stat().st_size)}
    if template is not None:
        check_template(template, source.where)
        path = folder / CHAT_TEMPLATE_FILE
        path.write_text(template, encoding="utf-8")
        files[CHAT_TEMPLATE_FILE] = m.FileRef(sha256_of(path), path.stat().st_size)
    special = special_ids(tokenizer) | reader.special
    if manifest.family == "bert2bert":
        special = {"decoder_start": special.get("cls", 0), "eos": special.get("sep", 0)} | special
    ends = end_tokens(source, vocab) if manifest.task == "causal-lm" else ()
    settings = m.Tokenizer(
        TOKENIZER_FILE,
        reader.max_tokens,
        special=special,
        chat_template=CHAT_TEMPLATE_FILE if template is not None else None,
        ends=None if ends in ((), (special.get("eos"),)) else ends,
    )
    return replace(manifest, tokenizer=settings, files=files)


def chat_template(checkpoint: Path) -> str | None:
    """The checkpoint's template for conversations: a file of its own, or a key of ``tokenizer_config.json``. Raises
    CheckpointError."""
    path = checkpoint / CHAT_TEMPLATE_FILE
    if path.is_file():
        return path.read_text(encoding="utf-8")
    path = checkpoint / "tokenizer_config.json"
    if not path.is_file():
        return None
    try:
        template = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: is no JSON object ({error}).") from error
    if isinstance(template, list):  # several by name, of which one is for plain conversations
        template = next((one.get("template") for one in template if one.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def check_template(template: str, where: str) -> None:
    """Raises CheckpointError for a chat template that no ingress could read."""
    from jinja2 import TemplateError  # only who splits needs it here

    from moe.chat_template import compile_template

    try:
        compile_template(template)
    except TemplateError as error:
        raise CheckpointError(f"{where}: the chat template cannot be read ({error}).") from error


def end_tokens(source: Source, vocab_size: int) -> tuple[int, ...]:
    """Ids of the tokens that end a text: what the configuration states, then what the settings for generation add.
    Raises CheckpointError."""
    stated = {source.where: source.config}
    if isinstance(source, FolderSource) and (source.folder / GENERATION_FILE).is_file():
        path = source.folder / GENERATION_FILE
        stated[str(path)] = read_json(path)
    ids = (Fields(config, where).tokens("eos_token_id", vocab_size) for where, config in stated.items())
    return tuple(dict.fromkeys(chain(*ids)))


def special_ids(tokenizer: FastTokenizer) -> dict[str, int]:
    """Ids of the special tokens by role, as far as the vocabulary has them under their usual names."""
    result = {}
    for role, texts in SPECIAL_TEXTS.items():
        for text in texts:
            identifier = tokenizer.token_to_id(text)
            if identifier is not None:
                result[role] = int(identifier)
                break
    return result
