"""A TCP socket, `sendmsg` and `recv_into`: what Python can reach at best, the limit that transports are compared with.

Started by `baton bench kv-transport`, once as the sender and once as the receiver, as `baton kv-link` is.
"""

from __future__ import annotations

import argparse
import socket
import struct
import sys
import threading
import time

import numpy as np

from bench.processes import say

_SOURCE_BYTES = 64 << 20
"""Random memory that frames are sent from, again and again, as `baton kv-link` does; both ends know it."""
_HOST = "127.0.0.1"
_REQUEST = struct.Struct("!qq")
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def main() -> None:
    """Be one end, as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("end", choices=("send", "receive"))
    parser.add_argument("address", nargs="?", default="")
    parser.add_argument("--num-frames", type=int, default=1024)
    parser.add_argument("--frame-bytes", type=int, default=1 << 20)
    parser.add_argument("--num-slots", type=int, default=256)
    options = parser.parse_args()
    if options.end == "send":
        _send()
    else:
        _receive(options)


def _send() -> None:
    """Serve frames to connections that say how many of what size; answer every line with the CPU time so far."""
    listener = socket.create_server((_HOST, 0))
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    say({"port": int(listener.getsockname()[1])})
    for _ in sys.stdin:
        say({"cpu_seconds": time.process_time()})


def _accept(listener: socket.socket) -> None:
    source = _source_memory()
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            num_frames, frame_bytes = _REQUEST.unpack(connection.recv(_REQUEST.size, socket.MSG_WAITALL))
            for frame in range(num_frames):
                view = memoryview(_source_of(source, frame, frame_bytes).data)
                while view:
                    view = view[connection.sendmsg([view]) :]


def _receive(options: argparse.Namespace) -> None:
    """Take frames into slots, round and round, that were touched before anything is timed; compare the last ones."""
    memory: Bytes = np.zeros(options.num_slots * options.frame_bytes, np.uint8)
    slots = memory.reshape(options.num_slots, options.frame_bytes)
    _take(options.address, options.num_slots, slots)
    memory[:] = 0
    say({"is_ready": True})
    sys.stdin.readline()
    started, cpu_started = time.perf_counter(), time.process_time()
    _take(options.address, options.num_frames, slots)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    source = _source_memory()
    is_right = all(
        np.array_equal(slots[frame % len(slots)], _source_of(source, frame, options.frame_bytes))
        for frame in range(max(0, options.num_frames - len(slots)), options.num_frames)
    )
    num_bytes = options.num_frames * options.frame_bytes
    say({"seconds": seconds, "cpu_seconds": cpu_seconds, "num_bytes": num_bytes, "is_right": is_right})


def _take(address: str, num_frames: int, slots: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> None:
    """Ask for frames and receive each into its slot."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(_REQUEST.pack(num_frames, slots.shape[1]))
        for frame in range(num_frames):
            view = memoryview(slots[frame % len(slots)].data)
            while view:
                view = view[connection.recv_into(view, len(view), socket.MSG_WAITALL) :]


def _source_memory() -> Bytes:
    return np.random.default_rng(1).integers(0, 256, _SOURCE_BYTES, dtype=np.uint8)


def _source_of(source: Bytes, frame: int, frame_bytes: int) -> Bytes:
    """Return the bytes of a frame; `frame_bytes` divides the source's."""
    start = frame * frame_bytes % _SOURCE_BYTES
    return source[start : start + frame_bytes]


if __name__ == "__main__":
    main()
