"""For ``image.sh``: environment and memory limit of a pipeline's three containers, and whether their answers are right.

``PIPELINE ADDRESS FOLDER`` writes, for each of ``stages``, ``ingress`` and ``expert``, ``.env``, a NAME=VALUE a line,
and ``.limit`` in bytes; ``many.json``, a call of more tokens than a function takes at once; ``expert.call``, of as many
as the expert takes. ``--check FOLDER PIPELINE`` compares ``answer.json`` and ``expert.reply`` with what torch computes,
and exits with 1 where they differ by more than 1e-5.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from functions.wire import format as wire
from moe.manifest import load
from moe.reference import WholeModel
from moe.runtime import load_node
from platform_words.memory import PEAK_TOKENS, container_memory
from platform_words.resources import parse_quantity
from smoe.deployment import DeploymentSettings, function_deployments

TEXT = "A container answers."
MANY = [" ".join(["word"] * 250)] * 40
EXPERT = "expert-0-0"


def write(pipeline: Path, address: str, folder: Path) -> None:
    """All stages behind one function, the ingress before them, and one expert as it is deployed alone, with the limits
    that ``smoe deploy`` gives in a cluster."""
    manifest = load(pipeline, verify=False)
    runtime = container_memory(manifest.dtype)
    grouped = DeploymentSettings(max_functions=2, address_template=address, runtime=runtime, watchdog=True)
    ingress, stages = function_deployments(manifest, grouped)
    alone = function_deployments(manifest, DeploymentSettings(runtime=runtime, watchdog=True))
    (expert,) = [one for one in alone if one["envVars"]["smoe_nodes"] == EXPERT]
    containers: dict[str, dict[str, Any]] = {"ingress": ingress, "stages": stages, "expert": expert}
    for name, deployment in containers.items():
        lines = [f"{key}={value}\n" for key, value in deployment["envVars"].items()]
        (folder / f"{name}.env").write_text("".join(lines))
        (folder / f"{name}.limit").write_text(str(int(parse_quantity(deployment["limits"]["memory"]))))
    (folder / "many.json").write_text(json.dumps({"inputs": MANY}))
    (folder / "expert.call").write_bytes(wire.encode_bytes({"x": _rows(pipeline)}))


def differences(folder: Path, pipeline: Path) -> dict[str, float]:
    """Largest difference of the embedding and of the expert's rows, relative to the largest number of torch's."""
    y = wire.decode(bytearray((folder / "expert.reply").read_bytes()))["y"]
    expert = load_node(pipeline, load(pipeline, verify=False), EXPERT)
    pairs = {
        "the containers' answer": (_answer(folder / "answer.json"), WholeModel(pipeline).embed([TEXT])),
        "the expert's reply": (y, expert.run({"x": _rows(pipeline)})["y"]),
    }
    return {what: float((ours - theirs).abs().max() / theirs.abs().max()) for what, (ours, theirs) in pairs.items()}


def _answer(path: Path) -> torch.Tensor:
    return torch.tensor(json.loads(path.read_text())["embeddings"])


def _rows(pipeline: Path) -> torch.Tensor:
    """Inputs ``[PEAK_TOKENS, width]`` float32, drawn."""
    width = load(pipeline, verify=False).node(EXPERT).bytes_in_per_token // 4
    return torch.randn(PEAK_TOKENS, width, generator=torch.Generator().manual_seed(1))


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        differing = differences(Path(sys.argv[2]), Path(sys.argv[3]))
        for what, error in differing.items():
            print(f"{what} differs from torch's by {error:.1e}")
        sys.exit(max(differing.values()) > 1e-5)
    write(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
