"""Rules that decide a layer as a whole: on which node each of its activated experts is served.

``aebs`` (Janus, Algorithm 1 with repair) lets the fullest node activate as few experts as possible, over all tokens of
the pass (line 1): of all texts and parts of prompts of an instance's iteration, of all requests packed into one pass.
``token-balanced`` gives experts in order of falling tokens to the node with the fewest tokens so far. Both follow from
the tokens' choices and the table of replicas alone, so every ingress decides the same without talking. Which of several
replicas on the node serves is the dispatcher's choice, and so is another node where none of them has a free slot.

The compiled rules are loaded when they are first needed: Numba is optional in a function's image. A warm parent whose
replicas will be on several nodes loads them before it forks (:mod:`functions.ingress.prefetch`), because that takes
most of a second of processor time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from functions.dispatch.dispatcher import Dispatcher
from functions.serving.settings import SettingsError

if TYPE_CHECKING:
    from functions.dispatch.aebs import ReplicaTable

log = logging.getLogger(__name__)

PlanRule = Literal["aebs", "token-balanced"]
Choose = Callable[[NDArray[np.int64], NDArray[np.int32]], object]
"""Writes the replica of every (token, choice): [tokens, k] int64 → [tokens, k] int32."""


@dataclass(slots=True)
class _Layer:
    """What one table of replicas makes of a layer; ``choose`` is None where there is nothing to decide."""

    version: int = -1
    choose: Choose | None = None
    names: tuple[str, ...] = ()
    width: int = 1
    """Slots of a node: replica ``r`` is on node ``r // width`` of ``names``."""
    slots: NDArray[np.int64] | None = None
    """[nodes, width]: expert in each slot, -1 where it is free."""


class LayerPlans:
    """Nodes for the activated experts of each layer of a pipeline."""

    def __init__(self, functions: Sequence[Sequence[str]], dispatcher: Dispatcher, rule: PlanRule) -> None:
        """``functions``: [layers][experts], the function that serves each expert."""
        self._functions = functions
        self._dispatcher = dispatcher
        self._rule: PlanRule = rule
        self._layers = [_Layer() for _ in functions]
        self._make: Callable[[ReplicaTable], Choose] | None = None
        self._loading: asyncio.Future[Any] | None = None
        self._failed = False

    def load(self) -> None:
        """Load the compiled rule now. Raises SettingsError where that is not possible."""
        try:
            self._make = maker(self._rule)
        except Exception as error:  # Numba is missing, or has no place for its cache
            raise SettingsError(f"smoe_dispatch is {self._rule}, which needs Numba: {error}") from error

    def nodes(self, layer: int, experts: Sequence[int], expert_ids: NDArray[np.int64]) -> list[str] | None:
        """A node for each of the activated ``experts`` of ``expert_ids`` [T, k]; None: nothing to decide.

        That is so while every expert's replicas are on one node, while one of them has none, and while the rule loads.
        """
        layer_plan = self._current(layer)
        if layer_plan.choose is None:
            return None
        replicas = np.empty(expert_ids.shape, np.int32)
        layer_plan.choose(np.ascontiguousarray(expert_ids), replicas)
        of_expert = np.empty(len(self._functions[layer]), np.int32)
        of_expert[expert_ids] = replicas
        return [layer_plan.names[of_expert[expert] // layer_plan.width] for expert in experts]

    def table(self, layer: int) -> tuple[tuple[str, ...], NDArray[np.int64]] | None:
        """Nodes by name and ``slots`` [nodes, width] int64, the expert in each slot or -1, for whoever decides by the
        same rule elsewhere; None as in ``nodes``."""
        layer_plan = self._current(layer)
        return None if layer_plan.choose is None or layer_plan.slots is None else (layer_plan.names, layer_plan.slots)

    def _current(self, layer: int) -> _Layer:
        layer_plan = self._layers[layer]
        if layer_plan.version != self._dispatcher.version:
            self._read(layer, layer_plan)
        return layer_plan

    def _read(self, layer: int, table: _Layer) -> None:
        """Rebuild a layer's table."""
        table.version, table.choose = self._dispatcher.version, None
        held = [{replica.node for replica in self._dispatcher.replicas(name)} - {""} for name in self._functions[layer]]
        if self._failed or not all(held) or all(len(nodes) == 1 for nodes in held):
            return
        if self._make is None:
            table.version = -1  # again when it is there
            self._load_aside()
            return
        from functions.dispatch.aebs import replica_table

        names = sorted({node for nodes in held for node in nodes})
        by_node = [[expert for expert, nodes in enumerate(held) if name in nodes] for name in names]
        width = max(map(len, by_node))
        slots = np.array([experts + [-1] * (width - len(experts)) for experts in by_node])
        table.names, table.width, table.slots = tuple(names), width, slots
        table.choose = self._make(replica_table(slots, len(held)))

    def _load_aside(self) -> None:
        """Load in a thread while passes go on."""
        if self._loading is not None:
            return

        def done(future: asyncio.Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None:
                self._failed = True
                log.warning("replicas are chosen by load alone: %s", error)

        self._loading = asyncio.get_running_loop().run_in_executor(None, self.load)
        self._loading.add_done_callback(done)


def maker(rule: PlanRule) -> Callable[[ReplicaTable], Choose]:
    """The compiled rule, made ready by one call on a small table."""
    from functions.dispatch.aebs import ActivatedExpertBalance, replica_table
    from functions.dispatch.token_balanced import TokenBalanced

    def make(table: ReplicaTable) -> Choose:
        return (ActivatedExpertBalance(table) if rule == "aebs" else TokenBalanced(table)).choose

    small = make(replica_table(np.array([[0, 1], [0, 2]]), 3))
    small(np.array([[0, 1]], np.int64), np.empty((1, 2), np.int32))
    return make
