"""NVIDIA's Multi-Process Service: one control daemon, through which processes share GPUs in parts.

One that runs already is used (``CUDA_MPS_PIPE_DIRECTORY`` of the gateway, or MPS' default); it must let clients have
the whole GPU by default, since a client can only lower what the daemon allows. Otherwise one is started, with pipe and
log below the state folder; it ends with the gateway (``mps_keeper``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gateway.contract import BackendError
from platform_words.resources import MPS_PIPE

log = logging.getLogger(__name__)

CONTROL = "nvidia-cuda-mps-control"
DEFAULT_PIPE = Path("/tmp/nvidia-mps")  # noqa: S108 (MPS' own default)
PID_FILE = "nvidia-cuda-mps-control.pid"
LONGEST_PIPE = 80
"""Characters; MPS makes sockets in its pipe folder, and a socket's whole path may have 107."""
_ASK_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 20.0


class Mps:
    """The control daemon that replicas of this gateway reach. ``pipe`` is its folder, valid after :meth:`ready`."""

    def __init__(
        self, state: Path, python: str, control: str = CONTROL, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._folder = (state / "mps").resolve()
        self._python = python
        self._control = control
        self._given = Path(environ.get(MPS_PIPE) or DEFAULT_PIPE)
        self._path = environ.get("PATH", os.defpath)
        self._lock = asyncio.Lock()
        self.keeper: subprocess.Popen[bytes] | None = None
        self.pipe = self._given

    async def ready(self) -> None:
        """Use the daemon that runs, or start one. Raises BackendError.

        Asked before each start of a replica: CUDA goes on without MPS, and without limits, when its daemon is gone.
        """
        async with self._lock:
            if self.keeper is not None and self.keeper.poll() is not None:
                log.error("the MPS control daemon ended with code %s; it is started again", self.keeper.returncode)
                await self.close()
            if self.keeper is None and not await self._use_given():
                await self._start()

    async def close(self) -> None:
        """End the daemon if it is ours; clients have ended before."""
        keeper, self.keeper = self.keeper, None
        if keeper is None:
            return
        assert keeper.stdin is not None
        keeper.stdin.close()
        try:
            await asyncio.to_thread(keeper.wait, _STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            log.error("the keeper of the MPS control daemon did not end and is killed")
            keeper.kill()
            await asyncio.to_thread(keeper.wait)

    async def _use_given(self) -> bool:
        if not (self._given / PID_FILE).exists():
            return False
        answer = await self._ask("get_default_active_thread_percentage", self._given)
        if answer is None:
            return False  # a daemon that was killed leaves its file behind
        try:
            allowed = float(answer)
        except ValueError:
            raise BackendError(
                f"the MPS control daemon at {self._given} answered {answer[:80]!r} to a question"
            ) from None
        if allowed < 100:
            raise BackendError(
                f"the MPS control daemon at {self._given} gives every client at most {allowed:g} % of a GPU, so larger "
                f"shares would not hold: set_default_active_thread_percentage 100 there, or end it"
            )
        self.pipe = self._given
        log.info("using the MPS control daemon at %s", self.pipe)
        return True

    async def _start(self) -> None:
        pipe, logs = self._folder / "pipe", self._folder / "log"
        if len(str(pipe)) > LONGEST_PIPE:
            raise BackendError(
                f"GPU shares need MPS, whose sockets would be in {pipe}: {len(str(pipe))} characters, at most "
                f"{LONGEST_PIPE} are possible; choose a state folder with a shorter path"
            )
        for folder in (pipe, logs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A daemon that sees some GPUs only would renumber them for its clients.
        inherited = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
        keeper = subprocess.Popen(
            [self._python, "-m", "gateway.backends.process.gpu.mps_keeper", self._control],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={**inherited, **self._environment(pipe), "CUDA_MPS_LOG_DIRECTORY": str(logs)},
        )
        self.keeper, self.pipe = keeper, pipe
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while await self._ask("get_default_active_thread_percentage", pipe) is None:
                    if keeper.poll() is not None:
                        raise BackendError(f"the MPS control daemon could not be started; {logs} may say why")
                    await asyncio.sleep(0.1)
        except TimeoutError:
            await self.close()
            raise BackendError(f"the MPS control daemon did not answer within {_START_TIMEOUT_S:g} s") from None
        except (BackendError, asyncio.CancelledError):
            await self.close()
            raise
        log.info("started an MPS control daemon at %s", pipe)

    async def _ask(self, command: str, pipe: Path) -> str | None:
        """The daemon's answer to one command; None where no daemon answers. Raises BackendError without the program."""

        def ask() -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(
                [self._control],
                input=command.encode() + b"\n",
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environment(pipe),
                timeout=_ASK_TIMEOUT_S,
                check=False,
            )

        try:
            asked = await asyncio.to_thread(ask)
        except subprocess.TimeoutExpired:
            return None
        except OSError as error:
            raise BackendError(f"GPU shares need {self._control}, which cannot be run: {error.strerror}") from error
        text = asked.stdout.decode(errors="replace").strip()
        return text if asked.returncode == 0 and text else None

    def _environment(self, pipe: Path) -> dict[str, str]:
        return {"PATH": self._path, MPS_PIPE: str(pipe)}
