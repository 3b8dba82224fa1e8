"""Chained block hashes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kv.hashing import HASH_BYTES, BlockHash, block_hashes, join_hashes, root_hash, split_hashes

DIGEST = "a" * 32
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@given(TOKENS, st.integers(1, 8))
def test_every_full_block_has_one_hash(token_ids: list[int], block_tokens: int) -> None:
    """A last, partial block has none."""
    hashes = block_hashes(root_hash(DIGEST, block_tokens), token_ids, block_tokens)

    assert len(hashes) == len(token_ids) // block_tokens
    assert len(set(hashes)) == len(hashes)
    assert all(len(block_hash) == HASH_BYTES for block_hash in hashes)


@given(TOKENS, st.integers(0, 40), st.integers(1, 8))
def test_a_chain_may_be_continued_from_any_full_block(token_ids: list[int], cut: int, block_tokens: int) -> None:
    """The hash of a block is all that the rest of the chain needs to know of what comes before it."""
    root = root_hash(DIGEST, block_tokens)
    whole = block_hashes(root, token_ids, block_tokens)
    num_head_blocks = min(cut, len(token_ids)) // block_tokens

    head = block_hashes(root, token_ids[: num_head_blocks * block_tokens], block_tokens)
    tail = block_hashes(head[-1] if head else root, token_ids[num_head_blocks * block_tokens :], block_tokens)

    assert head + tail == whole


@settings(max_examples=50)
@given(st.lists(st.integers(0, 100), min_size=4, max_size=24), st.data())
def test_a_changed_token_changes_its_block_and_all_later_ones(token_ids: list[int], data: st.DataObject) -> None:
    """And none before it."""
    position = data.draw(st.integers(0, len(token_ids) - 1))
    changed = [*token_ids]
    changed[position] += 1
    root = root_hash(DIGEST, 4)

    before, after = block_hashes(root, token_ids, 4), block_hashes(root, changed, 4)

    block_index = position // 4
    assert before[:block_index] == after[:block_index]
    assert not set(before[block_index:]) & set(after[block_index:])


def test_digest_salt_and_block_size_each_give_other_hashes() -> None:
    """Other weights, another tenant or another block size never share a block."""
    roots = {
        root_hash(digest, block_tokens, salt)
        for digest in (DIGEST, "b" * 32)
        for block_tokens in (8, 16)
        for salt in ("", "tenant", "tenan", "16\0")
    }

    assert len(roots) == 16


def test_swapped_blocks_have_other_hashes() -> None:
    """A hash names a block and everything before it."""
    root = root_hash(DIGEST, 2)

    assert not set(block_hashes(root, [1, 2, 3, 4], 2)) & set(block_hashes(root, [3, 4, 1, 2], 2))


def test_another_process_computes_the_same_hashes() -> None:
    """The hashes do not depend on the interpreter's hash seed."""
    program = (
        "from baton.kv.hashing import block_hashes, join_hashes, root_hash\n"
        f"print(join_hashes(block_hashes(root_hash('{DIGEST}', 4, 's'), list(range(12)), 4)).hex())"
    )

    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)

    assert output.stdout.strip() == join_hashes(block_hashes(root_hash(DIGEST, 4, "s"), range(12), 4)).hex()


@given(st.lists(st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES), max_size=5))
def test_joined_hashes_split_into_themselves(hashes: list[bytes]) -> None:
    """Messages carry them end to end."""
    assert split_hashes(join_hashes([BlockHash(value) for value in hashes])) == hashes


def test_a_part_of_a_hash_is_refused() -> None:
    """17 bytes are one hash and a rest."""
    with pytest.raises(ValueError, match="17 bytes"):
        split_hashes(bytes(17))
