"""The runner contract on torch, for a device that computes while the host plans; and passes under way there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from baton.engine.runners.base import Launched, ModelInfo, Span
from baton.engine.runners.drawing import Draws
from baton.engine.runners.torch.batch import Followed
from baton.engine.runners.torch.cuda_graph.buffers import DecodeBuffers, Field, Fields, RowTables
from baton.engine.runners.torch.cuda_graph.capture import CapturedSteps, DecodeSteps, padded_batch
from baton.engine.runners.torch.ops.cuda.copy_stream import KvCopies
from baton.engine.runners.torch.ops.device_ops import DeviceOps, HostCopy
from baton.engine.runners.torch.ops.pool import upload
from baton.engine.runners.torch.runner import Backbone, TorchLogits, TorchRunner

_MAX_STEPS = 8
"""Steps of a launch: enough that the host's part is small, few enough that tokens do not arrive in bursts."""


_LONG_PROMPT = 128
"""Tokens from which kernels take several rows at a time."""
_FAR_POSITION = 2048
"""Position from which keys are split, whatever the model's heads."""


class CudaGraphRunner(TorchRunner):
    """Decodes by replaying a captured step, and leaves every pass before it is computed.

    A pass in which every span is one token that wants logits, without an adapter, is a decode pass: its rows live in
    static buffers, and the host sends what differs from what the device knows already. All others are packed as on any
    device. Invariant: the device works in the order in which it was asked (one stream), so that a block which is freed
    while a pass that writes it is under way is written by its next owner afterwards.
    """

    runs_ahead = True
    look_seconds = 1e-3

    def __init__(
        self,
        model: Backbone,
        info: ModelInfo,
        *,
        num_blocks: int,
        block_tokens: int,
        ops: DeviceOps,
        max_batch_size: int,
    ) -> None:
        """Take over a model; arguments as `TorchRunner`'s, and the sequences that decode in one pass at most."""
        super().__init__(model, info, num_blocks=num_blocks, block_tokens=block_tokens, ops=ops, num_idle_blocks=1)
        self.max_launch_steps = min(_MAX_STEPS, block_tokens)
        max_blocks = -(-info.max_context_tokens // block_tokens) + 1
        with self._ops.at_work():
            self._buffers = DecodeBuffers(
                max_rows=max_batch_size,
                max_blocks=max_blocks,
                max_steps=self.max_launch_steps,
                idle_block=num_blocks,
                device=ops.device,
            )
            steps = CapturedSteps if ops.can_capture else DecodeSteps
            self._steps = steps(model, self._buffers, self._pool, ops)
            self._steps.warm_up()
            if ops.can_capture:
                self._compile_prompts(num_blocks)
        self._tables = RowTables(max_rows=max_batch_size, max_blocks=max_blocks, idle_block=num_blocks, idle_entries=1)
        self._replayed: DevicePass | None = None

    def launch(
        self, spans: Sequence[Span], *, draws: Draws | None = None, after: Launched | None = None, num_steps: int = 1
    ) -> DevicePass:
        """Begin a pass, or several in a row, and return."""
        assert after is None or isinstance(after, DevicePass), "a pass of another runner cannot be followed"
        return self.launch_at(spans, self.rows_for(spans), draws, after, num_steps)

    def is_over(self, launched: Launched) -> bool:
        """Return whether all steps of a pass are over; never waits."""
        assert isinstance(launched, DevicePass), "a pass of another runner"
        return launched.is_over()

    def rows_for(self, spans: Sequence[Span]) -> list[int] | None:
        """Return the rows in which the spans of the next pass decode; None where it is packed."""
        if not self._is_decode(spans):
            return None
        num_rows = padded_batch(len(spans), self._buffers.max_rows)
        return self._tables.place([span.block_table for span in spans], num_rows)

    def launch_at(
        self,
        spans: Sequence[Span],
        rows: list[int] | None,
        draws: Draws | None,
        after: DevicePass | None,
        num_steps: int,
    ) -> DevicePass:
        """Begin a pass whose rows are given, by this runner's `rows_for` or by that of a rank that it follows."""
        with self._ops.at_work():
            if rows is not None:
                return self._decode(spans, rows, draws, after, num_steps)
            assert num_steps == 1, "only decode passes are launched several at a time"
            return self._pack(spans, draws, after)

    def close(self) -> None:
        """Free the model, the blocks and what was captured."""
        self._replayed = None
        self._steps.close()
        super().close()

    def _is_decode(self, spans: Sequence[Span]) -> bool:
        return len(spans) <= self._buffers.max_rows and all(
            len(span.token_ids) == 1 and span.needs_logits and span.layer_sink is None and not span.adapter
            for span in spans
        )

    def _compile_prompts(self, idle_block: int) -> None:
        """Compute prompts of nobody, so that none waits for a kernel to be compiled: long, handed over, far behind."""
        num_tokens = min(_LONG_PROMPT, self.info.max_context_tokens)
        for start, sink in ((0, None), (0, lambda *_: None), (_FAR_POSITION, None)):
            table = [idle_block] * -(-(start + num_tokens) // self.block_tokens)
            self._packed_logits([Span([0] * num_tokens, start, table, needs_logits=True, layer_sink=sink)])
        if self._kv_copies is not None:
            self._kv_copies.drain()

    def _pack(self, spans: Sequence[Span], draws: Draws | None, after: DevicePass | None) -> DevicePass:
        logits = self._packed_logits(spans, _followed(spans, after))
        if draws is None:
            chosen = self._ops.most_probable(logits)
        else:
            sent = (torch.from_numpy(values) for values in (draws.temperatures, draws.uniforms[0]))
            chosen = self._ops.drawn(logits, *(upload(values, self.device, torch.float64) for values in sent))
        tokens = [self._ops.begin_copy(chosen)]
        return DevicePass(tokens, chosen, range(len(chosen)), logits, self._ops, self._kv_copies)

    def _decode(
        self, spans: Sequence[Span], rows: list[int], draws: Draws | None, after: DevicePass | None, num_steps: int
    ) -> DevicePass:
        num_rows = padded_batch(len(spans), self._buffers.max_rows)
        changes = self._tables.changes(rows, [span.block_table for span in spans], num_rows)
        self._buffers.load(self._fields(spans, rows, draws, after, num_steps), changes)
        self._tables.sent()
        if after is not None and after is not self._replayed:
            self._feed(spans, rows, after)
        if self._replayed is not None:
            self._replayed.forget_logits()
        tokens = []
        for _ in range(num_steps):
            logits = self._steps.run(num_rows)
            tokens.append(self._ops.begin_copy(self._buffers.chosen[:num_rows]))
        self._replayed = DevicePass(tokens, self._buffers.chosen, rows, logits, self._ops)
        return self._replayed

    def _fields(
        self, spans: Sequence[Span], rows: list[int], draws: Draws | None, after: DevicePass | None, num_steps: int
    ) -> Fields:
        fields = self._buffers.idle_fields(num_steps)
        fields[Field.TOKEN, rows] = [max(span.token_ids[0], 0) for span in spans]
        fields[Field.END, rows] = [span.start + 1 for span in spans]
        if after is not None and after is self._replayed:
            sources = [-1 if span.follows_row is None else after.device_rows[span.follows_row] for span in spans]
            fields[Field.SOURCE, rows] = sources
        if draws is not None:
            fields[Field.TEMPERATURE, rows] = draws.temperatures.view(np.int64)
            fields[Field.UNIFORMS : Field.UNIFORMS + num_steps, rows] = draws.uniforms.view(np.int64)[:num_steps]
        return fields

    def _feed(self, spans: Sequence[Span], rows: list[int], after: DevicePass) -> None:
        """Feed tokens of a packed pass, which lie elsewhere on the device."""
        for_rows = [
            (row, span.follows_row) for row, span in zip(rows, spans, strict=True) if span.follows_row is not None
        ]
        if for_rows:
            targets = upload([row for row, _ in for_rows], self.device, torch.int64)
            self._buffers.fields[Field.TOKEN].index_copy_(0, targets, after.fed([source for _, source in for_rows]))


def _followed(spans: Sequence[Span], after: DevicePass | None) -> Followed | None:
    """Return the tokens of the pass before that a packed pass feeds, which the host does not know."""
    pairs = [(index, span.follows_row) for index, span in enumerate(spans) if span.follows_row is not None]
    if not pairs:
        return None
    assert after is not None, "a span follows a row of no pass"
    return Followed([index for index, _ in pairs], after.fed([row for _, row in pairs]))


class DevicePass:
    """Tokens of a pass, copied to the host behind each step; asked for those of one, it waits for that copy alone.

    `tokens` are of each step, [num_device_rows], on their way; `last` those of the last step where the next pass may
    read them, `logits` of that step; `rows` has the device's row of each of the pass's; `kv_copies` are still to be
    handed out. The engine rests while a step computes: tokens that came with those of a later one would be let lie.
    """

    def __init__(
        self,
        tokens: Sequence[HostCopy],
        last: torch.Tensor,
        rows: Sequence[int],
        logits: torch.Tensor,
        ops: DeviceOps,
        kv_copies: KvCopies | None = None,
    ) -> None:
        self._kv_copies = kv_copies
        self.device_rows = rows
        self._last, self._tokens = last, tokens
        self._logits: torch.Tensor | None = logits
        self._ops = ops

    def fed(self, rows: Sequence[int]) -> torch.Tensor:
        """Return, on the device, what the next pass feeds after some rows; one that is not finite counts as 0."""
        device_rows = upload([self.device_rows[row] for row in rows], self._last.device, torch.int64)
        return self._last[device_rows].clamp(min=0)

    def is_over(self) -> bool:
        """Return whether the tokens of all steps are on the host."""
        arrival = self._tokens[-1].arrival
        return arrival is None or bool(arrival.query())

    def tokens(self, step: int = 0) -> list[int]:
        """Return the token chosen from each row of a step, waiting for that step."""
        self._wait(step)
        chosen: list[int] = self._tokens[step].tensor.tolist()
        return [chosen[row] for row in self.device_rows]

    def logits(self) -> TorchLogits:
        """Return the logits of the only step; a step that was replayed has them until the next pass is launched."""
        self._wait(0)
        assert self._logits is not None, "logits are gone: another pass has been launched"
        rows = upload(self.device_rows, self._logits.device, torch.int64)
        return TorchLogits(self._logits[rows], self._ops)

    def _wait(self, step: int) -> None:
        """Wait for the tokens of a step, handing out layers as they arrive."""
        if self._kv_copies is not None:
            self._kv_copies.drain()
        self._tokens[step].wait()

    def cut(self, num_steps: int) -> int:  # noqa: ARG002 - the device has been told of all
        """Return the number of steps: the device has been told of all."""
        return len(self._tokens)

    def forget_logits(self) -> None:
        """Let go of logits that are about to be overwritten."""
        self._logits = None
