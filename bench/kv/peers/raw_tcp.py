"""A TCP socket, `sendmsg` and `recv_into`: what Python can reach at best, the limit that others are compared with."""

from __future__ import annotations

import socket
import struct
import threading

from bench.kv.peers.endpoint import HOST, Slots, run, source_memory, source_of

_REQUEST = struct.Struct("!qq")


def send() -> int:
    """Serve: a connection asks for a number of frames of a size, and gets them."""
    listener = socket.create_server((HOST, 0))
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    return int(listener.getsockname()[1])


def receive(address: str, num_frames: int, slots: Slots) -> None:
    """Receive frames into their slots."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(_REQUEST.pack(num_frames, slots.frame_bytes))
        for frame in range(num_frames):
            view = slots.view(frame)
            while view:
                view = view[connection.recv_into(view, len(view), socket.MSG_WAITALL) :]


def _accept(listener: socket.socket) -> None:
    source = source_memory()
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            num_frames, frame_bytes = _REQUEST.unpack(connection.recv(_REQUEST.size, socket.MSG_WAITALL))
            for frame in range(num_frames):
                view = memoryview(source_of(source, frame, frame_bytes).data)
                while view:
                    view = view[connection.sendmsg([view]) :]


if __name__ == "__main__":
    run(send, receive)
