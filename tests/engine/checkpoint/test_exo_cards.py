"""The table of exo's text models says what the code serves, in formats that the code reads."""

from __future__ import annotations

import pytest

from baton.engine.checkpoint.families import FAMILIES
from baton.engine.checkpoint.formats import _READERS
from baton.engine.checkpoint.quantization import read_quantization
from engine.checkpoint.exo_cards import CARDS, DOCUMENT, count, document, served

SERVED = [name for name in CARDS if not served(name).startswith("refused")]


def test_the_table_of_the_documentation_is_the_one_of_the_code() -> None:
    """47 models, of which as many are served as the families say."""
    assert count("") == 47
    assert document() == DOCUMENT.read_text(), "python -m engine.checkpoint.exo_cards writes it"


@pytest.mark.parametrize("name", SERVED)
def test_every_format_of_a_served_card_is_read(name: str) -> None:
    """MLX's numbers of bits and its small floats, and what other hubs' folders have."""
    for kind in CARDS[name].formats:
        if kind.isdigit():
            assert read_quantization(name, {"quantization": {"group_size": 64, "bits": int(kind)}}) is not None
        elif kind != "int4":
            assert kind == "bf16" or read_quantization(name, {"quantization": {"mode": kind}}) is not None
        else:
            assert "compressed-tensors" in _READERS


def test_families_of_cards_are_families() -> None:
    """A text within a folder is one of a family of its own."""
    assert all(CARDS[name].text in ("", *FAMILIES) for name in SERVED)
