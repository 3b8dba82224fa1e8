"""A rank that is not scheduled: a process that computes its share of what the first rank is asked for."""

from __future__ import annotations

import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from baton.engine.runners.base import LayerKv, Span
from baton.engine.runners.torch.cuda_graph.runner import CudaGraphRunner, DevicePass
from baton.engine.runners.torch.loader import LoadOptions, load_share
from baton.engine.runners.torch.runner import TorchRunner
from baton.engine.runners.torch.tensor_parallel.order import CopyBlock, Forward, Launch, Order, WriteKv
from baton.engine.runners.torch.tensor_parallel.ranks import ProcessRanks
from baton.errors import ConfigurationError

_PARENT_CHECK_SECONDS = 1.0
_REFUSAL_SECONDS = 30.0
"""Longest wait of a rank that cannot load for the first one to find out the same."""


class RankAssignment(NamedTuple):
    """The first message: who the rank is."""

    options: LoadOptions
    rank: int
    size: int
    meeting_point: Path


class Follower:
    """Carries out orders."""

    def __init__(self, runner: TorchRunner, connection: Connection) -> None:
        self._runner, self._connection = runner, connection
        self._last: DevicePass | None = None

    def run(self) -> None:
        """Carry out orders until the first rank hangs up."""
        while True:
            try:
                order: Order = self._connection.recv()
            except EOFError:
                return
            self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, Forward):
            self._runner.forward(self._spans(order))
        elif isinstance(order, Launch):
            self._launch(order)
        elif isinstance(order, CopyBlock):
            self._runner.copy_block(*order)
        elif isinstance(order, WriteKv):
            table, layer, start, num_tokens, keys, values = order
            self._runner.write_kv(table, layer, start, num_tokens, LayerKv(keys, values))
        else:
            self._send(self._runner.read_kv(*order))

    def _launch(self, order: Launch) -> None:
        assert isinstance(self._runner, CudaGraphRunner), "only a static runner launches"
        after = self._last if order.is_following else None
        spans = self._spans(order.forward)
        self._last = self._runner.launch_at(spans, order.rows, order.draws, after, order.num_steps)
        if any(order.forward.handed_over):
            self._last.tokens()  # the copies leave as they arrive

    def _spans(self, order: Forward) -> list[Span]:
        return [
            span._replace(layer_sink=self._sink) if is_handed_over else span
            for span, is_handed_over in zip(order.spans, order.handed_over, strict=True)
        ]

    def _sink(self, layer: int, kv: LayerKv) -> None:  # noqa: ARG002 - both sides go through layers in order
        self._send(kv)

    def _send(self, kv: LayerKv) -> None:
        for buffer in kv:
            self._connection.send_bytes(buffer)


def follow(descriptor: int) -> None:
    """Load the share, say so, carry out orders."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    connection = Connection(descriptor)
    assignment: RankAssignment = connection.recv()
    options = assignment.options.of_rank(assignment.rank)
    ranks = ProcessRanks(assignment.rank, assignment.size, assignment.meeting_point, options.torch_device)
    try:
        runner = load_share(options, ranks)
    except ConfigurationError:
        connection.poll(_REFUSAL_SECONDS)  # the first rank tells why and hangs up; an end before that is a death
        raise
    connection.send_bytes(b"ready")
    Follower(runner, connection).run()
    runner.close()
    ranks.close()


def _end_with_parent(parent: int) -> None:
    """End when the first rank's process is gone, even in the midst of a collective operation."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(1)
