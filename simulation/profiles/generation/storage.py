"""A decoder's profile on disk: its samples as parquet, what they depend on and the fitted numbers in the metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from simulation.generation.measured import Measured, Sample
from simulation.profiles.measure.machine import Machine
from simulation.profiles.model import parquet
from simulation.profiles.model.errors import ProfileError

_KEY = b"smoe.generation-profile"
_SCHEMA = pa.schema([("texts", pa.int32()), ("tokens", pa.int64()), ("seconds", pa.float64())])


@dataclass(frozen=True)
class GenerationProfile:
    """What a decoder takes on a machine."""

    pipeline: str
    manifest_sha256: str
    machine: Machine
    measured: Measured
    errors: Mapping[str, float]
    """Largest relative error of the fit over what was measured, of prompts and of decodes."""
    begun: str
    """ISO 8601, UTC."""
    load1: float
    """Load average of the machine just before: what else was running."""
    samples: tuple[Sample, ...] = field(repr=False)


def save(profile: GenerationProfile, path: Path) -> None:
    """Write the profile; an existing file is replaced whole."""
    document = asdict(profile)
    document.pop("samples")
    document["measured"] = {
        one.name: getattr(profile.measured, one.name) for one in fields(Measured) if one.init and one.name != "seed"
    }
    columns = {name: [getattr(one, name) for one in profile.samples] for name in _SCHEMA.names}
    parquet.write(path, pa.table(columns, schema=_SCHEMA), _KEY, json.dumps(document).encode())


def load(path: Path) -> GenerationProfile:
    """Read a profile. Raises ProfileError with a sentence for anything that is none."""
    missing = "is no profile of a decoder; `smoe lab profile DECODER --out FILE` makes one"
    table, stored = parquet.read(path, _KEY, measured="DECODER", missing=missing)
    try:
        document: dict[str, Any] = json.loads(stored)
        numbers: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in document["measured"].items()
        }
        rest = {name: document[name] for name in ("pipeline", "manifest_sha256", "errors", "begun", "load1")}
        samples = tuple(Sample(**row) for row in table.select(_SCHEMA.names).to_pylist())
        return GenerationProfile(
            **rest, machine=Machine(**document["machine"]), measured=Measured(**numbers), samples=samples
        )
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise ProfileError(f"{path}: the profile cannot be read: {error}") from error
