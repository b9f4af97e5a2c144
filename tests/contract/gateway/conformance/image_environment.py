"""For ``image.sh``: environment and memory limit of a pipeline's two containers, and whether their answer is right.

``PIPELINE ADDRESS FOLDER`` writes ``stages.env`` and ``ingress.env``, a NAME=VALUE a line, ``stages.limit`` and
``ingress.limit`` in bytes, and ``many.json``, a call of more tokens than a function takes at once; ``--check ANSWER
PIPELINE`` compares an answer with the whole model's and exits with 1 where they differ by more than 1e-5.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from moe.manifest import load
from moe.reference import WholeModel
from platform_words.memory import container_memory
from platform_words.resources import parse_quantity
from smoe.deployment import DeploymentSettings, function_deployments

TEXT = "A container answers."
MANY = [" ".join(["word"] * 250)] * 40


def write(pipeline: Path, address: str, folder: Path) -> None:
    """All stages behind one function, the ingress before them, with the limits that ``smoe deploy`` gives in a
    cluster."""
    manifest = load(pipeline, verify=False)
    runtime = container_memory(manifest.dtype)
    settings = DeploymentSettings(max_functions=2, address_template=address, runtime=runtime)
    for deployment in function_deployments(manifest, settings):
        name = "ingress" if deployment["envVars"]["smoe_nodes"] == "ingress" else "stages"
        lines = [f"{key}={value}\n" for key, value in deployment["envVars"].items()]
        (folder / f"{name}.env").write_text("".join(lines))
        (folder / f"{name}.limit").write_text(str(int(parse_quantity(deployment["limits"]["memory"]))))
    (folder / "many.json").write_text(json.dumps({"inputs": MANY}))


def differs(answer: Path, pipeline: Path) -> float:
    """Largest difference, relative to the largest number of the whole model's embedding."""
    ours = torch.tensor(json.loads(answer.read_text())["embeddings"])
    theirs = WholeModel(pipeline).embed([TEXT])
    return float((ours - theirs).abs().max() / theirs.abs().max())


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        error = differs(Path(sys.argv[2]), Path(sys.argv[3]))
        print(f"the containers' answer differs from the whole model's by {error:.1e}")
        sys.exit(error > 1e-5)
    write(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
