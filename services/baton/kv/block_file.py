"""The file of one KV block: a header that says whose it is, then K and V as they lie in host memory.

Layout, little-endian: magic (8), identity of the cache (16), block hash (16), payload size (8), CRC-32C of the payload
(4), CRC-32C of all before it (4), payload. A file is written beside its place and then renamed, so that a reader meets
all of it or nothing, unless the machine died in between: the checksums tell.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import crc32c

from baton.kv.hashing import BlockHash
from baton.kv.kv_format import KvLayout

PART_SUFFIX = ".part"
"""Of the name of a file that is being written."""
IDENTITY_BYTES = 16

_MAGIC = b"BATONKV1"
_FIELDS = struct.Struct("<8s16s16sQI")
_CRC = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CRC.size


class BlockFileError(ValueError):
    """A block's file is not what its name says: torn, flipped, or of another cache."""


def cache_identity(layout: KvLayout, block_tokens: int, variant: str = "") -> bytes:
    """Return what two caches have in common if and only if one may read the other's blocks.

    `variant` is what else decides about K and V: the framework, the number format of the weights.
    """
    compared = (layout.model_revision_digest, layout.dtype.value, layout.rope_state, layout.layers, block_tokens)
    return blake2b(repr((*compared, variant)).encode(), digest_size=IDENTITY_BYTES).digest()


def write_block(path: Path, identity: bytes, block_hash: BlockHash, parts: Sequence[bytes | memoryview]) -> None:
    """Write a block's file, all of it or none; raise OSError if the disk takes no more, or does not work."""
    part_path = path.with_name(path.name + PART_SUFFIX)
    try:
        descriptor = os.open(part_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write_all(descriptor, [_header(identity, block_hash, parts), *parts])
        finally:
            os.close(descriptor)
        part_path.replace(path)
    except OSError:
        part_path.unlink(missing_ok=True)
        raise


def read_block(path: Path, identity: bytes, block_hash: BlockHash) -> memoryview:
    """Return the payload of a block's file; raise BlockFileError if it is not that block's, OSError if unreadable."""
    data = memoryview(path.read_bytes())
    if len(data) < HEADER_BYTES:
        raise BlockFileError(f"{path.name}: {len(data)} bytes are no header")
    magic, its_identity, its_hash, num_bytes, payload_crc = _FIELDS.unpack_from(data)
    (header_crc,) = _CRC.unpack_from(data, _FIELDS.size)
    payload = data[HEADER_BYTES:]
    if crc32c.crc32c(data[: _FIELDS.size]) != header_crc or magic != _MAGIC:
        raise BlockFileError(f"{path.name}: the header is broken")
    if (its_identity, its_hash) != (identity, block_hash):
        raise BlockFileError(f"{path.name}: it is another block, or of another cache")
    if len(payload) != num_bytes:
        raise BlockFileError(f"{path.name}: {len(payload)} bytes of {num_bytes}")
    if crc32c.crc32c(payload) != payload_crc:
        raise BlockFileError(f"{path.name}: the checksum does not fit")
    return payload


def _header(identity: bytes, block_hash: BlockHash, parts: Sequence[bytes | memoryview]) -> bytes:
    payload_crc = 0
    for part in parts:
        payload_crc = crc32c.crc32c(part, payload_crc)
    fields = _FIELDS.pack(_MAGIC, identity, block_hash, sum(map(len, parts)), payload_crc)
    return fields + _CRC.pack(crc32c.crc32c(fields))


def _write_all(descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
    data = memoryview(b"".join(parts))
    while data:
        data = data[os.write(descriptor, data) :]
