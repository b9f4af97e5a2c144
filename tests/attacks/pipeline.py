"""Attacks on a pipeline that is deployed as ``smoe up`` does it, and on what is to become one."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from benchmarks.harness.running import RunningPipeline
from moe.manifest_proof import sha256_of
from moe.names import MANIFEST_FILE
from tests.attacks.target import ask

PATIENCE_S = 30.0
"""What an answer may take on a busy machine; where a door is open, it takes a minute or does not come."""
COMMAND_S = 120.0
GROWTH_BYTES = 256 << 20
TEXT = json.dumps({"inputs": "An attack on a pipeline."}).encode()
Outcome = tuple[bool, str]


def answer(address: str, path: str = "/") -> tuple[int, bytes]:
    """Status and body of a text's embedding by the ingress there; status 0: nobody answered."""
    try:
        return ask(address, "POST", path, TEXT, PATIENCE_S, {"content-type": "application/json"})[:2]
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error).encode()


def _called(pipeline: RunningPipeline) -> tuple[int, bytes, float]:
    """Status and body through the gateway, and the seconds it took."""
    begun_s = time.monotonic()
    status, body = answer(_address(pipeline), f"/function/{pipeline.manifest.name}")
    return status, body, time.monotonic() - begun_s


def _address(pipeline: RunningPipeline) -> str:
    return pipeline.client.url.removeprefix("http://")


def idle_connections_next_to_calls(pipeline: RunningPipeline, thorough: bool) -> Outcome:
    """A client that had its answers and holds the connections, more than are allowed, while others call."""
    count, seconds = (5000, 60.0) if thorough else (300, 2.0)
    gateway = psutil.Process(pipeline.gateway.pid)
    before = most = gateway.memory_info().rss
    statuses: Counter[int] = Counter()
    slowest_s = 0.0
    command = [sys.executable, "-m", "tests.attacks.idle", _address(pipeline), "--count", str(count)]
    with subprocess.Popen([*command, "--seconds", str(seconds)], stdout=subprocess.PIPE) as client:
        while client.poll() is None:
            status, _, taken_s = _called(pipeline)
            statuses[status] += 1
            slowest_s, most = max(slowest_s, taken_s), max(most, gateway.memory_info().rss)
            time.sleep(0.1)
        assert client.stdout is not None
        held = json.loads(client.stdout.read() or b"{}")
    words = (
        f"{held.get('made')} connections, {held.get('open')} kept, {held.get('open_at_end')} after {seconds:g} s; "
        f"{statuses[200]} of {statuses.total()} calls answered, the slowest after {slowest_s:.2f} s; the gateway's "
        f"{before >> 20} MiB grew by {(most - before) >> 20}"
    )
    return set(statuses) == {200} and held.get("made") == count and most - before < GROWTH_BYTES, words


def stage_that_is_missing(pipeline: RunningPipeline, thorough: bool) -> Outcome:
    """A function of the pipeline is removed, for good: callers are answered soon, with its name."""
    missing = pipeline.functions[1]
    answers = [_called(pipeline)]
    pipeline.client.remove(missing)
    end_s = time.monotonic() + PATIENCE_S
    while answers[-1][0] == 200 and time.monotonic() < end_s:  # a replica that drains finishes what it was given
        answers.append(_called(pipeline))
    status, body, taken_s = answers[-1]
    held = answers[0][0] == 200 and status == 503 and missing.encode() in body
    return held, f"{status} after {taken_s:.2f} s, {'with' if missing.encode() in body else 'without'} its name"


def weights_that_are_broken(pipeline: RunningPipeline, thorough: bool) -> Outcome:
    """A changed byte, a cut file, and garbage with the right sum: refused before anything is started."""
    name = pipeline.manifest.experts(0)[0].weights.file
    data = (pipeline.directory / name).read_bytes()
    broken = {"garbage": b"\xff" * 100, "changed": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:-8]}
    refused, taken_s = [], [0.0]
    for kind in broken if thorough else ("garbage",):
        with tempfile.TemporaryDirectory(prefix="smoe-attacks-") as folder:
            copy, state = Path(folder) / "broken", Path(folder) / "state"
            shutil.copytree(pipeline.directory.resolve(), copy, copy_function=os.symlink)
            _replace(copy, name, broken[kind], stated=kind == "garbage")
            up = ["up", str(copy), "--state", str(state), "--port", "0", "--metrics-port", "0", "--foreground"]
            for command in (["pipeline", "inspect", str(copy)], up):
                begun_s = time.monotonic()
                refused.append(_refuses(command, Path(name).name) and not (state / "gateway.log").exists())
                taken_s.append(time.monotonic() - begun_s)
    words = f"{sum(refused)} of {len(refused)} commands refuse it by name, the slowest after {max(taken_s):.1f} s"
    return all(refused), words


def _replace(folder: Path, name: str, data: bytes, *, stated: bool) -> None:
    """Another file in place of a link; ``stated``: the manifest is made to agree."""
    (folder / name).unlink()
    (folder / name).write_bytes(data)
    if stated:
        manifest = folder / MANIFEST_FILE
        document = json.loads(manifest.read_text())
        document["files"][name] = {"bytes": len(data), "sha256": sha256_of(folder / name)}
        manifest.unlink()
        manifest.write_text(json.dumps(document))


def _refuses(command: list[str], name: str) -> bool:
    """Whether a command of ``smoe`` ends by itself, as an error that names the file."""
    full = [sys.executable, "-m", "smoe", *command]
    try:
        ended = subprocess.run(full, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 1 and name in ended.stderr


ATTACKS = (idle_connections_next_to_calls, weights_that_are_broken, stage_that_is_missing)
"""The last one leaves the pipeline without a stage."""
