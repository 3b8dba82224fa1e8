"""Revisions of models with adapters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton.kv.hashing import adapted_revision, block_hashes, root_hash

DIGESTS = st.text("0123456789abcdef", min_size=32, max_size=32)


def test_the_revision_of_a_known_adapter_is_written_in_stone() -> None:
    """Nodes of other versions, and in other languages, make the same one."""
    assert adapted_revision("a" * 32, "b" * 32) == "d528f8e4306357e94865ed0a54169d14"


@given(DIGESTS, DIGESTS, DIGESTS)
def test_no_block_of_one_adapter_is_one_of_another_or_of_none(model: str, one: str, two: str) -> None:
    """The hashes of equal prompts are equal where the adapters are, and nowhere else."""
    plain, first, second = (
        block_hashes(root_hash(revision, 2), (5, 6, 7, 8), 2)
        for revision in (model, adapted_revision(model, one), adapted_revision(model, two))
    )

    assert not set(plain) & {*first, *second}
    assert (first == second) == (one == two)
    assert (one == two) or not set(first) & set(second)
