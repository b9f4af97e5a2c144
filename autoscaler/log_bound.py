"""What the folder of a function logger may take: beyond it the oldest files go."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from pathlib import Path

MIB = 2**20
BLOCK_BYTES = 4096
"""Files take whole blocks, which is what a volume's limit counts."""
LOOKS = 64
"""The folder is looked through again when this part of the bound was written since: it may hold many thousand files."""


class LogBound:
    """Keeps the logs in ``folder``, of this run and of others, within ``most_mb`` MiB; 0: no bound. What was written
    last stays, however large it is. ``kinds``: what names of the files begin with; they end in the time of their last
    window."""

    def __init__(self, folder: Path, kinds: Collection[str], most_mb: int) -> None:
        self._folder, self._kinds, self._most_bytes = folder, kinds, most_mb * MIB
        self._written_bytes = self._most_bytes
        """Since the folder was last looked through; at the start it is to be."""

    def wrote(self, paths: Iterable[Path]) -> None:
        """Take account of new files, and delete the oldest of the folder where there are too many. Raises OSError."""
        if not self._most_bytes:
            return
        self._written_bytes += sum(map(taken_bytes, paths))
        if LOOKS * self._written_bytes >= self._most_bytes:
            self._delete_oldest()
            self._written_bytes = 0

    def _delete_oldest(self) -> None:
        """The files of a window go together."""
        groups: dict[str, list[Path]] = {}
        for kind, suffix in itertools.product(self._kinds, (".parquet", ".part")):  # a crash leaves parts
            for path in self._folder.glob(f"{kind}-[0-9]*{suffix}"):
                groups.setdefault(path.stem.partition("-")[2], []).append(path)
        sizes = {name: sum(map(taken_bytes, paths)) for name, paths in groups.items()}
        beyond_bytes = sum(sizes.values()) - self._most_bytes
        for name in sorted(groups)[:-1]:
            if beyond_bytes <= 0:
                return
            for path in groups[name]:
                path.unlink(missing_ok=True)  # another run may be at it
            beyond_bytes -= sizes[name]


def taken_bytes(path: Path) -> int:
    """What a file takes of its volume; 0 where it has gone."""
    try:
        return -(-path.stat().st_size // BLOCK_BYTES) * BLOCK_BYTES
    except FileNotFoundError:
        return 0
