"""What both ends of every peer have in common: the bytes sent, where they land, and how results are told."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

from bench.processes import say

SOURCE_BYTES = 64 << 20
"""Random memory that frames are sent from, again and again, as `baton kv-link` does."""
HOST = "127.0.0.1"
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class Slots:
    """Memory that frames land in, slot after slot, round and round; touched before anything is timed.

    Args:
        num_slots: Frames that it holds.
        frame_bytes: Size of a frame.
    """

    def __init__(self, num_slots: int, frame_bytes: int) -> None:
        self.memory: Bytes = np.zeros(num_slots * frame_bytes, np.uint8)
        self.num_slots = num_slots
        self.frame_bytes = frame_bytes

    def view(self, frame: int) -> memoryview:
        """Return the memory of a frame."""
        start = frame % self.num_slots * self.frame_bytes
        return memoryview(self.memory.data)[start : start + self.frame_bytes]

    def is_right(self, num_frames: int) -> bool:
        """Return whether every slot has the bytes of the last frame that was sent into it."""
        source = source_memory()
        return all(
            np.array_equal(np.frombuffer(self.view(frame), np.uint8), source_of(source, frame, self.frame_bytes))
            for frame in range(max(0, num_frames - self.num_slots), num_frames)
        )


def source_memory() -> Bytes:
    """Return the bytes that both ends know."""
    return np.random.default_rng(1).integers(0, 256, SOURCE_BYTES, dtype=np.uint8)


def source_of(source: Bytes, frame: int, frame_bytes: int) -> Bytes:
    """Return the bytes of a frame; `frame_bytes` divides SOURCE_BYTES."""
    start = frame * frame_bytes % SOURCE_BYTES
    return source[start : start + frame_bytes]


def run(send: Callable[[], int], receive: Callable[[str, int, Slots], None]) -> None:
    """Be one end, as the command line says.

    Args:
        send: Begins to serve in threads of its own, and returns a port.
        receive: Takes that many frames from host:port into slots.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("end", choices=("send", "receive"))
    parser.add_argument("address", nargs="?", default="")
    parser.add_argument("--num-frames", type=int, default=1024)
    parser.add_argument("--frame-bytes", type=int, default=1 << 20)
    parser.add_argument("--num-slots", type=int, default=256)
    options = parser.parse_args()
    if options.end == "send":
        say({"port": send()})
        for _ in sys.stdin:
            say({"cpu_seconds": time.process_time()})
        return
    slots = Slots(options.num_slots, options.frame_bytes)
    receive(options.address, options.num_slots, slots)
    slots.memory[:] = 0
    say({"is_ready": True})
    sys.stdin.readline()
    started, cpu_started = time.perf_counter(), time.process_time()
    receive(options.address, options.num_frames, slots)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    num_bytes, is_right = options.num_frames * options.frame_bytes, slots.is_right(options.num_frames)
    say({"seconds": seconds, "cpu_seconds": cpu_seconds, "num_bytes": num_bytes, "is_right": is_right})
