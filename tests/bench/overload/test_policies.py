"""Policies by name."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from bench.options import list_of
from bench.overload.drive import policy


def test_a_list_of_names_becomes_settings_of_router_and_gateway() -> None:
    """In its order."""
    found = {each.name: dict(each.environment) for each in list_of(policy)("shed,round-robin,threshold-8")}

    assert found == {
        "shed": {"BATON_ROUTER_OVERLOAD_POLICY": "shed"},
        "round-robin": {"BATON_ROUTER_PREFILL_POLICY": "round-robin"},
        "threshold-8": {"BATON_GATEWAY_MAX_CONCURRENT_REQUESTS": "8"},
    }


@pytest.mark.parametrize("text", ["", "shed,", "threshold-0", "threshold-x", "threshold"])
def test_other_names_are_refused(text: str) -> None:
    """Before anything is started."""
    with pytest.raises(ArgumentTypeError, match="is not queue"):
        list_of(policy)(text)
