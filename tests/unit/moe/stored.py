"""Stored checkpoints changed by hand, and split by the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from moe.commands import split as split_command


def rewrite(checkpoint: Path, change: Any) -> None:
    path = checkpoint / "model.safetensors"
    tensors = change(load_file(path))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def change_config(checkpoint: Path, **changes: Any) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def split_by_command(checkpoint: Path, out: Path, *more: str) -> Any:
    return CliRunner().invoke(split_command, [str(checkpoint), "--out", str(out), *more])
