"""What a family's model does around its layers, which mlx-lm keeps in the loop that Baton does not use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from baton.engine.checkpoint.cached_state import LATENT_FAMILIES
from baton.engine.runners.mlx.kv_cache.positions import Mask, VisibleKeys
from baton.engine.runners.mlx.modules.mamba import grouped, halves_of

RunLayer = Callable[[int, mx.array, Mask, Any], mx.array]
"""Returns the output of a layer by its index, its input, its mask and its cache; None: K and V are another's."""

_LAST_NORMS = ("norm", "embedding_norm", "final_layernorm", "norm_f")


class Surroundings:
    """Embedding before the layers, mask of a layer, and head after them, for most families.

    `modules`: the layers, or what of them has a cache. `caches`: by layer, the one whose K and V it reads.
    """

    def __init__(self, model: Any, modules: Sequence[Any] = ()) -> None:
        body = model.model if "model" in model else model.backbone
        self.modules = list(modules or body.layers)
        self.caches = list(range(len(self.modules)))
        self._embed_tokens = next(body[name] for name in ("embed_tokens", "embeddings") if name in body)
        self._norm = next(body[name] for name in _LAST_NORMS if name in body)
        self._head = model.lm_head if "lm_head" in model else self._embed_tokens.as_linear

    def embed(self, token_ids: mx.array) -> mx.array:
        """Return what the first layer takes of [num_rows, num_tokens] tokens: [num_rows, num_tokens, hidden_size]."""
        hidden: mx.array = self._embed_tokens(token_ids)
        return hidden.astype(self._norm.weight.dtype)  # MLX unpacks floats of 4 and 8 bits to bfloat16

    def layers(self, token_ids: mx.array, embedded: mx.array) -> RunLayer:  # noqa: ARG002 - of use to a family below
        """Return what computes the layers of one pass, from what `embed` made of its tokens."""

        def run(layer: int, hidden: mx.array, mask: Mask, cache: Any) -> mx.array:
            output: mx.array = self.modules[layer](hidden, mask=mask, cache=cache)
            return output

        return run

    def mask(self, reading: VisibleKeys, num_queries: int) -> Mask:  # noqa: ARG002 - of use to a family below
        """Return the mask of a layer for that many queries per row, as the family's attention takes it."""
        return reading.mask

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the logits of the last layer's output [num_rows, hidden_size], lazily."""
        logits: mx.array = self._head(self._norm(hidden))
        return logits


class Gemma(Surroundings):
    """Gemma 3: embeddings are scaled by the square root of their size, in the model's own precision.

    mlx-lm rounds the factor to bfloat16 whatever the precision is; transformers does not.
    """

    def embed(self, token_ids: mx.array) -> mx.array:
        """Return what the first layer takes."""
        hidden = super().embed(token_ids)
        return hidden * mx.array(hidden.shape[-1] ** 0.5, hidden.dtype)


class Gemma2(Gemma):
    """Gemma 2: besides, logits are bent towards a bound, and attention takes no mask but an array."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._logit_cap = model.final_logit_softcapping

    def mask(self, reading: VisibleKeys, num_queries: int) -> Mask:
        """Return the mask, with an axis for the query heads of a group: [num_rows, 1, 1, num_queries, num_keys]."""
        mask = _as_array(reading, num_queries)
        if mask is None or mask.ndim == 2:
            return mask
        return mask[:, :, None]

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the logits of the last layer's output."""
        logits: mx.array = mx.tanh(super().logits(hidden) / self._logit_cap) * self._logit_cap
        return logits


class Gemma4(Gemma):
    """Gemma 4: besides, tokens have an input to each layer, and the last layers read K and V of layers before them."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._model = model.model
        self._logit_cap = model.final_logit_softcapping
        self.caches = list(self._model.previous_kvs)

    def layers(self, token_ids: mx.array, embedded: mx.array) -> RunLayer:
        """Return what computes the layers of one pass."""
        model = self._model
        inputs: mx.array | None = None
        if model.hidden_size_per_layer_input:
            inputs = model._project_per_layer_inputs(embedded, model._get_per_layer_inputs(token_ids))
        read: dict[int, tuple[Any, Any]] = {}

        def run(layer: int, hidden: mx.array, mask: Mask, cache: Any) -> mx.array:
            of_layer = None if inputs is None else inputs[:, -hidden.shape[1] :, layer]
            kv, offset = None, None
            if (source := self.caches[layer]) != layer:
                kv, offset = read[source] if cache is None else ((None, None), mx.array(cache.offset))
            output: mx.array
            output, *read[layer] = self.modules[layer](
                hidden, mask, cache, per_layer_input=of_layer, shared_kv=kv, offset=offset
            )
            return output

        return run

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the logits of the last layer's output."""
        logits = super().logits(hidden)
        return logits if self._logit_cap is None else mx.tanh(logits / self._logit_cap) * self._logit_cap


class WithLatents(Surroundings):
    """Families with latents: attention takes no mask but an array."""

    def mask(self, reading: VisibleKeys, num_queries: int) -> Mask:
        """Return the mask: [num_queries, num_keys], or [num_rows, 1, 1, num_keys]."""
        return _as_array(reading, num_queries)


class FalconH1(Surroundings):
    """Falcon-H1: layers cut in two, and constants for embeddings and logits."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, halves_of(model.layers))
        self._of_embeddings, self._of_logits = map(
            float, (model.args.embedding_multiplier, model.args.lm_head_multiplier)
        )

    def embed(self, token_ids: mx.array) -> mx.array:
        """Return what the first layer takes."""
        return super().embed(token_ids) * self._of_embeddings

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the logits of the last layer's output."""
        return super().logits(hidden) * self._of_logits


class NemotronH(Surroundings):
    """Nemotron-H: layers without a cache belong to those with one; the last of them see no rows but wanted ones."""

    def __init__(self, model: Any) -> None:
        modules, self._last = grouped(model.layers)
        super().__init__(model, modules)

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the logits of the last layer's output."""
        for layer in self._last:
            hidden = layer(hidden[None])[0]
        return super().logits(hidden)


def _as_array(reading: VisibleKeys, num_queries: int) -> mx.array | None:
    """Return a mask as an array."""
    if not isinstance(reading.mask, str):
        return reading.mask
    first_query = reading.num_tokens - num_queries
    return mx.arange(reading.num_tokens)[None] <= mx.arange(first_query, reading.num_tokens)[:, None]


def surroundings_of(model: Any) -> Surroundings:
    """Return those of a model of mlx-lm."""
    kinds: dict[str, type[Surroundings]] = {"gemma2": Gemma2, "gemma3_text": Gemma, "gemma4_text": Gemma4}
    kinds |= {"falcon_h1": FalconH1, "nemotron_h": NemotronH, **dict.fromkeys(LATENT_FAMILIES, WithLatents)}
    return kinds.get(model.model_type, Surroundings)(model)
