"""Runs no model: takes the time that a device would take, and makes real KV bytes and checkable tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import numpy as np

from baton.capacity.hardware import Hardware, StepSpan, step_seconds
from baton.engine.runners.base import BlockCopies, Launched, LayerKv, ModelInfo, Runner, Span, with_known_tokens
from baton.engine.runners.drawing import Draws
from baton.engine.runners.mock.kv_codec import MockCodec
from baton.engine.runners.mock.passes import MockLogits, MockPass, chosen_tokens
from baton.engine.runners.mock.state import Positions, kv_of, next_tokens, states_at, states_from, states_of

_PROJECTION_SHARE = 0.25
"""Share of a layer's time after which its K and V exist: the projections before attention and MLP."""


class MockRunner(Runner):
    """Keeps one state per layer and position instead of K and V, and sleeps instead of computing.

    The next token is a function of the states of all layers and positions, so that text is right only if every received
    byte was. The host may run ahead: passes and copies wait in a queue, never overlapping; its last ends at `_free_at`.
    """

    runs_ahead = True
    max_launch_steps = 8
    wire_codec = MockCodec()

    def __init__(
        self,
        info: ModelInfo,
        hardware: Hardware,
        *,
        num_blocks: int,
        block_tokens: int,
        fixed_step_seconds: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.info, self.num_blocks = info, num_blocks
        self.block_tokens, self.hardware = block_tokens, hardware
        self._fixed_step_seconds, self.clock = fixed_step_seconds, clock
        self._sleep = sleep
        self._free_at = 0.0
        self._excluded = frozenset(info.eos_token_ids)
        # A block's layers lie together: as KV lands, few pages of memory are written for the first time.
        self._states = np.zeros((num_blocks, info.layout.num_layers, block_tokens), dtype=np.uint64)
        self._sums = np.zeros((num_blocks, block_tokens), dtype=np.uint64)  # over the layers
        self.untaken_bytes = self._states.nbytes + self._sums.nbytes  # the system gives what is written

    def forward(self, spans: Sequence[Span]) -> MockLogits:
        """Sleep for a pass behind those in the queue, layer by layer, handing out K and V on the way.

        The tokens are read off the states. What the mock itself computes is part of the pass's time.
        """
        self.sleep_until(self._free_at)
        started = self.clock()
        if any(span.layer_sink for span in spans):
            self._hand_out(spans, started)
        tokens = self.compute(spans)
        self.sleep_until(started + self.pass_seconds(spans))
        return MockLogits(tokens, self.info.vocabulary_size)

    def launch(
        self, spans: Sequence[Span], *, draws: Draws | None = None, after: Launched | None = None, num_steps: int = 1
    ) -> MockPass:
        """Put a pass, or several in a row, into the queue. One that hands layers out is waited for."""
        started = max(self.clock(), self._free_at)
        assert after is None or isinstance(after, MockPass), "a pass of another runner cannot be followed"
        known = with_known_tokens(spans, after.chosen[-1] if after else None)  # which the device has in its queue
        if any(span.layer_sink for span in known):
            return self._launched([chosen_tokens(self.forward(known), draws, 0)], [self.clock()])
        tokens, ends = list[list[int]](), list[float]()
        for step in range(num_steps):
            logits = MockLogits(self.compute(known), self.info.vocabulary_size)
            started += self.pass_seconds(known)
            ends.append(started)
            tokens.append(chosen_tokens(logits, draws, step))
            if step < num_steps - 1:
                fed = zip(known, tokens[-1], strict=True)
                known = [span._replace(token_ids=(token,), start=span.start + 1) for span, token in fed]
        self._free_at = started
        return self._launched(tokens, ends)

    def compute(self, spans: Sequence[Span]) -> list[int]:
        """Keep the states of spans, and return a token for each row of their logits."""
        if all(len(span.token_ids) == 1 and span.needs_logits for span in spans):
            return self._compute_decoding(spans)
        for span in spans:
            states = states_of(span.token_ids, span.start, self.info.layout.num_layers)
            blocks, offsets = self._places(span.block_table, span.start, len(span.token_ids))
            self._states[blocks, :, offsets] = states.T
            self._sums[blocks, offsets] = states.sum(axis=0, dtype=np.uint64)
        return [token_id for span in spans if span.needs_logits for token_id in self._next_tokens(span)]

    def pass_seconds(self, spans: Sequence[Span]) -> float:
        """Return what a pass takes."""
        if self._fixed_step_seconds is not None:
            return self._fixed_step_seconds
        parts = [StepSpan(span.end, len(span.token_ids)) for span in spans]
        return step_seconds(self.hardware, self.info.shape, parts)

    def occupy(self, num_bytes: int) -> float:
        """Put the move of bytes to or from the device's memory into the queue; return when it is over."""
        self._free_at = max(self.clock(), self._free_at) + self.move_seconds(num_bytes)
        return self._free_at

    def move_seconds(self, num_bytes: int) -> float:
        """Return what it takes the device to move bytes to or from its memory."""
        return num_bytes / (self.hardware.memory_bytes_per_second * self.hardware.decode_efficiency)

    def sleep_until(self, moment: float) -> None:
        """Sleep until a moment of the clock."""
        remaining = moment - self.clock()
        if remaining > 0:
            self._sleep(remaining)

    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Keep the states that the bytes stand for; the device takes the bytes behind the passes in the queue."""
        self.occupy(len(kv.keys) + len(kv.values))
        states = states_from(kv, num_tokens, self.info.layout.layers[layer])
        blocks, offsets = self._places(block_table, start, len(states))
        kept = self._states[:, layer]
        self._sums[blocks, offsets] += states - kept[blocks, offsets]
        kept[blocks, offsets] = states

    def read_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int) -> LayerKv:
        """Make the bytes of the kept states, behind the passes in the queue."""
        self.sleep_until(self._free_at)
        spec, dtype = self.info.layout.layers[layer], self.info.layout.dtype
        read = self.occupy(num_tokens * spec.num_token_elements * dtype.num_bytes)
        kv = kv_of(self._states[:, layer][self._places(block_table, start, num_tokens)], spec, dtype)
        self.sleep_until(read)
        return kv

    def begin_copies(self, block_ids: Sequence[int]) -> BlockCopies:
        """Keep the states of blocks, whose bytes are made when somebody wants them."""
        layout, states = self.info.layout, self._states[list(block_ids)]
        self.occupy(len(block_ids) * self.block_tokens * layout.num_token_bytes())
        layers = [partial(kv_of, states[:, at].ravel(), spec, layout.dtype) for at, spec in enumerate(layout.layers)]
        return BlockCopies(layers, layout, len(block_ids))

    def copy_block(self, source: int, target: int) -> None:
        """Copy the states of one block into another."""
        self.occupy(2 * self.block_tokens * self.info.layout.num_token_bytes())
        self._states[target] = self._states[source]
        self._sums[target] = self._sums[source]

    def close(self) -> None:
        """Nothing to free."""

    def _launched(self, tokens: list[list[int]], ends: list[float]) -> MockPass:
        return MockPass(tokens, ends, self.info.vocabulary_size, self.sleep_until, self._cut)

    def _cut(self, launched: MockPass, num_steps: int) -> int:
        if launched.ends[-1] != self._free_at:  # another pass is behind it
            return len(launched.ends)
        now = self.clock()
        num_begun = 1 + sum(end <= now for end in launched.ends[:-1])
        num_kept = max(num_steps, num_begun)
        del launched.chosen[num_kept:], launched.ends[num_kept:]
        self._free_at = launched.ends[-1]
        return num_kept

    def _hand_out(self, spans: Sequence[Span], started: float) -> None:
        """Hand out K and V layer by layer, when a device would have them."""
        layout, seconds = self.info.layout, self.pass_seconds(spans)
        exported = [(states_of(each.token_ids, each.start, layout.num_layers), each.layer_sink) for each in spans]
        for layer, spec in enumerate(layout.layers):
            self.sleep_until(started + (layer + _PROJECTION_SHARE) * seconds / layout.num_layers)
            for states, sink in exported:
                if sink:
                    sink(layer, kv_of(states[layer], spec, layout.dtype))

    def _next_tokens(self, span: Span) -> list[int]:
        num_blocks = -(-span.end // self.block_tokens)
        sums = self._sums[list(span.block_table[:num_blocks])].reshape(-1).cumsum(dtype=np.uint64)
        wanted = sums[span.first_logits_position : span.end]
        return next_tokens(wanted, self.info.vocabulary_size, self._excluded)

    def _compute_decoding(self, spans: Sequence[Span]) -> list[int]:
        """Compute one position of each span, all together: a mock may not be the slowest part of what it serves."""
        starts = np.asarray([span.start for span in spans])
        block_indexes, offsets = starts // self.block_tokens, starts % self.block_tokens
        tables = [span.block_table[: index + 1] for span, index in zip(spans, block_indexes.tolist(), strict=True)]
        last_blocks = [table[-1] for table in tables]
        token_ids = [span.token_ids[0] for span in spans]
        states = states_at(token_ids, starts, self.info.layout.num_layers)
        self._states[last_blocks, :, offsets] = states.T
        self._sums[last_blocks, offsets] = states.sum(axis=0, dtype=np.uint64)
        sums = self._sums[np.fromiter(chain.from_iterable(tables), dtype=np.int64)]
        ends = np.cumsum(block_indexes + 1)
        sums[ends - 1] *= np.arange(self.block_tokens) <= offsets[:, None]  # what lies behind the position is not its
        totals = np.add.reduceat(sums.sum(axis=1, dtype=np.uint64), ends - block_indexes - 1)
        return next_tokens(totals, self.info.vocabulary_size, self._excluded)

    def _places(self, block_table: Sequence[int], start: int, num_tokens: int) -> tuple[Positions, Positions]:
        """Return the block of each of consecutive positions, and its offset there."""
        positions = np.arange(start, start + num_tokens)
        return np.asarray(block_table)[positions // self.block_tokens], positions % self.block_tokens
