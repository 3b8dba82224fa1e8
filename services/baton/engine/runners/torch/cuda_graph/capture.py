"""One decode step, from the fed tokens to the chosen ones, captured once for each padded batch; and its rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from baton.engine.runners.base import Span
from baton.engine.runners.torch.batch import QuerySegment
from baton.engine.runners.torch.cuda_graph.buffers import DecodeBuffers, Field, TableChanges
from baton.engine.runners.torch.lora import AdaptedRows
from baton.engine.runners.torch.ops.cuda.copy_stream import KvCopies
from baton.engine.runners.torch.ops.cuda.paged_queries import PagedQueries, Tiles, tiles_for
from baton.engine.runners.torch.ops.device_ops import DeviceOps
from baton.engine.runners.torch.ops.pool import KvPool
from baton.engine.runners.torch.runner import Backbone

log = logging.getLogger(__name__)

_WARM_UP_RUNS = 2


def padded_batch(num_rows: int, max_rows: int) -> int:
    """Return how many rows are computed where so many decode: few sizes, none much larger than wanted."""
    if num_rows <= 8:
        size = 1 << (num_rows - 1).bit_length()
    else:
        size = -(-num_rows // 16) * 16 if num_rows > 32 else -(-num_rows // 8) * 8
    return min(size, max_rows)


class DecodeSteps:
    """Runs decode steps on the buffers, one operation after the other."""

    def __init__(self, model: Backbone, buffers: DecodeBuffers, pool: KvPool, ops: DeviceOps) -> None:
        self._model: Backbone | None = model
        self._buffers, self._pool = buffers, pool
        self._ops = ops

    def warm_up(self) -> None:
        """Make ready what steps need; to be called before any row is loaded."""

    def run(self, num_rows: int) -> torch.Tensor:
        """Run a step on the first rows; return its logits: [num_rows, vocabulary_size]."""
        return self._step(DecodeBatch(self._buffers, self._pool, num_rows))

    def close(self) -> None:
        """Let go of the model."""
        self._model = None

    def _step(self, batch: DecodeBatch) -> torch.Tensor:
        """Choose a token for every row: a row of temperature 0 gets the most probable one."""
        assert self._model is not None, "the steps are closed"
        logits = self._model.logits(batch)
        self._buffers.advance(self._ops.drawn(logits, *self._buffers.draws(batch.num_rows)))
        return logits


class CapturedSteps(DecodeSteps):
    """Runs decode steps by CUDA graphs of one pool of memory; a run's logits live until the next run."""

    def __init__(self, model: Backbone, buffers: DecodeBuffers, pool: KvPool, ops: DeviceOps) -> None:
        super().__init__(model, buffers, pool, ops)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._memory: Any = None

    def warm_up(self) -> None:
        """Capture every padded batch, the largest first, whose memory serves all others."""
        started = time.perf_counter()
        max_rows = self._buffers.max_rows
        for size in sorted({padded_batch(rows, max_rows) for rows in range(1, max_rows + 1)}, reverse=True):
            batch = DecodeBatch(self._buffers, self._pool, size)
            self._graphs[size] = self._capture(partial(self._step, batch))
        log.info("decode_captured graphs=%d seconds=%.1f", len(self._graphs), time.perf_counter() - started)

    def close(self) -> None:
        """Let go of the graphs and the model."""
        self._graphs.clear()
        super().close()

    def run(self, num_rows: int) -> torch.Tensor:
        """See `DecodeSteps`."""
        graph, logits = self._graphs[num_rows]
        graph.replay()
        return logits

    def _capture(self, step: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # kernels are compiled and libraries make their rooms outside the capture
            for _ in range(_WARM_UP_RUNS):
                self._buffers.load(self._buffers.idle_fields(1), TableChanges([], []))
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            logits = step()
        self._memory = self._memory or graph.pool()
        return graph, logits


class DecodeBatch:
    """One token of each of the first rows of the buffers; every tensor follows from them on the device.

    It stands where a `PackedBatch` stands, but holds no spans: nothing of it is handed out by layer, and no row has an
    adapter. `pool`: where K and V live. `num_rows`: rows, idle ones included.
    """

    kv_copies: KvCopies | None = None
    has_sinks: bool = False
    spans: tuple[Span, ...] = ()
    segments: tuple[QuerySegment, ...] = ()
    last_segments: tuple[QuerySegment, ...] = ()
    adapted: tuple[AdaptedRows, ...] = ()
    last_adapted: tuple[AdaptedRows, ...] = ()

    def __init__(self, buffers: DecodeBuffers, pool: KvPool, num_rows: int) -> None:
        self.pool, self.num_rows = pool, num_rows
        self._buffers = buffers

    @property
    def num_logits(self) -> int:
        """Return the number of rows: all want logits."""
        return self.num_rows

    def token_ids(self) -> torch.Tensor:
        """Return the tokens: [1, num_rows]. Called first in a step."""
        self._begin()
        return self._buffers.begin(self.num_rows)[None]

    def positions(self) -> torch.Tensor:
        """Return their positions: [1, num_rows]."""
        return self._positions[None]

    def slots(self) -> torch.Tensor:
        """Return where in the pool the positions lie: [num_rows]."""
        return self._slots

    def last_rows(self) -> torch.Tensor:
        """Return all rows: [num_rows]."""
        return self._buffers.rows[: self.num_rows].long()

    def paged(
        self,
        segments: tuple[QuerySegment, ...],  # noqa: ARG002 - all rows
        group: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> PagedQueries:
        """Return the description of the rows' queries."""
        tiles: Tiles = tiles_for(dtype, group=group, head_dim=head_dim, max_queries=1)
        buffers, num_rows = self._buffers, self.num_rows
        rows, tables = buffers.rows[: num_rows + 1], buffers.tables[:num_rows]
        max_end = tables.shape[1] * self.pool.block_tokens
        return PagedQueries(tables, self._ends, rows, rows[:-1], buffers.zeros[:num_rows], tiles, max_end)

    def _begin(self) -> None:
        """Derive what all layers need."""
        ends = self._buffers.fields[Field.END, : self.num_rows]
        self._positions = ends - 1
        self._ends = ends.to(torch.int32)
        block_index = torch.div(self._positions, self.pool.block_tokens, rounding_mode="floor")
        blocks = self._buffers.tables[: self.num_rows].gather(1, block_index[:, None])[:, 0].long()
        self._slots = blocks * self.pool.block_tokens + self._positions % self.pool.block_tokens
