"""The weights of a model in Hugging Face's names and orientation, in float32, whatever container holds them.

A digest over them is blind to the container and to the engine: it tells whether two folders are the same function.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from baton.engine.checkpoint.quantization import Affine, Float8, Micro, Quantization
from baton.engine.checkpoint.rope import rope_parameters
from baton.engine.checkpoint.tensor_files import Floats, StoredTensor

Rows = slice | np.ndarray[tuple[int], np.dtype[np.int64]]
"""Which rows are read."""
ALL = slice(None)

_PACKED_PARTS = (".scales", ".biases")
_SAMPLED_ROWS = 16
"""Rows of a tensor that a sampled digest reads; of a tensor that is one of many experts', one."""
_WHOLE_ELEMENTS = 1 << 16
"""A tensor of no more elements is read whole."""
_OF_EXPERT = re.compile(r"\.experts\.\d+\.")
_EXPERTS_OF_MLX = re.compile(r"(?P<block>.+\.)switch_mlp\.(?P<projection>(gate|up|down)_proj|fc[12])\.(?P<part>\w+)")
_STACKED_EXPERTS = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")
_GATES_OF_GPT_OSS = ".mlp.experts.gate_proj.weight"
_KEYS_OF_LATENTS = ".embed_q.weight"
_GATES_OF_GEMMA4 = ".switch_glu.gate_proj.weight"
_PARTS_OF_EXPERTS = ("gate", "up", "down")
_PROJECTIONS_OF_NEMOTRON = {"fc1": "up_proj", "fc2": "down_proj"}
_PROJECTIONS_OF_MIXTRAL = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
_NOT_COMPUTED_WITH = frozenset(
    (
        *("_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache"),
        *("quantization", "quantization_config", "tie_word_embeddings", "bos_token_id", "eos_token_id"),
        *("pad_token_id", "initializer_range", "attention_dropout", "output_router_logits", "pretraining_tp"),
        *("router_aux_loss_coef", "rope_parameters", "rope_scaling", "rope_theta", "head_dim", "num_key_value_heads"),
        *("layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern"),
        *("original_max_position_embeddings", "_sliding_window_pattern", "num_experts", "num_local_experts"),
        *("n_routed_experts", "num_nextn_predict_layers", "num_mtp_layers", "ep_size", "aux_loss_alpha", "seq_aux"),
    )
)
"""Keys of config.json that say how a model was trained or saved, or whose meaning is digested in place of them."""


class PackedRows(NamedTuple):
    """A weight in few bits, as its file has it."""

    words: StoredTensor
    """[..., num_inputs * bits / 32], uint32."""
    scales: StoredTensor
    """[..., num_inputs / group_size]; of `Float8` for each square, or one."""
    biases: StoredTensor | None
    """None: floats have none, and whole numbers are above and below the middle, which is 0."""
    kind: Affine | Micro | Float8

    @property
    def num_bytes(self) -> int:
        """Return what it takes in its file."""
        return sum(part.array().nbytes for part in (self.words, self.scales, self.biases) if part)


class Weight(NamedTuple):
    """A tensor as it is computed with."""

    shape: tuple[int, ...]
    dtype: str
    """Number format in the file, as safetensors calls it; of packed ones that of scales."""
    read: Callable[[Rows], Floats]
    """Returns rows in float32: [num_rows, last size]; all sizes but the last count as one, a vector is one row."""
    packed: PackedRows | None = None
    """How it is packed; None: it is not, or is part of what is."""
    is_turned: bool = False
    """Whether Hugging Face's tensor has the last two sizes the other way round: rows here are outputs."""

    @property
    def kind(self) -> tuple[object, ...] | None:
        """Return what packed weights have in common that can lie in one array."""
        return self.packed and (self.packed.kind, self.packed.scales.dtype, self.packed.biases is None)

    @property
    def num_rows(self) -> int:
        """Return the rows that can be read."""
        return math.prod(self.shape[:-1])


def read_weights(stored: Mapping[str, StoredTensor], quantization: Quantization | None) -> dict[str, Weight]:
    """Return every tensor of a model by its name in Hugging Face's folders, nothing read."""
    weights: dict[str, Weight] = {}
    for name, tensor in stored.items():
        if quantization is not None and name.endswith(_PACKED_PARTS):
            continue
        module = name.removesuffix(".weight")
        is_packed = quantization is not None and name.endswith(".weight") and f"{module}.scales" in stored
        if name.endswith(_STACKED_EXPERTS) and f"{name.rpartition('.')[0]}.gate_up_proj_bias" not in stored:
            weights.update(_experts_of(name, tensor))
            continue
        weight = _affine(stored, module, quantization) if is_packed and quantization else plain(name, tensor)
        weights.update(_in_names_of_hub(name, weight))
    for name in [name for name in weights if name.endswith(_GATES_OF_GPT_OSS)]:
        _join_experts(weights, name.removesuffix(_GATES_OF_GPT_OSS))
    for name in [name for name in weights if name.endswith(_KEYS_OF_LATENTS)]:
        attention = name.removesuffix(_KEYS_OF_LATENTS)
        values = weights.pop(f"{attention}.unembed_out.weight")
        weights[f"{attention}.kv_b_proj.weight"] = _joined_heads(weights.pop(name), values)
    for name in [name for name in weights if name.endswith(_GATES_OF_GEMMA4)]:
        experts = name.removesuffix(_GATES_OF_GEMMA4)
        gates, others, down = (weights.pop(f"{experts}.switch_glu.{part}_proj.weight") for part in _PARTS_OF_EXPERTS)
        weights[f"{experts}.down_proj"] = down
        weights[f"{experts}.gate_up_proj"] = _in_turn(gates, others, num_rows=gates.shape[1])
    return weights


def weights_digest(
    config: Mapping[str, Any],
    facts: Sequence[object],
    weights: Mapping[str, Weight],
    *,
    is_tied: bool,
    is_full: bool = False,
) -> str:
    """Digest a model: what its configuration says of the function, and its weights in float32.

    Sampled, it reads some rows of each tensor, the same ones in every process: a 100-GB model takes seconds, and a
    fine-tuned copy differs in all of them. Weights are as they are computed with, before they are rounded to the dtype
    of activations; `facts` what else makes the model, such as end tokens. Where embeddings are tied, the tensor of the
    output projection is nobody's. Returns 32 hexadecimal digits.
    """
    told = {key: value for key, value in config.items() if _is_computed_with(key, value)}
    rope = {"rope_type": "default"} | rope_parameters(config)
    text = json.dumps([told, rope, is_tied, *facts], sort_keys=True)
    digest = blake2b(f"baton/weights/1\0{'full' if is_full else 'sampled'}\0{text}".encode(), digest_size=16)
    for name, weight in sorted(weights.items()):
        if name.endswith("rotary_emb.inv_freq") or (is_tied and name == "lm_head.weight"):
            continue
        digest.update(f"\0{name}\0{weight.shape}\0".encode())
        rows = weight.read(ALL if is_full else _sample(name, weight))
        digest.update((rows + np.float32(0)).tobytes())  # of both zeros one
    return digest.hexdigest()


def _is_computed_with(key: str, value: object) -> bool:
    """Return whether a key counts; one that says no or nothing is the same as none."""
    return key not in _NOT_COMPUTED_WITH and value is not None and value is not False and value != []


def _sample(name: str, weight: Weight) -> Rows:
    """Return one row of each of as many even stretches, drawn by the tensor's name."""
    num_rows = weight.num_rows
    count = 1 if _OF_EXPERT.search(name) else _SAMPLED_ROWS
    if num_rows <= count or math.prod(weight.shape) <= _WHOLE_ELEMENTS:
        return ALL
    draws = np.frombuffer(blake2b(name.encode(), digest_size=64).digest(), "<u4")
    begins = [index * num_rows // count for index in range(count + 1)]
    return np.array(
        [begin + int(draw) % (end - begin) for begin, end, draw in zip(begins, begins[1:], draws, strict=False)],
        np.int64,
    )


def plain(name: str, tensor: StoredTensor) -> Weight:
    """Return a tensor that is not packed; those of GPT-OSS' experts, [num_experts, inputs, outputs], turned."""
    if not name.endswith(_STACKED_EXPERTS) or len(tensor.shape) < 3:
        return Weight(tensor.shape, tensor.dtype, lambda rows: tensor.floats(tensor.matrix()[rows]))
    num_experts, num_inputs, num_outputs = tensor.shape

    def read(rows: Rows) -> Floats:
        experts, outputs = np.divmod(np.arange(num_experts * num_outputs)[rows], num_outputs)
        return tensor.floats(tensor.array()[experts, :, outputs])

    return Weight((num_experts, num_outputs, num_inputs), tensor.dtype, read, is_turned=True)


def _affine(stored: Mapping[str, StoredTensor], module: str, quantization: Quantization) -> Weight:
    words, scales = (stored[f"{module}.{part}"] for part in ("weight", "scales"))
    kind = quantization.of(module)
    shape = (*words.shape[:-1], words.shape[-1] * 32 // kind.bits)
    if isinstance(kind, Micro):
        packed = PackedRows(words, scales, None, kind)
        return Weight(shape, "F32", lambda rows: kind.unpack(words.matrix()[rows], scales.matrix()[rows]), packed)
    biases = stored[f"{module}.biases"]

    def read(rows: Rows) -> Floats:
        return kind.unpack(words.matrix()[rows], *(each.floats(each.matrix()[rows]) for each in (scales, biases)))

    return Weight(shape, scales.dtype, read, PackedRows(words, scales, biases, kind))


def _in_names_of_hub(name: str, weight: Weight) -> Iterator[tuple[str, Weight]]:
    """Yield a tensor, or its parts where MLX stacks those of experts."""
    match = _EXPERTS_OF_MLX.fullmatch(name)
    if match is None:
        yield name, weight
        return
    block, projection = match["block"], _PROJECTIONS_OF_NEMOTRON.get(match["projection"], match["projection"])
    if block.endswith("block_sparse_moe."):
        projection = _PROJECTIONS_OF_MIXTRAL[projection]
    num_rows = math.prod(weight.shape[1:-1])
    for expert in range(weight.shape[0]):
        yield f"{block}experts.{expert}.{projection}.{match['part']}", _part(weight, expert * num_rows)


def _experts_of(name: str, tensor: StoredTensor) -> Iterator[tuple[str, Weight]]:
    """Yield the weights of experts that are stacked as Qwen 3.5 has them: gates and others are halves of one."""
    block, _, projection = name.rpartition(".")
    parts = ("gate_proj", "up_proj") if projection == "gate_up_proj" else ("down_proj",)
    num_experts, num_outputs, num_inputs = tensor.shape
    shape = (num_experts, num_outputs // len(parts), num_inputs)
    whole = Weight(shape, tensor.dtype, lambda rows: tensor.floats(tensor.matrix()[rows]))
    for index in range(num_experts * len(parts)):
        own = f"{block}.{index // len(parts)}.{parts[index % len(parts)]}.weight"
        yield own, _part(whole, index * shape[1])


def _part(weight: Weight, first_row: int) -> Weight:
    shape = weight.shape[1:]

    def read(rows: Rows) -> Floats:
        if isinstance(rows, slice):
            begin, end, step = rows.indices(math.prod(shape[:-1]))
            return weight.read(slice(first_row + begin, first_row + end, step))
        return weight.read(first_row + rows)

    return Weight(shape, weight.dtype, read)


def _join_experts(weights: dict[str, Weight], layer: str) -> None:
    """Name tensors of GPT-OSS' experts as Hugging Face does: MLX has gates and others in tensors of their own."""
    experts = f"{layer}.mlp.experts."
    for part, told in (("weight", ""), ("bias", "_bias")):
        gates, others, down = (weights.pop(f"{experts}{name}_proj.{part}") for name in _PARTS_OF_EXPERTS)
        weights[f"{experts}down_proj{told}"] = down._replace(is_turned=part == "weight")
        weights[f"{experts}gate_up_proj{told}"] = _interleaved(gates, others, is_turned=part == "weight")


def _joined_heads(keys: Weight, values: Weight) -> Weight:
    """Return what makes heads of latents as Hugging Face has it: of each head keys and then values are outputs.

    MLX has them apart, and keys turned: [num_heads, rank, key size] and [num_heads, value size, rank].
    """
    (num_heads, rank, num_keys), num_values = keys.shape, values.shape[1]
    num_outputs = num_keys + num_values

    def read(rows: Rows) -> Floats:
        heads, places = np.divmod(np.arange(num_heads * num_outputs)[rows], num_outputs)
        result = np.empty((len(heads), rank), np.float32)
        for head in np.unique(heads):
            own = [
                part.read(slice(head * size, (head + 1) * size)) for part, size in ((keys, rank), (values, num_values))
            ]
            result[heads == head] = np.concatenate([own[0].T, own[1]])[places[heads == head]]
        return result

    return Weight((num_heads * num_outputs, rank), keys.dtype, read)


def _interleaved(first: Weight, second: Weight, *, is_turned: bool) -> Weight:
    """Return two tensors as one, whose outputs are those of each in turn."""
    if not is_turned:
        shape = (first.shape[0], 2 * first.shape[1])
        return Weight(
            shape, first.dtype, lambda rows: np.stack([first.read(rows), second.read(rows)], -1).reshape(-1, shape[1])
        )
    return _in_turn(first, second, num_rows=1)._replace(is_turned=True)


def _in_turn(first: Weight, second: Weight, *, num_rows: int) -> Weight:
    """Return two tensors of experts as one, whose outputs are so many of one, as many of the other, and so on."""
    num_experts, num_outputs, num_inputs = first.shape

    def read(rows: Rows) -> Floats:
        chosen = np.arange(2 * num_experts * num_outputs)[rows]
        result = np.empty((len(chosen), num_inputs), np.float32)
        places, own = chosen // num_rows % 2, chosen // (2 * num_rows) * num_rows + chosen % num_rows
        for place, weight in enumerate((first, second)):
            result[places == place] = weight.read(own[places == place])
        return result

    return Weight((num_experts, 2 * num_outputs, num_inputs), first.dtype, read)
