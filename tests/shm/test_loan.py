"""A receiver lends memory, a sender writes into it: nothing that is read is overwritten, and nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from baton.shm.borrower import Borrowed, borrow
from baton.shm.lender import (
    CAN_SEAL,
    MAX_RANGES,
    NAME_PREFIX,
    OFFSET,
    Lender,
    Loan,
    Segment,
    create_segment,
    open_segment,
)

RANGE_BYTES = 1 << 18
"""The largest range."""
SEGMENT_BYTES = 3 * RANGE_BYTES
TIMEOUT_SECONDS = 60.0
KINDS = [True, False] if CAN_SEAL else [False]
"""Sealed memory with a socket outside the file system, and what every Unix has."""


@pytest.fixture(autouse=True)
def patient_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have senders and receivers wait for each other, however busy the machine."""
    for side in ("lender", "borrower"):
        monkeypatch.setattr(f"baton.shm.{side}._HANDSHAKE_SECONDS", TIMEOUT_SECONDS)


@asynccontextmanager
async def lending(num_segments: int = 2, *, can_seal: bool = CAN_SEAL) -> AsyncIterator[Lender]:
    """Run a lender."""
    lender = Lender(num_segments * SEGMENT_BYTES, segment_bytes=SEGMENT_BYTES, can_seal=can_seal)
    lender.start()
    try:
        yield lender
    finally:
        lender.close()


async def taken(loan: Loan, *, can_seal: bool = CAN_SEAL) -> Borrowed:
    """Return what a sender gets for an offer."""
    return await asyncio.to_thread(borrow, loan.address, loan.token, can_seal=can_seal)


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run a test on an event loop."""
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_SECONDS))


@pytest.mark.parametrize("can_seal", KINDS)
def test_what_a_sender_writes_is_what_the_receiver_reads(can_seal: bool) -> None:
    """Both map the same memory, on every system."""

    async def test() -> None:
        async with lending(can_seal=can_seal) as lender:
            loan = lender.lend()
            borrowed = await taken(loan, can_seal=can_seal)

            for index in range(3):
                begin = borrowed.place([b"keys" * 1000, memoryview(b"values"), bytes([index])])
                assert begin is not None
                assert bytes(loan.view(begin, 4007)) == b"keys" * 1000 + b"values" + bytes([index])
            borrowed.close()
            loan.close()

    run(test)


def test_memory_that_is_read_is_not_written() -> None:
    """Place after place is used until one that somebody still sees is next; then the sender waits for it."""

    async def test() -> None:
        async with lending() as lender:
            loan = lender.lend()
            borrowed = await taken(loan)
            size = RANGE_BYTES
            views = [loan.view(borrowed.place([bytes([index]) * size]) or 0, size) for index in range(3)]

            with pytest.raises(TimeoutError):
                borrowed.place([b"x" * size], 0.0)
            part = views[0][10:20]
            del views[0]
            with pytest.raises(TimeoutError):
                borrowed.place([b"x" * size], 0.0)
            placing = asyncio.create_task(asyncio.to_thread(borrowed.place, [b"x" * size]))
            assert bytes(part) == b"\0" * 10
            while borrowed._connection.gettimeout() is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            freed_at = time.perf_counter()
            del part
            assert await placing == 0
            assert borrowed.had_room_at >= freed_at
            assert bytes(views[0]) == b"\1" * size
            loan.close()

    run(test)


def test_a_sender_that_waits_for_room_wakes_when_either_side_ends_the_loan() -> None:
    """It has no memory then, and sends what is left otherwise."""

    async def test() -> None:
        async with lending() as lender:
            for end in ("receiver", "sender"):
                loan = lender.lend()
                borrowed = await taken(loan)
                views = [loan.view(borrowed.place([bytes(RANGE_BYTES)]) or 0, RANGE_BYTES) for _ in range(3)]
                placing = asyncio.create_task(asyncio.to_thread(borrowed.place, [b"x"]))
                (loan if end == "receiver" else borrowed).close()

                assert await placing is None
                assert [len(view) for view in views] == [RANGE_BYTES] * 3
                loan.close()

    run(test)


def test_a_sender_whose_receiver_holds_the_last_range_until_the_next_one_comes_never_waits() -> None:
    """It finds room for the next one, or sends it another way: waiting would be for ever."""

    async def test() -> None:
        async with lending() as lender:
            loan = lender.lend()
            borrowed = await taken(loan)
            random = Random(0)
            sizes = [SEGMENT_BYTES * share // 32 for share in (5, 14, 14)]
            sizes += [random.randint(1, RANGE_BYTES * 4 // 3) for _ in range(1000)]
            last = memoryview(b"")
            num_placed = 0
            for size in sizes:
                begin = borrowed.place([bytes(size)], 0.5)
                if begin is not None:
                    last = loan.view(begin, size)
                    num_placed += 1

            assert len(last) <= RANGE_BYTES
            assert num_placed > 500
            loan.close()

    run(test)


def test_what_is_more_than_a_third_of_the_memory_is_not_waited_for() -> None:
    """It goes another way."""

    async def test() -> None:
        async with lending() as lender:
            loan = lender.lend()
            borrowed = await taken(loan)

            assert borrowed.place([bytes(RANGE_BYTES + 1)]) is None
            assert borrowed.place([b"small"]) == 0
            loan.close()

    run(test)


def test_only_the_memory_of_finished_streams_without_readers_is_lent_again() -> None:
    """A sender that was given up may still write: what it has is never another's."""

    async def test() -> None:
        async with lending() as lender:
            finished, abandoned = lender.lend(), lender.lend()
            zombie = await taken(abandoned)
            borrowed = await taken(finished)
            view = finished.view(borrowed.place([b"read"]) or 0, 4)
            for loan in (finished, abandoned):
                loan.close()
            finished.finish()

            third = lender.lend()
            await taken(third)
            assert lender.num_bytes == 2 * SEGMENT_BYTES, "the abandoned one is gone, the read one is still lent"
            zombie._is_over = False
            zombie._memory[:4] = list(b"late")
            assert bytes(view) == b"read"
            third_view = third.view(0, 4)
            assert bytes(third_view) == b"\0" * 4
            del view, loan, finished
            gc.collect()
            assert lender.num_bytes == 2 * SEGMENT_BYTES, "it is idle now"
            third.close()

    run(test)


def test_no_more_memory_is_lent_than_allowed() -> None:
    """Whoever comes then is refused, and the loan says so."""

    async def test() -> None:
        async with lending(1) as lender:
            first, second = lender.lend(), lender.lend()
            kept = await taken(first)
            with pytest.raises(OSError, match="gives no memory"):
                await taken(second)

            assert (first.is_refused, second.is_refused) == (False, True)
            assert lender.num_bytes == SEGMENT_BYTES
            kept.close()
            first.close()
            second.close()

    run(test)


def test_no_more_memory_is_kept_than_allowed_where_a_sender_comes_while_some_is_taken_back() -> None:
    """Memory is taken back in the middle of anything: also between any two steps of lending it."""

    async def test(step: str) -> None:
        async with lending(1) as lender:
            loan, meanwhile = lender.lend(), list[Segment | None]()
            borrowed = await taken(loan)

            class Interrupted(set[int] if step == "lent" else deque[Segment]):  # type: ignore[misc]
                def discard(self, number: int) -> None:
                    super().discard(number)
                    meanwhile.append(lender._segment())

                def append(self, segment: Segment) -> None:
                    super().append(segment)
                    meanwhile.append(lender._segment())

            name = f"_{step}"
            setattr(lender, name, Interrupted(getattr(lender, name)))
            borrowed.close()
            loan.finish()
            loan.close()
            del loan

            num_segments = len(lender._idle) + sum(segment is not None for segment in meanwhile)
            assert (len(meanwhile), num_segments) == (1, 1)

    for step in ("lent", "idle"):
        run(partial(test, step))


def test_strangers_get_nothing() -> None:
    """Neither with another token, nor with that of a stream that has ended, nor a second time."""

    async def test() -> None:
        async with lending() as lender:
            loan, ended = lender.lend(), lender.lend()
            ended.close()
            await taken(loan)
            for token in (b"x" * 16, ended.token, loan.token):
                with pytest.raises(OSError):
                    await asyncio.to_thread(borrow, lender.address, token)
            loan.close()

    run(test)


@pytest.mark.parametrize(
    ("address", "token"),
    [(b"\0docker", b"x" * 16), (b"/run/docker.sock", b"x" * 16), (NAME_PREFIX.encode(), b"x"), (b"", b"x" * 16)],
)
def test_a_sender_connects_to_nothing_but_receivers(address: bytes, token: bytes) -> None:
    """An offer must not make it talk to other sockets of its host."""
    with pytest.raises(ValueError, match="names no receiver"):
        borrow(address, token)


def test_a_receiver_that_cannot_be_reached_gives_nothing() -> None:
    """As on another host."""
    with pytest.raises(OSError):
        borrow(b"\0" + NAME_PREFIX.encode() + b"nobody", b"x" * 16)


@pytest.mark.parametrize(
    ("begin", "num_bytes"),
    [(-1, 4), (0, 0), (SEGMENT_BYTES - 1, 2), (2, 4), (0, 10), (1 << 62, 1 << 62)],
)
def test_a_range_that_the_sender_may_not_have_used_is_refused(begin: int, num_bytes: int) -> None:
    """Outside of the memory, empty, or beside one that is being read."""

    async def test() -> None:
        async with lending() as lender:
            loan = lender.lend()
            with pytest.raises(ValueError, match="no memory"):
                loan.view(0, 4)
            borrowed = await taken(loan)
            view = loan.view(0, 4)
            with pytest.raises(ValueError, match=r"in use|is not in"):
                loan.view(begin, num_bytes)
            assert len(view) == 4
            borrowed.close()
            loan.close()

    run(test)


def test_a_sender_uses_no_more_ranges_at_once_than_their_releases_fit_into_a_socket() -> None:
    """However small they are."""

    async def test() -> None:
        async with lending() as lender:
            loan = lender.lend()
            borrowed = await taken(loan)
            views = [loan.view(borrowed.place([b"x"]) or 0, 1) for _ in range(MAX_RANGES)]
            with pytest.raises(TimeoutError):
                borrowed.place([b"x"], 0.0)
            with pytest.raises(ValueError, match="more than"):
                loan.view(SEGMENT_BYTES - 1, 1)

            views.clear()
            assert all(borrowed.place([b"x"], TIMEOUT_SECONDS) is not None for _ in range(MAX_RANGES))
            loan.close()

    run(test)


@pytest.mark.skipif(not CAN_SEAL, reason="this system seals no files")
def test_memory_that_could_be_taken_away_is_refused() -> None:
    """Whoever reads past the end of a file is killed."""
    unsealed = create_segment(4096, can_seal=False)
    with pytest.raises(OSError, match=r"smaller|Invalid"):
        open_segment(os.dup(unsealed.descriptor), 4096, can_seal=True)
    sealed = create_segment(4096)
    with pytest.raises(OSError, match="promised"):
        open_segment(os.dup(sealed.descriptor), 8192)
    with pytest.raises(PermissionError):
        os.ftruncate(sealed.descriptor, 0)


def names_of_shared_memory() -> set[str]:
    """Return the files of /dev/shm that this process maps; other processes may have theirs there."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {path for line in lines if (path := line.partition("/dev/shm/")[2])}


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/dev/fd"))


@pytest.mark.parametrize("can_seal", KINDS)
def test_loans_leave_nothing_behind(can_seal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptors, no files, no memory, however they end."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def test() -> None:
        async with lending(4, can_seal=can_seal) as lender:
            for index in range(20):
                loan = lender.lend()
                borrowed = await taken(loan, can_seal=can_seal)
                view = loan.view(borrowed.place([b"x" * 100]) or 0, 100)
                if index % 2:
                    loan.finish()
                (loan if index % 3 else borrowed).close()
                loan.close()
                del view, loan, borrowed
            gc.collect()
            assert lender.num_bytes <= SEGMENT_BYTES

    before = descriptors()
    run(test)
    gc.collect()

    assert descriptors() <= before
    assert list(tmp_path.iterdir()) == []


_SENDER = """
import sys
from baton.shm import borrower
borrower._HANDSHAKE_SECONDS = 60.0
borrowed = borrower.borrow(bytes.fromhex(sys.argv[1]), bytes.fromhex(sys.argv[2]))
print(borrowed.place([b"written"]), flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not CAN_SEAL, reason="looks at what Linux knows of shared memory")
def test_a_sender_killed_in_the_middle_leaves_the_memory_to_its_readers_and_then_nobody() -> None:
    """By SIGKILL, in another process; nothing appears in /dev/shm at any time."""

    async def test() -> None:
        before = names_of_shared_memory()
        async with lending(1) as lender:
            loan = lender.lend()
            command = [sys.executable, "-c", _SENDER, loan.address.hex(), loan.token.hex()]
            process = await asyncio.to_thread(
                partial(subprocess.Popen, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            assert process.stdout is not None
            begin = int(await asyncio.to_thread(process.stdout.readline))
            view = loan.view(begin, 7)
            assert names_of_shared_memory() <= before
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
            process.stdout.close()
            assert process.stdin is not None
            process.stdin.close()

            assert bytes(view) == b"written"
            loan.close()
            del view, loan
            gc.collect()
            assert lender.num_bytes == 0
        assert names_of_shared_memory() <= before

    run(test)


def test_a_lender_without_descriptors_pauses_and_serves_when_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop has other work than to try again and again."""
    tries: list[object] = []
    accept = Lender._accept

    def counted(lender: Lender, listener: socket.socket) -> None:
        tries.append(listener)
        accept(lender, listener)

    monkeypatch.setattr(Lender, "_accept", counted)

    async def test() -> None:
        async with lending() as lender:
            sender = socket.socket(socket.AF_UNIX)
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            loan = lender.lend()
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
            try:
                sender.connect(loan.address)
                for _ in range(200):
                    await asyncio.sleep(0)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert 1 <= len(tries) < 100

            sender.sendall(loan.token)
            size = await asyncio.to_thread(sender.recv, OFFSET.size)
            assert OFFSET.unpack(size) == (SEGMENT_BYTES,)
            sender.close()
            loan.close()

    run(test)


def test_a_connection_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """And others are served meanwhile."""

    async def test() -> None:
        async with lending() as lender:
            silent = socket.socket(socket.AF_UNIX)
            with monkeypatch.context() as impatient:
                impatient.setattr("baton.shm.lender._HANDSHAKE_SECONDS", 0.05)
                silent.connect(lender.address)
                while not lender._handshakes:  # noqa: ASYNC110 - a lender tells nobody
                    await asyncio.sleep(0)
            loan = lender.lend()
            borrowed = await taken(loan)
            assert borrowed.place([b"x"]) == 0

            silent.settimeout(TIMEOUT_SECONDS)
            assert await asyncio.to_thread(silent.recv, 1) == b""
            silent.close()
            loan.close()

    run(test)
