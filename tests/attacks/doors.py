"""Attacks on who may do what: the control API, the page, workers' ports, commands, files."""

from __future__ import annotations

import http.client
import os
import stat
import subprocess
import sys
from collections.abc import Sequence

from gateway.backends.process import users
from gateway.client.errors import GatewayClientError
from platform_words.labels import PIPELINE_LABEL
from tests.attacks.target import IMAGE, Target

NOBODY = 65534
Outcome = tuple[bool, str]


def _authorized(form: str) -> dict[str, str]:
    return {"authorization": form} if form else {}


def control_without_password(target: Target) -> Outcome:
    paths = ("/system/functions", "//system/functions", "/%73ystem/functions", "/system//functions", "/ui/page.js",
             "/function/../system/functions", "/system/secrets", "/system/replicas", "/system/view")  # fmt: skip
    forms = ("", "Basic ", "Basic Og==", "Basic YWRtaW46", f"Bearer {target.password}", "Bearer ", "Basic %%%")
    answers = [target.ask("GET", path, b"", 30.0, **_authorized(form)) for path in paths for form in forms]
    opened = [body for status, body, _ in answers if status < 400 and b"[" in body]
    return not opened, f"{len(answers)} requests, {len(opened)} opened"


def forged_session(target: Target) -> Outcome:
    values = ("", "a", "9999999999.0." + "0" * 64, "." * 3, "9999999999." + "a" * 32 + "." + "f" * 64)
    statuses = [target.ask("GET", "/system/functions", cookie=f"smoe-session={value}")[0] for value in values]
    return set(statuses) == {401}, f"{len(values)} cookies"


def write_from_another_site(target: Target) -> Outcome:
    sent = ({"sec_fetch_site": "cross-site"}, {"origin": "https://elsewhere.example"}, {"origin": "null"})
    document = {"service": "planted", "image": "any", "envProcess": "id"}
    statuses = [target.system("POST", "/system/functions", document, content_type="text/plain", **one) for one in sent]
    planted = target.ask("POST", "/function/planted")[0]
    return (set(statuses), planted) == ({403}, 404), f"{statuses}, the function answers {planted}"


def command_reads_the_password(target: Target) -> Outcome | None:
    if not users.possible():
        return None
    target.command("reader", f"cat {target.state / 'secrets' / 'basic-auth-password'}")
    status, body, _ = target.ask("POST", "/function/reader")
    return status == 500 and target.password.encode() not in body, f"answered {status}"


def command_reads_anothers_secret_and_environment(target: Target) -> Outcome | None:
    if not users.possible():
        return None
    target.system("POST", "/system/secrets", {"name": "theirs", "value": "s3cret"})
    target.command("owner", "cat /var/openfaas/secrets/theirs", "theirs")
    owned = target.ask("POST", "/function/owner")[1]
    target.command("thief", "cat /var/openfaas/secrets/theirs")
    answer = target.ask("POST", "/function/thief")[1]
    target.command("spy", f"cat /proc/{target.process.pid}/environ")
    spied = target.ask("POST", "/function/spy")[0]
    held = b"s3cret" not in answer and spied == 500
    return held, f"its owner reads {'it' if owned == b's3cret' else 'nothing'}, the environment answers {spied}"


def commands_rights(target: Target) -> Outcome | None:
    if not users.possible():
        return None
    target.command("rights", "cat /proc/self/status")
    text = target.ask("POST", "/function/rights")[1].decode()
    lines = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    uid = int(lines["Uid"].split()[0])
    return uid != os.getuid() and int(lines["CapEff"], 16) == 0 and lines["NoNewPrivs"] == "1", f"user {uid}"


def worker_called_by_itself(target: Target) -> Outcome:
    target.command("worker", "cat")
    (replica,) = target.client.replicas()["worker"]
    host, _, port = str(replica["address"]).rpartition(":")
    statuses = []
    for headers in ({}, {"x-smoe-caller-key": "guess"}):
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request("POST", "/", b"x", headers)
        statuses.append(connection.getresponse().status)
        connection.close()
    through = target.ask("POST", "/function/worker", b"x")[:2]
    return set(statuses) == {403} and through == (200, b"x"), f"{statuses}; through the gateway {through[0]}"


def metrics_at_the_front_door(target: Target) -> Outcome:
    target.client.deploy({"service": "inner", "image": IMAGE, "labels": {PIPELINE_LABEL: "attacked"}})
    target.client.wait_ready(["inner"], 60.0)
    paths = ("/metrics", "/statistics", "/relay", "/kv", "/kv/free", "//metrics", "/%6detrics", "/metrics?x")
    statuses = [target.ask("GET", f"/function/inner{path}")[0] for path in paths]
    return set(statuses) == {404} and target.ask("POST", "/function/inner")[0] == 200, f"{len(paths)} paths"


def open_gateway_beyond_loopback(target: Target) -> Outcome:
    command = [sys.executable, "-m", "gateway", "--state", str(target.state.parent / "open"), "--host", "0.0.0.0"]
    ended = subprocess.run([*command, "--no-basic-auth"], capture_output=True, text=True, timeout=120, check=False)
    return ended.returncode == 2 and "open-control" in ended.stderr, f"exit status {ended.returncode}"


def files_read_by_another_user(target: Target) -> Outcome | None:
    mode = stat.S_IMODE(target.state.stat().st_mode)
    if os.getuid() != 0:
        return mode == 0o700, f"mode {mode:o}; no other user could be tried"
    target.state.parent.chmod(0o755)
    paths = [str(target.state / name) for name in ("secrets/basic-auth-password", "gateway.json", "functions")]
    ended = subprocess.run(
        ["/bin/ls", *paths], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, check=False
    )
    return mode == 0o700 and not ended.stdout, f"mode {mode:o}, user nobody reads {len(ended.stdout)} bytes"


def callback_to_a_receiver_not_listed(target: Target) -> Outcome:
    urls = ("http://169.254.169.254/latest", "http://127.0.0.1:22/", f"http://{target.address}/system/functions",
            "ftp://127.0.0.1/", "file:///etc/passwd", "http://[::1]:80/", "http://")  # fmt: skip
    statuses = [target.ask("POST", "/async-function/worker", b"x", x_callback_url=url)[0] for url in urls]
    return set(statuses) == {400}, f"{len(urls)} addresses"


def names_that_leave_their_folder(target: Target) -> Outcome:
    names = ("../up", "a/b", "/etc/passwd", "a\0b", "", "." * 3, "A", "x" * 300, "a\n")
    statuses = [target.system("POST", "/system/secrets", {"name": name, "value": "v"}) for name in names]
    statuses += [target.system("POST", "/system/functions", {"service": name, "image": "any"}) for name in names]
    return set(statuses) == {400}, f"{len(statuses)} names"


def deployments_that_cannot_be(target: Target) -> Outcome:
    documents: Sequence[object] = (
        [], 7, {"service": "f"}, {"service": "f", "image": "unknown"},
        {"service": "f", "image": "i", "envVars": {"a": 1}},
        {"service": "f", "image": "i", "envProcess": "cat", "secrets": ["absent"]},
        {"service": "f", "image": "i", "envProcess": "cat", "limits": {"memory": "-1"}},
        {"service": "f", "image": "i", "envProcess": "cat", "envVars": {"x": "y" * 200_000}},
    )  # fmt: skip
    statuses = [target.system("POST", "/system/functions", document) for document in documents]
    deep = target.ask("POST", "/system/functions", b"[" * 100_000, authorization=target.basic)[0]
    try:
        left = [f["name"] for f in target.client.functions() if f["name"] == "f"]
    except GatewayClientError as error:
        return False, str(error)
    return {*statuses, deep} == {400} and not left, f"{len(documents) + 1} documents"


ATTACKS = (
    control_without_password, forged_session, write_from_another_site, command_reads_the_password,
    command_reads_anothers_secret_and_environment, commands_rights, worker_called_by_itself, metrics_at_the_front_door,
    open_gateway_beyond_loopback, files_read_by_another_user, callback_to_a_receiver_not_listed,
    names_that_leave_their_folder, deployments_that_cannot_be,
)  # fmt: skip
