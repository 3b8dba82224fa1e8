"""What computing the rest of a prompt here would take, and a guard that ends a KV stream while there is time for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from baton.capacity import cost
from baton.capacity.cost import NodeProfile
from baton.decode.kv_stream.reader import SilentStreamError
from baton.engine.engine import Engine
from baton.engine.runners.base import Runner
from baton.security.access import TransferGate

LOCAL_MARGIN = 1.5
"""Times as long as expected that computing the rest here may take, where a deadline is near."""


class ComputingNode(Protocol):
    """A node, as far as it computes prompts; `baton.node.node.WorkerNode` is one."""

    node_id: str
    engine: Engine
    runner: Runner
    profile: NodeProfile
    transfers: TransferGate


def local_seconds(node: ComputingNode, start: int, num_tokens: int) -> float:
    """Return the time in which this node computes positions [start, num_tokens), behind the prompts that it has."""
    load, shape = node.engine.load(), node.runner.info.shape
    backlog = cost.backlog_seconds(shape, node.profile, load.num_pending_prompt_tokens, load.num_waiting)
    return backlog + cost.prefill_seconds(shape, node.profile, start, num_tokens)


class DeadlineGuard:
    """Breaks a stream at the last moment at which the rest can still be computed here, seen from how far it is then.

    Where that moment has passed already, the stream is the only hope, and goes on.

    `deadline` is the event loop's time at which the caller gives the request up.
    """

    def __init__(self, deadline: float, rest_seconds: Callable[[], float]) -> None:
        self._deadline = deadline
        self._rest_seconds = rest_seconds
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        loop = asyncio.get_running_loop()
        at = self._last_moment()
        if at > loop.time():
            self._timer = loop.call_at(at, self._look)

    async def __aexit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._timeout.__aexit__(*error)  # type: ignore[arg-type]
        except TimeoutError:
            raise SilentStreamError(
                "the stream left no more time than the rest takes here", reason="DEADLINE"
            ) from None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        at = self._last_moment()
        if at > loop.time():
            self._timer = loop.call_at(at, self._look)
        else:
            self._timer = None
            self._timeout.reschedule(loop.time())

    def _last_moment(self) -> float:
        return self._deadline - LOCAL_MARGIN * self._rest_seconds()
