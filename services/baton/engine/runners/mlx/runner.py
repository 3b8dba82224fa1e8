"""The runner of the mlx engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import mlx.core as mx

from baton.engine.checkpoint.lora import read_adapters
from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.engine.kv_cache import pool_size
from baton.engine.runners.base import Launched, LayerKv, ModelInfo, Runner, Span, kv_dtype_of
from baton.engine.runners.drawing import Draws
from baton.engine.runners.mlx import memory
from baton.engine.runners.mlx.forward_pass.backbone import MlxBackbone, MlxBatch
from baton.engine.runners.mlx.forward_pass.batches import MlxBatches
from baton.engine.runners.mlx.forward_pass.launched import MlxLogits, MlxPass, begin
from baton.engine.runners.mlx.kv_cache.pool import MLX_DTYPES, LayerPool
from baton.engine.runners.mlx.kv_cache.positions import slots_of
from baton.engine.runners.mlx.kv_cache.rows import LayerRows, RowSet
from baton.engine.runners.mlx.kv_cache.states import LayerStates
from baton.engine.runners.mlx.loader import check_can_quantize_kv, compute_device, device_name, load_mlx_model
from baton.engine.runners.mlx.modules.llama_layers import FusedAttention
from baton.engine.runners.mlx.modules.lora import AdapterChoice, adapt
from baton.errors import ConfigurationError

log = logging.getLogger(__name__)


class MlxRunner(Runner):
    """Runs an mlx-lm model over KV in numbered blocks, a pass ahead of who reads its tokens.

    Spans of one token share one pass of the model, row by row; longer ones, and those whose K and V go to a sink,
    share one packed row, or have a pass each where mlx-lm's own attention computes them.

    Invariants: after every call all arrays are evaluated or on their way, because MLX evaluates a lazy array only in
    the thread that made it. What is under way is over before a pool is written again (`settle`): until then MLX holds
    what it was asked for and all that it reads, and a write copies a pool that is held, whole.
    """

    runs_ahead = True

    def __init__(
        self,
        model: Any,
        info: ModelInfo,
        *,
        num_blocks: int,
        block_tokens: int,
        is_kv_quantized: bool = False,
        adapters: AdapterChoice | None = None,
        num_state_slots: int = 0,
    ) -> None:
        self.info, self.num_blocks = info, num_blocks
        self.block_tokens, self.num_state_slots = block_tokens, num_state_slots
        specs = {layer: info.layout.layers[layer] for layer in info.layout.kv_layers}
        windows = [spec.sliding_window_tokens for spec in info.layout.layers]
        self._device = compute_device()
        dtype = MLX_DTYPES[info.layout.dtype]
        self._states = {
            layer: LayerStates(spec, dtype, is_turned=any("linear_attn" in each for each in model.layers))
            for layer, spec in enumerate(info.layout.layers)
            if spec.state
        }
        self._backbone = MlxBackbone(model, windows, adapters or AdapterChoice(), self._states, num_state_slots)
        max_row_positions = memory.row_positions(
            num_blocks * block_tokens,
            memory.position_bytes(info.layout, is_quantized=is_kv_quantized),
            mx.get_active_memory(),
            memory.device_bytes(),
        )
        self._pools = {
            layer: LayerPool(spec, num_blocks, block_tokens, dtype, is_quantized=is_kv_quantized)
            for layer, spec in specs.items()
        }
        self._under_way: list[object] = []
        self._batches = MlxBatches(
            self._pools,
            {spec.sliding_window_tokens for spec in specs.values()},
            block_tokens,
            new_rows=lambda: RowSet(
                {layer: LayerRows(spec, dtype, is_quantized=is_kv_quantized) for layer, spec in specs.items()},
                block_tokens,
            ),
            max_row_positions=max_row_positions,
            weight_bytes=info.weight_bytes,
            token_bytes=info.layout.num_token_bytes(),
            can_pack=all(isinstance(getattr(layer, "self_attn", None), FusedAttention) for layer in model.layers),
        )

    def forward(self, spans: Sequence[Span]) -> MlxLogits:
        """Compute spans of different sequences and write their KV into their blocks."""
        return self.launch(spans).logits()

    def launch(
        self, spans: Sequence[Span], *, draws: Draws | None = None, after: Launched | None = None, num_steps: int = 1
    ) -> MlxPass:
        """Begin to compute spans and to choose a token from each row of their logits."""
        assert num_steps == 1, "the mlx runner launches one pass at a time"
        hidden: dict[int, mx.array] = {}
        with mx.stream(self._device):
            for batch, order in self._batches.plan(spans, cast(MlxPass | None, after)):
                hidden |= self._run(batch, [spans[index] for index in order], order)
            return MlxPass(
                self._logits([hidden[index] for index, span in enumerate(spans) if span.needs_logits]), draws
            )

    def settle(self) -> None:
        """Wait for what is under way, if anything is: see `LayerPool`."""
        under_way, self._under_way = self._under_way, []
        mx.eval(under_way)

    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Write K and V of positions [start, start + num_tokens) of one layer into blocks."""
        if layer in self._states:
            return
        slots = slots_of(block_table, start, start + num_tokens, self.block_tokens)
        self._batches.forget(block_table[start // self.block_tokens : -(-(start + num_tokens) // self.block_tokens)])
        self.settle()
        with mx.stream(self._device):
            self._pools[layer].write_bytes(slots, kv)
            self._begin(self._pools[layer].arrays)

    def read_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int) -> LayerKv:
        """Return K and V of positions [start, start + num_tokens) of one layer; empty ones if it keeps a state."""
        if layer in self._states:
            return LayerKv(b"", b"")
        slots = slots_of(block_table, start, start + num_tokens, self.block_tokens)
        with mx.stream(self._device):
            return self._pools[layer].read_bytes(slots)

    def write_state(self, slot: int, layer: int, data: bytes | memoryview) -> None:
        """Write a layer's state, in float32."""
        with mx.stream(self._device):
            self._states[layer].write_bytes(slot, data)
            self._begin_states()

    def peak_device_bytes(self) -> int:
        """Return the most memory that arrays have had; 0 on the CPU."""
        return mx.get_peak_memory() if self._device == mx.gpu else 0

    def release_spare_memory(self) -> None:
        """Give the buffers back that MLX keeps for the next pass; the memory of a Mac is everybody's."""
        mx.clear_cache()

    def copy_block(self, source: int, target: int) -> None:
        """Copy K and V of all layers from one block into another."""
        self._batches.forget([target])
        self.settle()
        with mx.stream(self._device):
            for pool in self._pools.values():
                pool.copy_block(source, target)
            self._begin([pool.arrays for pool in self._pools.values()])

    def close(self) -> None:
        """Free the model and the blocks."""
        vars(self).pop("_backbone", None)
        vars(self).pop("_batches", None)
        self._under_way.clear()
        self._pools.clear()
        self._states.clear()
        mx.clear_cache()

    def _run(self, batch: MlxBatch, spans: Sequence[Span], order: list[int]) -> dict[int, mx.array]:
        """Set one pass going; return the hidden states of each span whose logits are wanted, or nothing if none are."""
        if batch.rows is None:  # a sink has it computed while it is being built
            self.settle()
        hidden = self._backbone.hidden(batch, self._pools, needs_last=any(span.needs_logits for span in spans))
        self.settle()
        rows = [layer.arrays for layer in (batch.rows or {}).values()]
        self._begin(hidden, [pool.arrays for pool in self._pools.values()], rows)
        self._begin_states()
        if hidden is None:
            return {}
        if len(order) == 1:
            return {order[0]: hidden}
        if batch.packing is not None:
            wanting = [index for index, span in zip(order, spans, strict=True) if span.num_logits]
            parts = zip(wanting, batch.packing.wanted, strict=True)
            return {index: hidden[part.begin : part.end] for index, part in parts}
        return {index: hidden[row : row + 1] for row, index in enumerate(order)}

    def _begin_states(self) -> None:
        for states in self._states.values():
            begin(states.arrays)
            states.arrays = []

    def _begin(self, *arrays: object) -> None:
        begin(*arrays)
        self._under_way = list(arrays)

    def _logits(self, hidden: list[mx.array]) -> mx.array:
        if not hidden:
            return mx.zeros((0, self.info.vocabulary_size))
        return self._backbone.logits(hidden[0] if len(hidden) == 1 else mx.concatenate(hidden))


def load_mlx_runner(
    directory: Path,
    *,
    model_id: str,
    dtype: str = "float32",
    num_blocks: int | None,
    block_tokens: int = 16,
    bounds: pool_size.PoolBounds = pool_size.DEFAULT_BOUNDS,
    is_kv_quantized: bool = False,
    adapters: Mapping[str, Path] = MappingProxyType({}),
) -> MlxRunner:
    """Load a Hugging Face folder with mlx-lm, on the GPU where Metal is available, else on the CPU.

    Without `num_blocks` the pool is as `bounds` and memory leave room for. `is_kv_quantized`: K and V are kept in 8
    bits; those that come or go are of `dtype` all the same. Raises ConfigurationError if the folder or the dtype cannot
    be served, or the blocks do not fit; the message says why.
    """
    if dtype not in {known.value for known in MLX_DTYPES}:
        names = ", ".join(known.value for known in MLX_DTYPES)
        raise ConfigurationError(f"dtype: {dtype!r} is not one of {names}")
    kv_dtype = kv_dtype_of(dtype)
    checkpoint = read_checkpoint(directory)
    folders = read_adapters(adapters, checkpoint)
    if is_kv_quantized:
        check_can_quantize_kv(checkpoint)
    with mx.stream(compute_device()):
        info = checkpoint.model_info(model_id, kv_dtype, engine="mlx", device=device_name())
        accelerator_id = "metal" if compute_device() == mx.gpu else ""
        info = replace(info, accelerator_id=accelerator_id, adapters=tuple(folder.adapter for folder in folders))
        memory.set_limits(0, memory.device_bytes())
        model = load_mlx_model(checkpoint, MLX_DTYPES[kv_dtype])
        adapters_of_rows = adapt(model, folders, checkpoint, MLX_DTYPES[kv_dtype])
        block_bytes = block_tokens * memory.position_bytes(info.layout, is_quantized=is_kv_quantized)
        chosen = _choose_pool_size(num_blocks, pool_size.PoolModel(info.shape, block_tokens, block_bytes), bounds)
        memory.set_limits(chosen.num_blocks * block_bytes, memory.device_bytes())
        runner = MlxRunner(
            model,
            info,
            num_blocks=chosen.num_blocks,
            block_tokens=block_tokens,
            is_kv_quantized=is_kv_quantized,
            adapters=adapters_of_rows,
            num_state_slots=chosen.num_state_slots,
        )
        runner.num_blocks_cause = chosen.cause
        if compute_device() != mx.gpu:
            runner.untaken_bytes = pool_size.pass_bytes(info.shape, bounds)
        return runner


def _choose_pool_size(
    num_blocks: int | None, model: pool_size.PoolModel, bounds: pool_size.PoolBounds
) -> pool_size.PoolSize:
    """Return the blocks of the node, whose model is loaded."""
    with_rows = replace(model, row_bytes=memory.row_bytes(model.block_bytes))
    chosen = pool_size.choose_pool_size(num_blocks, memory.device_memory(), with_rows, bounds)
    log.info(
        "num_blocks_chosen num_blocks=%d block_bytes=%d cause=%r", chosen.num_blocks, model.block_bytes, chosen.cause
    )
    return chosen
