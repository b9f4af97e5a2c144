"""Functions that are a command per call, as OpenFaaS's classic watchdog runs them.

The process backend forks this as the entry of every function whose image it does not know but which gives
``envProcess``. It must never run a command through a shell, and never import the gateway's side.
"""

from gateway.backends.watchdog.server import main

__all__ = ["main"]
