"""Makes a torch runner of a Hugging Face folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from baton.engine.checkpoint.engine_support import stays_packed_by_torch
from baton.engine.checkpoint.lora import LoraFolder, read_adapters
from baton.engine.checkpoint.model_folder import Checkpoint, read_checkpoint
from baton.engine.checkpoint.weights import ALL, Weight
from baton.engine.kv_cache import pool_size
from baton.engine.runners.base import ModelInfo, kv_dtype_of
from baton.engine.runners.torch.cuda_graph.runner import CudaGraphRunner
from baton.engine.runners.torch.llama.model import Alone, LlamaModel, Ranks
from baton.engine.runners.torch.llama.support import is_llama_like
from baton.engine.runners.torch.lora import AdapterLayers, load_adapter
from baton.engine.runners.torch.ops.choose import choose_ops
from baton.engine.runners.torch.ops.device import device_memory
from baton.engine.runners.torch.ops.device_ops import DeviceOps
from baton.engine.runners.torch.ops.eager.linear import PACKED
from baton.engine.runners.torch.ops.eager.quantised import WeightDtype, check_supported, revision_of, weight_bits
from baton.engine.runners.torch.runner import Backbone, TorchRunner
from baton.engine.runners.torch.transformers_model import ATTENTION_NAME, TransformersModel, register_attention
from baton.errors import ConfigurationError

log = logging.getLogger(__name__)

ModelCode = Literal["auto", "baton", "transformers"]
"""Whose forward pass computes a model."""

_FAMILIES_ALIKE = {"kimi_k2": "deepseek_v3"}
"""What computes the same as a family that transformers does not know."""
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model folder is loaded; the same in every rank."""

    directory: Path
    """Folder with config.json and safetensors files."""
    model_id: str
    num_blocks: int | None
    """Blocks in the KV pool, 1 or more; None: as many as memory leaves room for."""
    dtype: str = "float32"
    """"float32", "bfloat16" or "float16", of weights and cache."""
    device: str = "cpu"
    """"cpu", "cuda" or "cuda:N"."""
    block_tokens: int = 16
    """Tokens of one block, 1 or more."""
    num_threads: int | None = None
    """CPU threads of the whole process; None leaves torch's choice."""
    model_code: ModelCode = "auto"
    """"baton": Baton's own forward pass; "transformers": the family's own; "auto": Baton's where it computes the
    same."""
    bounds: pool_size.PoolBounds = pool_size.DEFAULT_BOUNDS
    """Of the room that blocks may take; its batches have buffers that stay where they are."""
    uses_decode_buffers: bool | None = None
    """Whether decode runs over such buffers, on CUDA as a captured graph; None: on CUDA, where the model is one that
    Baton computes."""

    weight_dtype: WeightDtype = "auto"
    """In what the projections of the layers are held; auto: as `dtype` says."""
    adapters: Mapping[str, Path] = field(default_factory=dict)

    @property
    def torch_device(self) -> torch.device:
        """Return the device."""
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Return the number format."""
        return getattr(torch, self.dtype)

    def of_rank(self, rank: int) -> LoadOptions:
        """Return the same for another rank: on CUDA each has the device behind the one before it."""
        device = self.torch_device
        return replace(self, device=f"cuda:{(device.index or 0) + rank}") if device.type == "cuda" else self

    def check(self) -> None:
        """Check every value; raise ConfigurationError naming one that cannot be."""
        self.check_device()
        if self.dtype not in _DTYPES:
            raise ConfigurationError(f"dtype {self.dtype!r} is not supported; supported are {', '.join(_DTYPES)}")
        if (self.num_blocks is not None and self.num_blocks < 1) or self.block_tokens < 1:
            sizes = f"num_blocks {self.num_blocks} and block_tokens {self.block_tokens}"
            raise ConfigurationError(f"{sizes} must be 1 or more")
        check_supported(self.weight_dtype, self.torch_device)

    def check_device(self) -> None:
        """Check that the device is there; raise ConfigurationError if it is not."""
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise ConfigurationError(f"device {self.device!r} is not a device of torch: {error}") from error
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            seen = f"torch sees {torch.cuda.device_count()} CUDA devices"
            raise ConfigurationError(f"device {self.device!r} is not present; {seen}")


def load_torch_runner(directory: Path, *, model_id: str, num_blocks: int | None, **options: Any) -> TorchRunner:
    """Load a folder, running no code of it; raise ConfigurationError if it cannot be served, or does not fit."""
    return load_alone(LoadOptions(directory, model_id, num_blocks, **options))


def load_alone(options: LoadOptions) -> TorchRunner:
    """Load a folder into this process; raise ConfigurationError if it cannot be served, or does not fit."""
    return load_share(options, Alone())


def describe_whole(options: LoadOptions) -> ModelInfo:
    """Return what the whole model is, unloaded; raise ConfigurationError if it cannot be served so."""
    options.check()
    return _read(options).info


class _Whole(NamedTuple):
    """What is loaded, before its weights are."""

    info: ModelInfo
    checkpoint: Checkpoint
    packed: Mapping[str, Weight]
    folders: tuple[LoraFolder, ...]


def _read(options: LoadOptions, ops: DeviceOps | None = None) -> _Whole:
    checkpoint = read_checkpoint(options.directory)
    packed = _packed_weights(checkpoint, options, ops) if ops else {}
    if not packed:
        checkpoint = checkpoint.unpacked()
    elif ops and ops.rounds_packed:
        checkpoint = replace(checkpoint, is_unpacked=True)
    device = _describe(options.torch_device)
    info = checkpoint.model_info(options.model_id, kv_dtype_of(options.dtype), engine="torch", device=device)
    saved_bits = 8 * options.torch_dtype.itemsize - weight_bits(options.weight_dtype, options.torch_dtype)
    revision = revision_of(info.layout.model_revision_digest, options.weight_dtype)
    rounding = info.layout.weight_rounding if options.weight_dtype == "auto" else options.weight_dtype
    folders = read_adapters(options.adapters, checkpoint)
    info = replace(
        info,
        layout=replace(info.layout, model_revision_digest=revision, weight_rounding=rounding),
        weight_bytes=info.weight_bytes
        - saved_bits * info.num_linear_parameters // 8
        - _saved_bytes(checkpoint, packed, info),
        accelerator_id=_accelerator_id(options.torch_device),
        adapters=tuple(folder.adapter for folder in folders),
    )
    return _Whole(info, checkpoint, packed, folders)


def load_share(options: LoadOptions, ranks: Ranks) -> TorchRunner:
    """Load a rank's part, all where it is alone; raise ConfigurationError if it cannot be served, or does not fit."""
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    options.check()
    ops = choose_ops(options.torch_device, options.torch_dtype)
    info, checkpoint, packed, folders = _read(options, ops if ranks.size == 1 else None)
    try:
        model = _load_model(checkpoint, packed, options, ranks)
        adapters = {
            each.adapter.name: load_adapter(each, options.torch_dtype, options.torch_device) for each in folders
        }
        backbone = _backbone_of(model, info, options, ops, ranks, adapters)
        log.info(
            "model_loaded model=%s code=%s dtype=%s device=%s rank=%d/%d weights=%r",
            *(options.model_id, backbone.name, options.dtype, options.device, ranks.rank, ranks.size),
            _weights_told(backbone, options, ops, packed),
        )
        own = ranks.share_of(info)
        chosen = _choose_pool_size(own, options, ranks)
        sizes = {"num_blocks": chosen.num_blocks, "block_tokens": options.block_tokens}
        is_captured = ops.can_capture and backbone.is_capturable
        runner: TorchRunner
        is_wanted = is_captured if options.uses_decode_buffers is None else options.uses_decode_buffers
        if is_wanted and not chosen.num_state_slots:
            runner = CudaGraphRunner(backbone, own, **sizes, ops=ops, max_batch_size=options.bounds.max_batch_size)
        else:
            runner = TorchRunner(backbone, own, **sizes, ops=ops, num_state_slots=chosen.num_state_slots)
        runner.num_blocks_cause = chosen.cause
        if options.torch_device.type == "cpu":
            runner.untaken_bytes = pool_size.pass_bytes(own.shape, options.bounds)
    except RuntimeError as error:
        cause = f"with num_blocks {options.num_blocks or 'auto'} cannot be loaded: {error}"
        raise ConfigurationError(f"model {options.directory} {cause}") from error
    ops.settle(backbone.memory())
    return runner


def _choose_pool_size(own: ModelInfo, options: LoadOptions, ranks: Ranks) -> pool_size.PoolSize:
    """Return the blocks that every rank has, once all have loaded their share."""
    block_bytes = options.block_tokens * own.layout.num_token_bytes()
    chosen = pool_size.choose_pool_size(
        options.num_blocks,
        device_memory(options.torch_device, num_ranks=ranks.size),
        pool_size.PoolModel(own.shape, options.block_tokens, block_bytes),
        options.bounds,
        least=ranks.least,
    )
    log.info("num_blocks_chosen num_blocks=%d block_bytes=%d cause=%r", chosen.num_blocks, block_bytes, chosen.cause)
    return chosen


def _packed_weights(checkpoint: Checkpoint, options: LoadOptions, ops: DeviceOps) -> Mapping[str, Weight]:
    """Return the weights that a device computes with as they are packed, by the names of their modules."""
    is_own = stays_packed_by_torch(checkpoint) and options.model_code != "transformers"
    if not is_own or options.weight_dtype != "auto":
        return {}
    return {
        name.removesuffix(".weight"): weight
        for name, weight in checkpoint.weights.items()
        if weight.packed is not None and ops.can_hold(weight.packed)
    }


def _saved_bytes(checkpoint: Checkpoint, packed: Mapping[str, Weight], info: ModelInfo) -> int:
    """Return by how much a step reads less where packed weights are not in MLX's format, of which one knows without."""
    if checkpoint.quantization is not None:
        return 0
    read = [weight for name, weight in packed.items() if checkpoint.is_tied or not name.endswith("embed_tokens")]
    return sum(
        math.prod(weight.shape) * info.layout.dtype.num_bytes - weight.packed.num_bytes
        for weight in read
        if weight.packed
    )


@dataclass(frozen=True, slots=True)
class _Unpacked:
    """A tensor of a state dictionary that is made when transformers takes it, as slices of safetensors are."""

    weight: Weight

    def __getitem__(self, rows: Any) -> torch.Tensor:
        """Return the elements; transformers asks for all."""
        tensor = torch.from_numpy(self.weight.read(ALL)).reshape(self.weight.shape)
        turned = tensor.transpose(-1, -2) if self.weight.is_turned else tensor
        return turned if rows is Ellipsis else turned[rows]


def _load_model(checkpoint: Checkpoint, packed: Mapping[str, Weight], options: LoadOptions, ranks: Ranks) -> Any:
    register_attention()
    transformers_logging.disable_progress_bar()
    source: tuple[Any, ...] = (AutoModelForCausalLM, options.directory, {})
    alike = _FAMILIES_ALIKE.get(checkpoint.family)
    if checkpoint.is_repacked or alike:  # in numbers and names that transformers does not read
        told = {key: value for key, value in checkpoint.config.items() if key != "quantization_config"}
        told["model_type"] = alike or checkpoint.family
        config = CONFIG_MAPPING[told["model_type"]].from_dict(deepcopy(told))
        tensors: dict[str, Any] = {name: _Unpacked(weight) for name, weight in checkpoint.weights.items()}
        for name, weight in packed.items():  # of the sizes, without memory
            tensors[f"{name}.weight"] = torch.zeros((), dtype=options.torch_dtype).expand(weight.shape)
        source = (MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], None, {"config": config, "state_dict": tensors})
    model_class, directory, others = source
    model, report = model_class.from_pretrained(
        directory,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        dtype=options.torch_dtype,
        attn_implementation=ATTENTION_NAME,
        output_loading_info=True,
        **others,
    )
    if missing := sorted(report["missing_keys"]):  # transformers would go on with random weights
        named = f"{len(missing)} tensors are missing, among them {missing[0]}"
        raise ConfigurationError(f"model {options.directory}: {named}")
    empty = torch.zeros((), dtype=options.torch_dtype, device=options.torch_device)
    for name, weight in packed.items():
        module = model.get_submodule(name)
        setattr(module, PACKED, weight)
        module.weight = torch.nn.Parameter(empty.expand(weight.shape), requires_grad=False)
    if packed and model.config.tie_word_embeddings:
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        head.weight = embedding.weight
        if hasattr(embedding, PACKED):
            setattr(head, PACKED, getattr(embedding, PACKED))
    if is_llama_like(model):
        ranks.take_share(model)
    return model.to(options.torch_device).eval().requires_grad_(False)


def _backbone_of(
    model: Any, info: ModelInfo, options: LoadOptions, ops: DeviceOps, ranks: Ranks, adapters: AdapterLayers
) -> Backbone:
    is_own, model_code = is_llama_like(model), options.model_code
    if options.weight_dtype != "auto" and (not is_own or model_code == "transformers"):
        cause = f"{type(model).__name__} in transformers' code keeps its weights; model_code baton rounds them"
        raise ConfigurationError(f"weight_dtype {options.weight_dtype}: {cause}")
    if ranks.size > 1 and (not is_own or model_code == "transformers"):
        cause = f"{type(model).__name__} in transformers' code is not shared out"
        raise ConfigurationError(f"tensor_parallel {ranks.size}: {cause}; only what model_code baton computes is")
    if model_code == "baton" and not is_own:
        raise ConfigurationError(f"model_code baton: {type(model).__name__} is not a model that it computes; use auto")
    if is_own and model_code != "transformers":
        return LlamaModel(model, info.layout, ops, ranks, options.weight_dtype, adapters)
    return TransformersModel(model, ops, adapters)


def _weights_told(backbone: Backbone, options: LoadOptions, ops: DeviceOps, packed: Mapping[str, Weight]) -> str:
    """Return in what form the weights are held, and why."""
    if packed:
        return f"{len(packed)} as their folder packs them, others {ops.weights_cause}"
    if backbone.name != LlamaModel.name:
        return "as loaded: transformers' code multiplies"
    if options.weight_dtype != "auto":
        return f"{options.weight_dtype}: weight_dtype says so"
    return ops.weights_cause


def _accelerator_id(device: torch.device) -> str:
    """Return a GPU's UUID, for containers number those that they see; on Apple silicon there is one."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_properties(device).uuid)
    return "metal" if device.type == "mps" else ""


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    num_threads = torch.get_num_threads()
    return f"{device.type}, {num_threads} thread{'s' if num_threads > 1 else ''}"
