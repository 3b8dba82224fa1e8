"""What a service such as prefill offers to the process that hosts it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import grpc

from baton.errors import BatonError
from baton.kv_transport.kv_services import FastServer
from baton.node.cluster.registration import Peers


async def _nothing() -> None:
    """Do nothing beside the calls."""


@dataclass(frozen=True, slots=True)
class NodeService:
    """One service on a node, not yet started; whoever hosts it starts and drains its servers."""

    name: str
    register: Callable[[grpc.aio.Server], None]
    fast: FastServer | None = None
    """Serves its KV streams besides; None: nothing does."""
    run: Callable[[], Coroutine[Any, Any, None]] = _nothing
    """Does its work beside the calls, until cancelled."""
    on_peers: Callable[[Peers], None] = lambda _peers: None
    """Called when the other nodes of the model change."""
    on_hung: Callable[[BatonError], None] = lambda _error: None
    """Called when a pass hangs, with what is told to whom waits: it goes on elsewhere."""
    on_drain: Callable[[], None] = lambda: None
    """Called when no new work is accepted any more."""
    left: Callable[[], Coroutine[Any, Any, None]] = _nothing
    """Returns, after that, when others have taken over what they can."""
