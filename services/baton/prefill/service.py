"""Prefill as a service that a worker process hosts."""

from __future__ import annotations

from functools import partial

from baton.kv_transport.kv_services import PREFILL_SERVICE_NAME, FastServer, add_prefill_service
from baton.node.memory import LONE_PROMPT
from baton.node.node import WorkerNode
from baton.node.service import NodeService
from baton.prefill.prefiller import Prefiller
from baton.prefill.servicer import FastPrefill, PrefillServicer
from baton.prefill.settings import PrefillSettings


def prefill_service(node: WorkerNode, settings: PrefillSettings) -> NodeService:
    """Return the service on a node, with its fast path."""
    prefiller = Prefiller(node, node.budgets["max_outbox_bytes"], node.budgets[LONE_PROMPT])
    handler = FastPrefill(prefiller)
    fast = FastServer(settings.host, settings.fast_port, handler, advertised=settings.advertised_fast)
    return NodeService(
        PREFILL_SERVICE_NAME,
        partial(add_prefill_service, PrefillServicer(prefiller)),
        fast=fast,
        run=fast.open_outside,
        on_hung=prefiller.streams.end_all,
    )
