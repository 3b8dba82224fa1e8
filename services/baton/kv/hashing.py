"""Chained hashes of prompt blocks: equal hash, equal tokens from position 0, on every node and in every process."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import NewType

BlockHash = NewType("BlockHash", bytes)
"""16 bytes that name a block and everything before it."""

HASH_BYTES = 16


def root_hash(model_revision_digest: str, block_tokens: int, salt: str = "") -> BlockHash:
    """Return the hash from which the chain of a prompt starts.

    Args:
        model_revision_digest: Digest of weights, configuration and adapters; other weights, other KV.
        block_tokens: Tokens of one block.
        salt: Separates caches; only requests of one salt share blocks.
    """
    text = f"baton/kv/1\0{model_revision_digest}\0{block_tokens}\0{salt}"
    return BlockHash(blake2b(text.encode(), digest_size=HASH_BYTES).digest())


def block_hashes(root: BlockHash, token_ids: Sequence[int], block_tokens: int) -> list[BlockHash]:
    """Return one hash per full block of a prompt; a last, partial block has none. O(len(token_ids))."""
    num_full_tokens = len(token_ids) // block_tokens * block_tokens
    packed = struct.pack(f"<{num_full_tokens}i", *token_ids[:num_full_tokens])
    parent, hashes = root, []
    for start in range(0, len(packed), 4 * block_tokens):
        digest = blake2b(parent, digest_size=HASH_BYTES)
        digest.update(packed[start : start + 4 * block_tokens])
        parent = BlockHash(digest.digest())
        hashes.append(parent)
    return hashes


def join_hashes(hashes: Sequence[BlockHash]) -> bytes:
    """Return hashes one after the other, as messages carry them."""
    return b"".join(hashes)


def split_hashes(joined: bytes) -> list[BlockHash]:
    """Return the hashes of `join_hashes`.

    Raises:
        ValueError: If the length is not a whole number of hashes.
    """
    if len(joined) % HASH_BYTES:
        raise ValueError(f"{len(joined)} bytes are not a whole number of {HASH_BYTES}-byte hashes")
    return [BlockHash(joined[start : start + HASH_BYTES]) for start in range(0, len(joined), HASH_BYTES)]
