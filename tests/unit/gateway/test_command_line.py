"""``python -m gateway``: what it refuses before it starts, in sentences."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.process.cgroup.limits import quota
from gateway.backends.process.settings import ProcessSettings
from gateway.client.state import read_gateway, running_pid
from gateway.durations import parse_duration
from gateway.main import _process_settings, main
from gateway.settings import GatewaySettings, ensure_credentials
from smoe.lifecycle import GatewaySettings as Started
from smoe.lifecycle import gateway_command


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "Missing option '--state'"),
        (("--state", "s", "--image", "nonsense"), "'nonsense' is not NAME=MODULE:FUNCTION"),
        (("--state", "s", "--image", "a=module"), "is not NAME=MODULE:FUNCTION"),
        (("--state", "s", "--upstream-timeout", "soon"), "'soon' is no duration"),
        (("--state", "s", "--read-timeout", "0"), "a duration must be above 0"),
        (("--state", "s", "--port", "70000"), "70000 is not in the range"),
        (("--state", "s", "--cpu-scale", "0"), "is not in the range"),
        (("--state", "s", "--cpu-period-ms", "1001"), "is not in the range"),
        (("--state", "s", "--async-queue", "0"), "is not in the range"),
        (("--state", "s", "--host", "0.0.0.0", "--no-basic-auth"), "lets everybody there deploy commands"),
        (("--state", "s", "--nats", "localhost:4222"), "it takes nats://HOST:PORT or tls://HOST:PORT"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert list(tmp_path.iterdir()) == []


def test_the_period_of_cpu_limits_is_the_one_asked_for(tmp_path: Path) -> None:
    """A call of 1.5 ms of CPU fits into 0.01 cores of 200 ms; the kernel's least quota, 1 ms, has it wait for 100."""
    command = gateway_command(Started(tmp_path, cpu_scale=0.01, cpu_period_ms=200.0))
    asked = main.make_context("gateway", command[command.index("gateway") + 1 :]).params
    settings = GatewaySettings(tmp_path, cpu_scale=asked["cpu_scale"], cpu_period_ms=asked["cpu_period_ms"])
    made = _process_settings(settings, "http://127.0.0.1:8080")
    assert quota(made.cpu_scale, made.cpu_period_s) == (2_000, 200_000)
    assert quota(0.01, ProcessSettings(tmp_path).cpu_period_s) == (1_000, 100_000)


def test_openfaas_variables_are_read(tmp_path: Path) -> None:
    result = run("--state", str(tmp_path / "s"), upstream_timeout="whenever")
    assert (result.exit_code, "'whenever' is no duration" in result.output) == (2, True)


def test_a_state_folder_that_was_there_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with (tmp_path / "gateway.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run("--state", str(tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "gateway.lock").symlink_to(target)
    result = run("--state", str(tmp_path / "state"))
    assert (result.exit_code, "gateway.lock cannot be opened" in result.output) == (1, True)
    assert target.read_text() == "kept"


def test_a_state_folder_has_one_gateway(tmp_path: Path) -> None:
    with (tmp_path / "gateway.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run("--state", str(tmp_path))
    assert (result.exit_code, "another gateway already runs on the state folder" in result.output) == (1, True)


def test_a_wait_for_silence_of_zero_is_taken(tmp_path: Path) -> None:
    with (tmp_path / "gateway.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run("--state", str(tmp_path), "--upstream-silence", "0s")
    assert (result.exit_code, "another gateway already runs" in result.output) == (1, True)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("--state", str(tmp_path), "--port", str(port))
    assert (result.exit_code, f"cannot listen on 127.0.0.1:{port}" in result.output) == (1, True)
    assert not (tmp_path / "gateway.json").exists()


@pytest.mark.slow
def test_a_running_gateway_leaves_its_addresses_in_its_state_folder_until_it_ends(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "gateway", "--state", str(tmp_path), "--port", "0", "--metrics-port", "0")
    gateway = subprocess.Popen(command)
    try:
        while running_pid(tmp_path) is None:
            assert gateway.poll() is None
            time.sleep(0.02)
        stored = read_gateway(tmp_path)
        assert stored["pid"] == gateway.pid and {"url", "metrics_url", "pid", "cpu_scale"} == set(stored)
        assert requests.get(stored["url"] + "/healthz", timeout=100).status_code == 200
        assert "gateway_" in requests.get(stored["metrics_url"], timeout=100).text
    finally:
        gateway.terminate()
        gateway.wait(100)
    assert running_pid(tmp_path) is None and not (tmp_path / "gateway.json").exists()


def test_passwords_that_were_put_there_are_used(tmp_path: Path) -> None:
    settings = GatewaySettings(state=tmp_path)
    settings.secrets_dir.mkdir()
    (settings.secrets_dir / "basic-auth-password").write_text("own\n")
    assert ensure_credentials(settings).password == "own"


def test_a_password_that_others_could_read_is_made_private_and_the_log_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = GatewaySettings(state=tmp_path)
    settings.secrets_dir.mkdir()
    path = settings.secrets_dir / "basic-auth-password"
    path.write_text("own\n")
    path.chmod(0o644)
    assert ensure_credentials(settings).password == "own"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} had mode 644, so that others could read it; it is 600 now"
    ]


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_gos_durations_add_up(hours: int, minutes: int, seconds: int, millis: int) -> None:
    expected = hours * 3600 + minutes * 60 + seconds + millis / 1000
    assert parse_duration(f"{hours}h{minutes}m{seconds}s{millis}ms") == pytest.approx(expected)
    assert parse_duration(f" {seconds} ") == seconds


@given(st.text(max_size=10))
def test_any_text_is_a_duration_or_a_sentence(text: str) -> None:
    try:
        assert parse_duration(text) >= 0
    except ValueError as error:
        assert "is no duration" in str(error)
