"""A router that has just started knows nobody: placements wait for a short while until it has heard the nodes again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from baton.router.nodes import NodeTable
from baton.v1.router_service_pb2 import PlaceRequest

QUIET_SECONDS = 0.3
"""Time without another node after which those that are known are taken for all: they all come back at once."""
_LOOK_SECONDS = 0.02


class WarmUp:
    """Holds placements back for a while after the start; afterwards it is out of the way.

    A placement goes on once the nodes that it needs are known and no other has come for `QUIET_SECONDS`: the first node
    to return would get everything otherwise. One whose nodes do not come is refused as always when the time has passed.

    Args:
        nodes: Those that are registered.
        longest_seconds: From the start on; 0: nothing waits.
        clock: Seconds, monotonic.
        sleep: Waits.
    """

    def __init__(
        self,
        nodes: NodeTable,
        longest_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._nodes = nodes
        self._clock = clock
        self._sleep = sleep
        self._ends_at = clock() + longest_seconds
        self._known: frozenset[str] = frozenset()
        self._changed_at = clock()

    async def wait_for(self, request: PlaceRequest) -> None:
        """Return when a placement may be decided."""
        while (now := self._clock()) < self._ends_at and not self._may_go(request, now):
            await self._sleep(_LOOK_SECONDS)

    def _may_go(self, request: PlaceRequest, now: float) -> bool:
        known = frozenset(node.description.node_id for node in self._nodes)
        if known != self._known:
            self._known, self._changed_at = known, now
        return self._has_nodes_for(request) and now - self._changed_at >= QUIET_SECONDS

    def _has_nodes_for(self, request: PlaceRequest) -> bool:
        if request.pins:
            return any({pin.decode_node_id, pin.prefill_node_id} - {""} <= self._known for pin in request.pins)
        return any(node.description.can_decode for node in self._nodes.of_model(request.model_id))
