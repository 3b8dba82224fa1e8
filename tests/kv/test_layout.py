"""The KV layout and its comparison."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from baton.errors import MismatchError
from baton.kv.kv_format import KvDtype, KvLayout, LayerSpec, StateTensor

SPEC = LayerSpec(num_kv_heads=2, key_head_dim=8, value_head_dim=4)
LAYOUT = KvLayout("llama", "a" * 32, "b" * 32, (SPEC,) * 3, KvDtype.FLOAT32)

CHANGES = {
    "protocol_version": replace(LAYOUT, protocol_version=2),
    "model_revision_digest": replace(LAYOUT, model_revision_digest="c" * 32),
    "tokenizer_digest": replace(LAYOUT, tokenizer_digest="c" * 32),
    "rope_state": replace(LAYOUT, rope_state="none"),
    "dtype": replace(LAYOUT, dtype=KvDtype.BFLOAT16),
    "layers": replace(LAYOUT, layers=(SPEC,) * 2),
    "layers[0].kv_head_count": replace(LAYOUT, layers=(replace(SPEC, num_kv_heads=1), SPEC, SPEC)),
    "layers[1].key_head_dim": replace(LAYOUT, layers=(SPEC, replace(SPEC, key_head_dim=16), SPEC)),
    "layers[2].value_head_dim": replace(LAYOUT, layers=(SPEC, SPEC, replace(SPEC, value_head_dim=8))),
    "layers[2].sliding_window_token_count": replace(
        LAYOUT, layers=(SPEC, SPEC, replace(SPEC, sliding_window_tokens=9))
    ),
    "layers[2].state_tensors": replace(
        LAYOUT, layers=(SPEC, SPEC, replace(SPEC, state=(StateTensor("conv", (3, 5)),)))
    ),
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_difference_is_refused_by_the_name_of_the_field(field: str) -> None:
    """On either side."""
    for mine, theirs in ((LAYOUT, CHANGES[field]), (CHANGES[field], LAYOUT)):
        with pytest.raises(MismatchError) as caught:
            mine.check_matches(theirs)

        assert caught.value.field == field
        assert caught.value.metadata["field"] == field
        assert caught.value.metadata["expected"] != caught.value.metadata["actual"]


def test_every_field_of_a_layout_is_compared_or_named_as_an_exception() -> None:
    """A field that is added to the layout must be added to the comparison."""
    compared = {field.partition("[")[0] for field in CHANGES}
    compared_of_layers = {field.partition("].")[2] for field in CHANGES if "]." in field}

    assert {field.name for field in fields(KvLayout)} == compared | {"model_id", "weight_rounding", "wire"}
    assert len(fields(LayerSpec)) == len(compared_of_layers)


def test_equal_layouts_match_under_different_names() -> None:
    """The served name is for people."""
    LAYOUT.check_matches(replace(LAYOUT, model_id="another name"))


@pytest.mark.parametrize("digests", [("", "b" * 32), ("b" * 32, ""), ("", "")])
def test_a_node_without_a_tokenizer_matches(digests: tuple[str, str]) -> None:
    """An empty digest is not compared."""
    mine, theirs = (replace(LAYOUT, tokenizer_digest=digest) for digest in digests)

    mine.check_matches(theirs)


def test_the_bytes_of_a_token_count_both_tensors() -> None:
    """Three layers of two heads."""
    assert LAYOUT.num_token_bytes() == 3 * 2 * (8 + 4) * LAYOUT.dtype.num_bytes
