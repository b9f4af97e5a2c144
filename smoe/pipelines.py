"""Finding a pipeline by name or folder, splitting a preset the first time it is asked for."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rich.console import Console

from gateway.client.state import private_folder
from moe.manifest import Manifest, load
from moe.names import MANIFEST_FILE
from smoe.errors import SmoeError

_STAMP = "source.sha256"


def ensure_pipeline(name: str, pipelines: Path) -> tuple[Path, Manifest]:
    """The folder and manifest of a pipeline, reachable by its name under ``pipelines``.

    ``name`` is a folder that holds a pipeline, a pipeline already there, or a preset, which is split into ``pipelines``
    when it is not there or was split with another adapter. Raises SmoeError, ManifestError, CheckpointError.
    """
    given = Path(name)
    if (given / MANIFEST_FILE).is_file():
        return _adopt(given, pipelines)
    from moe.preset import PRESETS

    folder = pipelines / name
    if name in PRESETS:
        _split_preset(name, folder)
    elif not (folder / MANIFEST_FILE).is_file():
        gguf = given.suffix == ".gguf" and given.is_file()
        if gguf or (given / "config.json").is_file():
            out = f"pipelines/{given.resolve().stem if gguf else given.resolve().name}"
            raise SmoeError(f"{name} is a checkpoint; `smoe pipeline split {name} --out {out}` makes a pipeline of it")
        names = sorted({path.parent.name for path in pipelines.glob(f"*/{MANIFEST_FILE}")} | set(PRESETS))
        raise SmoeError(f"{name!r} is neither a pipeline folder nor a pipeline or preset; known are {', '.join(names)}")
    return folder, load(folder)


def _adopt(folder: Path, pipelines: Path) -> tuple[Path, Manifest]:
    """Make a folder elsewhere reachable by its pipeline's name."""
    manifest = load(folder)
    link = pipelines / manifest.name
    if link.resolve() == folder.resolve():
        return link, manifest
    private_folder(pipelines)
    if link.is_symlink():
        link.unlink()
    elif link.exists():
        raise SmoeError(
            f"{link} is another pipeline called {manifest.name}; give {folder} another --name when splitting"
        )
    link.symlink_to(folder.resolve(), target_is_directory=True)
    return link, manifest


def _split_preset(name: str, folder: Path) -> None:
    from moe.preset import PRESETS, preset_adapter, preset_source

    preset = PRESETS[name]
    adapter = preset_adapter(preset, preset.experts, preset.top_k, "neurons")
    digest = hashlib.sha256(adapter.read_bytes()).hexdigest() if adapter else "none"
    stamp = folder / _STAMP
    if (folder / MANIFEST_FILE).is_file() and stamp.is_file() and stamp.read_text() == digest:
        return
    from moe.split import split  # takes seconds to import

    private_folder(folder.parent)
    with Console(stderr=True).status(f"splitting {name} into functions"):
        split(
            preset_source(preset, None, None, 0),
            folder,
            name,
            preset.experts,
            preset.top_k,
            adapter=adapter,
            layers=preset.layers,
            force=True,
        )
    stamp.write_text(digest)
