"""Output of replicas as timestamped lines: bounded in memory for the logs API, rotated on disk for people."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

from gateway.contract import LogLine

MAX_LINE_BYTES = 64 * 1024
"""Longer output without a newline is cut into pieces of this size."""
_FOLLOW_QUEUE = 4096
GATEWAY = "[gateway]"
"""What the backend's own lines begin with."""


class FunctionLog:
    """Lines of all replicas of one function."""

    def __init__(self, name: str, namespace: str, folder: Path, lines: int, file_bytes: int, files: int) -> None:
        self._name = name
        self._namespace = namespace
        self._folder = folder
        self._file_bytes = file_bytes
        self._files = files
        self._lines: deque[LogLine] = deque(maxlen=lines)
        self._followers: set[asyncio.Queue[LogLine | None]] = set()
        self._sizes: dict[str, int] = {}
        """Bytes of the files that are written: of replicas that have not ended."""
        self._closed = False
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def add(self, instance: str, text: str) -> None:
        """Take one line, stamped with the present time. A full disk loses the file's copy, never the function."""
        line = LogLine(self._name, self._namespace, instance, time.time(), text)
        self._lines.append(line)
        with contextlib.suppress(OSError):
            self._to_file(line)
        for queue in self._followers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(line)

    def say(self, instance: str, text: str) -> None:
        """A line of the backend itself about a replica."""
        self.add(instance, f"{GATEWAY} {text}")

    def ended(self, instance: str) -> None:
        """A replica writes no more; its file is kept until there are ``files`` newer ones of ended replicas."""
        self._sizes.pop(instance, None)

    def last(self, instance: str) -> str:
        """The last line that a replica wrote itself; empty where there is none."""
        texts = (line.text for line in reversed(self._lines) if line.instance == instance)
        return next((text for text in texts if text.strip() and not text.startswith(GATEWAY)), "")

    def close(self) -> None:
        """The function is deleted: followers end."""
        self._closed = True
        for queue in self._followers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

    async def read(
        self, *, instance: str | None, since_s: float | None, tail: int, follow: bool
    ) -> AsyncIterator[LogLine]:
        """Lines so far that match (the last ``tail`` of them where it is above 0), then new ones if ``follow``."""
        queue: asyncio.Queue[LogLine | None] = asyncio.Queue(_FOLLOW_QUEUE)

        def wanted(line: LogLine) -> bool:
            return (not instance or line.instance == instance) and (since_s is None or line.timestamp_s >= since_s)

        past = [line for line in self._lines if wanted(line)]
        if follow:
            self._followers.add(queue)
        try:
            for line in past[-tail:] if tail > 0 else past:
                yield line
            while follow and not (self._closed and queue.empty()):
                new = await queue.get()
                if new is None:
                    return
                if wanted(new):
                    yield new
        finally:
            self._followers.discard(queue)

    def _to_file(self, line: LogLine) -> None:
        path = self._folder / f"{line.instance}.log"
        if line.instance not in self._sizes:
            self._sizes[line.instance] = path.stat().st_size if path.exists() else 0
            self._drop_old_files()
        stamp = datetime.fromtimestamp(line.timestamp_s, UTC).isoformat(timespec="milliseconds")
        data = f"{stamp} {line.text}\n".encode(errors="replace")
        if self._sizes[line.instance] + len(data) > self._file_bytes and self._sizes[line.instance]:
            path.replace(path.with_suffix(".log.1"))
            self._sizes[line.instance] = 0
        with path.open("ab") as file:
            file.write(data)
        self._sizes[line.instance] += len(data)

    def _drop_old_files(self) -> None:
        ended = [path for path in self._folder.glob("*.log") if path.name.removesuffix(".log") not in self._sizes]
        ended.sort(key=lambda path: path.stat().st_mtime)
        for path in ended[: max(0, len(ended) - self._files)]:
            path.unlink(missing_ok=True)
            path.with_suffix(".log.1").unlink(missing_ok=True)


class LineReader:
    """Reads a pipe without blocking and hands on complete lines until its writers are gone."""

    def __init__(self, descriptor: int, on_line: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._on_line = on_line
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        """Hand on what is there and close. Safe to call twice."""
        for _ in range(64):  # and no more: what the process started may go on writing
            if not self._read():
                break
        self._finish()

    def _read(self) -> bool:
        """Take one piece; False where nothing is there. The end of the pipe closes this."""
        if self._descriptor < 0:
            return False
        try:
            data = os.read(self._descriptor, MAX_LINE_BYTES)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._emit(line)
        while len(self._rest) >= MAX_LINE_BYTES:
            self._emit(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        if not data:
            self._finish()
        return bool(data)

    def _emit(self, line: bytes) -> None:
        self._on_line(line.rstrip(b"\r").decode(errors="replace"))

    def _finish(self) -> None:
        if self._descriptor < 0:
            return
        if self._rest:
            self._emit(self._rest)
            self._rest = b""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
