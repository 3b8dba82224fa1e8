"""What a process keeps for good."""

from __future__ import annotations

import gc

from baton.rpc.lasting import keep_what_is_loaded


def test_what_is_alive_is_left_out_of_later_collections() -> None:
    """They walk only what came since."""
    kept = [[number] for number in range(1000)]
    try:
        keep_what_is_loaded()

        assert gc.get_freeze_count() >= len(kept)
        assert not any(candidate is kept for candidate in gc.get_objects())
    finally:
        gc.unfreeze()
