"""Chained hashes of prompt blocks: equal hash, equal tokens from position 0, on every node and in every process.

And what nodes tell of them: in which tiers they keep blocks, on the device and below it; adapters as all name them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple, NewType

BlockHash = NewType("BlockHash", bytes)
"""16 bytes that name a block and everything before it."""

HASH_BYTES = 16


def root_hash(model_revision_digest: str, block_tokens: int, salt: str = "") -> BlockHash:
    """Return the hash from which the chain of a prompt starts.

    `model_revision_digest`: digest of weights, configuration and adapters; other weights, other KV. `block_tokens`:
    tokens of one block. `salt`: separates caches; only requests of one salt share blocks.
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
    """Return the hashes of `join_hashes`; raise ValueError if the length is not a whole number of hashes."""
    if len(joined) % HASH_BYTES:
        raise ValueError(f"{len(joined)} bytes are not a whole number of {HASH_BYTES}-byte hashes")
    return [BlockHash(joined[start : start + HASH_BYTES]) for start in range(0, len(joined), HASH_BYTES)]


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that a node has loaded."""

    name: str
    """Served name; no other adapter of the node, and no model, has it."""
    digest: str
    """Digest of what it computes: 32 lower-case hexadecimal digits. Equal on nodes that work together."""


def adapted_revision(model_revision_digest: str, adapter_digest: str) -> str:
    """Return the revision of a model with an adapter: 32 hexadecimal digits.

    It stands wherever the model's own revision would: in block hashes, so that no prefix of one adapter serves another
    or none, and in layouts, so that nodes whose adapters differ refuse each other's K and V.
    """
    return blake2b(f"{model_revision_digest}+{adapter_digest}".encode(), digest_size=16).hexdigest()


class Tier(Enum):
    """A place of blocks. Device and lower tiers may hold a block at the same time."""

    DEVICE = "device"
    """The pool: what a pass reads."""
    HOST = "host"
    DISK = "disk"


LOWER_TIERS = (Tier.HOST, Tier.DISK)
"""Tiers from which blocks are copied to the device before a pass reads them."""


class HeldPrefix(NamedTuple):
    """Leading blocks of a prompt that a node holds.

    Interval table: [0, num_blocks) on the device; [num_blocks, num_blocks + num_lower_blocks) in host memory or on
    disk, of which `num_disk_blocks` on disk only, and the first `num_host_blocks` all in host memory.
    """

    num_blocks: int
    num_host_blocks: int = 0
    """After those, in host memory, up to the first that is not."""
    num_lower_blocks: int = 0
    """After those on the device, in host memory or on disk, up to the first that is in neither."""
    num_disk_blocks: int = 0
    """Of the ones in lower tiers, on disk only."""


class BlockEvents(NamedTuple):
    """Changes of a tier since the last look, in net: nothing is in both lists."""

    stored: list[BlockHash]
    """Hashes that can be hit and could not be before."""
    removed: list[BlockHash]
    """Hashes that can no longer be hit."""
    tier: Tier = Tier.DEVICE
