"""All bounds of a gateway's memory filled at once, against the memory that it was given."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress

from tests.attacks.target import Target, running_target

MIB = 1 << 20
BODY_BYTES = MIB
SHIPPED_MIB = 1024
"""The memory limit of the gateway's pod in ``deploy/``."""
FILLS_WITHIN_S = 120.0


def memory_filled_to_its_bounds(target: Target, thorough: bool) -> tuple[bool, str]:
    """Replies that receivers do not take, calls that wait, and bodies that stop before their end: in this order, as the
    last take all that is left. On a gateway of its own, with as much memory as the shipped pod or a quarter of it."""
    memory = SHIPPED_MIB * MIB // (1 if thorough else 4)
    with running_target("--memory-mib", str(memory // MIB), "--async-queue", "4096") as filled, ExitStack() as lines:
        filled.command("echo", "cat")
        filled.command("sleeper", "sleep 600")
        before, count = filled.resident_bytes(), memory // 4 // BODY_BYTES
        back = f"http://{filled.receivers['trickling'].address}/"
        body, most, end_s = b"x" * BODY_BYTES, before, time.monotonic() + FILLS_WITHIN_S
        for _ in range(count + 8):
            filled.ask("POST", "/async-function/echo", body, x_callback_url=back)
        while filled.resident_bytes() < before + memory // 5 and time.monotonic() < end_s:
            time.sleep(0.1)
        waiting = [filled.ask("POST", "/async-function/sleeper", body)[0] for _ in range(count + 8)]
        most = max(most, filled.resident_bytes())
        large = 3 * body
        head = b"POST /function/echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (len(large) + 1)
        refused, end_s = 200, time.monotonic() + FILLS_WITHIN_S
        while refused == 200 and time.monotonic() < end_s:  # replies that are given up meanwhile make room again
            for _ in range(8):
                line = lines.enter_context(filled.connect())
                with suppress(OSError):
                    line.sendall(head + large)
                most = max(most, filled.resident_bytes())
            refused = filled.ask("POST", "/function/echo", large)[0]
        alive = filled.ask("GET", "/healthz")[0]
        most = max(most, filled.resident_bytes())
    words = (
        f"{most / MIB:.0f} of {memory // MIB} MiB at most, {before / MIB:.0f} before; of {len(waiting)} waiting calls "
        f"{waiting.count(429)} were refused, a further call got {refused}"
    )
    return most < memory and refused == 503 and 429 in waiting and alive == 200, words
