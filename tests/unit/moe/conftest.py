"""One pipeline folder per family for the whole run, made from a tiny random checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from moe.reference import WholeModel
from moe.split import split
from moe.threads import computing_threads
from tests.parameters import some_fast
from tests.unit.moe import tiny


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    with computing_threads(1):
        yield


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> Iterator[None]:
    """What a test leaves behind is what all others of its process compute with."""
    yield
    assert torch.get_num_threads() == 1


@dataclass(frozen=True)
class Case:
    """A checkpoint, transformers' model of it, and its pipeline (dense ones: three experts, all of them
    used).
    """

    family: str
    model: Any
    checkpoint: Path
    folder: Path

    def pipeline(self, **options: Any) -> WholeModel:
        return WholeModel(self.folder, **options)


def make_case(family: str, root: Path, experts: int = 3, top_k: int | None = 3, **changes: Any) -> Case:
    model = tiny.build(family, **changes)
    checkpoint = tiny.store(model, root / "checkpoint")
    native = family in tiny.NATIVE
    split(checkpoint, root / "pipeline", "tiny", experts, None if native else top_k)
    return Case(family, model, checkpoint, root / "pipeline")


@pytest.fixture(scope="session", params=some_fast(tiny.BUILDERS, tiny.FAST))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def bert_case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case("bert", tmp_path_factory.mktemp("bert"), experts=4, top_k=2)
