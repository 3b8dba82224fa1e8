"""docs/security_table.md answers all that the review asked."""

from __future__ import annotations

import re

from house.repository import ROOT, TESTS

_LAST = {"R": 16, "G": 14, "S": 10, "A": 8}
"""Number of the last item of each kind."""


def test_every_item_of_the_review_has_an_answer() -> None:
    """Yes, by a test that exists; or a sentence."""
    rows = re.findall(r"(?m)^\| ([^|]+) \| (yes|said) \| (.+) \|$", (ROOT / "docs/security_table.md").read_text())
    answered = [item for items, _, _ in rows for item in re.findall(r"[RGSA]\d+|4\.\d", items)]
    lacking = {
        path
        for _, _, text in rows
        for path in re.findall(r"`([a-z_/]+\.py|tests/[a-z_/]+/)`", text)
        if not (ROOT / path if path.startswith("tests/") else TESTS / path).exists()
    }

    assert set(answered) == {*_items(), "4.3", "4.5"}
    assert lacking == set()
    assert all(state == "said" or "`" in text for _, state, text in rows)


def _items() -> set[str]:
    return {f"{letter}{number + 1}" for letter, last in _LAST.items() for number in range(last)}
