"""nixl with UCX over TCP: the sender writes into the receiver's registered memory."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
import time
import uuid
from typing import Any

os.environ.setdefault("UCX_TLS", "tcp")
os.environ.setdefault("UCX_NET_DEVICES", "lo")

from nixl._api import nixl_agent, nixl_agent_config

from bench.kv.peers.endpoint import HOST, Slots, run, source_memory

_POLL_SECONDS = 1e-4


def send() -> int:
    """Serve: a connection brings the receiver's memory, and is told when its frames have been written."""
    listener = socket.create_server((HOST, 0))
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    return int(listener.getsockname()[1])


def receive(address: str, num_frames: int, slots: Slots) -> None:
    """Offer the slots to the sender and wait until it has written the frames."""
    name = f"receiver-{uuid.uuid4().hex}"
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    registered = agent.register_memory([(slots.memory.ctypes.data, slots.memory.nbytes, 0, "")], "DRAM")
    offer = (name, agent.get_agent_metadata(), slots.memory.ctypes.data, slots.num_slots, slots.frame_bytes, num_frames)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        message = pickle.dumps(offer)
        connection.sendall(struct.pack("!q", len(message)) + message)
        connection.recv(1)
    agent.deregister_memory(registered)


def _accept(listener: socket.socket) -> None:
    source = source_memory()
    agent = nixl_agent("sender", nixl_agent_config(backends=["UCX"]))
    agent.register_memory([(source.ctypes.data, source.nbytes, 0, "")], "DRAM")
    while True:
        connection, _ = listener.accept()
        with connection:
            (length,) = struct.unpack("!q", connection.recv(8, socket.MSG_WAITALL))
            # The peer is this benchmark's own other process.
            name, metadata, *memory = pickle.loads(connection.recv(length, socket.MSG_WAITALL))
            agent.add_remote_agent(metadata)
            _write(agent, name, source.ctypes.data, source.nbytes, *memory)
            agent.remove_remote_agent(name)
            connection.sendall(b"d")


def _write(
    agent: Any,
    name: str,
    source: int,
    source_bytes: int,
    target: int,
    num_slots: int,
    frame_bytes: int,
    num_frames: int,
) -> None:
    """Write all frames, one round of the slots at a time."""
    for first in range(0, num_frames, num_slots):
        frames = range(first, min(first + num_slots, num_frames))
        local = [(source + frame * frame_bytes % source_bytes, frame_bytes, 0) for frame in frames]
        remote = [(target + frame % num_slots * frame_bytes, frame_bytes, 0) for frame in frames]
        handle = agent.initialize_xfer(
            "WRITE", agent.get_xfer_descs(local, "DRAM"), agent.get_xfer_descs(remote, "DRAM"), name
        )
        state = agent.transfer(handle)
        while state == "PROC":
            time.sleep(_POLL_SECONDS)
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"nixl: {state}")
        agent.release_xfer_handle(handle)


if __name__ == "__main__":
    run(send, receive)
