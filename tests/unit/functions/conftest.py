"""Tiny pipelines of every family with a byte tokenizer, and small helpers to speak raw HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import pytest

from functions.serving.server import FunctionServer, ServerSettings
from functions.wire.messages import Reply, Request
from moe.preset import byte_tokenizer
from moe.reference import WholeModel
from moe.split import split
from moe.threads import computing_threads
from tests.unit.functions.decoder_bench import tiny_decoder
from tests.unit.moe import tiny

VOCABULARY = 300
END = 256
TWO = {"num_hidden_layers": 2}
FEWER: dict[str, dict[str, int]] = {
    "mixtral": {**TWO, "num_local_experts": 3},
    **dict.fromkeys(("olmoe", "granitemoe", "phimoe", "gpt_oss", "llama", "mistral", "qwen2", "qwen3"), TWO),
}
"""Many workers are started of each, and nothing here hangs on how many layers and experts there are."""


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    with computing_threads(1):
        yield


@pytest.fixture(scope="session")
def pipeline_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a tiny pipeline of a family, made once."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            root = tmp_path_factory.mktemp(family)
            with patch.dict(tiny.BERT, vocab_size=VOCABULARY):
                model = tiny.build(family, vocab_size=VOCABULARY, **FEWER.get(family, {}))
            checkpoint = tiny.store(model, root / "checkpoint")
            byte_tokenizer(END).save(str(checkpoint / "tokenizer.json"))
            native = family in tiny.NATIVE
            split(checkpoint, root / "tiny", "tiny", 4, None if native else 2)
            made[family] = root / "tiny"
        return made[family]

    return make


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> WholeModel:
    """A tiny Mixtral in this process."""
    return tiny_decoder(tmp_path_factory.mktemp("mixtral"))


@pytest.fixture(scope="session")
def bert(pipeline_of: Callable[[str], Path]) -> Path:
    return pipeline_of("bert")


@dataclass
class Held:
    """An application whose answers the test gives by hand."""

    calls: list[tuple[Request, Callable[[Reply], None]]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        self.calls.append((request, answer))
        self.arrived.set()

    def metrics(self) -> bytes:
        return b"held 1\n"

    def close(self) -> None:
        """Holds nothing."""

    async def wait(self, count: int) -> None:
        """Until ``count`` calls have arrived."""
        async with asyncio.timeout(100):
            while len(self.calls) < count:
                self.arrived.clear()
                await self.arrived.wait()

    def answer_all(self, text: bytes = b"done") -> None:
        for _, answer in list(self.calls):
            answer(Reply(200, (text,), "text/plain"))


class Scripted:
    """An application that answers by a function, and remembers what it was asked."""

    def __init__(self, script: Callable[[Request], Reply]) -> None:
        self.script = script
        self.seen: list[Request] = []

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        self.seen.append(request)
        answer(self.script(request))

    def metrics(self) -> bytes:
        return b""

    def close(self) -> None:
        """Holds nothing."""


def echo() -> Scripted:
    return Scripted(lambda request: Reply(200, (bytes(request.body),), "text/plain"))


@dataclass
class Running:
    """A server on a port of this machine."""

    server: FunctionServer
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def send(self, data: bytes, replies: int = 1) -> list[tuple[int, dict[str, str], bytes]]:
        """Raw bytes on a new connection; reads ``replies`` replies."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            return [await read_reply(reader) for _ in range(replies)]
        finally:
            writer.close()


async def read_reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers, body of one reply with a content length."""
    async with asyncio.timeout(100):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {}
        for line in head[1:-2]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), headers, body


Start = Callable[..., "asyncio.Future[Running]"]


@pytest.fixture
async def start() -> object:
    """Start servers of applications; all are closed at the end."""
    running: list[Running] = []

    async def begin(application: object, **settings: object) -> Running:
        listener = socket.create_server(("127.0.0.1", 0))
        server = FunctionServer(application, ServerSettings(**{"settle_s": 0.0, **settings}))  # type: ignore[arg-type]
        await server.start(listener)
        running.append(Running(server, listener.getsockname()[1]))
        return running[-1]

    yield begin
    for one in running:
        one.server.settings.drain_s = 0.0
        await one.server.drain()
    await turns(3)  # for both ends of closed connections


async def turns(count: int = 50) -> None:
    """So many turns of the event loop: what this process was about to do, over its own sockets too, is done."""
    for _ in range(count):
        await asyncio.sleep(0)


def post(path: str = "/", body: bytes = b"", headers: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


@pytest.fixture
async def caller() -> object:
    from tests.unit.functions.callers import Caller

    one = Caller()
    yield one
    one.dispatcher.close()
    await asyncio.sleep(0)
