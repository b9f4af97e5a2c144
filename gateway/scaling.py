"""Scale from zero: a call for a function without a ready replica waits while one starts, or a standby is activated."""

from __future__ import annotations

import asyncio

from gateway.contract import Activation, Backend, FunctionSpec, FunctionState, GatewayError
from gateway.specs import scale_bounds

ACTIVE_S = 5.0
"""For which a standby stays that a call from outside the pipeline activated."""


class ScaleFromZero:
    """One order for each function however many calls wait (single flight)."""

    def __init__(self, backend: Backend, *, enabled: bool, wait_s: float) -> None:
        self._backend = backend
        self._enabled = enabled
        self._wait_s = wait_s
        self._orders: dict[str, asyncio.Task[None]] = {}
        self._activated_until_s: dict[tuple[str, str], float] = {}

    async def ready_state(self, state: FunctionState) -> FunctionState:
        """The function with a ready replica, or as it is when none came in time. Raises NotFoundError when deleted."""
        spec = state.spec
        if state.desired_replicas == 0:
            if not self._enabled:
                return state
            await self._order(state)
        if state.sleeps and not state.ready:
            await self._activate(spec)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._wait_s
        version = self._backend.version()
        state = self._backend.get(spec.name, spec.namespace)
        while not state.ready and state.desired_replicas and loop.time() < end_s:
            version = await self._backend.wait_change(version, min(1.0, end_s - loop.time()))
            state = self._backend.get(spec.name, spec.namespace)
        return state

    async def _activate(self, spec: FunctionSpec) -> None:
        """One replica of a function whose replicas all wait, for a call that no ingress has announced."""
        now_s = asyncio.get_running_loop().time()
        kept = {key: until_s for key, until_s in self._activated_until_s.items() if until_s > now_s}
        self._activated_until_s = {**kept, (spec.name, spec.namespace): now_s + ACTIVE_S}
        await self._backend.activate(Activation("gateway", dict.fromkeys(self._activated_until_s, 1), ACTIVE_S))

    async def _order(self, state: FunctionState) -> None:
        spec = state.spec
        task = self._orders.get(spec.key)
        if task is None:
            task = asyncio.create_task(self._backend.scale(spec.name, spec.namespace, max(1, scale_bounds(spec)[0])))
            self._orders[spec.key] = task
            task.add_done_callback(lambda done: self._orders.pop(spec.key, None))
        try:
            await asyncio.shield(task)
        except GatewayError:
            if not self._backend.get(spec.name, spec.namespace).desired_replicas:
                raise
