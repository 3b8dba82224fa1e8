"""What the router makes of what the cache index knows."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from baton.capacity.placement import Candidate
from baton.capacity.snapshot import TierRates
from baton.internal.v1.router_service_pb2 import PlaceRequest
from baton.kv.tiers import HeldPrefix
from baton.router.placer import Placer
from baton.router.state import RouterState, StateLimits
from baton.wire.quantities import candidate_from_proto
from router.samples import IDLE, MAC, MODEL, Clock, busy_report

FULL = busy_report(1, num_waiting=4, num_running=8, num_pending_prompt_tokens=32_000, mean_context_tokens=4096)
"""A batch without a free place, and others who wait for one."""
RATES = TierRates(host_bytes_per_second=10e9, disk_bytes_per_second=2e9, max_read_blocks=1000)


class Known:
    """Knows what one node holds."""

    def __init__(self, held: HeldPrefix) -> None:
        self._held = held

    async def held_prefixes(self, block_hashes: bytes) -> dict[str, HeldPrefix]:
        """Return it."""
        return {"mac": self._held}


def placed(held: HeldPrefix, *, is_busy: bool) -> Candidate:
    """Return where a request goes of whose 8,192 tokens "mac", one of two equal nodes, has some."""
    state = RouterState(Clock(), StateLimits())
    mac, _mini = state.register(MAC), state.register(replace(MAC, node_id="a-mini"))
    state.report(mac, replace(FULL if is_busy else IDLE, tier_rates=RATES))
    request = PlaceRequest(
        request_id="r", model_id=MODEL, prompt_token_count=8192, max_token_count=32, block_hashes=b"x" * 16
    )
    response = asyncio.run(Placer(state, Known(held)).place(request))
    return candidate_from_proto(response.candidates[0])


@pytest.mark.parametrize("held", [HeldPrefix(500), HeldPrefix(0, 500, 500, 0), HeldPrefix(100, 400, 450, 50)])
def test_a_busy_nodes_prefix_is_pulled_from_its_device_and_its_host_memory(held: HeldPrefix) -> None:
    """Wherever it is of the two, the idle node takes it."""
    choice = placed(held, is_busy=True)

    assert (choice.decode_node_id, choice.pull_node_id, choice.pulled_tokens) == ("a-mini", "mac", 8000)


def test_a_busy_nodes_files_are_of_no_use_to_others() -> None:
    """The idle node computes the prompt."""
    choice = placed(HeldPrefix(0, 0, 500, 500), is_busy=True)

    assert (choice.decode_node_id, choice.pull_node_id, choice.decode_cached_tokens) == ("a-mini", "", 0)


@pytest.mark.parametrize(
    ("held", "num_restored"),
    [(HeldPrefix(500), 0), (HeldPrefix(0, 0, 500, 500), 8000), (HeldPrefix(100, 0, 400, 9), 6400)],
)
def test_an_idle_node_that_has_a_prefix_is_chosen_wherever_it_has_it(held: HeldPrefix, num_restored: int) -> None:
    """Blocks become tokens of that node."""
    choice = placed(held, is_busy=False)

    assert (choice.decode_node_id, choice.decode_restored_tokens) == ("mac", num_restored)
    assert choice.decode_cached_tokens == 8000
