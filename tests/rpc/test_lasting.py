"""What a process keeps for good."""

from __future__ import annotations

import gc

from baton.rpc.lasting import keep_what_is_loaded


def test_what_is_alive_is_left_out_of_later_collections() -> None:
    """They walk only what came since, and come seldom; it stays so, which later tests do not notice."""
    kept = [[number] for number in range(1000)]
    thresholds = gc.get_threshold()
    try:
        keep_what_is_loaded()

        assert gc.get_freeze_count() >= len(kept)
        assert not any(candidate is kept for candidate in gc.get_objects())
        assert gc.get_threshold()[0] > thresholds[0]
    finally:
        gc.set_threshold(*thresholds)
