"""A fake ``nvidia-cuda-mps-control``: ``-f`` is the daemon, without arguments a command is read from standard input.

``default_percentage`` in the pipe folder holds what it allows; ``started_with`` there is the environment of its start.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

PIPE = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", ""))
PID_FILE = PIPE / "nvidia-cuda-mps-control.pid"


def daemon() -> int:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(PIPE / "control"))
        listener.listen()
        PID_FILE.write_text(str(os.getpid()))
        started_with = [os.environ.get(key, "") for key in ("CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES")]
        (PIPE / "started_with").write_text("|".join(started_with))
        while True:
            connection, _ = listener.accept()
            with connection:
                command = connection.recv(4096).decode().strip()
                if command == "quit":
                    break
                allowed = PIPE / "default_percentage"
                connection.sendall((allowed.read_text() if allowed.exists() else "100.0").encode())
    PID_FILE.unlink()
    (PIPE / "control").unlink()
    return 0


def ask() -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(PIPE / "control"))
        except OSError:
            print("Cannot find MPS control daemon process")
            return 1
        connection.sendall(sys.stdin.readline().encode())
        print(connection.recv(4096).decode())
    return 0


if __name__ == "__main__":
    sys.exit(daemon() if sys.argv[1:] == ["-f"] else ask())
