"""Where tensors come from: a folder of safetensors files read tensor by tensor, or a seed."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moe.errors import CheckpointError

Config = dict[str, Any]
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""A model of the Hugging Face hub, which is not a folder."""


class Source(Protocol):
    """A checkpoint: its configuration, and tensors by their names in the checkpoint."""

    config: Config
    where: str

    def has(self, name: str) -> bool: ...

    def get(self, name: str, *shape: int, row: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of exactly this shape ``[*shape]``, as stored; with ``row`` only that part of its first axis.
        ``dtype`` None: any floating one of 16 bits or more. Raises CheckpointError when missing or otherwise.
        """


BUFFER = re.compile(r"(position_ids|rotary_emb\.inv_freq|attn\.(bias|masked_bias))$")
"""Tensors of older checkpoints that the configuration implies."""
BEGINNING = re.compile(r"(.*?\blayers?\.\d+)(?=\.)|([^.]+\.[^.]+)(?=\.)|[^.]+")


class FolderSource:
    """A Hugging Face folder: ``config.json`` and ``model.safetensors``, or shards and their index."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.where = str(folder)
        if not self.folder.is_dir():
            hub = HUB_NAME.fullmatch(str(folder))
            hint = f"; download it first: hf download {folder} --local-dir FOLDER" if hub else ""
            raise CheckpointError(f"{folder}: is no folder here{hint}.")
        self.config = read_json(self.folder / "config.json")
        self._files = self._locate()
        self._open: dict[Path, Any] = {}
        self._read: set[str] = set()

    def unread(self) -> dict[str, int]:
        """How many tensors nobody asked for, by what their names begin with; without buffers that hold no weights."""
        left = sorted(name for name in self._files if name not in self._read and not BUFFER.search(name))
        return dict(Counter(BEGINNING.match(name)[0] for name in left))  # type: ignore[index]  # matches any name

    def _locate(self) -> dict[str, Path]:
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            table = read_json(index).get("weight_map")
            if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
                raise CheckpointError(f"{index}: key weight_map must map tensor names to file names.")
            for name in sorted(set(table.values())):
                if Path(name).name != name or not (self.folder / name).is_file():
                    raise CheckpointError(f"{index}: names {name!r}, which is not a file of this folder.")
            return {tensor: self.folder / name for tensor, name in table.items()}
        single = self.folder / "model.safetensors"
        if not single.is_file():
            raise CheckpointError(
                f"{self.folder}: holds neither model.safetensors nor model.safetensors.index.json; "
                "other weight formats are not read."
            )
        return dict.fromkeys(self._reader(single, {}).keys(), single)

    def _reader(self, path: Path, opened: dict[Path, Any]) -> Any:
        if path not in opened:
            try:
                opened[path] = safe_open(str(path), framework="pt")
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path}: is not a readable safetensors file ({error}).") from error
        return opened[path]

    def has(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str, *shape: int, row: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
        if name not in self._files:
            raise CheckpointError(f"{self.folder}: tensor {name!r} is missing.")
        self._read.add(name)
        try:
            stored = self._reader(self._files[name], self._open).get_slice(name)
            stored_shape = tuple(stored.get_shape())
            if stored_shape != shape:
                raise CheckpointError(
                    f"{self.folder}: tensor {name!r} has shape {list(stored_shape)}, config.json implies {list(shape)}."
                )
            tensor: Tensor = stored[:] if row is None else stored[row]
        except SafetensorError as error:
            raise CheckpointError(f"{self._files[name]}: tensor {name!r} cannot be read ({error}).") from error
        if dtype is not None and tensor.dtype != dtype:
            raise CheckpointError(f"{self.folder}: tensor {name!r} is {tensor.dtype}, not {dtype}.")
        if dtype is None and (not tensor.is_floating_point() or tensor.dtype.itemsize < 2):
            raise CheckpointError(f"{self.folder}: tensor {name!r} is {tensor.dtype}; quantised weights are not read.")
        return tensor


class SeededSource:
    """Random weights that depend only on the seed, the tensor's name and its shape: norms 1, biases 0, rest
    normal.

    Matrices are scaled by 1/sqrt of their inputs' width, so that states keep their size through the layers
    and routing depends on the token, which the usual 0.02 would not give at every width.
    """

    def __init__(self, config: Config, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.where = f"seed {seed}"

    def has(self, name: str) -> bool:
        return "experts.gate_up_proj" not in name

    def get(self, name: str, *shape: int, row: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
        last = name.rsplit(".", 1)[-1]
        if len(shape) == 1:
            return torch.zeros(shape) if "bias" in last else torch.ones(shape)
        digest = hashlib.sha256(f"{self.seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        width = 50**2 if "embed" in name or "wte" in name or "wpe" in name else min(shape)
        return torch.randn(shape, generator=generator) / math.sqrt(width)


def read_json(path: Path) -> Config:
    """A JSON object from a file. Raises CheckpointError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not valid JSON ({error}).") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold one JSON object.")
    return value


class Fields:
    """A configuration read key by key; ``finish`` refuses what nobody read and what is not known to be
    harmless.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where
        self.read: set[str] = set()

    def _fail(self, key: str, rule: str) -> CheckpointError:
        value = json.dumps(self.config.get(key), default=str)[:80]
        return CheckpointError(f"{self.where}: config key {key!r} is {value}; {rule}.")

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or ``default`` where the key is missing or null."""
        self.read.add(key)
        value = self.config.get(key)
        return default if value is None else value

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._fail(key, "a whole number of at least 1 is needed")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self._fail(key, "a number above 0 is needed")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self._fail(key, "true or false is needed")
        return value

    def only(self, key: str, *allowed: Any) -> Any:
        """One of ``allowed``; the first stands for a missing key."""
        value = self.get(key, allowed[0])
        if value not in allowed or isinstance(value, bool) != isinstance(allowed[allowed.index(value)], bool):
            raise self._fail(key, f"supported is only {' or '.join(json.dumps(item) for item in allowed)}")
        return value

    def activation(self, key: str, default: str) -> str:
        value = self.get(key, default)
        if not isinstance(value, str) or value not in ACTIVATION_NAMES:
            raise self._fail(key, f"supported are {', '.join(sorted(ACTIVATION_NAMES))}")
        return ACTIVATION_NAMES[value]

    def tokens(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One token id or several; those outside the vocabulary count as none."""
        value = self.get(key, [])
        given = value if isinstance(value, list) else [value]
        if not all(type(one) is int for one in given):
            raise self._fail(key, "a token id is needed, or a list of them")
        return tuple(dict.fromkeys(one for one in given if 0 <= one < vocab_size))

    def token(self, key: str, vocab_size: int) -> int | None:
        """A token id, or None; of several the first (see ``tokens``)."""
        return next(iter(self.tokens(key, vocab_size)), None)

    def finish(self, harmless: frozenset[str] = frozenset()) -> None:
        """Refuse keys that could change the result and that nobody read."""
        for key, value in self.config.items():
            if key in self.read or key in HARMLESS or key in harmless or value in (None, False, [], {}):
                continue
            raise self._fail(key, "this key is not known here, so the model might compute something else")


ACTIVATION_NAMES: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

HARMLESS = frozenset(
    [
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_pdrop",
        "auto_map",
        "classifier_dropout",
        "dtype",
        "embd_pdrop",
        "finetuning_task",
        "gradient_checkpointing",
        "hidden_dropout_prob",
        "id2label",
        "initializer_range",
        "label2id",
        "language",
        "max_length",
        "n_ctx",
        "name",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "problem_type",
        "resid_pdrop",
        "return_dict",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "_attn_implementation_autoset",
        "max_window_layers",
        "num_labels",
        "sep_token_id",
        "cls_token_id",
        "unk_token_id",
        "mask_token_id",
        "prefix",
        "chunk_size_feed_forward",
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "decoder_start_token_id",
        "experts_implementation",
        "_experts_implementation",
    ]
)
"""Keys that do not change what a loaded model computes when it is not being trained."""
