"""Runs no model: takes the time that a device would take, and makes real KV bytes and checkable tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from baton.capacity.hardware import PRESETS, ComputeTimeModel, Hardware, StepSpan, step_seconds
from baton.capacity.model_shape import ModelShape
from baton.capacity.reference_models import REFERENCE_MODELS
from baton.engine.checkpoint import read_checkpoint
from baton.engine.runners.base import Array, LayerKv, ModelInfo, Runner, Span
from baton.engine.runners.mock.state import kv_of, next_token, states_from, states_of, words_per_row
from baton.engine.runners.mock.wire import MockCodec
from baton.errors import ConfigurationError
from baton.kv.layout import KvDtype, LayerSpec

_PROJECTION_SHARE = 0.25
"""Share of a layer's time after which its K and V exist: the projections before attention and MLP."""


class MockRunner(Runner):
    """Keeps one state per layer and position instead of K and V, and sleeps instead of computing.

    The next token is a function of the states of all layers and positions, so that text is right only if every received
    byte was.
    """

    wire_codec = MockCodec()

    def __init__(
        self,
        info: ModelInfo,
        hardware: Hardware,
        *,
        num_blocks: int,
        block_tokens: int,
        time_model: ComputeTimeModel = "roofline",
        fixed_step_seconds: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.info = info
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.hardware = hardware
        self._time_model = time_model
        self._fixed_step_seconds = fixed_step_seconds
        self._clock = clock
        self._sleep = sleep
        self._excluded = frozenset(info.eos_token_ids)
        self._states = np.zeros((info.layout.num_layers, num_blocks, block_tokens), dtype=np.uint64)

    def forward(self, spans: Sequence[Span]) -> MockLogits:
        """Sleep for the pass, layer by layer, handing out K and V on the way; read the tokens off the states.

        What the mock itself computes is part of the pass's time.
        """
        started = self._clock()
        layout = self.info.layout
        spans_states = [states_of(span.token_ids, span.start, layout.num_layers) for span in spans]
        parts = [StepSpan(span.end, len(span.token_ids)) for span in spans]
        layer_seconds = self._pass_seconds(parts) / layout.num_layers
        is_exported = any(span.layer_sink for span in spans)
        for layer in range(layout.num_layers if is_exported else 0):
            self._sleep_until(started + (layer + _PROJECTION_SHARE) * layer_seconds)
            for span, states in zip(spans, spans_states, strict=True):
                if span.layer_sink:
                    span.layer_sink(layer, kv_of(states[layer], layout.layers[layer], layout.dtype))
        for span, states in zip(spans, spans_states, strict=True):
            self._scatter(span.block_table, slice(None), span.start, states)
        tokens = [token_id for span in spans if span.needs_logits for token_id in self._next_tokens(span)]
        self._sleep_until(started + layout.num_layers * layer_seconds)
        return MockLogits(tokens, self.info.vocabulary_size)

    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Keep the states that the bytes stand for."""
        states = states_from(kv, num_tokens, self.info.layout.layers[layer])
        self._scatter(block_table, layer, start, states)

    def read_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int) -> LayerKv:
        """Make the bytes of the kept states."""
        states = self._gather(block_table, start + num_tokens)[layer, start:]
        return kv_of(states, self.info.layout.layers[layer], self.info.layout.dtype)

    def copy_block(self, source: int, target: int) -> None:
        """Copy the states of one block into another."""
        self._states[:, target] = self._states[:, source]

    def close(self) -> None:
        """Nothing to free."""

    def _next_tokens(self, span: Span) -> list[int]:
        states = self._gather(span.block_table, span.end)
        return [
            next_token(states[:, : position + 1], self.info.vocabulary_size, self._excluded)
            for position in range(span.first_logits_position, span.end)
        ]

    def _gather(self, block_table: Sequence[int], num_tokens: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
        num_blocks = -(-num_tokens // self.block_tokens)
        gathered = self._states[:, list(block_table[:num_blocks])]
        return gathered.reshape(len(gathered), -1)[:, :num_tokens]

    def _scatter(
        self,
        block_table: Sequence[int],
        layer: int | slice,
        start: int,
        states: np.ndarray[tuple[int, ...], np.dtype[np.uint64]],
    ) -> None:
        positions = np.arange(start, start + states.shape[-1])
        blocks = np.asarray(block_table)[positions // self.block_tokens]
        self._states[layer, blocks, positions % self.block_tokens] = states

    def _pass_seconds(self, parts: Sequence[StepSpan]) -> float:
        if self._fixed_step_seconds is not None:
            return self._fixed_step_seconds
        return step_seconds(self._time_model, self.hardware, self.info.shape, parts)

    def _sleep_until(self, moment: float) -> None:
        remaining = moment - self._clock()
        if remaining > 0:
            self._sleep(remaining)


class MockLogits:
    """Logits that put nearly all probability on one token per row."""

    def __init__(self, tokens: list[int], vocabulary_size: int) -> None:
        self._tokens = tokens
        self._vocabulary_size = vocabulary_size

    def argmax(self) -> list[int]:
        """Return the tokens."""
        return self._tokens

    def rows(self, indices: Sequence[int] | None = None) -> Array:
        """Return [num_rows, vocabulary_size] with 100 at each row's token and 0 elsewhere."""
        tokens = self._tokens if indices is None else [self._tokens[index] for index in indices]
        rows = np.zeros((len(tokens), self._vocabulary_size), dtype=np.float32)
        rows[np.arange(len(tokens)), tokens] = 100.0
        return rows


def load_mock_runner(
    directory: Path,
    *,
    model_id: str,
    num_blocks: int,
    block_tokens: int = 16,
    dtype: str = "bfloat16",
    hardware: str = "m3-ultra",
    shape: str = "",
    time_model: ComputeTimeModel = "roofline",
    fixed_step_seconds: float | None = None,
) -> MockRunner:
    """Return a mock of a model on a device.

    Args:
        directory: Model folder whose tokenizer, vocabulary and (unless `shape` is given) sizes are used.
        model_id: Served name.
        num_blocks: Blocks in the pool.
        block_tokens: Tokens of one block.
        dtype: Number format of weights and cache.
        hardware: Name of a preset of `baton.capacity.hardware`.
        shape: Name of a model size of `baton.capacity.reference_models`; empty: the folder's own.
        time_model: Which formula gives the time of a step.
        fixed_step_seconds: Time of every step instead, 0 or more.

    Raises:
        ConfigurationError: If a name is unknown; the message lists the known ones.
    """
    if hardware not in PRESETS:
        raise ConfigurationError(f"hardware: {hardware!r} is unknown; expected one of {', '.join(PRESETS)}")
    if shape and shape not in REFERENCE_MODELS:
        raise ConfigurationError(f"mock_shape: {shape!r} is unknown; expected one of {', '.join(REFERENCE_MODELS)}")
    checkpoint = read_checkpoint(directory)
    info = checkpoint.model_info(model_id, KvDtype(dtype), engine="mock", device=f"mock {hardware}")
    if shape:
        info = _resized(info, REFERENCE_MODELS[shape])
    digest = blake2b(f"mock/{shape}/{info.layout.model_revision_digest}".encode(), digest_size=16).hexdigest()
    info = replace(info, layout=replace(info.layout, model_revision_digest=digest))
    for spec in info.layout.layers:
        words_per_row(spec.key_head_dim, info.layout.dtype)
    return MockRunner(
        info,
        PRESETS[hardware],
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        time_model=time_model,
        fixed_step_seconds=fixed_step_seconds,
    )


def _resized(info: ModelInfo, shape: ModelShape) -> ModelInfo:
    """Return `info` with another model's sizes; dtype, tokenizer and vocabulary stay."""
    layer = LayerSpec(shape.num_kv_heads, shape.head_dim, shape.head_dim)
    return replace(
        info,
        layout=replace(info.layout, layers=(layer,) * shape.num_layers),
        num_linear_parameters=shape.num_linear_parameters,
        num_head_parameters=shape.num_head_parameters,
        num_attention_heads=shape.num_attention_heads,
        head_dim=shape.head_dim,
        weight_bytes=(shape.num_linear_parameters + shape.num_head_parameters) * info.layout.dtype.num_bytes,
        max_context_tokens=shape.max_context_tokens,
    )
