"""The runner contract on torch, for a device that computes while the host plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from baton.engine.runners.base import Launched, ModelInfo, Span
from baton.engine.runners.drawing import Draws
from baton.engine.runners.torch.backbone import Backbone
from baton.engine.runners.torch.batch import Followed
from baton.engine.runners.torch.choice import drawn, most_probable
from baton.engine.runners.torch.runner import TorchRunner
from baton.engine.runners.torch.static.buffers import DecodeBuffers, Field, Fields
from baton.engine.runners.torch.static.launched import LaunchedPass
from baton.engine.runners.torch.static.rows import RowTables
from baton.engine.runners.torch.static.step import DecodeSteps, padded_batch
from baton.engine.runners.torch.upload import upload

_MAX_STEPS = 8
"""Steps of a launch: enough that the host's part is small, few enough that tokens do not arrive in bursts."""


class StaticRunner(TorchRunner):
    """Decodes by replaying a captured step, and leaves every pass before it is computed.

    A pass in which every span is one token that wants logits, without an adapter, is a decode pass: its rows live in
    static buffers, and the host sends what differs from what the device knows already. All others are packed as on any
    device.

    Invariant: the device works in the order in which it was asked (one stream), so that a block which is freed while
    a pass that writes it is under way is written by its next owner afterwards.
    """

    runs_ahead = True

    def __init__(
        self,
        model: Backbone,
        info: ModelInfo,
        *,
        num_blocks: int,
        block_tokens: int,
        device: torch.device,
        max_batch_size: int,
    ) -> None:
        """Take over a model; arguments as `TorchRunner`'s, and the sequences that decode in one pass at most."""
        super().__init__(
            model, info, num_blocks=num_blocks, block_tokens=block_tokens, device=device, num_idle_blocks=1
        )
        self.max_launch_steps = min(_MAX_STEPS, block_tokens)
        max_blocks = -(-info.max_context_tokens // block_tokens) + 1
        with self._at_work():
            self._buffers = DecodeBuffers(
                max_rows=max_batch_size,
                max_blocks=max_blocks,
                max_steps=self.max_launch_steps,
                idle_block=num_blocks,
                device=device,
            )
            self._steps = DecodeSteps(model, self._buffers, self._pool)
            self._steps.warm_up()
        self._tables = RowTables(max_rows=max_batch_size, max_blocks=max_blocks, idle_block=num_blocks, idle_entries=1)
        self._replayed: LaunchedPass | None = None

    def launch(
        self,
        spans: Sequence[Span],
        *,
        draws: Draws | None = None,
        after: Launched | None = None,
        num_steps: int = 1,
    ) -> LaunchedPass:
        """Begin a pass, or several in a row, and return."""
        assert after is None or isinstance(after, LaunchedPass), "a pass of another runner cannot be followed"
        return self.launch_at(spans, self.rows_for(spans), draws, after, num_steps)

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
        after: LaunchedPass | None,
        num_steps: int,
    ) -> LaunchedPass:
        """Begin a pass whose rows are given, by this runner's `rows_for` or by that of a rank that it follows."""
        with self._at_work():
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

    def _pack(self, spans: Sequence[Span], draws: Draws | None, after: LaunchedPass | None) -> LaunchedPass:
        logits = self._packed_logits(spans, _followed(spans, after))
        if draws is None:
            chosen = most_probable(logits)
        else:
            temperatures, uniforms = (torch.from_numpy(values) for values in (draws.temperatures, draws.uniforms[0]))
            chosen = drawn(logits, temperatures.to(self.device), uniforms.to(self.device))
        return LaunchedPass(chosen[None], chosen, range(len(chosen)), logits, self._hand_over)

    def _decode(
        self,
        spans: Sequence[Span],
        rows: list[int],
        draws: Draws | None,
        after: LaunchedPass | None,
        num_steps: int,
    ) -> LaunchedPass:
        num_rows = padded_batch(len(spans), self._buffers.max_rows)
        self._steps.prepare(num_rows, is_drawn=draws is not None)
        changes = self._tables.changes(rows, [span.block_table for span in spans], num_rows)
        self._buffers.load(self._fields(spans, rows, draws, after, num_steps), changes)
        self._tables.sent()
        if after is not None and after is not self._replayed:
            self._feed(spans, rows, after)
        if self._replayed is not None:
            self._replayed.forget_logits()
        logits = self._steps.run(num_rows, num_steps, is_drawn=draws is not None)
        tokens = self._buffers.history[:num_steps, :num_rows]
        self._replayed = LaunchedPass(tokens, self._buffers.chosen, rows, logits)
        return self._replayed

    def _fields(
        self,
        spans: Sequence[Span],
        rows: list[int],
        draws: Draws | None,
        after: LaunchedPass | None,
        num_steps: int,
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

    def _feed(self, spans: Sequence[Span], rows: list[int], after: LaunchedPass) -> None:
        """Feed tokens of a packed pass, which lie elsewhere on the device."""
        for_rows = [
            (row, span.follows_row) for row, span in zip(rows, spans, strict=True) if span.follows_row is not None
        ]
        if for_rows:
            targets = upload([row for row, _ in for_rows], self.device, torch.int64)
            self._buffers.fields[Field.TOKEN].index_copy_(0, targets, after.fed([source for _, source in for_rows]))


def _followed(spans: Sequence[Span], after: LaunchedPass | None) -> Followed | None:
    """Return the tokens of the pass before that a packed pass feeds, which the host does not know."""
    pairs = [(index, span.follows_row) for index, span in enumerate(spans) if span.follows_row is not None]
    if not pairs:
        return None
    assert after is not None, "a span follows a row of no pass"
    return Followed([index for index, _ in pairs], after.fed([row for _, row in pairs]))
