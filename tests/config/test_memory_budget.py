"""What memory leaves is shared out: all that was asked for by hand or by need fits, or the process does not start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.config.container_limits import Memory
from baton.config.memory_budget import Claim, Room, check_fits, room_in, share_out, told
from baton.errors import ConfigurationError

MB = 10**6
ROOM = Room(1000 * MB, "so much is free")


def test_a_limit_is_never_met() -> None:
    """Of a pod's 1,000 MB a tenth is left alone, of what a machine without a limit has free likewise."""
    machine = Memory(64_000 * MB, 40_000 * MB)

    assert room_in(Memory(1000 * MB, 900 * MB), machine).num_bytes == 800 * MB
    assert room_in(machine, machine).num_bytes == 36_000 * MB
    assert room_in(Memory(1000 * MB, 50 * MB), machine).num_bytes == 0


def test_what_is_still_to_be_taken_is_no_room() -> None:
    """Blocks that the system has promised and not yet given."""
    machine = Memory(64_000 * MB, 40_000 * MB)
    room = room_in(Memory(1000 * MB, 900 * MB), machine, beside_bytes=300 * MB)

    assert room == (
        500 * MB,
        "900 MB are free of the limit of 1 GB, less 100 MB in reserve and 300 MB that are still to be taken",
    )


def test_claims_get_their_parts() -> None:
    """By weight, of three quarters: allocators keep what is freed."""
    shares = share_out(ROOM, [Claim("outbox", 10**12, weight=2), Claim("host", 10**12)])

    assert shares == {"outbox": 500 * MB, "host": 250 * MB}


def test_what_one_has_no_use_for_goes_to_the_others() -> None:
    """No claim gets more than its most."""
    shares = share_out(ROOM, [Claim("outbox", 10**12), Claim("host", 100 * MB)])

    assert shares == {"outbox": 650 * MB, "host": 100 * MB}


def test_a_claim_that_needs_more_than_its_part_gets_it() -> None:
    """Others have the rest."""
    shares = share_out(ROOM, [Claim("outbox", 10**12, least_bytes=600 * MB), Claim("host", 10**12)])

    assert shares == {"outbox": 600 * MB, "host": 150 * MB}


def test_what_was_given_by_hand_stays() -> None:
    """Even where it leaves little."""
    shares = share_out(ROOM, [Claim("outbox", 10, given_bytes=900 * MB), Claim("host", 10**12)])

    assert shares == {"outbox": 900 * MB, "host": 75 * MB}


def test_what_cannot_fit_is_refused_with_the_sum() -> None:
    """The message names every part, and where the room comes from."""
    claims = [Claim("outbox", 10, given_bytes=900 * MB), Claim("host", 10, least_bytes=200 * MB), Claim("lent", 10)]

    with pytest.raises(ConfigurationError) as refusal:
        share_out(ROOM, claims)
    assert refusal.value.message == (
        "outbox 900 MB + host at least 200 MB = 1.1 GB do not fit into 1 GB: so much is free"
    )


def test_nothing_asked_for_fits_anywhere() -> None:
    """A process whose claims can all do without starts in whatever room there is."""
    check_fits(Room(0, "nothing is free"), [Claim("host", 10)])

    assert share_out(Room(0, "nothing is free"), [Claim("host", 10)]) == {"host": 0}


@given(
    st.integers(0, 10**12),
    st.lists(
        st.tuples(
            st.integers(0, 10**11), st.integers(0, 10**11), st.floats(0.01, 10), st.none() | st.integers(0, 10**10)
        ),
        max_size=6,
    ),
)
def test_shares_never_exceed_the_room(room_bytes: int, parts: list[tuple[int, int, float, int | None]]) -> None:
    """Whatever is asked for: all within the room, none below its least or above its most; or a refusal."""
    claims = [
        Claim(f"claim{index}", max(least, most), least, weight, given_bytes)
        for index, (least, most, weight, given_bytes) in enumerate(parts)
    ]
    room = Room(room_bytes, "so much is free")
    if sum(claim.needed_bytes for claim in claims) > room_bytes:
        with pytest.raises(ConfigurationError):
            share_out(room, claims)
        return

    shares = share_out(room, claims)

    assert sum(shares.values()) <= room_bytes
    for claim in claims:
        wanted = claim.given_bytes
        share = shares[claim.setting]
        assert share == wanted if wanted is not None else claim.least_bytes <= share <= claim.most_bytes


@pytest.mark.parametrize(
    ("num_bytes", "words"), [(4 << 30, "4.29 GB"), (16 << 20, "16.8 MB"), (5_000, "5 kB"), (0, "0 B")]
)
def test_bytes_are_told_in_the_unit_that_fits(num_bytes: int, words: str) -> None:
    """Three digits do."""
    assert told(num_bytes) == words
