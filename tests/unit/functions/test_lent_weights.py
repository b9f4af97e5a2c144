"""Workers on weights that their node's manager lends: the same answers, one copy, and what happens when it ends.

GPUs are faked by files (``tests.doubles.fake_gpu``); managers, workers and the socket between them are real, and so
are the processes where a test starts some.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.harness.local_pipeline import WorkerProcess
from functions import worker
from functions.device import leases, lent
from functions.device.leases import LeaseError
from functions.device.lent import Lender
from functions.device.tensors import DeviceLostError, GpuDevice, open_device
from functions.memory import manager as managers
from functions.memory.device_regions import DeviceRegions
from functions.memory.lending import Lending
from functions.memory.regions import Regions
from functions.serving import node_host, nodes
from functions.serving.device_loss import EXIT_DEVICE_LOST
from functions.wire import format as wire
from moe.manifest import load
from moe.runtime import HOST, load_node
from tests.doubles.fake_gpu import FakeMemory, FakeOpener
from tests.doubles.forked_worker import fork_worker
from tests.parameters import some_fast
from tests.unit.functions.fake_driver import SHARE, FakeDriver
from tests.unit.moe import tiny

NAME = "tiny"


@dataclass
class Ground:
    """A node that holds a pipeline, and a GPU."""

    memory: Path
    gpu: Path
    pipeline: Path

    @property
    def weights(self) -> Path:
        return self.memory / NAME

    def lender(self, gpu: str = "GPU-a") -> Lender:
        return Lender(self.memory, FakeOpener(self.gpu, gpu), answer_s=10.0)

    def device(self) -> GpuDevice:
        device = GpuDevice(FakeDriver(), HOST, 30.0)
        device.borrow(self.lender())
        return device

    def copies(self) -> int:
        return len(list(self.gpu.iterdir()))


def ground_of(tmp_path: Path, pipeline: Path) -> Ground:
    memory = tmp_path / "node"
    shutil.copytree(pipeline, memory / NAME)
    memory.chmod(0o700)
    (tmp_path / "gpu").mkdir()
    return Ground(memory, tmp_path / "gpu", pipeline)


@pytest.fixture
def ground(tmp_path: Path, bert: Path) -> Ground:
    return ground_of(tmp_path, bert)


@contextmanager
def lends(ground: Ground, memory: FakeMemory | None = None) -> Iterator[DeviceRegions]:
    """A manager's lending side in a thread of its own."""
    started, stopping = threading.Event(), asyncio.Event()
    found: list[tuple[DeviceRegions, asyncio.AbstractEventLoop]] = []

    async def serve() -> None:
        devices = DeviceRegions(Regions(ground.memory), memory or FakeMemory(ground.gpu))
        lending = Lending(ground.memory, devices)
        lending.start()
        found.append((devices, asyncio.get_running_loop()))
        started.set()
        await stopping.wait()
        await lending.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(10)
    try:
        yield found[0][0]
    finally:
        found[0][1].call_soon_threadsafe(stopping.set)
        thread.join(10)


@pytest.mark.parametrize("family", some_fast(tiny.BUILDERS))
def test_every_node_answers_from_lent_weights_as_from_the_hosts(
    pipeline_of: Callable[[str], Path], tmp_path: Path, family: str
) -> None:
    ground = ground_of(tmp_path, pipeline_of(family))
    manifest = load(ground.pipeline, verify=False)
    with lends(ground) as devices:
        device = ground.device()
        for node in manifest.nodes:
            program = device.load(ground.weights, manifest, node.id)
            call = program.made_up(5)
            expected = load_node(ground.pipeline, manifest, node.id).run(call)
            (found,) = device.run(program, [call], False)
            assert found.keys() == expected.keys()
            for name in expected:
                assert torch.equal(found[name], expected[name])
        assert {one["leases"] for one in devices.held()} == {1}
        assert len(devices.held()) == len({node.weights.file for node in manifest.nodes})


def test_tensors_are_views_of_the_lent_memory_and_not_copies(ground: Ground) -> None:
    path = ground.weights / load(ground.pipeline, verify=False).node("expert-0-0").weights.file
    with lends(ground):
        tensors = ground.lender().tensors(path)
        assert tensors
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        (copy,) = ground.gpu.iterdir()
        with copy.open("r+b") as file:
            file.write(b"\xff" * copy.stat().st_size)
        assert all(not torch.equal(tensors[name], before[name]) for name in before)


def test_two_workers_have_one_copy(ground: Ground) -> None:
    manifest = load(ground.pipeline, verify=False)
    with lends(ground) as devices:
        for device in (ground.device(), ground.device()):
            device.load(ground.weights, manifest, "expert-0-0")
        assert ground.copies() == 1
        assert [one["leases"] for one in devices.held()] == [2]


def test_nodes_of_one_file_share_a_lease(ground: Ground) -> None:
    path = ground.weights / load(ground.pipeline, verify=False).node("expert-0-0").weights.file
    with lends(ground) as devices:
        lender = ground.lender()
        first, second = lender.tensors(path), lender.tensors(path)
        assert first is not None
        assert second is not None
        assert {name: tensor.data_ptr() for name, tensor in first.items()} == {
            name: tensor.data_ptr() for name, tensor in second.items()
        }
        assert devices.held()[0]["leases"] == 1


# Where nothing is lent, weights are copied as before


def loads(ground: Ground, device: GpuDevice, folder: Path | None = None) -> Tensor:
    manifest = load(ground.pipeline, verify=False)
    program = device.load(folder or ground.weights, manifest, "expert-0-0")
    return device.run(program, [program.made_up(3)], False)[0]["y"]


def test_without_a_manager_that_lends_the_worker_copies_and_says_so_once(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    device = ground.device()
    for _ in range(2):
        assert loads(ground, device).shape[0] == 3
    assert caplog.text.count("no weights manager lends here") == 1


def test_weights_from_the_pipelines_folder_are_copied(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    assert loads(ground, ground.device(), ground.pipeline).shape[0] == 3
    assert not caplog.text
    assert ground.copies() == 0


def test_what_the_manager_says_no_to_is_copied_and_its_sentence_is_in_the_log(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    with lends(ground, FakeMemory(ground.gpu, room=10)):
        assert loads(ground, ground.device()).shape[0] == 3
    assert "cudaMalloc: out of memory" in caplog.text


def test_a_handle_that_cannot_be_mapped_is_let_go_of_at_once(
    ground: Ground, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> Tensor:
        raise LeaseError("cudaIpcOpenMemHandle: not supported")

    monkeypatch.setattr(FakeOpener, "open", refuses)
    with lends(ground) as devices:
        assert loads(ground, ground.device()).shape[0] == 3
        _until(lambda: devices.held()[0]["leases"] == 0)
    assert "cudaIpcOpenMemHandle: not supported" in caplog.text


def test_a_file_whose_header_is_not_understood_is_not_asked_for(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    (ground.weights / "bad").write_bytes(b"\xff" * 20)
    with lends(ground) as devices:
        assert ground.lender().tensors(ground.weights / "bad") is None
        assert devices.held() == []
    assert "bad is copied to the GPU, not mapped there: its header" in caplog.text


@pytest.mark.parametrize("says", [b"", b"x" * 5000, leases.lend(bytes(64), 1), b'{"handle": "0"}\n'])
def test_a_manager_that_answers_something_else_is_done_without(
    ground: Ground, caplog: pytest.LogCaptureFixture, says: bytes
) -> None:
    listener = leases.listen(ground.memory)
    listener.setblocking(True)

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(says)

    thread = threading.Thread(target=answer)
    thread.start()
    with listener:
        assert loads(ground, ground.device()).shape[0] == 3
        thread.join(10)
    assert "is copied to the GPU, not mapped there" in caplog.text


def test_a_manager_that_does_not_answer_is_waited_for_once(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    device = GpuDevice(FakeDriver(), HOST, 30.0)
    device.borrow(Lender(ground.memory, FakeOpener(ground.gpu), answer_s=0.02))
    with leases.listen(ground.memory):
        for _ in range(2):
            assert loads(ground, device).shape[0] == 3
    assert caplog.text.count("is copied to the GPU, not mapped there: timed out") == 1
    assert caplog.text.count("took more than 0.02 s over this worker's files") == 1


def test_the_successor_of_a_killed_manager_is_waited_for(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    leases.listen(ground.memory).close()  # as a killed one leaves it
    with ExitStack() as manager:
        monkeypatch.setattr(lent, "_pause", lambda: manager.enter_context(lends(ground)))
        assert loads(ground, ground.device()).shape[0] == 3
        assert ground.copies() == 1


def test_where_no_successor_comes_the_worker_copies(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    leases.listen(ground.memory).close()
    device = GpuDevice(FakeDriver(), HOST, 30.0)
    device.borrow(Lender(ground.memory, FakeOpener(ground.gpu), answer_s=10.0, successor_s=0.0))
    assert loads(ground, device).shape[0] == 3
    assert "is copied to the GPU, not mapped there: [Errno 111] Connection refused" in caplog.text


# The end of the manager


def test_when_the_manager_ends_the_device_counts_as_lost(ground: Ground) -> None:
    manifest = load(ground.pipeline, verify=False)
    with lends(ground):
        device = ground.device()
        program = device.load(ground.weights, manifest, "expert-0-0")
        device.check()
    with pytest.raises(DeviceLostError, match="whose memory this worker maps has ended"):
        device.check()
    with pytest.raises(DeviceLostError, match="whose memory this worker maps has ended"):
        device.run(program, [program.made_up(3)], False)


def test_what_was_computed_while_the_manager_ended_is_answered_to_nobody(ground: Ground) -> None:
    manifest = load(ground.pipeline, verify=False)
    driver = FakeDriver()
    device = GpuDevice(driver, HOST, 30.0)
    device.borrow(ground.lender())
    with ExitStack() as manager:
        manager.enter_context(lends(ground))
        program = device.load(ground.weights, manifest, "expert-0-0")
        driver.plan = lambda count: manager.close()
        with pytest.raises(DeviceLostError, match="whose memory this worker maps has ended"):
            device.run(program, [program.made_up(3)], False)


def test_a_device_that_borrows_nothing_outlives_managers(ground: Ground) -> None:
    device = ground.device()
    assert loads(ground, device).shape[0] == 3
    with lends(ground):
        device.check()
    device.check()


# Processes


@pytest.fixture
def start(ground: Ground, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], WorkerProcess]]:
    """Starts the node's manager (``weights``) or a worker of a node, as the process backend would."""
    (tmp_path / "token").write_text("secret")
    monkeypatch.setattr(managers, "CudaMemory", lambda: FakeMemory(ground.gpu))
    monkeypatch.setattr(nodes, "CudaOpener", lambda: FakeOpener(ground.gpu))
    monkeypatch.setattr(nodes, "open_device", lambda settings: open_device(settings, FakeDriver()))
    monkeypatch.setattr(node_host, "CHECK_S", 0.02)
    begun: list[WorkerProcess] = []

    def begin(node: str) -> WorkerProcess:
        environ = {
            "smoe_pipeline": str(ground.pipeline),
            "smoe_pipelines_dir": str(ground.pipeline.parent),
            "smoe_nodes": node,
            "smoe_weights_dir": str(ground.memory),
            "smoe_feed_token_file": str(tmp_path / "token"),
            "smoe_device": "cuda",
            "write_timeout": "1s",
        }
        with monkeypatch.context() as patched:
            if node == "weights":
                patched.setattr(worker, "main", managers.main)
            begun.append(fork_worker(node, environ if node == "weights" else {**environ, **SHARE}))
        return begun[-1]

    yield begin
    for process in begun:
        _killed(process)


def _killed(process: WorkerProcess) -> int:
    """Kills it unless it has ended; its exit code (negative: a signal's)."""
    try:
        os.kill(process.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
    except (ProcessLookupError, ChildProcessError):
        return 0


def _until(condition: Callable[[], bool]) -> None:
    end = threading.Event()
    for _ in range(5000):
        if condition():
            return
        end.wait(0.002)
    raise AssertionError("did not come about")


def _asked(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
    try:
        connection.request(method, path, body, {"Authorization": "Bearer secret"})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def _leases(manager: WorkerProcess) -> list[int]:
    return [one["leases"] for one in json.loads(_asked(manager.port, "GET", "/held")[1])["on_devices"]]


X = torch.arange(64, dtype=torch.float32).reshape(2, 32)


def _computed(process: WorkerProcess) -> Tensor:
    status, body = _asked(process.port, "POST", "/", wire.encode_bytes({"x": X}))
    assert status == 200
    return wire.decode(bytearray(body))["y"]


def test_processes_compute_on_one_copy_which_stays_when_one_is_killed(
    ground: Ground, start: Callable[[str], WorkerProcess]
) -> None:
    manager = start("weights")
    first, second = start("expert-0-0"), start("expert-0-0")
    expected = load_node(ground.pipeline, load(ground.pipeline, verify=False), "expert-0-0").run({"x": X})["y"]
    for process in (first, second):
        torch.testing.assert_close(_computed(process), expected)
    assert (ground.copies(), _leases(manager)) == (1, [2])
    _killed(first)
    _until(lambda: _leases(manager) == [1])
    torch.testing.assert_close(_computed(second), expected)
    third = start("expert-0-0")
    torch.testing.assert_close(_computed(third), expected)
    assert (ground.copies(), _leases(manager)) == (1, [2])


@pytest.mark.slow
def test_workers_whose_manager_is_killed_end_and_their_successors_borrow_again(
    start: Callable[[str], WorkerProcess],
) -> None:
    manager = start("weights")
    orphan = start("expert-0-0")
    expected = _computed(orphan)
    _killed(manager)
    assert os.waitstatus_to_exitcode(os.waitpid(orphan.pid, 0)[1]) == EXIT_DEVICE_LOST
    again = start("weights")
    torch.testing.assert_close(_computed(start("expert-0-0")), expected)
    assert _leases(again) == [1]


@pytest.mark.slow
def test_a_manager_that_cannot_lend_manages_all_the_same(ground: Ground, start: Callable[[str], WorkerProcess]) -> None:
    (ground.memory / leases.SOCKET).mkdir()
    manager = start("weights")
    assert _leases(manager) == []
    assert _computed(start("expert-0-0")).shape == (2, 32)


def test_a_manager_without_a_gpu_has_no_socket(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managers, "CudaMemory", partial(pytest.fail, "CUDA was asked for"))
    settings = managers.ManagerSettings("a", ground.memory, ground.pipeline, "secret")

    async def story() -> None:
        manager = managers.Manager(settings, asyncio.get_running_loop())
        assert managers._lending(settings, manager) is None
        assert manager.held()["on_devices"] == []

    asyncio.run(story())
    assert not (ground.memory / leases.SOCKET).exists()
