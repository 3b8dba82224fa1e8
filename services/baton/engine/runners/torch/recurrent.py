"""Layers in transformers' own code that keep a state of the sequence instead of K and V.

Such a layer mixes sequences that lie end to end in one row, because its state goes from token to token. So it is given
sequences one by one, or those with one token side by side; each begins with the state of its slot. What it computes of
a position is the family's own (gated delta net, short convolution, Mamba 2).
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from baton.engine.runners.base import LayerKv, Span, StateSave, StateSpan
from baton.kv.kv_format import LayerSpec

_MAMBA_CHUNK_TOKENS = 64
"""Most positions of a chunk of Mamba 2, in which each is multiplied with each, and which is filled up. With chunks of
256, as Falcon-H1's folders ask for, a CPU takes 1.5 times as long for 512 positions and 5 times as long for 20."""


class StatePool:
    """States of every slot and layer: tensors [num_slots + 2, *shape], float32, as `LayerSpec.state` has them.

    Behind those of sequences, one slot is for passes that only measure, and one has the state before position 0.
    """

    def __init__(self, layers: Sequence[LayerSpec], num_slots: int, device: torch.device) -> None:
        self._device = device
        self._idle_slot, self._first_slot = num_slots, num_slots + 1
        self._layers = [
            {tensor.name: torch.zeros((num_slots + 2, *tensor.shape), device=device) for tensor in spec.state}
            for spec in layers
        ]

    def span_of(self, span: Span) -> StateSpan:
        """Return where the state of a span lies; that before position 0, too."""
        state = span.state or StateSpan(self._idle_slot, self._idle_slot)
        return state if span.start else state._replace(source=self._first_slot)

    def read(self, layer: int, slots: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return copies of the tensors of a layer, [len(slots), *shape]."""
        return {name: tensor[self._index(slots)] for name, tensor in self._layers[layer].items()}

    def write(self, layer: int, slots: Sequence[int], state: dict[str, torch.Tensor]) -> None:
        """Write tensors of a layer, [len(slots), *shape]."""
        for name, tensor in self._layers[layer].items():
            tensor[self._index(slots)] = state[name].float()

    def copy(self, layer: int, copies: Sequence[tuple[int, int]]) -> None:
        """Copy a layer's state from the first slot of each pair into the second."""
        if copies:
            sources, targets = zip(*copies, strict=True)
            self.write(layer, targets, self.read(layer, sources))

    def to_kv(self, layer: int, slot: int) -> LayerKv:
        """Return a layer's state on the host, as a sink takes it."""
        parts = [tensor[slot].flatten() for tensor in self._layers[layer].values()]
        return LayerKv(memoryview(torch.cat(parts).cpu().view(torch.uint8).numpy()), b"")

    def write_bytes(self, layer: int, slot: int, data: bytes | memoryview) -> None:
        """Write a layer's state that `to_kv` returned, here or elsewhere."""
        values = torch.frombuffer(bytearray(data), dtype=torch.float32)
        tensors = list(self._layers[layer].values())
        for tensor, part in zip(tensors, values.split([each[slot].numel() for each in tensors]), strict=True):
            tensor[slot] = part.view(tensor[slot].shape)

    def clear(self) -> None:
        """Free all slots."""
        self._layers.clear()

    def _index(self, slots: Sequence[int]) -> torch.Tensor:
        return torch.tensor(slots, device=self._device)


class StatePiece(NamedTuple):
    """Rows of a packed tensor that a layer computes at once: of one sequence, or one row of each of several."""

    rows: slice | list[int]
    slots: list[int]
    """Slots of the sequences, in which the state is afterwards."""
    sources: list[int]
    """Slots with the state before."""
    copies: list[tuple[int, int]]
    """Slots whose state is copied afterwards, and where."""


def pieces_of(spans: Sequence[Span], pool: StatePool) -> list[StatePiece]:
    """Return how the rows of spans that are laid end to end are computed, in order; cut where copies are wanted."""
    pieces, together, copies, row = list[StatePiece](), list[tuple[int, int, int]](), list[tuple[int, int]](), 0
    for span in spans:
        source, slot, saves = pool.span_of(span)
        assert source is not None, "the pool has the state before position 0"
        if len(span.token_ids) == 1:
            together.append((row, slot, source))
            copies += [(slot, save.slot) for save in saves]
        else:
            start = span.start
            for end, save_slot in (*saves, StateSave(span.end, slot)):
                if end > start:
                    rows = slice(row + start - span.start, row + end - span.start)
                    copy = [] if save_slot == slot else [(slot, save_slot)]
                    pieces.append(StatePiece(rows, [slot], [source], copy))
                start, source = end, slot
        row += len(span.token_ids)
    if together:
        single_rows, slots, sources = map(list, zip(*together, strict=True))
        pieces.append(StatePiece(single_rows, slots, sources, copies))
    return pieces


class _State:
    """What a layer of transformers takes for its cache, of the sequences of a piece.

    Before 5.21 layers read `layers`, and one that records its past is updated by `update_conv_state` alone.
    """

    record_past = True

    def __init__(self, state: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
        self.conv, self.recurrent = state["conv"].to(dtype).transpose(1, 2), state.get("recurrent")

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state as the pool keeps it."""
        conv = {"conv": self.conv.transpose(1, 2)}
        return conv if self.recurrent is None else conv | {"recurrent": self.recurrent}

    @property
    def layers(self) -> defaultdict[int, _State]:
        """Return itself, whichever layer is asked for."""
        return defaultdict(lambda: self)

    @property
    def recurrent_states(self) -> tuple[torch.Tensor | None]:
        """Return the recurrent state before this pass."""
        return (self.recurrent,)

    def has_previous_state(self, _layer: int, state_idx: int = 0) -> bool:  # noqa: ARG002
        """Return True: the state before position 0 is one, too."""
        return True

    def get_conv_state(self, _layer: int, state_idx: int = 0) -> torch.Tensor:  # noqa: ARG002
        """Return the inputs of the convolution before this pass, [num_sequences, channels, kernel - 1]."""
        return self.conv

    def get_recurrent_state(self, _layer: int, state_idx: int = 0) -> torch.Tensor | None:  # noqa: ARG002
        """Return the recurrent state before this pass."""
        return self.recurrent

    def is_recording_past(self, _layer: int) -> bool:
        """Return False: no earlier state is asked for."""
        return False

    def update_conv_state(self, inputs: torch.Tensor, _layer: int, **_others: int) -> torch.Tensor:
        """Take the inputs of the convolution, and return them with those before."""
        inputs = torch.cat([self.conv, inputs], dim=-1)
        self.conv = inputs[..., -self.conv.shape[-1] :]
        return inputs

    def update_recurrent_state(self, state: torch.Tensor, layer_idx: int = 0) -> torch.Tensor:  # noqa: ARG002
        """Take the recurrent state after this pass."""
        self.recurrent = state
        return state


class StateBatch(NamedTuple):
    """The pass that layers compute."""

    spans: Sequence[Span]
    pool: StatePool
    pieces: Sequence[StatePiece]


class RecurrentForward:
    """Takes the place of `forward` of a module that keeps a state; `layer` is its layer, `batch` tells the pass."""

    def __init__(self, module: torch.nn.Module, layer: int, batch: Callable[[], StateBatch]) -> None:
        self._forward = module.forward
        names = inspect.signature(self._forward).parameters
        self._cache_name = "cache_params" if "cache_params" in names else "past_key_values"
        self._layer, self._batch = layer, batch
        if limits := getattr(module, "time_step_limit", None):  # of Mamba 2
            module.chunk_size = min(module.chunk_size, _MAMBA_CHUNK_TOKENS)
            if limits[0] > 0:
                module.in_proj.register_forward_hook(partial(_keep_least_step, module, math.log(math.expm1(limits[0]))))

    def __call__(self, hidden_states: torch.Tensor, **_others: Any) -> torch.Tensor:
        """Compute [1, num_rows, hidden_size], sequence by sequence, and hand over the states that are complete."""
        (spans, pool, pieces), layer = self._batch(), self._layer
        outputs = torch.empty_like(hidden_states)
        for piece in pieces:
            rows = hidden_states[0, piece.rows].unflatten(0, (len(piece.slots), -1))
            state = _State(pool.read(layer, piece.sources), rows.dtype)
            computed = self._forward(hidden_states=rows, **{self._cache_name: state})
            outputs[0, piece.rows] = computed.flatten(0, 1)
            pool.write(layer, piece.slots, state.tensors)
            pool.copy(layer, piece.copies)
        for span in spans:
            if span.layer_sink is not None and span.needs_logits:
                span.layer_sink(layer, pool.to_kv(layer, pool.span_of(span).slot))
        return outputs


def _keep_least_step(mixer: Any, least: float, _module: object, _inputs: object, projected: torch.Tensor) -> None:
    """Raise the steps of Mamba 2 that are below the least one, in what its first projection returns.

    transformers does so where it computes several positions at once, not where it computes one. `least` is the inverse
    of softplus of the least step.
    """
    steps = projected[..., -mixer.num_heads :]
    torch.maximum(steps, (least - mixer.dt_bias).to(steps.dtype), out=steps)
