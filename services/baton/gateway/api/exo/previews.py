"""GET /instance/previews: the placements that the router would consider, each as an instance that may be posted."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from baton.capacity.snapshot import NodePair
from baton.errors import OutOfMemoryError, UnavailableError
from baton.gateway.api.errors import refused
from baton.gateway.api.exo.documents import instance_document
from baton.gateway.api.exo.instances import Instance
from baton.gateway.cluster.router_client import RouterClient
from baton.v1.node_pb2 import NodeDescription
from baton.v1.router_service_pb2 import Candidate, CostEstimate, PlaceRequest

PROMPT_TOKENS, OUTPUT_TOKENS = 1024, 128
"""The request whose cost is shown where the query names none; at most three and one quarters of the context."""

_MAX_TOKENS = 2**31 - 1


class WantedRequest(NamedTuple):
    """What a query says of the request to be priced; None: nothing."""

    prompt_tokens: int | None
    """Prompt."""
    max_tokens: int | None
    """Output tokens at most."""


class ReferenceRequest(NamedTuple):
    """What is priced."""

    prompt_tokens: int
    """Prompt, all of it computed: no cache is counted on."""
    max_tokens: int
    """Output tokens at most."""


def wanted_request(query: Mapping[str, str]) -> WantedRequest:
    """Return what a query asks about.

    Raises:
        ApiError: 400, naming the parameter that is no count.
    """
    return WantedRequest(_count(query, "prompt_tokens"), _count(query, "max_tokens"))


def reference_request(wanted: WantedRequest, *, max_context_tokens: int) -> ReferenceRequest:
    """Return the request to be priced, which fits the context where nothing was said."""
    return ReferenceRequest(
        prompt_tokens=wanted.prompt_tokens or min(PROMPT_TOKENS, max(1, max_context_tokens * 3 // 4)),
        max_tokens=wanted.max_tokens or min(OUTPUT_TOKENS, max(1, max_context_tokens // 4)),
    )


async def fetch_previews(
    router: RouterClient, model: str, reference: ReferenceRequest, nodes: Sequence[NodeDescription]
) -> dict[str, Any]:
    """Return the previews, cheapest first; none while no node could take the request.

    Raises:
        BatonError: If the router does not answer.
    """
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
    by_id = {node.node_id: node for node in nodes}
    feasible = [candidate for candidate in candidates if not candidate.infeasible_reason]
    return {"previews": [_preview(model, candidate, reference, by_id) for candidate in feasible]}


def _preview(
    model: str, candidate: Candidate, reference: ReferenceRequest, nodes: Mapping[str, NodeDescription]
) -> dict[str, Any]:
    pair = NodePair(candidate.decode_node_id, candidate.prefill_node_id)
    return {
        "model_id": model,
        "sharding": "Pipeline",
        "instance_meta": "BatonRing",
        "instance": instance_document(Instance(str(uuid.uuid4()), model, pair), nodes),
        "memory_delta_by_node": {},
        "error": None,
        "reference_request": reference._asdict(),
        "kv_bytes": candidate.kv_byte_count,
        "estimate": _estimate(candidate.estimate),
    }


def _estimate(estimate: CostEstimate) -> dict[str, float]:
    """Return every term, in seconds but for the count of tokens; zeros are terms too."""
    return {field.name: getattr(estimate, field.name) for field in CostEstimate.DESCRIPTOR.fields}


def _count(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 11 and 1 <= int(text) <= _MAX_TOKENS):
        problem = f"Invalid value for `{name}`: expected 1 to {_MAX_TOKENS}, got {text[:20]!r}"
        raise refused(name, problem, code="invalid_value")
    return int(text)
