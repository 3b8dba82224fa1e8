"""What a device does for a model, by torch itself; `cpu.ops` and `cuda.ops` replace what their kernels do sooner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol

import torch
from torch.nn.functional import embedding, rms_norm, silu

from baton.engine.checkpoint.weights import PackedRows
from baton.engine.runners.base import NOT_FINITE
from baton.engine.runners.torch.batch import PackedBatch, QuerySegment, RowBatch, store
from baton.engine.runners.torch.ops.cuda.copy_stream import KvCopies
from baton.engine.runners.torch.ops.device import MemoryRange
from baton.engine.runners.torch.ops.eager.attention import (
    AttentionParams,
    attend_by_torch,
    attend_causally,
    causal_mask,
)
from baton.engine.runners.torch.ops.eager.linear import (
    PACKED,
    Linear,
    PlainLinear,
    Projection,
    biases_of,
    kind_of,
    side_by_side,
)
from baton.engine.runners.torch.ops.eager.paged_attention import attend_from_blocks
from baton.engine.runners.torch.ops.eager.quantised import RoundedWeight, WeightDtype, rounded
from baton.engine.runners.torch.ops.pool import KeysValues


class Norm(NamedTuple):
    """Root-mean-square normalisation."""

    weight: torch.Tensor
    """[size], in the dtype of activations."""
    epsilon: float
    """Added to the mean square."""


class HeadNorms(NamedTuple):
    """Normalisation of the heads of queries and of keys, before they are rotated."""

    query: Norm
    key: Norm


class Rotation(NamedTuple):
    """Angles of the rotary embedding at the positions of some rows."""

    cosines: torch.Tensor
    """[num_rows, 1, head_dim]."""
    signed_sines: torch.Tensor
    """[num_rows, 1, head_dim], the first half negated: what rotating the halves against each other asks for."""

    def rotate(self, heads: torch.Tensor) -> torch.Tensor:
        """Return queries or keys [num_rows, num_heads, head_dim], rotated."""
        swapped = heads.roll(heads.shape[-1] // 2, -1)
        return torch.addcmul(heads * self.cosines, swapped, self.signed_sines)


class LayerParts(NamedTuple):
    """What a decoder layer consists of."""

    norms: tuple[Norm, Norm]
    """Before attention and before the MLP."""
    head_norms: HeadNorms | None
    """None: heads are not normalised."""
    products: tuple[Projection, Projection, Projection, Projection]
    """Queries, keys and values; output; gates and others; down. Without adapters."""
    attention: AttentionParams
    num_query_heads: int


class DecodeStep(Protocol):
    """All layers of a step of few rows, in one call."""

    def serves(self, batch: RowBatch) -> bool:
        """Return whether a batch is one that the step computes."""

    def __call__(self, hidden: torch.Tensor, rotation: Rotation, batch: RowBatch) -> torch.Tensor:
        """Return what the layers make of rows [num_rows, hidden_size], in their place; K and V are written."""


class HostCopy(NamedTuple):
    """A tensor on its way to the host."""

    tensor: torch.Tensor
    """On the host; complete once it has arrived."""
    arrival: torch.cuda.Event | None = None
    """None: it has arrived."""

    def wait(self) -> None:
        """Wait for the copy alone."""
        if self.arrival is not None:
            self.arrival.synchronize()


class DeviceOps:
    """Operations by torch itself, on any device.

    Rows are [num_rows, size] and contiguous, in the dtype of the weights. `weights_cause`: in what form weights are
    held, and why. `rounds_packed`: whether weights that stay packed are rounded to the dtype of rows. `can_capture`:
    whether what the device is asked for can be captured and asked for again as a whole. `attends_in_blocks`: whether
    `attend_blocks` is for prompts too, all sequences at once.
    """

    weights_cause = "as loaded"
    rounds_packed = False
    can_capture = False
    attends_in_blocks = False
    attend_blocks = staticmethod(attend_from_blocks)

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def projection(self, modules: Sequence[torch.nn.Linear], weight_dtype: WeightDtype = "auto") -> Projection:
        """Return projections of one input as one product, side by side; raise ConfigurationError if no group fits."""
        if weight_dtype == "auto":
            return self.linear(modules)
        for module in modules:
            setattr(module, PACKED, rounded(module.weight, weight_dtype))
        return self.linear(modules)

    def linear(self, modules: Sequence[torch.nn.Linear]) -> Projection:
        """Return projections of the same input as one product of weights that are not rounded; packed ones stay so."""
        alike = [(kind, list(own)) for kind, own in groupby(modules, key=kind_of)]
        products = [self._hold_packed(own) if kind else self._hold(*side_by_side(own)) for kind, own in alike]
        return products[0] if len(products) == 1 else lambda rows: torch.cat([each(rows) for each in products], dim=1)

    def embedding(self, module: torch.nn.Embedding) -> Projection:
        """Return what gives rows [num_tokens, hidden_size] of tokens [num_tokens]."""
        return partial(embedding, weight=module.weight)

    def can_hold(self, packed: PackedRows) -> bool:  # noqa: ARG002
        """Return whether `linear` and `embedding` compute with a weight that stays packed."""
        return False

    def normalise(self, rows: torch.Tensor, norm: Norm) -> torch.Tensor:
        """Return rows, normalised and scaled."""
        return rms_norm(rows, norm.weight.shape, norm.weight, norm.epsilon)

    def add_and_normalise(
        self, hidden: torch.Tensor, delta: torch.Tensor, norm: Norm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return hidden + delta, and the same normalised and scaled."""
        total = hidden + delta
        return total, self.normalise(total, norm)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return SiLU of the gates times the others, [num_rows, size] of [num_rows, 2 * size], gates first."""
        gates, others = gate_up.chunk(2, dim=-1)
        return silu(gates) * others

    def rotate_and_store(
        self, heads: torch.Tensor, rotation: Rotation, norms: HeadNorms | None, batch: RowBatch, layer: int
    ) -> torch.Tensor:
        """Normalise and rotate queries and K, write K and V into their blocks, hand them to the spans' sinks.

        `heads`: queries, keys and values side by side: [num_rows, num_heads + 2 * num_kv_heads, head_dim]. `rotation`:
        of the rows. `norms`: of the heads. `batch`: whose rows they are. `layer`: which layer's blocks. Returns the
        queries: [num_heads, num_rows, head_dim].
        """
        num_kv_heads = len(batch.pool.layer(layer).keys)
        num_rotated = heads.shape[1] - num_kv_heads
        sizes = (num_rotated - num_kv_heads, num_kv_heads)
        rotated = rotation.rotate(_normalised(heads[:, :num_rotated], norms, sizes))
        query, key = rotated.split(sizes, dim=1)
        store(batch, layer, KeysValues(key.transpose(0, 1), heads[:, num_rotated:].transpose(0, 1)))
        return query.transpose(0, 1)

    def attend(
        self,
        batch: RowBatch,
        segments: tuple[QuerySegment, ...],
        layer: int,
        query: torch.Tensor,
        params: AttentionParams,
    ) -> torch.Tensor:
        """Attend from rows to what their sequences have in the blocks.

        `batch`: the rows' sequences. `segments`: whose rows they are, in order; 1 or more. `layer`: the layer. `query`:
        [num_heads, num_rows, head_dim], rotated. `params`: how scores become weights. Returns [num_heads, num_rows,
        head_dim].
        """
        if isinstance(batch, PackedBatch) and not self.attends_in_blocks:
            own = [self._attend_segment(batch, segment, layer, query, params) for segment in segments]
            return torch.cat(own, dim=1)
        pool = batch.pool.layer(layer)
        queries = batch.paged(segments, len(query) // len(pool.keys), query.shape[2], query.dtype)
        return self.attend_blocks(query.transpose(0, 1), pool, queries, params).transpose(0, 1)

    def decode_step(self, layers: Sequence[LayerParts], head: Projection) -> DecodeStep | None:  # noqa: ARG002
        """Return all layers of steps of few rows as one call; None where there is none."""
        return None

    def most_probable(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the most probable token of each row, the smallest id among equals: [num_rows], int64.

        `NOT_FINITE` where the highest logit is not a finite number; NaN counts as the highest.
        """
        best = logits.argmax(dim=-1, keepdim=True)
        highest = logits.gather(-1, best).squeeze(-1)
        return torch.where(highest.isfinite(), best.squeeze(-1), NOT_FINITE)

    def drawn(self, logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        """Return the token at which the cumulated probability of each row passes its random number: [num_rows], int64.

        Sums run in order of token ids, in float64, as `drawing.draw_tokens` has them on the host: other rounding in the
        logits moves the draw to a neighbour no more often than it moves the probability. `logits`: [num_rows,
        vocabulary_size]. `temperatures`: [num_rows], float64; 0: the most probable token. `uniforms`: [num_rows],
        float64, in [0, 1).
        """
        best = self.most_probable(logits)
        wide = logits.double()
        wide = (wide - wide.amax(dim=-1, keepdim=True)) / torch.where(temperatures == 0, 1.0, temperatures)[:, None]
        cumulated = (wide.exp_() / wide.sum(dim=-1, keepdim=True)).cumsum(dim=-1)
        num_below = (cumulated <= (uniforms * cumulated[:, -1])[:, None]).sum(dim=-1)
        last = wide.shape[-1] - 1 - (wide.flip(-1) > 0).int().argmax(dim=-1)
        return torch.where((temperatures == 0) | (best == NOT_FINITE), best, num_below.minimum(last))

    def at_work(self) -> AbstractContextManager[object]:
        """Compute without gradients, on this device: which one is current, every thread decides for itself."""
        context: AbstractContextManager[object] = torch.inference_mode()
        return context

    def kv_copies(self) -> KvCopies | None:
        """Return what hands K and V out behind a pass; None: they are handed out as they are written."""
        return None

    def begin_copy(self, tensor: torch.Tensor) -> HostCopy:
        """Copy a tensor to the host behind all that the device was asked for."""
        return HostCopy(tensor.clone())

    def settle(self, memory: Iterable[MemoryRange]) -> None:
        """Take note of where the weights that passes read are, once all are loaded."""

    def peak_bytes(self) -> int:
        """Return the most memory of the device that tensors have had; 0 where it is the process's own."""
        return 0

    def release(self) -> None:
        """Give back what memory of the device is kept for tensors to come."""

    def _hold(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Return a product of a weight [num_outputs, num_inputs] in the layout that is multiplied by soonest."""
        return PlainLinear(weight, bias)

    def _hold_packed(self, modules: Sequence[torch.nn.Linear]) -> Linear:
        """Return a product of weights of one kind that `can_hold` has accepted, or that are rounded."""
        weights: list[RoundedWeight] = [getattr(module, PACKED) for module in modules]
        numbers = torch.cat([weight.numbers() for weight in weights])
        return self._hold(numbers.to(modules[0].weight.dtype), biases_of(modules))

    def _attend_segment(
        self, batch: PackedBatch, segment: QuerySegment, layer: int, query: torch.Tensor, params: AttentionParams
    ) -> torch.Tensor:
        """Attend from the rows of one sequence: [num_heads, num_rows, head_dim].

        Interval table: keys [0, first_key) are outside every query's window; [first_key, end) are read from the blocks.
        """
        first_key = max(0, segment.start + 1 - params.window_tokens) if params.window_tokens else 0
        kv = batch.pool.read(segment.table, layer, first_key, segment.end)
        rows = query[:, segment.first_row : segment.first_row + segment.num_rows]
        num_heads, num_rows, head_dim = rows.shape
        grouped = rows.reshape(len(kv.keys), -1, num_rows, head_dim)
        attended = self.attend_positions(batch, grouped, kv, params, first_query=segment.start - first_key)
        return attended.reshape(num_heads, num_rows, -1)

    def attend_positions(
        self, batch: PackedBatch, query: torch.Tensor, kv: KeysValues, params: AttentionParams, *, first_query: int
    ) -> torch.Tensor:
        """Attend from consecutive positions of one sequence, as `eager.attention.attend_causally` does."""
        if not params.is_plain:
            return attend_causally(query, kv, params, first_query=first_query)

        def mask_of(first_query: int, num_keys: int, window_tokens: int, device: torch.device) -> torch.Tensor | None:
            key = ("mask", first_query, num_keys, window_tokens)
            return batch.once(key, lambda: causal_mask(first_query, num_keys, window_tokens, device))

        return attend_by_torch(query, kv, params, first_query=first_query, mask_of=mask_of)


def _normalised(heads: torch.Tensor, norms: HeadNorms | None, sizes: tuple[int, int]) -> torch.Tensor:
    """Return heads of queries and keys, as many as `sizes` says, side by side: [num_rows, num_heads, head_dim]."""
    if norms is None:
        return heads
    kinds = zip(heads.split(sizes, dim=1), norms, strict=True)
    return torch.cat([rms_norm(each, norm.weight.shape, norm.weight, norm.epsilon) for each, norm in kinds], dim=1)
