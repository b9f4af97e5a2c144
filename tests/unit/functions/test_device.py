"""GPU workers with the device's calls played: shares bound in time, the same answers, errors that end a worker.

Nothing here runs on a GPU. What is real: copies and concatenation through pinned buffers (ordinary memory here), the
programs, the host with its deadlines, and a forked worker that ends.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from functions.device import tensors as devices
from functions.device.tensors import (
    DeviceLostError,
    GpuDevice,
    HostDevice,
    lost_reason,
    open_device,
)
from functions.serving import node_host, nodes
from functions.serving.device_loss import EXIT_DEVICE_LOST, leave
from functions.serving.node_host import NodeHost
from functions.serving.settings import from_environment
from functions.wire import format as wire
from moe.manifest import load
from moe.runtime import HOST, load_node
from tests.doubles.forked_worker import fork_worker
from tests.parameters import some_fast
from tests.unit.functions.conftest import get, post
from tests.unit.functions.fake_driver import SHARE, FakeDriver, every_node, fail_at, gpu
from tests.unit.functions.test_node_host import Asker, tensors_of
from tests.unit.moe import tiny

# Computing


@pytest.mark.parametrize("family", some_fast(tiny.BUILDERS))
def test_every_node_answers_through_the_device_as_on_the_host(pipeline_of: Callable[[str], Path], family: str) -> None:
    device = gpu(FakeDriver())
    for _, program in every_node(pipeline_of(family)):
        calls = [program.made_up(tokens) for tokens in (1, 5, 300)]
        for number, call in enumerate(calls):
            program.check(call)
            for name in call:
                if call[name].is_floating_point():
                    call[name] = torch.randn(call[name].shape, generator=torch.Generator().manual_seed(number))
        there, here = device.run(program, calls, False), HostDevice().run(program, calls, False)
        alone = [device.run(program, [call], False)[0] for call in calls]
        for one, other, single, call in zip(there, here, alone, calls, strict=True):
            assert one.keys() == other.keys() == single.keys()
            by_itself = program.run(call)
            for name in one:
                assert torch.equal(one[name], other[name])
                assert torch.equal(single[name], by_itself[name])


def test_nothing_is_answered_before_the_device_has_finished(bert: Path) -> None:
    driver = FakeDriver()
    device = gpu(driver)
    program = load_node(bert, load(bert, verify=False), "expert-0-0")
    device.run(program, [program.made_up(3), program.made_up(4)], False)
    assert driver.unfinished == 0


def test_a_node_is_rehearsed_before_it_serves(bert: Path) -> None:
    driver = FakeDriver()
    program = gpu(driver).load(bert, load(bert, verify=False), "segment-1")
    assert program.device == HOST
    assert driver.computed == len(devices.REHEARSED_TOKENS)


def test_calls_that_do_not_fit_together_are_computed_one_by_one(bert: Path) -> None:
    def tight(count: int) -> None:
        if count == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    driver = FakeDriver(tight)
    program = load_node(bert, load(bert, verify=False), "expert-0-0")
    calls = [program.made_up(2), program.made_up(3)]
    replies = gpu(driver).run(program, calls, False)
    assert [reply["y"].shape[0] for reply in replies] == [2, 3]
    assert (driver.computed, driver.dropped) == (3, 1)


LOST = [
    pytest.param(torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB"), "out of device memory", id="out of memory"),
    pytest.param(torch.AcceleratorError("CUDA error: an illegal memory access"), "the device failed", id="illegal"),
    pytest.param(torch.AcceleratorError("CUDA error: out of memory"), "out of device memory", id="driver's memory"),
    pytest.param(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), "out of device memory", id="cublas memory"),
    pytest.param(RuntimeError("CUDA error: the MPS client has been terminated"), "the device failed", id="mps"),
    pytest.param(RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), "the device failed", id="cudnn"),
]


@pytest.mark.parametrize(("error", "says"), LOST)
def test_errors_of_the_device_are_known(error: Exception, says: str) -> None:
    assert (lost_reason(error) or "").startswith(says)


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("CUDA error")])
def test_errors_of_a_program_are_not_taken_for_the_devices(error: Exception, bert: Path) -> None:
    assert lost_reason(error) is None
    program = load_node(bert, load(bert, verify=False), "expert-0-0")
    with pytest.raises(type(error), match=str(error)):
        gpu(FakeDriver(fail_at(1, error))).run(program, [program.made_up(1)], False)


def test_weights_that_do_not_fit_name_the_node_and_its_size(bert: Path) -> None:
    device = gpu(FakeDriver(fail_at(1, torch.OutOfMemoryError("CUDA out of memory."))))
    with pytest.raises(DeviceLostError, match=r"expert-0-0 with its 0 MiB of weights .* out of device memory"):
        device.load(bert, load(bert, verify=False), "expert-0-0")


# Serving


def hosted(folder: Path, device: GpuDevice, reported: list[str]) -> NodeHost:
    program = load_node(folder, load(folder, verify=False), "expert-0-0")
    return NodeHost({"expert-0-0": program}, asyncio.get_running_loop(), device, reported.append)


async def test_a_gpu_computes_in_the_thread_and_answers_as_the_host_does(bert: Path) -> None:
    threads = []
    driver = FakeDriver(lambda count: threads.append(threading.current_thread()))
    host = hosted(bert, gpu(driver), [])
    asker = Asker(host)
    x = torch.randn(3, 32)
    for _ in range(3):
        asker.ask({"x": x})
    expected = load_node(bert, load(bert, verify=False), "expert-0-0").run({"x": x})["y"]
    for reply in await asker.all():
        torch.testing.assert_close(tensors_of(reply)["y"], expected)
    assert threading.main_thread() not in threads
    host.close()


@pytest.mark.parametrize(("error", "says"), LOST)
async def test_a_lost_device_is_503_for_everybody_at_once_and_reported_once(
    bert: Path, error: Exception, says: str
) -> None:
    reported: list[str] = []
    host = hosted(bert, gpu(FakeDriver(fail_at(1, error))), reported)
    asker = Asker(host)
    for _ in range(3):
        asker.ask({"x": torch.ones(1, 32)})
    replies = await asker.all()
    asker.ask({"x": torch.ones(1, 32)})
    replies += [(await asker.all())[-1]]
    assert {reply.status for reply in replies} == {503}
    assert {reply.headers["x-openfaas-internal"] for reply in replies} == {"smoe"}
    assert len(reported) == 1
    assert says in reported[0]
    host.close()


async def test_a_device_that_hangs_holds_nobody_back(bert: Path, start: Any) -> None:
    go, reported = threading.Event(), list[str]()
    host = hosted(bert, gpu(FakeDriver(lambda count: go.wait(20)), deadline_s=0.2), reported)
    running = await start(host)
    body = wire.encode_bytes({"x": torch.ones(2, 32)})
    calls = [asyncio.ensure_future(running.send(post(body=body))) for _ in range(4)]
    assert (await running.send(get("/_/health")))[0][0] == 200
    answers = [(await call)[0] for call in calls]
    assert {status for status, _, _ in answers} == {503}
    assert all(b"did not finish within 0.2 s" in text for _, _, text in answers)
    assert reported == ["the device did not finish within 0.2 s"]
    go.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(reported) == 1
    host.close()


async def test_an_idle_worker_notices_that_its_device_is_gone(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_host, "CHECK_S", 0.01)
    gone = asyncio.Event()
    driver = FakeDriver(fail_at(3, torch.AcceleratorError("CUDA error: the MPS client has been terminated")))
    host = hosted(bert, gpu(driver), [])
    host._on_lost = lambda reason: gone.set()
    async with asyncio.timeout(100):
        await gone.wait()
    assert driver.computed == 3
    host.close()


def test_a_worker_without_its_device_ends_with_a_code_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[int] = []

    def end(code: int) -> NoReturn:
        ended.append(code)
        raise SystemExit(code)

    with pytest.raises(SystemExit):
        leave("the GPU is gone", end)
    assert ended == [EXIT_DEVICE_LOST]
    assert "this process ends: the GPU is gone" in caplog.text


async def test_a_worker_whose_gpu_cannot_be_opened_ends_before_it_is_ready(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left(reason: str) -> NoReturn:
        raise SystemExit(reason)

    monkeypatch.setattr(nodes, "leave", left)
    monkeypatch.setattr(torch.cuda, "init", lambda: (_ for _ in ()).throw(RuntimeError("CUDA error: no device")))
    settings = from_environment({"smoe_pipeline": str(bert), "smoe_nodes": "expert-0-0", "smoe_device": "cuda"})
    with pytest.raises(SystemExit, match="could not be opened: CUDA error: no device"):
        nodes.node_application(load(bert, verify=False), settings, asyncio.get_running_loop())


@pytest.mark.slow
def test_a_forked_worker_answers_503_and_ends_when_its_device_is_lost(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_after = len(devices.REHEARSED_TOKENS) + 1
    driver = FakeDriver(fail_at(lost_after + 1, torch.AcceleratorError("CUDA error: unspecified launch failure")))
    monkeypatch.setattr(nodes, "open_device", lambda settings: open_device(settings, driver))
    monkeypatch.setattr(node_host, "CHECK_S", 3600.0)
    environ = {"smoe_pipeline": str(bert), "smoe_nodes": "expert-0-0", "max_inflight": "4", **SHARE}
    process = fork_worker("expert", environ)
    statuses = [_call(process.port)[0] for _ in range(2)]
    _, status = os.waitpid(process.pid, 0)
    assert statuses == [200, 503]
    assert os.waitstatus_to_exitcode(status) == EXIT_DEVICE_LOST


def _call(port: int) -> tuple[int, Mapping[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
    try:
        connection.request("POST", "/", wire.encode_bytes({"x": torch.ones(2, 32)}))
        reply = connection.getresponse()
        reply.read()
        return reply.status, dict(reply.getheaders())
    finally:
        connection.close()


def test_the_cuda_image_is_not_built_on_a_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (Path(__file__).parents[3] / "deploy" / "function-cuda.Dockerfile").read_text().splitlines()
    (check,) = (json.loads(line.removeprefix("RUN ")) for line in lines if line.startswith("RUN "))
    assert check[:2] == ["python", "-c"]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    exec(check[2], {})
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(AssertionError, match="was built without CUDA"):
        exec(check[2], {})
