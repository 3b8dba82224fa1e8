"""A model in transformers' own code: its attention is Baton's, its last layer computes no more rows than are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from typing import Any, cast

import torch
from transformers import AttentionInterface

from baton.engine.runners.torch.batch import PackedBatch, RowBatch, store
from baton.engine.runners.torch.latents import IndexRows, attend_latents, has_latents, keep_latents
from baton.engine.runners.torch.lora import NO_ADAPTERS, AdapterLayers, Additions
from baton.engine.runners.torch.ops.device import MemoryRange, memory_of
from baton.engine.runners.torch.ops.device_ops import DeviceOps
from baton.engine.runners.torch.ops.eager.attention import AttentionParams
from baton.engine.runners.torch.ops.pool import KeysValues
from baton.engine.runners.torch.recurrent import RecurrentForward, StateBatch

ATTENTION_NAME = "baton"
"""Value of `attn_implementation`. No mask function bears this name, so that transformers builds no mask."""

_READS_ANOTHERS = "is_kv_shared_layer"
"""What transformers' attention says that reads K and V of a layer before it."""
_INDEXED = ("indexed_attention", "deepseek_sparse_attention")
"""What transformers calls attention with an index, and called it before 5.18."""
_OTHER_ARGUMENTS = {"dropout", "output_router_logits", "position_ids", "sliding_window", "use_cache"}
"""What transformers' layers pass on besides, without effect on attention when a trained model is run."""


class Stage(Enum):
    """Which rows a layer is given, and what is wanted of it."""

    ALL_ROWS = auto()
    """All: write K and V, attend."""
    STORE = auto()
    """All: write K and V, then stop by raising `KvStored`."""
    LAST_ROWS = auto()
    """Those that need logits; K and V are written already: attend."""


class KvStored(Exception):  # noqa: N818 - a signal, not an error
    """Leaves a layer whose K and V were all that was wanted."""


def register_attention() -> None:
    """Make `attend` known to transformers; doing so again changes nothing."""
    AttentionInterface.register(ATTENTION_NAME, attend)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,  # noqa: ARG001 - part of transformers' signature
    *,
    scaling: float,
    baton_batch: RowBatch,
    baton_ops: DeviceOps,
    baton_stage: Stage = Stage.ALL_ROWS,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    indices: IndexRows | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Attend by sequence over a packed row of tokens, [1, heads, num_rows, head_dim] each, rotated.

    What says nothing new is left: the sliding window is the cache layout's. `s_aux` are the scores of the heads' sinks.
    Returns [1, num_rows, num_heads, head_dim], and no weights.

    Raises:
        KvStored: In stage `STORE`.
        TypeError: If the model wants something of its attention that is not done here.
    """
    if unknown := others.keys() - _OTHER_ARGUMENTS:
        raise TypeError(f"attention has no {', '.join(sorted(unknown))}")
    layer = module.layer_idx
    if baton_stage is not Stage.LAST_ROWS and not getattr(module, _READS_ANOTHERS, False):
        cached = value[0] if indices is None else torch.cat([value[0], indices.keys[None]], dim=-1)
        store(baton_batch, layer, KeysValues(key[0], cached))
    if baton_stage is Stage.STORE:
        raise KvStored
    segments = baton_batch.last_segments if baton_stage is Stage.LAST_ROWS else baton_batch.segments
    params = AttentionParams(scaling, baton_batch.pool.window_tokens(layer), softcap or 0.0, s_aux)
    if has_latents(module):
        batch = cast(PackedBatch, baton_batch)
        attended = attend_latents(baton_ops, batch, segments, module, query[0], params, indices)
        return attended.transpose(0, 1)[None], None
    return baton_ops.attend(baton_batch, segments, layer, query[0], params).transpose(0, 1)[None], None


class TransformersModel:
    """A model in transformers' own code.

    Its attention is Baton's (`attend`); the forward of its last layer is replaced by `LastLayerForward`, so
    that it returns a row of logits per wanted row.

    `model` is changed in place; its attention is `ATTENTION_NAME`.
    """

    name = "transformers"
    is_capturable = False  # experts are chosen by what the host reads, and rotary embeddings look at positions

    def __init__(self, model: Any, ops: DeviceOps, adapters: AdapterLayers = NO_ADAPTERS) -> None:
        layers = model.get_decoder().layers
        _name_caches(layers)
        last = layers[-1]
        keeps_state, attends = _mixer_of(last) is not None, _attention_of(last) is not None
        last.forward = LastLayerForward(last.forward, keeps_state=keeps_state, attends=attends)
        self._model, self._ops = model, ops
        self._batch: RowBatch | None = None
        self._is_indexed = hasattr(_attention_of(last), "indexer")
        self._no_mask = torch.empty(1, 1, 1, 1)  # which attention with an index would look at
        for index, layer in enumerate(layers):
            if mixer := _mixer_of(layer):
                mixer.forward = RecurrentForward(mixer, mixer.layer_idx, self._states)
            if has_latents(attention := _attention_of(layer)):
                keep_latents(attention)
            for name in {name for each in adapters.values() for name in each[index]}:
                module = layer.get_submodule(name)
                additions = Additions(adapters, index, {name: module.out_features})
                module.register_forward_hook(partial(self._add, additions))

    def logits(self, batch: RowBatch) -> torch.Tensor:
        """Return the logits of the wanted rows: [num_logits, vocabulary_size]."""
        self._batch = batch
        output = self._model(
            input_ids=batch.token_ids(),
            position_ids=batch.positions(),
            use_cache=False,
            attention_mask=dict.fromkeys(_INDEXED, self._no_mask) if self._is_indexed else None,
            baton_batch=batch,
            baton_ops=self._ops,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def memory(self) -> list[MemoryRange]:
        """Return where the weights are, on a CPU."""
        return [memory_of(weight) for weight in self._model.parameters()]

    def _states(self) -> StateBatch:
        states = cast(PackedBatch, self._batch).states
        assert states is not None, "the pool keeps no states"
        return states

    def _add(
        self, additions: Additions, module: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor
    ) -> None:
        """Add to the output of a projection what adapters make of its input, [..., num_inputs]."""
        del module
        batch, rows = self._batch, inputs[0].flatten(0, -2)
        assert batch is not None, "a projection runs in passes alone"
        adapted = batch.adapted if len(rows) == batch.num_rows else batch.last_adapted
        additions.add(output.flatten(0, -2), rows, adapted)


def _mixer_of(layer: torch.nn.Module) -> Any:
    """Return the module of a layer that keeps a state: what has a convolution over positions; None: attention."""
    return next(
        (module for module in layer.children() if {"conv", "conv1d"} & dict(module.named_children()).keys()), None
    )


def _attention_of(layer: torch.nn.Module) -> Any:
    """Return the attention of a layer; None: it has none."""
    attention = getattr(layer, "self_attn", None) or getattr(layer, "mixer", None)
    return attention if hasattr(attention, "is_causal") else None


def _name_caches(layers: Iterable[Any]) -> None:
    """Number the caches as layouts do: in order of depth, of one layer its state first; some layers have none.

    Attention that reads K and V of another layer gets the number of the last before it of its kind.
    """
    owners, num_caches = dict[str, int](), 0
    for layer in layers:
        mixer, attention = _mixer_of(layer), _attention_of(layer)
        if mixer is not None:
            mixer.layer_idx, num_caches = num_caches, num_caches + 1
        if getattr(attention, _READS_ANOTHERS, False):
            attention.layer_idx = owners[attention.layer_type]
        elif attention is not None:
            attention.layer_idx = owners[getattr(attention, "layer_type", "")] = num_caches
            num_caches += 1


LayerForward = Callable[..., Any]
"""`forward` of a transformers decoder layer."""


class LastLayerForward:
    """Takes the place of `forward` of a model's last decoder layer.

    All positions pass through the layer up to its attention, which writes their K and V; only those whose logits are
    wanted, mostly the last one of a span, pass through attention and MLP. The layer then returns fewer rows than it was
    given: one per row of logits. One that keeps a state computes all, one without a cache no others.
    """

    def __init__(self, forward: LayerForward, *, keeps_state: bool, attends: bool) -> None:
        self._forward, self._keeps_state = forward, keeps_state
        self._attends = attends

    def __call__(
        self,
        hidden_states: torch.Tensor,
        *of_layer: torch.Tensor | None,
        position_ids: torch.Tensor,
        baton_batch: RowBatch,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the layer; arguments as transformers' decoder layers have them, further ones by rows, too.

        Returns [1, num_logits, hidden_size].
        """

        def run(rows: torch.Tensor | slice, stage: Stage) -> Any:
            if position_embeddings is not None:
                cosines, sines = position_embeddings
                kwargs["position_embeddings"] = (cosines[:, rows], sines[:, rows])
            return self._forward(
                hidden_states[:, rows],
                *(each if each is None else each[:, rows] for each in of_layer),
                position_ids=position_ids[:, rows],
                baton_batch=baton_batch,
                baton_stage=stage,
                **kwargs,
            )

        if baton_batch.num_logits == baton_batch.num_rows:
            return run(slice(None), Stage.ALL_ROWS)
        if self._keeps_state:
            output, rows = run(slice(None), Stage.ALL_ROWS), baton_batch.last_rows()
            return (output[0][:, rows],) if isinstance(output, tuple) else output[:, rows]
        if not self._attends:
            return run(baton_batch.last_rows(), Stage.ALL_ROWS)
        with suppress(KvStored):
            run(slice(None), Stage.STORE)
        if not baton_batch.last_segments:
            return (hidden_states[:, :0], None) if "prev_topk_indices" in kwargs else hidden_states[:, :0]
        return run(baton_batch.last_rows(), Stage.LAST_ROWS)
