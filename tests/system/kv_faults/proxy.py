"""A proxy between a decode node and a prefill node that does one thing wrong, at one message of a KV stream."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from baton.shm.lender import Segment
from system.kv_faults.forgery import is_same, made_of
from system.kv_faults.http2 import DATA, END_STREAM, Frame, FrameReader, MessageReader, message_bytes
from tcp_proxy import TcpProxy
from tcp_server import HOST

Kind = Literal[
    "cut",
    "cut_inside",
    "reset",
    "stall",
    "delay",
    "drop",
    "duplicate",
    "reorder",
    "truncate",
    "flip",
    "flip_wire",
    "flip_request",
    "foreign",
    "stale",
    "swap_layers",
    "swap_payloads",
    "wrong_key",
    "lying_place",
    "lying_bytes",
    "lying_size",
    "lying_sum",
    "impostor",
    "flip_memory",
    "kill_sender",
    "kill_receiver",
]
KINDS: dict[Kind, str] = {
    "cut": "the connection ends before the message",
    "cut_inside": "the connection ends within the message",
    "reset": "the connection is reset before the message",
    "stall": "nothing comes any more, from the message on",
    "delay": "the message comes when it has been given up",
    "drop": "the message is lost",
    "duplicate": "the message comes twice",
    "reorder": "the message comes after the next one",
    "truncate": "the end of the message is missing",
    "flip": "a bit of the message is wrong",
    "flip_wire": "a bit of its HTTP/2 frames is wrong, headers included",
    "flip_request": "a bit of the request is wrong",
    "foreign": "the message of another request comes in its place",
    "stale": "the message of an earlier stream of the same prompt comes in its place",
    "swap_layers": "the frame says that it is of another layer",
    "swap_payloads": "the frame has the keys and values, or the place in shared memory, of the one before",
    "wrong_key": "the frame is altered and its checksums made to fit, but for the key of the stream",
    "lying_place": "the sender proves a frame of a place that is not due",
    "lying_bytes": "the sender proves an altered frame, and sums up the right one",
    "lying_size": "the sender proves a frame that lacks its end",
    "lying_sum": "the sender sums up other frames than it has sent",
    "impostor": "another process answers in the place of the sender",
    "flip_memory": "a bit of the shared memory is wrong",
    "kill_sender": "the prefill node dies before the message, and stays dead",
    "kill_receiver": "the decode node's client goes before the message; another attempt is made",
}
"""What a fault does, by kind."""
LIES: frozenset[Kind] = frozenset(
    {"swap_layers", "wrong_key", "lying_place", "lying_bytes", "lying_size", "lying_sum", "impostor"}
)
"""Faults that are made of the message, and never leave it as it was."""
_MADE = LIES | {"swap_payloads", "flip_memory"}


Due: TypeAlias = dict[int, int]
"""Streams of a connection that a fault may hit: how often the proxy had been armed when they were asked for."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong."""

    kind: Kind
    """What."""
    index: int
    """Message of the connection that is hit, from 0: the layout, then frames and first token, the summary last."""
    seed: int
    """Of what is drawn: bits, bytes."""
    delay_seconds: float
    """For "delay"."""


class _ConnectionEndsError(ConnectionError):
    """The fault ends the connection."""


class FaultProxy(TcpProxy):
    """Forwards connections to a port; the armed fault happens once, then everything is as it should be.

    Args:
        server_port: Where the server listens.
        port: Where the proxy listens; 0: any free port.
    """

    def __init__(self, server_port: int, *, port: int = 0) -> None:
        super().__init__(port)
        self.injected_at: float | None = None
        """Event loop's time at which the fault happened; None: not yet."""
        self.num_messages = 0
        """Messages from the server since the fault was armed."""
        self.messages: list[bytes] = []
        """Those messages."""
        self.others: dict[Kind, list[bytes]] = {"foreign": [], "stale": []}
        """Messages of another request's stream, and of an earlier one of the same prompt."""
        self.segments: list[Segment] = []
        """Memory that the decode node has lent, for "flip_memory"."""
        self.made: bytes | None = None
        """What comes in the place of the message that is hit."""
        self.is_harmless = False
        """Whether the fault changed nothing that anybody could miss: durations and counts of the sender's work."""
        self.on_kill_sender: Callable[[], None] = lambda: None
        """Called when the prefill node dies; it has other ports."""
        self.on_kill_receiver: Callable[[], None] = lambda: None
        """Called when the decode node's client is to go."""
        self.num_armings = 0
        """Of a fault, or of none."""
        self._names = list[bytes]()
        self._server_port = server_port
        self._fault: Fault | None = None
        self._is_dead = False
        self._random = random.Random(0)
        self._writers: set[asyncio.StreamWriter] = set()

    def arm(self, fault: Fault | None, *names: str) -> None:
        """Have a fault happen, or none; whoever was killed lives again.

        Args:
            fault: What happens.
            names: Of requests whose streams it may hit, for what is left of an earlier one may still come; none: any.
        """
        self._fault, self._is_dead, self.injected_at = fault, False, None
        self.num_armings += 1
        self._names = [name.encode() for name in names]
        self.num_messages, self.messages, self.made, self.is_harmless = 0, [], None, False
        self._random = random.Random(fault.seed if fault else 0)

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection with the fault; there is none to a server that is dead."""
        try:
            if not self._is_dead:
                await self._copy_both_ways(reader, writer)
        finally:
            if self._is_dead or (self._fault and self._fault.kind == "reset"):
                writer.transport.abort()

    async def _copy_both_ways(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(HOST, self._server_port)
        due: Due = {}
        upward = asyncio.create_task(self._copy_up(reader, server_writer, due))
        self._writers |= {writer, server_writer}
        try:
            await _Downward(self, writer, due).copy(server_reader)
        finally:
            self._writers -= {writer, server_writer}
            server_writer.transport.abort()
            upward.cancel()
            await asyncio.wait({upward})

    async def _copy_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, due: Due) -> None:
        frames = FrameReader()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                had_preface = bool(frames.preface)
                for frame in frames.feed(data):
                    if not had_preface:
                        writer.write(frames.preface)
                        had_preface = True
                    if frame.kind == DATA and (not self._names or any(name in frame.payload for name in self._names)):
                        due[frame.stream_id] = self.num_armings
                    writer.write(self._upward(frame).encode())
                await writer.drain()
            writer.write_eof()

    def _upward(self, frame: Frame) -> Frame:
        fault = self._fault
        if frame.kind != DATA or not frame.payload or fault is None or fault.kind != "flip_request":
            return frame
        if self.injected_at is not None:
            return frame
        self.note_injected()
        return frame.with_payload(flipped(frame.payload, self._random))

    def take(self, message: bytes, of_stream: Sequence[bytes]) -> Fault | None:
        """Count a message from the server; return the fault if it is this one's.

        Args:
            message: The message.
            of_stream: All of its stream so far, this one the last.
        """
        index = self.num_messages
        self.num_messages += 1
        self.messages.append(message)
        fault = self._fault
        if fault is None or fault.kind == "flip_request" or self.injected_at is not None:
            return None
        if fault.kind in _MADE and (fault.index <= index or fault.kind == "impostor"):
            self.made = made_of(fault.kind, of_stream, self.segments, self._random)
            if self.made is None:
                return None
        elif fault.index != index or index >= len(self.others.get(fault.kind, range(index + 1))):
            return None
        self.note_injected()
        return fault

    def note_injected(self) -> None:
        """Remember when the fault happened."""
        self.injected_at = asyncio.get_running_loop().time()

    def kill(self) -> None:
        """Have the server gone, for every connection."""
        self._is_dead = True
        for writer in list(self._writers):
            writer.transport.abort()

    @property
    def armed_kind(self) -> Kind | None:
        """Return what is to happen, or has happened."""
        return self._fault.kind if self._fault else None

    def drawn(self) -> random.Random:
        """Return where what is drawn comes from."""
        return self._random


class _Downward:
    """From the server to the client, message by message."""

    def __init__(self, proxy: FaultProxy, writer: asyncio.StreamWriter, due: Due) -> None:
        self._proxy = proxy
        self._due = due
        self._writer = writer
        self._readers: dict[int, MessageReader] = {}
        self._held: dict[int, bytes] = {}
        self._messages: dict[int, list[bytes]] = {}

    async def copy(self, reader: asyncio.StreamReader) -> None:
        """Forward until the server ends the connection."""
        frames = FrameReader()
        while data := await reader.read(65536):
            for frame in frames.feed(data):
                await self._take(frame)
            await self._writer.drain()

    async def _take(self, frame: Frame) -> None:
        if frame.kind != DATA:
            self._release(frame.stream_id)
            self._writer.write(frame.encode())
            if frame.flags & END_STREAM:
                self._forget(frame.stream_id)
            return
        messages = self._readers.setdefault(frame.stream_id, MessageReader())
        for message in messages.feed(frame.payload):
            of_stream = self._messages.setdefault(frame.stream_id, [])
            of_stream.append(message)
            is_due = self._due.get(frame.stream_id) == self._proxy.num_armings
            fault = self._proxy.take(message, of_stream) if is_due else None
            if fault is None:
                self._writer.write(message_bytes(frame.stream_id, message))
                self._release(frame.stream_id)
            else:
                await self._damage(fault, frame.stream_id, message)
        if frame.flags & END_STREAM:
            self._writer.write(Frame(DATA, END_STREAM, frame.stream_id, b"").encode())
            self._forget(frame.stream_id)

    def _forget(self, stream_id: int) -> None:
        """Drop what is kept of a stream: a connection may carry thousands."""
        for kept in (self._readers, self._messages, self._due):
            kept.pop(stream_id, None)

    def _release(self, stream_id: int) -> None:
        """Send the message that was to come after the next one."""
        held = self._held.pop(stream_id, None)
        if held is not None:
            self._writer.write(message_bytes(stream_id, held))

    async def _damage(self, fault: Fault, stream_id: int, message: bytes) -> None:
        whole, drawn = message_bytes(stream_id, message), self._proxy.drawn()
        if fault.kind in ("cut", "reset", "kill_sender"):
            if fault.kind == "kill_sender":
                self._proxy.kill()
                self._proxy.on_kill_sender()
            raise _ConnectionEndsError
        if fault.kind == "cut_inside":
            self._writer.write(whole[: drawn.randrange(1, len(whole))])
            await self._writer.drain()
            raise _ConnectionEndsError
        if fault.kind == "stall":
            await asyncio.Event().wait()
        if fault.kind == "delay":
            await asyncio.sleep(fault.delay_seconds)
        if fault.kind == "kill_receiver":
            self._proxy.on_kill_receiver()
        if fault.kind == "reorder":
            self._held[stream_id] = message
        elif fault.kind != "drop":
            self._writer.write(self._altered(fault, stream_id, message))

    def _altered(self, fault: Fault, stream_id: int, message: bytes) -> bytes:
        whole, drawn = message_bytes(stream_id, message), self._proxy.drawn()
        if fault.kind == "duplicate":
            return whole * 2
        if fault.kind == "truncate":
            return message_bytes(stream_id, message[: drawn.randrange(len(message))])
        if fault.kind == "flip":
            return self._replaced(stream_id, message, flipped(message, drawn))
        if fault.kind == "flip_wire":
            return flipped(whole, drawn)
        if fault.kind in self._proxy.others:
            return self._replaced(stream_id, message, self._proxy.others[fault.kind][fault.index])
        if self._proxy.made is not None:
            return self._replaced(stream_id, message, self._proxy.made)
        return whole

    def _replaced(self, stream_id: int, message: bytes, other: bytes) -> bytes:
        self._proxy.is_harmless = is_same(message, other) and self._proxy.armed_kind != "flip_memory"
        return message_bytes(stream_id, other)


def flipped(data: bytes, drawn: random.Random) -> bytes:
    """Return the bytes with one bit changed."""
    place = drawn.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << drawn.randrange(8)]) + data[place + 1 :]
