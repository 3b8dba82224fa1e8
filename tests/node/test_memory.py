"""A node's parts share what its container leaves: no load makes it larger than its limit."""

from __future__ import annotations

from typing import Any

import pytest

from baton.config.container_limits import Memory
from baton.decode.kv_stream.receive_budget import ReceiveBudget
from baton.decode.settings import DecodeSettings
from baton.demo import checkpoint_dir
from baton.engine.kv_cache.pool_size import PoolBounds
from baton.errors import ConfigurationError
from baton.node.loading import load_runner
from baton.node.memory import LONE_PROMPT, leave_room, share_memory, shares_of
from baton.node.settings import NodeSettings
from baton.prefill.settings import PrefillSettings
from baton.worker.settings import WorkerSettings

MIB, GIB = 1 << 20, 1 << 30
MACHINE = Memory(64 * GIB, 40 * GIB)
STARTED = 110 * MIB
"""What a mock's process has before it serves."""


def pod(limit: int) -> Memory:
    """Return the memory of a container with a limit, in which a node has started."""
    return Memory(limit, limit - STARTED)


def claims(settings_class: type[NodeSettings], **given: Any) -> Any:
    """Return what a node with these settings claims."""
    settings = settings_class(model_dir=checkpoint_dir(), engine="mock", **given)
    return settings.memory_claims()


@pytest.mark.parametrize("settings_class", [PrefillSettings, DecodeSettings, WorkerSettings])
@pytest.mark.parametrize("limit", [512 * MIB, GIB, 2 * GIB, 4 * GIB])
def test_all_that_a_node_may_hold_stays_below_nine_tenths_of_the_limit(
    settings_class: type[NodeSettings], limit: int
) -> None:
    """With what it has already; nothing is so small that it could not work."""
    shares = dict(shares_of(claims(settings_class), pod(limit), MACHINE))
    lone = shares.pop(LONE_PROMPT)
    together = sum(shares.values()) - shares.get("max_outbox_bytes", 0) + max(lone, shares.get("max_outbox_bytes", 0))

    assert STARTED + together <= 0.9 * limit
    assert all(size > 0 for size in shares.values())


def test_a_large_machine_bounds_nothing_but_what_is_of_use() -> None:
    """Where memory abounds: 1 GiB for KV that leaves the pool, 4 GiB to send, frames of 16 MiB."""
    shares = shares_of(claims(WorkerSettings), MACHINE, MACHINE)

    assert (shares["host_kv_bytes"], shares["max_outbox_bytes"]) == (GIB, 4 * GIB)
    assert ReceiveBudget(shares["max_receive_bytes"], 64).frame_bytes == 16 * MIB
    assert shares[LONE_PROMPT] > 8 * GIB


def test_what_was_given_by_hand_and_cannot_fit_is_refused_with_the_sum() -> None:
    """The former default of 4 GiB in a pod of 1 GiB: killed under load, or told so at the start."""
    with pytest.raises(ConfigurationError) as refusal:
        shares_of(claims(PrefillSettings, max_outbox_bytes=4 * GIB, host_kv_bytes=GIB), pod(GIB), MACHINE)

    assert refusal.value.message == (
        "memory: host_kv_bytes 1.07 GB + max_outbox_bytes 4.29 GB = 5.37 GB do not fit into 851 MB: "
        "958 MB are free of the limit of 1.07 GB, less 107 MB in reserve"
    )


def test_blocks_leave_room_for_what_was_given_to_others() -> None:
    """A number of blocks that fits only without them is refused with the sum, see `choose_pool_size`."""
    bounds = leave_room(PoolBounds(), claims(PrefillSettings, max_outbox_bytes=300_000_000), pod(GIB), MACHINE)

    assert bounds.beside_bytes == 300_000_000 + GIB // 10
    assert bounds.beside_cause == "max_outbox_bytes 300 MB + 107 MB in reserve"


def test_a_mock_that_sends_takes_no_prompt_that_it_has_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes the K and V that it does not keep: 256 KiB a token of an 8B shape. The router goes by its blocks."""
    monkeypatch.setattr("baton.node.loading.usable_memory", lambda: pod(GIB))
    monkeypatch.setattr("baton.node.loading.machine_memory", lambda: MACHINE)
    shape = {"model_dir": checkpoint_dir(), "engine": "mock", "mock_shape": "llama-3.1-8b"}
    sender, receiver = load_runner(PrefillSettings(**shape)), load_runner(DecodeSettings(**shape))

    token_bytes = sender.info.layout.num_token_bytes()
    assert sender.num_blocks * sender.block_tokens * token_bytes <= 0.75 * GIB
    assert sender.num_blocks_cause.startswith("the K and V of one prompt on its way out have ")
    assert receiver.num_blocks == 8192


def test_host_memory_for_kv_is_no_larger_than_half_the_pool_that_it_relieves() -> None:
    """Of a small model some megabytes, not a gigabyte; a number that is given by hand is taken."""
    settings = DecodeSettings(model_dir=checkpoint_dir(), engine="mock", num_blocks=64)
    runner = load_runner(settings)
    pool_bytes = 64 * 16 * runner.info.layout.num_token_bytes()

    asked = share_memory(settings.model_copy(update={"host_kv_bytes": GIB}), runner)

    assert share_memory(settings, runner)["host_kv_bytes"] == pool_bytes // 2 < 10 * MIB
    assert asked["host_kv_bytes"] == GIB
