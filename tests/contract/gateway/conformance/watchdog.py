"""What ``smoe.deployment`` relies on of of-watchdog, asked of the program itself: ``watchdog.py FWATCHDOG``.

Its times, and which replies it hands on piece by piece. Uses the ports 18080, 18050 and, as of-watchdog always does,
8081. Prints what it met, and exits with 1 where that is not as expected.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT, BEHIND = 18080, 18050
EVENT = b"data: %b\n\n" % (b"x" * 200)
SURVIVOR = """import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
watchdog = os.getppid()
while os.getppid() == watchdog:
    time.sleep(0.05)
"""
"""As ``functions.app``, which goes on after SIGTERM until the watchdog has ended."""


class Function(BaseHTTPRequestHandler):
    """``/slow/SECONDS`` answers after that time, ``/events/SECONDS`` sends an event every 0.1 s."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Calls are printed by who makes them."""

    def do_GET(self) -> None:
        _, kind, seconds = self.path.split("/")
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.send_header("content-type", "text/event-stream" if kind == "events" else "text/plain")
        if kind == "slow":
            time.sleep(float(seconds))
        self.end_headers()
        with suppress(OSError):  # the watchdog has given it up
            for _ in range(round(10 * float(seconds)) if kind == "events" else 1):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
                time.sleep(0.1 if kind == "events" else 0.0)
            self.wfile.write(b"0\r\n\r\n")


@contextmanager
def watchdog(program: str, **times: str) -> Iterator[subprocess.Popen[bytes]]:
    """Once it answers, before a function in this process."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"PATH": os.environ["PATH"], "TMPDIR": folder, "mode": "http", "port": str(PORT), **times}
        (Path(folder) / "function.py").write_text(SURVIVOR)
        environment |= {
            "fprocess": f"{sys.executable} {folder}/function.py",
            "upstream_url": f"http://127.0.0.1:{BEHIND}",
        }
        with subprocess.Popen([program], env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                while not isinstance(ask("/slow/0"), int):
                    time.sleep(0.1)
                yield process
            finally:
                process.kill()


def ask(path: str, accept: str = "application/json") -> int | str:
    """Pieces that a whole reply came in; the error where none came whole."""
    connection = HTTPConnection("127.0.0.1", PORT, timeout=60)
    try:
        connection.request("GET", path, headers={"accept": accept})
        reply = connection.getresponse()
        return sum(1 for _ in iter(lambda: reply.read1(65536), b""))
    except (OSError, HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


def end_s(process: subprocess.Popen[bytes]) -> float:
    """Seconds from SIGTERM to its end."""
    begun_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    return time.monotonic() - begun_s


def main(program: str) -> int:
    server = ThreadingHTTPServer(("127.0.0.1", BEHIND), Function)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    met: list[tuple[str, object, bool]] = []
    with watchdog(program, write_timeout="3s", exec_timeout="9s") as process:
        for path in ("/slow/4", "/events/5"):
            pieces = ask(path, "text/event-stream")
            met.append((f"write_timeout 3s: {path}", pieces, isinstance(pieces, str)))
        seconds = end_s(process)
        met.append(("write_timeout 3s: end when idle", f"{seconds:.1f} s", seconds >= 3))
    with watchdog(program, write_timeout="9s", exec_timeout="9s", healthcheck_interval="1s") as process:
        met.append(("write_timeout 9s: /slow/4", few := ask("/slow/4"), few == 1))
        plain, events = ask("/events/5"), ask("/events/5", "text/event-stream")
        met.append(("pieces of 50 events, accepting JSON", plain, isinstance(plain, int) and plain < 25))
        met.append(("pieces of 50 events, accepting events", events, isinstance(events, int) and events > 40))
        seconds = end_s(process)
        met.append(("healthcheck_interval 1s: end when idle", f"{seconds:.1f} s", 1 <= seconds < 3))
    for what, value, expected in met:
        print(f"{what}: {value}{'' if expected else '   NOT AS EXPECTED'}")
    return 0 if all(expected for _, _, expected in met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
