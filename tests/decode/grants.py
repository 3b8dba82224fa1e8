"""Stands for the router: grants the transfers that tests ask for, by keys that follow from the nodes' names."""

from __future__ import annotations

import hashlib
import time

from baton.engine.runners.base import Runner
from baton.internal.v1.block_service_pb2 import PullBlocksRequest
from baton.internal.v1.decode_service_pb2 import DecodeServiceGenerateRequest
from baton.internal.v1.kv_pb2 import TransferClaims, TransferGrant
from baton.internal.v1.prefill_service_pb2 import PrefillRequest
from baton.kv.hashing import block_hashes, join_hashes, root_hash
from baton.security.access import digest_of, sign_grant


def key_of(node_id: str) -> bytes:
    """Return the key of a node of the tests."""
    return hashlib.sha256(node_id.encode()).digest()


def granted(source_id: str, destination_id: str, **claims: object) -> TransferGrant:
    """Return a grant that lasts for a minute."""
    message = TransferClaims(source_node_id=source_id, destination_node_id=destination_id, **claims)  # type: ignore[arg-type]
    message.expires_at.FromNanoseconds(time.time_ns() + 60 * 10**9)  # no two are alike
    return sign_grant(message, key_of(source_id), key_of(destination_id))


def grant_generation(
    request: DecodeServiceGenerateRequest, destination_id: str, runner: Runner
) -> DecodeServiceGenerateRequest:
    """Put grants into a request for all that its placement names; those that it has stay."""
    tokens, placement = [*request.prompt_token_ids, *request.output_token_ids], request.placement
    claims = {
        "request_id": request.request_id,
        "salt_digest": digest_of(request.cache_salt),
        "token_count": len(tokens),
    }
    for option in (placement, *placement.alternatives):
        if option.prefill_node_id and not option.HasField("transfer"):
            option.transfer.CopyFrom(granted(option.prefill_node_id, destination_id, **claims))
    if (pull := placement.prefix_pull).node_id and not pull.HasField("transfer"):
        block_tokens, layout = runner.block_tokens, runner.info.layout_with(request.adapter)
        root = root_hash(layout.model_revision_digest, block_tokens, request.cache_salt)
        hashes = block_hashes(root, tokens, block_tokens)[: min(pull.block_count, (len(tokens) - 1) // block_tokens)]
        pull.transfer.CopyFrom(
            granted(pull.node_id, destination_id, **claims, blocks_digest=digest_of(join_hashes(hashes)))
        )
    return request


def grant_prefill(request: PrefillRequest, source_id: str, destination_id: str) -> PrefillRequest:
    """Put a grant into a request for a prompt, unless it has one."""
    if not request.HasField("transfer"):
        claims = {"salt_digest": digest_of(request.cache_salt), "token_count": len(request.token_ids)}
        request.transfer.CopyFrom(granted(source_id, destination_id, request_id=request.request_id, **claims))
    return request


def grant_pull(request: PullBlocksRequest, source_id: str, destination_id: str) -> PullBlocksRequest:
    """Put a grant into a request for blocks, unless it has one."""
    if not request.HasField("transfer"):
        digest = digest_of(request.leading_block_hashes + request.block_hashes)
        request.transfer.CopyFrom(
            granted(source_id, destination_id, request_id=request.request_id, blocks_digest=digest)
        )
    return request
