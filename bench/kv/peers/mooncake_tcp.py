"""Mooncake's transfer engine over TCP: the sender writes into the receiver's registered memory."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from typing import Any

from mooncake.engine import TransferEngine

from bench.kv.peers.endpoint import HOST, Slots, run, source_memory


def send() -> int:
    """Serve: a connection brings the receiver's memory, and is told when its frames have been written."""
    listener = socket.create_server((HOST, 0))
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    return int(listener.getsockname()[1])


def receive(address: str, num_frames: int, slots: Slots) -> None:
    """Offer the slots to the sender and wait until it has written the frames."""
    engine = _engine()
    _check(engine.register_memory(slots.memory.ctypes.data, slots.memory.nbytes), "register_memory")
    name = f"{HOST}:{engine.get_rpc_port()}"
    offer = (name, slots.memory.ctypes.data, slots.num_slots, slots.frame_bytes, num_frames)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        message = pickle.dumps(offer)
        connection.sendall(struct.pack("!q", len(message)) + message)
        connection.recv(1)
    engine.unregister_memory(slots.memory.ctypes.data)


def _accept(listener: socket.socket) -> None:
    source = source_memory()
    engine = _engine()
    _check(engine.register_memory(source.ctypes.data, source.nbytes), "register_memory")
    while True:
        connection, _ = listener.accept()
        with connection:
            (length,) = struct.unpack("!q", connection.recv(8, socket.MSG_WAITALL))
            # The peer is this benchmark's own other process.
            name, target, num_slots, frame_bytes, num_frames = pickle.loads(connection.recv(length, socket.MSG_WAITALL))
            for first in range(0, num_frames, num_slots):
                frames = range(first, min(first + num_slots, num_frames))
                sources = [source.ctypes.data + frame * frame_bytes % source.nbytes for frame in frames]
                targets = [target + frame % num_slots * frame_bytes for frame in frames]
                sizes = [frame_bytes] * len(frames)
                _check(engine.batch_transfer_sync_write(name, sources, targets, sizes), "batch_transfer_sync_write")
            connection.sendall(b"d")


def _engine() -> Any:
    engine = TransferEngine()
    _check(engine.initialize(HOST, "P2PHANDSHAKE", "tcp", ""), "initialize")
    return engine


def _check(status: int, what: str) -> None:
    if status != 0:
        raise RuntimeError(f"mooncake: {what} returned {status}")


if __name__ == "__main__":
    run(send, receive)
