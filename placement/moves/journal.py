"""A move on disk while it is under way, so that whoever finds it can finish it or take it back."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from gateway.client.errors import StateError
from placement.moves.cluster import Places
from placement.moves.errors import MoveError

Phase = Literal["copying", "switching", "releasing"]


@dataclass(frozen=True)
class Entry:
    """``before``: replicas of every function of the pipeline; ``target``: of those that the move names."""

    pipeline: str
    phase: Phase
    before: Places
    target: Places
    annotations: Mapping[str, str] = field(default_factory=dict)
    """``smoe.placement`` of those that the move names, as it was before."""

    @property
    def whole(self) -> Places:
        """Every function as it is to be."""
        return {**self.before, **self.target}


class Journal:
    """One file for each pipeline; writes are atomic."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "moves"

    @contextmanager
    def alone(self, pipeline: str) -> Iterator[None]:
        """No other process moves the pipeline meanwhile; one that ends lets go. Raises MoveError where one does."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.path(pipeline).with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise MoveError(f"another move of {pipeline} is under way; try again when it has ended") from error
            yield

    def write(self, entry: Entry) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = self.path(entry.pipeline).with_suffix(".part")
        with part.open("w") as file:
            json.dump(asdict(entry), file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path(entry.pipeline))

    def read(self, pipeline: str) -> Entry | None:
        """The move that was under way, if any. Raises StateError for a file that is no journal."""
        path = self.path(pipeline)
        try:
            document = json.loads(path.read_text())
            return Entry(
                document["pipeline"],
                document["phase"],
                _places(document["before"]),
                _places(document["target"]),
                dict(document.get("annotations", {})),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(f"{path} is not a journal of a move ({error!r}); remove it") from error

    def clear(self, pipeline: str) -> None:
        self.path(pipeline).unlink(missing_ok=True)

    def path(self, pipeline: str) -> Path:
        """The file of a move that is under way, or was broken off."""
        return self._folder / f"{pipeline}.json"


def _places(document: Mapping[str, Mapping[str, int]]) -> Places:
    return {name: {node: int(count) for node, count in by_node.items()} for name, by_node in document.items()}
