"""GET /instance/previews: the placements that the router would consider, each as an instance that may be posted."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from baton.capacity.snapshot import NodePair
from baton.errors import OutOfMemoryError, UnavailableError
from baton.gateway.api.errors import invalid
from baton.gateway.api.exo.documents import instance_document
from baton.gateway.api.exo.instances import Instance
from baton.gateway.cluster.router_client import RouterClient
from baton.internal.v1.node_pb2 import NodeDescription
from baton.internal.v1.router_service_pb2 import Candidate, CostEstimate, PlaceRequest
from baton.wire.node_roles import decodes

PROMPT_TOKENS, OUTPUT_TOKENS = 1024, 128
"""The request whose cost is shown where the query names none; at most three and one quarters of the context."""

_MAX_TOKENS = 2**31 - 1


class ReferenceRequest(NamedTuple):
    """What is priced."""

    prompt_tokens: int
    """Prompt, all of it computed: no cache is counted on."""
    max_tokens: int
    """Output tokens at most."""


async def fetch_previews(
    router: RouterClient,
    model: str,
    nodes: Mapping[str, NodeDescription],
    *,
    prompt_tokens: int | None = None,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """Return the previews, cheapest first; none while no node could take the request.

    Tokens of the request that is priced: None is what fits the context.

    Raises:
        BatonError: If the router does not answer.
    """
    own = [node for node in nodes.values() if decodes(node) and node.model_id == model]
    context_tokens = max((node.model_shape.max_context_token_count for node in own), default=0)
    reference = ReferenceRequest(
        prompt_tokens=prompt_tokens or min(PROMPT_TOKENS, max(1, context_tokens * 3 // 4)),
        max_tokens=max_tokens or min(OUTPUT_TOKENS, max(1, context_tokens // 4)),
    )
    request = PlaceRequest(
        request_id=f"preview-{uuid.uuid4()}",
        model_id=model,
        prompt_token_count=reference.prompt_tokens,
        max_token_count=reference.max_tokens,
        bypass_prefix_cache=True,
        is_dry_run=True,
    )
    candidates: Sequence[Candidate] = ()
    try:
        candidates = (await router.place(request)).candidates
    except (OutOfMemoryError, UnavailableError) as error:
        if error.reason not in ("NO_NODE", "OUT_OF_MEMORY"):
            raise
    feasible = [candidate for candidate in candidates if not candidate.infeasible_reason]
    return {"previews": [_preview(model, candidate, reference, nodes) for candidate in feasible]}


def _preview(
    model: str, candidate: Candidate, reference: ReferenceRequest, nodes: Mapping[str, NodeDescription]
) -> dict[str, Any]:
    pair = NodePair(candidate.decode_node_id, candidate.prefill_node_id)
    instance = Instance(str(uuid.uuid4()), model, pair)
    return {
        "model_id": model,
        "sharding": "Pipeline",
        "instance_meta": "BatonRing",
        "instance": instance_document(instance, nodes),
        "nodes": instance.node_ids,
        "memory_delta_by_node": {},
        "error": None,
        "reference_request": reference._asdict(),
        "kv_bytes": candidate.kv_byte_count,
        "estimate": _estimate(candidate.estimate),
    }


def _estimate(estimate: CostEstimate) -> dict[str, float]:
    """Return every term, in seconds but for the count of tokens; zeros are terms too."""
    return {field.name: getattr(estimate, field.name) for field in CostEstimate.DESCRIPTOR.fields}


def count_in_query(query: Mapping[str, str], name: str) -> int | None:
    """Return what a query says of the request to be priced; None: nothing.

    Raises:
        ApiError: 400, if it is no count.
    """
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 11 and 1 <= int(text) <= _MAX_TOKENS):
        raise invalid(name, f"expected 1 to {_MAX_TOKENS}, got {text[:20]!r}")
    return int(text)
