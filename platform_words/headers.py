"""Headers that the gateway and functions agree on."""

CALLER_KEY = "x-smoe-caller-key"
"""Shows a worker that its caller is the gateway or an ingress of it; the gateway never passes on a client's."""
START_TIME = "x-start-time"
"""What OpenFaaS's gateways add to every call that they forward, and nobody else."""
TIMEOUT_MS = "x-timeout-ms"
"""Milliseconds that a call of a pipeline's function has left, so that clocks need not agree."""
