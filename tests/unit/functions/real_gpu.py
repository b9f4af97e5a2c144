"""Programs of ``test_real_gpu``: a manager that lends regions of a folder on a real GPU, and a worker that maps them.

``python -m tests.unit.functions.real_gpu lend FOLDER`` says ``ready``, ends with its standard input, and then prints
what it held. ``… map FOLDER PIPELINE NAME`` loads every node from lent memory, prints one JSON object, and ends with
its standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import torch

from functions.device.cuda_calls import CudaOpener
from functions.device.lent import Lender
from functions.device.tensors import GpuDevice, open_device
from functions.memory.cuda_memory import CudaMemory
from functions.memory.device_regions import DeviceRegions
from functions.memory.lending import Lending
from functions.memory.regions import Regions
from functions.serving.settings import DeviceSettings
from moe.manifest import load
from moe.runtime import load_node


async def lend(folder: Path) -> None:
    devices = DeviceRegions(Regions(folder), CudaMemory())
    lending = Lending(folder, devices)
    lending.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(devices.held()), flush=True)
    await lending.close()


def map_there(folder: Path, pipeline: Path, name: str) -> None:
    device = open_device(DeviceSettings("cuda"))
    assert isinstance(device, GpuDevice)
    lender = Lender(folder, CudaOpener())
    device.borrow(lender)
    manifest = load(pipeline, verify=False)
    worst, own_bytes = 0.0, 0
    for node in manifest.nodes:
        before = torch.cuda.memory_allocated()
        assert lender.tensors(folder / name / node.weights.file, node.weights.prefix) is not None
        own_bytes += torch.cuda.memory_allocated() - before
        program = device.load(folder / name, manifest, node.id)
        call = program.made_up(7)
        expected = load_node(pipeline, manifest, node.id).run(call)
        (found,) = device.run(program, [call], False)
        for key, tensor in expected.items():
            if tensor.is_floating_point():
                worst = max(worst, float((found[key] - tensor).abs().max()))
    print(json.dumps({"worst": worst, "own_bytes": own_bytes}), flush=True)
    sys.stdin.read()
    device.check()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "lend":
        asyncio.run(lend(Path(sys.argv[2])))
    else:
        map_there(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
