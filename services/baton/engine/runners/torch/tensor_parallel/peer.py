"""The first rank's end of a follower."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from baton.engine.runners.base import LayerKv
from baton.engine.runners.torch.tensor_parallel.follower import RankAssignment
from baton.engine.runners.torch.tensor_parallel.order import Order
from baton.errors import UnavailableError

log = logging.getLogger(__name__)

ANSWER_SECONDS = 120.0
"""Longest wait for what a follower has been told to send."""
_END_SECONDS = 10.0

LOOPBACK_ONLY = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Ranks of one host need no other network."""


class Peer:
    """A follower's process. `on_death`, in its own thread, gets rank and exit status of an end by itself."""

    def __init__(self, assignment: RankAssignment, on_death: Callable[[int, int], None]) -> None:
        self.rank = assignment.rank
        mine, theirs = socket.socketpair()
        command = [sys.executable, "-m", "baton.engine.runners.torch.tensor_parallel", str(theirs.fileno())]
        environment = {**os.environ, **LOOPBACK_ONLY, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)  # noqa: S603
        theirs.close()
        self._connection = Connection(mine.detach())
        self._is_closing = False
        self._on_death = on_death
        threading.Thread(target=self._watch, name=f"rank-{self.rank}", daemon=True).start()
        self._connection.send(assignment)

    def wait_until_ready(self) -> None:
        """Wait until it has loaded its share; raise UnavailableError if it ends instead."""
        self._receive()

    def tell(self, order: Order) -> None:
        """Send an order; raise UnavailableError if it has ended."""
        try:
            self._connection.send(order)
        except OSError as error:
            raise UnavailableError(f"rank {self.rank} has ended: {error}") from error

    def hear(self) -> LayerKv:
        """Return the K and V that it was told to send; raise UnavailableError if it ends or is silent instead."""
        return LayerKv(self._receive(), self._receive())

    def hang_up(self) -> None:
        """Let it end: from here on its end is no death. May be called again."""
        self._is_closing = True
        self._connection.close()

    def close(self) -> None:
        """Hang up, and wait for its end."""
        self.hang_up()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _receive(self) -> bytes:
        try:
            if self._connection.poll(ANSWER_SECONDS):
                return self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise UnavailableError(f"rank {self.rank} has ended: {error!r}") from error
        raise UnavailableError(f"rank {self.rank} has sent nothing for {ANSWER_SECONDS:.0f} s")

    def _watch(self) -> None:
        status = self.process.wait()
        if not self._is_closing:
            log.critical("rank_died rank=%d status=%d", self.rank, status)
            self._on_death(self.rank, status)


def close_all(peers: Sequence[Peer]) -> None:
    """Hang up on all, then wait for their ends: else one that ends meanwhile of itself would pass for dead."""
    for peer in peers:
        peer.hang_up()
    for peer in peers:
        peer.close()
