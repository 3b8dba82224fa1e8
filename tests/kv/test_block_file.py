"""The file of a block: whole and right, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.kv.block_file import HEADER_BYTES, BlockFileError, cache_identity, read_block, write_block
from baton.kv.hashing import BlockHash
from baton.kv.kv_format import KvDtype, KvLayout, LayerSpec

LAYOUT = KvLayout("m", "a" * 32, "b" * 32, (LayerSpec(2, 4, 8),), KvDtype.FLOAT16)
IDENTITY = cache_identity(LAYOUT, 16)
HASH = BlockHash(b"h" * 16)
PARTS = [b"keys", memoryview(b"values"), b""]


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    """And nothing else lies beside it."""
    path = tmp_path / "a.kv"

    write_block(path, IDENTITY, HASH, PARTS)

    assert bytes(read_block(path, IDENTITY, HASH)) == b"keysvalues"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.kv"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bit=st.integers(0, 8 * (HEADER_BYTES + 10) - 1))
def test_a_flipped_bit_anywhere_is_refused(tmp_path: Path, bit: int) -> None:
    """In the header as in the payload."""
    path = tmp_path / "a.kv"
    write_block(path, IDENTITY, HASH, PARTS)
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)

    with pytest.raises(BlockFileError):
        read_block(path, IDENTITY, HASH)


@pytest.mark.parametrize("num_bytes", [0, 10, HEADER_BYTES, HEADER_BYTES + 9, HEADER_BYTES + 11])
def test_a_torn_or_longer_file_is_refused(tmp_path: Path, num_bytes: int) -> None:
    """As a machine that died may leave it."""
    path = tmp_path / "a.kv"
    write_block(path, IDENTITY, HASH, PARTS)
    path.write_bytes((path.read_bytes() + b"\0")[:num_bytes])

    with pytest.raises(BlockFileError):
        read_block(path, IDENTITY, HASH)


def test_a_file_of_another_block_or_cache_is_refused(tmp_path: Path) -> None:
    """Whatever its name is."""
    path = tmp_path / "a.kv"
    write_block(path, IDENTITY, HASH, PARTS)

    for identity, block_hash in ((IDENTITY, BlockHash(b"i" * 16)), (cache_identity(LAYOUT, 8), HASH)):
        with pytest.raises(BlockFileError, match="another"):
            read_block(path, identity, block_hash)


def test_caches_that_differ_in_any_way_have_identities_of_their_own() -> None:
    """Model, number format, shape, block and what made them; not the name under which the model is served."""
    others = [
        replace(LAYOUT, model_revision_digest="c" * 32),
        replace(LAYOUT, dtype=KvDtype.BFLOAT16),
        replace(LAYOUT, layers=(LayerSpec(2, 4, 4),)),
        replace(LAYOUT, rope_state="none"),
    ]
    identities = [IDENTITY, cache_identity(LAYOUT, 8), cache_identity(LAYOUT, 16, "int8")]
    identities += [cache_identity(other, 16) for other in others]

    assert len(set(identities)) == len(identities)
    assert cache_identity(replace(LAYOUT, model_id="other"), 16) == IDENTITY
