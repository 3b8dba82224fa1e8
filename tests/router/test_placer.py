"""What the router makes of what the cache index knows, and how it names what it decides."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from baton.capacity.placement import Candidate
from baton.capacity.snapshot import TierRates, seconds_between
from baton.errors import InvalidFieldError
from baton.internal.v1.router_service_pb2 import PlaceRequest, PlaceResponse
from baton.kv.hashing import HeldPrefix
from baton.router.placer import PlacementIds, Placer
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


def answered(held: HeldPrefix, *, is_busy: bool) -> PlaceResponse:
    """Return the answer to a request of whose 8,192 tokens "mac", one of two equal nodes, has some."""
    state = RouterState(Clock(), StateLimits())
    mac, _mini = state.register(MAC), state.register(replace(MAC, node_id="a-mini"))
    state.report(mac, replace(FULL if is_busy else IDLE, tier_rates=RATES))
    request = PlaceRequest(
        request_id="r", model_id=MODEL, prompt_token_count=8192, max_token_count=32, block_hashes=b"x" * 16
    )
    return asyncio.run(Placer(state, Known(held)).place(request))


def placed(held: HeldPrefix, *, is_busy: bool) -> Candidate:
    """Return where it goes."""
    return candidate_from_proto(answered(held, is_busy=is_busy).candidates[0])


def test_a_placement_names_whose_cache_to_pull_from() -> None:
    """How many blocks and, by its estimate, what waiting for them adds; the idle holder is chosen itself."""
    pulled = answered(HeldPrefix(500), is_busy=True).placement

    assert (pulled.decode_node_id, pulled.prefill_node_id) == ("a-mini", "")
    assert (pulled.prefix_pull.node_id, pulled.prefix_pull.block_count) == ("mac", 500)
    assert pulled.prefix_pull.layers_per_frame >= 1
    assert pulled.estimate.start_seconds == pytest.approx(
        pulled.estimate.pull_seconds + pulled.estimate.prefill_seconds
    )
    idle = answered(HeldPrefix(500), is_busy=False).placement
    assert (idle.decode_node_id, idle.HasField("prefix_pull")) == ("mac", False)


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


class Sessions:
    """Places requests on equal nodes that nobody knows to have anything cached."""

    def __init__(self, num_nodes: int = 2) -> None:
        self._clock = Clock()
        self.state = RouterState(self._clock, StateLimits())
        self.reports = dict.fromkeys((f"mac-{index}" for index in range(num_nodes)), IDLE)
        """What each node says of itself before the next request."""
        self._nodes = {node_id: self.state.register(replace(MAC, node_id=node_id)) for node_id in self.reports}
        self._placer = Placer(self.state, None)

    def place(self, session: bytes = b"", tenant: str = "", **fields: object) -> str:
        """Return the node of a request."""
        request = PlaceRequest(
            request_id="r", model_id=MODEL, prompt_token_count=8192, max_token_count=32, session=session, tenant=tenant
        )
        for name, value in fields.items():
            setattr(request, name, value)
        self._clock.seconds += 60.0  # what comes at once weighs on the node, and is spread
        for node_id, report in self.reports.items():
            self.state.report(self._nodes[node_id], report)
        placement = asyncio.run(self._placer.place(request)).placement
        node = self._nodes[placement.decode_node_id]
        self.state.report(node, replace(IDLE, accepted_placement_ids=(placement.placement_id,)))
        return placement.decode_node_id


@pytest.mark.parametrize("num_nodes", [2, 5])
def test_requests_of_a_session_go_to_its_node(num_nodes: int) -> None:
    """Others go on to those that were used longest ago."""
    sessions = Sessions(num_nodes)
    first = sessions.place(b"s")

    assert [sessions.place(b"s") for _ in range(3)] == [first] * 3
    assert sessions.place() != first


def test_a_tenants_session_says_nothing_of_anothers() -> None:
    """Whatever it is called."""
    sessions = Sessions()
    first = sessions.place(b"s", "ada")

    assert sessions.place(b"s", "bob") != first
    assert sessions.place(b"s", "ada") == first


def test_a_session_leaves_a_node_that_has_no_room() -> None:
    """For one where it takes less by more than a tenth, and then stays there."""
    sessions = Sessions()
    first = sessions.place(b"s")
    sessions.reports[first] = FULL
    second = sessions.place(b"s")
    sessions.reports[first] = IDLE

    assert second != first
    assert sessions.place(b"s") == second


def test_who_only_asks_leaves_no_session() -> None:
    """A plan is no placement."""
    sessions = Sessions()
    sessions.place(b"s", is_dry_run=True)
    first = sessions.place()

    assert sessions.place(b"s") != first


def test_a_name_that_is_too_long_is_refused() -> None:
    """The gateway sends a digest."""
    with pytest.raises(InvalidFieldError, match="session"):
        Sessions().place(b"s" * 33)


def test_names_of_a_router_ascend_though_the_clock_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is another one, and later by a nanosecond at least."""
    ids = PlacementIds()
    monkeypatch.setattr(time, "monotonic_ns", lambda: 5)
    names = [ids.new() for _ in range(100)]

    assert sorted(set(names)) == names
    assert all(seconds_between(*each) == 1e-9 for each in pairwise(names))
    assert seconds_between(names[9], names[4]) == -5e-9


def test_names_do_not_tell_how_long_their_router_has_run() -> None:
    """Nor its machine: each begins anywhere."""
    moments = [int(PlacementIds().new()[16:], 16) for _ in range(2)]

    assert abs(moments[0] - moments[1]) > 10**9
    assert all(abs(each - time.monotonic_ns()) > 10**9 for each in moments)


@pytest.mark.parametrize("other", ["", "p-1", "f" * 32, "0" * 40, "0123456789abcdef0123456789abcdeg"])
def test_nobody_knows_which_of_two_routers_was_first(other: str) -> None:
    """Nor is a name of another kind compared."""
    name = PlacementIds().new()

    assert seconds_between(name, other) is None
    assert seconds_between(other, name) is None
