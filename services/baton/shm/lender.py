"""The receiver's side: lends memory to senders on this host, one segment per stream.

A sender that got an offer (address and token) connects to the Unix socket at the address and sends the token; it is
answered by the size of a segment, 8 bytes, little-endian, and its descriptor (SCM_RIGHTS). Afterwards the receiver
sends the offset of each range, 8 bytes, as soon as nobody reads it any more: it may be written again then. The end of
the connection ends the loan. Processes that do not share a kernel, or on Linux a network namespace, cannot connect: so
an offer that is taken is the proof that memory is shared.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import mmap
import os
import secrets
import socket
import struct
import tempfile
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

log = logging.getLogger(__name__)

NAME_PREFIX = "baton-kv-"
"""Beginning of the names of lenders' sockets: senders connect to no others."""
TOKEN_BYTES = 16
MAX_RANGES = 128
"""Ranges that a sender may have in use at once: as many messages about them fit into a socket's buffer."""
SEGMENT_BYTES = 48 << 20
"""Three of the largest frames that prefill nodes make of what they compute: larger ones go with their headers."""
OFFSET = struct.Struct("<Q")
"""How sizes and offsets are sent."""
_HANDSHAKE_SECONDS = 1.0
_BACKLOG = 64
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Why no connection can be taken for a while: descriptors or memory are used up."""
_PAUSE_SECONDS = 0.1
"""Time after which a connection is accepted again."""

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

CAN_SEAL = hasattr(os, "memfd_create")
"""Whether this system has anonymous files whose size can be sealed (Linux)."""


class _Tenancy:
    """A segment in the hands of one sender; lives as long as anybody may read what that sender wrote.

    Released ranges may be reported by any thread, even in the middle of an allocation: nothing here takes a lock.
    """

    def __init__(self, segment: Segment, connection: socket.socket) -> None:
        self.segment = segment
        self.connection = connection
        self.ends: dict[int, int] = {}
        """End of each range that is read, by its begin."""

    def release(self, begin: int) -> None:
        """Tell the sender that nobody reads a range any more."""
        self.ends.pop(begin, None)
        with contextlib.suppress(OSError):  # the sender has gone
            self.connection.send(OFFSET.pack(begin))


@dataclass(slots=True)
class _SenderEnd:
    """Whether a segment can be lent again when nobody reads it any more; it outlives the loan that knows."""

    is_finished: bool = False
    """Whether the segment's sender has come to its end, and writes no more."""


class Loan:
    """What one stream may share. Use: construct by `Lender.lend`, `close` when the stream has ended.

    Invariant: a view is of bytes that no other view of the loan has; the sender hears of a range when its last view has
    gone, and a segment is lent again only after a sender that is known to write no more, and when all views have gone.
    """

    def __init__(self, lender: Lender, token: bytes) -> None:
        self.token = token
        """Proves to the lender which stream a sender connects for."""
        self.is_refused = False
        """Whether a sender came for whom there was no memory."""
        self._lender = lender
        self._sender_end = _SenderEnd()
        self._tenancy: _Tenancy | None = None

    @property
    def address(self) -> bytes:
        """Return the address of the lender's socket."""
        return self._lender.address

    def view(self, begin: int, num_bytes: int) -> memoryview:
        """Return what was written, lent until no view of it is left; raise ValueError if that range was not lent."""
        tenancy, end = self._tenancy, begin + num_bytes
        if tenancy is None:
            raise ValueError("the sender has taken no memory")
        if not 0 <= begin < end <= tenancy.segment.num_bytes:
            raise ValueError(f"[{begin}, {end}) is not in the {tenancy.segment.num_bytes} bytes that are shared")
        others = list(tenancy.ends)
        if len(others) >= MAX_RANGES:
            raise ValueError(f"more than {MAX_RANGES} ranges are in use")
        if any(other < end and begin < tenancy.ends.get(other, 0) for other in others):
            raise ValueError(f"[{begin}, {end}) is in use")
        lease = tenancy.segment.memory[begin:end]
        tenancy.ends[begin] = end
        weakref.finalize(lease, tenancy.release, begin).atexit = False
        return lease.data

    def finish(self) -> None:
        """Take note that the sender has come to its end, and writes no more."""
        self._sender_end.is_finished = True

    def close(self) -> None:
        """End the loan; what is being read stays."""
        self._lender.withdraw(self)
        tenancy, self._tenancy = self._tenancy, None
        if tenancy is not None:
            with contextlib.suppress(OSError):
                tenancy.connection.shutdown(socket.SHUT_RDWR)

    def begin(self, segment: Segment, connection: socket.socket, lender: Lender) -> None:
        """Take note of the sender that has come."""
        self._tenancy = _Tenancy(segment, connection)
        weakref.finalize(self._tenancy, lender.take_back, segment, connection, self._sender_end).atexit = False


class Lender:
    """Memory of this process that senders may write into. Use: construct, `start`, `lend`, `close`; on one event loop.

    `max_bytes` bounds all segments together; `can_seal`: segments are files whose size is sealed, and the socket has a
    name outside the file system.
    """

    def __init__(self, max_bytes: int, *, segment_bytes: int = SEGMENT_BYTES, can_seal: bool = CAN_SEAL) -> None:
        self.address = b""
        """Where senders connect, as sockets spell it; empty while nothing is lent."""
        self._max_segments = max_bytes // segment_bytes
        self._segment_bytes = segment_bytes
        self._can_seal = can_seal
        self._offers: dict[bytes, Loan] = {}
        self._idle: deque[Segment] = deque()
        self._lent: set[int] = set()  # by connection: a segment may be idle already when it still counts as lent
        self._handshakes: dict[socket.socket, asyncio.TimerHandle] = {}
        self._listener: socket.socket | None = None

    @property
    def num_bytes(self) -> int:
        """Return the size of all segments, lent and idle."""
        return (len(self._lent) + len(self._idle)) * self._segment_bytes

    def start(self) -> None:
        """Listen; where that is not possible, or there is no room for a segment, nothing is lent."""
        if not self._max_segments:
            return
        name, listener = f"{NAME_PREFIX}{secrets.token_hex(8)}", socket.socket(socket.AF_UNIX)
        address = b"\0" + name.encode() if self._can_seal else os.fsencode(Path(tempfile.gettempdir()) / name)
        try:
            self._idle.append(create_segment(self._segment_bytes, can_seal=self._can_seal))
            listener.bind(address)
            if not self._can_seal:
                os.chmod(address, 0o600)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            self._idle.clear()
            log.warning("shared_memory_off cause=%s", error)
            return
        listener.setblocking(False)
        self._listener, self.address = listener, address
        self._listen(listener)

    def close(self) -> None:
        """Lend nothing any more; what is being read stays."""
        loop = asyncio.get_running_loop()
        for connection in list(self._handshakes):
            self._end_handshake(connection)
        if self._listener is not None:
            loop.remove_reader(self._listener)
            self._listener.close()
            if not self._can_seal:
                Path(os.fsdecode(self.address)).unlink(missing_ok=True)
        self._listener, self.address = None, b""
        self._idle.clear()

    def lend(self) -> Loan:
        """Return a loan for one stream; memory is given when its sender comes. Only where there is an `address`."""
        loan = Loan(self, secrets.token_bytes(TOKEN_BYTES))
        self._offers[loan.token] = loan
        return loan

    def withdraw(self, loan: Loan) -> None:
        """Take an offer back, if nobody has taken it."""
        self._offers.pop(loan.token, None)

    def take_back(self, segment: Segment, connection: socket.socket, sender_end: _SenderEnd) -> None:
        """Take a segment that nobody reads any more. From any thread, in the middle of anything."""
        connection.close()  # not before: another thread might be about to use its descriptor
        if sender_end.is_finished and self._listener is not None:
            self._idle.append(segment)
        self._lent.discard(id(connection))  # last: whoever counts in between counts one too many, never too few

    def _listen(self, listener: socket.socket) -> None:
        if self._listener is listener:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:  # the sender still waits: the event loop would call again without a pause
                loop.remove_reader(listener)
                loop.call_later(_PAUSE_SECONDS, self._listen, listener)
            return  # or the sender has gone again
        connection.setblocking(False)
        self._handshakes[connection] = loop.call_later(_HANDSHAKE_SECONDS, self._end_handshake, connection)
        loop.add_reader(connection, self._answer, connection)

    def _end_handshake(self, connection: socket.socket, *, is_kept: bool = False) -> None:
        asyncio.get_running_loop().remove_reader(connection)
        self._handshakes.pop(connection).cancel()
        if not is_kept:
            connection.close()

    def _answer(self, connection: socket.socket) -> None:
        """Give memory to a sender that has sent its token."""
        loan, segment = None, None
        with contextlib.suppress(OSError):
            loan = self._offers.pop(connection.recv(TOKEN_BYTES), None)
        if loan is not None:
            segment = self._segment()
            loan.is_refused = segment is None
        self._end_handshake(connection, is_kept=segment is not None)
        if loan is None or segment is None:
            return
        self._lent.add(id(connection))
        loan.begin(segment, connection, self)
        with contextlib.suppress(OSError):  # the sender has gone again: so will its stream
            socket.send_fds(connection, [OFFSET.pack(segment.num_bytes)], [segment.descriptor])

    def _segment(self) -> Segment | None:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        if len(self._lent) + len(self._idle) >= self._max_segments:
            return None
        try:
            return create_segment(self._segment_bytes, can_seal=self._can_seal)
        except OSError as error:
            log.warning("shared_memory_refused cause=%s", error)
            return None


class Segment:
    """Memory behind a descriptor, which can be handed to another process. Raises OSError if it cannot be mapped."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self.descriptor = descriptor
        self.num_bytes = num_bytes
        weakref.finalize(self, os.close, descriptor).atexit = False
        self.memory: Bytes = np.frombuffer(mmap.mmap(descriptor, num_bytes), np.uint8)
        """The memory; mapped as long as any view of it lives."""


def create_segment(num_bytes: int, *, can_seal: bool = CAN_SEAL) -> Segment:
    """Return fresh zeros, with `can_seal` of a size that no process can change; raise OSError if there are none."""
    descriptor = _sealed_file(num_bytes) if can_seal else _unnamed_file(num_bytes)
    return Segment(descriptor, num_bytes)


def open_segment(descriptor: int, num_bytes: int, *, can_seal: bool = CAN_SEAL) -> Segment:
    """Return the memory of a sent descriptor, closed if that fails; raise OSError if it is too small or may shrink."""
    try:
        if not 0 < num_bytes <= os.fstat(descriptor).st_size:
            raise OSError(f"the other process promised {num_bytes} bytes, {os.fstat(descriptor).st_size} are there")
        if can_seal and not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise OSError("the other process could make the memory smaller")
    except OSError:
        os.close(descriptor)
        raise
    return Segment(descriptor, num_bytes)


def _sealed_file(num_bytes: int) -> int:
    descriptor = os.memfd_create("baton-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, num_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _unnamed_file(num_bytes: int) -> int:
    """Return a file whose name is gone; it is written, because a full disk must not show in a later access."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(num_bytes))
        file.flush()
        return os.dup(file.fileno())
