"""A bare machine joins a deployment over a real link. BATON_TWO_HOSTS=1; needs root, iproute2 and about a minute."""

from __future__ import annotations

import os
import sys

import pytest

from baton.demo import checkpoint_dir
from system.two_hosts.scenario import DEFAULT_BITS_PER_SECOND, run

pytestmark = pytest.mark.skipif(
    os.environ.get("BATON_TWO_HOSTS") != "1" or sys.platform != "linux" or os.geteuid() != 0,
    reason="BATON_TWO_HOSTS is not 1, or this is not root on Linux",
)


def test_a_machine_is_found_joins_serves_fails_and_comes_back() -> None:
    """By multicast DNS, by token, over a shaped link; the plan follows when the link is halved."""
    results = run(checkpoint_dir(), DEFAULT_BITS_PER_SECOND)

    before, after = results["link_bits_per_second"]
    assert "join token is not of this deployment" in results["refusal"]
    assert results["found_router"].startswith("joined router=10.77.0.1:18953 node=far-1")
    assert before == pytest.approx(DEFAULT_BITS_PER_SECOND, rel=0.1)
    assert after == pytest.approx(DEFAULT_BITS_PER_SECOND / 2, rel=0.1)
    assert results["answer"] == {
        "content": "12 + 30 = 42",
        "prefill_node": "far-1",
        "decode_node": "near-1",
        "kv_bytes": 77824,
        "kv_transport": "fast",
        "fallback_reason": "",
    }
    assert (results["last_exit_status"], results["restarts"], results["is_new_process"]) == (-9, 1, True)
    transfers = [plan["transfer_seconds"] for plan in results["plans"]]
    assert transfers[1] == pytest.approx(2 * transfers[0], rel=0.2)
    sleep = results["sleep"]
    assert sleep["noticed_seconds"] == pytest.approx(sleep["stopped_seconds"], abs=5.0)
    assert sleep["is_same_worker"]
    assert sleep["answer"]["content"] == results["answer"]["content"]
    assert sleep["answer"]["fallback_reason"] == ""
