"""All ranks of a model as one runner: the first one's process is the engine's, the others follow."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from baton.engine.runners.base import Launched, LayerKv, LayerSink, ModelInfo, Runner, Span
from baton.engine.runners.drawing import Draws
from baton.engine.runners.torch.cuda_graph.runner import CudaGraphRunner, DevicePass
from baton.engine.runners.torch.kv_codec import TorchCodec
from baton.engine.runners.torch.loader import LoadOptions, describe_whole, load_share
from baton.engine.runners.torch.runner import TorchLogits, TorchRunner
from baton.engine.runners.torch.tensor_parallel import order
from baton.engine.runners.torch.tensor_parallel.follower import RankAssignment
from baton.engine.runners.torch.tensor_parallel.peer import LOOPBACK_ONLY, Peer, close_all
from baton.engine.runners.torch.tensor_parallel.ranks import ProcessRanks, check_divisible
from baton.errors import ConfigurationError, UnavailableError

log = logging.getLogger(__name__)

_EXIT_STATUS = 70


def end_process(rank: int, status: int) -> None:  # noqa: ARG001 - logged by the caller
    """End the node: with a rank less there is no model, and a pass that waits for it would wait for ever."""
    os._exit(_EXIT_STATUS)


def load_parallel_runner(
    options: LoadOptions, size: int, *, on_death: Callable[[int, int], None] = end_process
) -> ParallelRunner:
    """Load a model folder over several ranks, this process being the first.

    `options`: as `load_torch_runner`'s; "cuda" and "cuda:N" name the first of consecutive devices. `size`: ranks, 2 or
    more. `on_death`: called with rank and exit status of one that ends by itself, from a thread of its own; with those
    of the first one when it has not done its part of an order, from the thread that gave it. Raises ConfigurationError
    if the folder cannot be served, devices are missing, or heads cannot be shared out evenly, UnavailableError if a
    rank ends while it loads.
    """
    if options.adapters:
        raise ConfigurationError(f"lora {', '.join(options.adapters)}: not together with tensor_parallel {size}")
    options = options.of_rank(0)
    info = describe_whole(options)
    info = replace(info, device=f"{size} x {info.device}")
    check_divisible(info, size)
    if options.weight_dtype != "auto":  # scales would be those of a share: another rounding than one device's
        raise ConfigurationError(f"weight_dtype {options.weight_dtype}: not together with tensor_parallel {size}")
    os.environ.update({name: os.environ.get(name, value) for name, value in LOOPBACK_ONLY.items()})
    folder = tempfile.TemporaryDirectory(prefix="baton-ranks-")
    meeting_point = Path(folder.name) / "store"
    for rank in range(size):
        options.of_rank(rank).check_device()
    peers = [Peer(RankAssignment(options, rank, size, meeting_point), on_death) for rank in range(1, size)]
    try:
        ranks = ProcessRanks(0, size, meeting_point, options.torch_device)
        local = load_share(options, ranks)
        for peer in peers:
            peer.wait_until_ready()
    except BaseException:
        close_all(peers)
        folder.cleanup()
        raise
    return ParallelRunner(local, info, peers, ranks, folder, on_death)


class ParallelRunner(Runner):
    """Tells every rank what it is asked, then does it with its own share; K and V go in and out whole.

    Invariant: all ranks carry out the same orders one after the other, so that their collective operations meet, and
    what the others send is heard. An order of which the first rank alone has not done its part breaks that for good:
    operations of different passes would meet from then on. It is told as a death, and every later order is refused.
    """

    wire_codec = TorchCodec()

    def __init__(
        self,
        local: TorchRunner,
        info: ModelInfo,
        peers: Sequence[Peer],
        ranks: ProcessRanks,
        folder: tempfile.TemporaryDirectory[str],
        on_death: Callable[[int, int], None],
    ) -> None:
        self.info = info
        self.num_blocks = local.num_blocks
        self.num_blocks_cause = local.num_blocks_cause
        self.untaken_bytes = local.untaken_bytes * (1 + len(peers))
        self.block_tokens = local.block_tokens
        self.runs_ahead, self.look_seconds = local.runs_ahead, local.look_seconds
        self.max_launch_steps = local.max_launch_steps
        self.peers = tuple(peers)
        self._local, self._ranks = local, ranks
        self._folder, self._on_death = folder, on_death
        self._is_in_step = True

    def forward(self, spans: Sequence[Span]) -> TorchLogits:
        """Compute spans of different sequences in one pass and write their KV into their blocks."""
        with self._in_step():
            self._tell(_forward(spans))
            return self._local.forward(self._joining(spans))

    def launch(
        self, spans: Sequence[Span], *, draws: Draws | None = None, after: Launched | None = None, num_steps: int = 1
    ) -> Launched:
        """Begin a pass, or several in a row."""
        if not isinstance(self._local, CudaGraphRunner):
            return super().launch(spans, draws=draws, after=after, num_steps=num_steps)
        assert after is None or isinstance(after, DevicePass), "a pass of another runner cannot be followed"
        rows = self._local.rows_for(spans)
        with self._in_step():
            self._tell(order.Launch(_forward(spans), rows, draws, after is not None, num_steps))
            return self._local.launch_at(self._joining(spans), rows, draws, after, num_steps)

    def is_over(self, launched: Launched) -> bool:
        """Return whether this rank is known to have computed a pass; never waits."""
        return self._local.is_over(launched)

    def copy_block(self, source: int, target: int) -> None:
        """Copy K and V of all layers from one block into another."""
        with self._in_step():
            self._tell(order.CopyBlock(source, target))
            self._local.copy_block(source, target)

    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Write K and V of some positions of a layer into blocks, in the cache's dtype; ValueError: other sizes."""
        first, *others = order.split_heads(kv, len(self.peers) + 1)
        self._local.write_kv(block_table, layer, start, num_tokens, first)  # checks the sizes
        with self._in_step():
            for peer, share in zip(self.peers, others, strict=True):
                place = (list(block_table), layer, start, num_tokens)
                peer.tell(order.WriteKv(*place, bytes(share.keys), bytes(share.values)))

    def read_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int) -> LayerKv:
        """Return K and V of positions [start, start + num_tokens) of one layer."""
        with self._in_step():
            self._tell(order.ReadKv(list(block_table), layer, start, num_tokens))
            return self._whole(self._local.read_kv(block_table, layer, start, num_tokens))

    def peak_device_bytes(self) -> int:
        """Return the most memory of the first rank's device in use since the start; 0 where it is the process's own."""
        return self._local.peak_device_bytes()

    def close(self) -> None:
        """Free the model and the blocks, and end the other ranks. May be called again."""
        if self.peers:
            close_all(self.peers)
            self.peers = ()
            self._local.close()
            self._ranks.close()
            self._folder.cleanup()

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Do the first rank's part of an order; raise UnavailableError if ranks are out of step. A failure ends all."""
        if not self._is_in_step:
            raise UnavailableError("the ranks of the model are out of step: an earlier order has failed in the first")
        try:
            yield
        except BaseException as error:
            if self._is_in_step:
                self._is_in_step = False
                log.critical("rank_failed rank=0 cause=%r", error)
                self._on_death(0, _EXIT_STATUS)
            raise

    def _tell(self, order: order.Order) -> None:
        for peer in self.peers:
            peer.tell(order)

    def _whole(self, share: LayerKv) -> LayerKv:
        return order.join_heads([share, *(peer.hear() for peer in self.peers)])

    def _joining(self, spans: Sequence[Span]) -> list[Span]:
        """Return the spans with sinks that wait for every rank's heads: all are at the same layer."""
        return [
            span if span.layer_sink is None else span._replace(layer_sink=partial(self._hand_on, span.layer_sink))
            for span in spans
        ]

    def _hand_on(self, sink: LayerSink, layer: int, kv: LayerKv) -> None:
        with self._in_step():  # where the host runs ahead, layers are handed on after the launch
            sink(layer, self._whole(kv))


def _forward(spans: Sequence[Span]) -> order.Forward:
    """Return the spans without what only this process can use."""
    plain = [span._replace(layer_sink=None, block_table=list(span.block_table)) for span in spans]
    return order.Forward(plain, [span.layer_sink is not None for span in spans])
