"""What ``make test-cluster`` runs, on an API server that is another process and is known by its kubeconfig alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoscaler.platforms.kubernetes import connect
from tests.cluster.namespaces import RUN, Asking
from tests.doubles.kubernetes.kubeconfig import wait_for

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def kubeconfig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Of the double in a process that ends when its standard input does."""
    path = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "tests.doubles.kubernetes", str(path), request.param]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as process:
        yield wait_for(path, process)
        process.communicate(timeout=100)


@contextmanager
def suite(kubeconfig: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The suite as ``make test-cluster`` runs it; stopped at the end of the block."""
    line = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "SMOE_TEST_KUBECONFIG=" in line)
    words = line.partition("-m pytest ")[2].split()
    environment = {**os.environ, "SMOE_TEST_KUBECONFIG": str(kubeconfig), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words, *options],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A shell's background jobs ignore SIGINT, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def namespaces(kubeconfig: Path) -> list[str]:
    """Those of test runs."""
    api = connect(kubeconfig)
    try:
        return [one["metadata"]["name"] for one in Asking(api, "default").listed("namespaces", RUN)]
    finally:
        api.close()


@pytest.mark.parametrize("kubeconfig", ["--no-kubelet"], indirect=True)
def test_the_suite_passes_on_a_cluster_known_by_its_kubeconfig_and_leaves_nothing(kubeconfig: Path) -> None:
    with suite(kubeconfig) as process:
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    counted = {what: int(count) for count, what in re.findall(r"(\d+) (passed|skipped|failed|error)", output)}
    assert counted["passed"] >= 30 and set(counted) == {"passed", "skipped"}, output
    assert namespaces(kubeconfig) == []


@pytest.mark.parametrize("kubeconfig", ["--kubelet"], indirect=True)
@pytest.mark.parametrize("reported", [signal.SIGINT, signal.SIGTERM], ids=["interrupted", "told to end"])
def test_a_run_that_is_stopped_removes_its_namespace(kubeconfig: Path, reported: signal.Signals) -> None:
    with suite(kubeconfig, "-v") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "PASSED" in line:
                break
        end_s = time.monotonic() + 30
        while not namespaces(kubeconfig):
            assert time.monotonic() < end_s, "no test makes a namespace any more"
        process.send_signal(reported)
        output, _ = process.communicate(timeout=100)
    assert "KeyboardInterrupt" in output and process.returncode != 0
    assert namespaces(kubeconfig) == []
