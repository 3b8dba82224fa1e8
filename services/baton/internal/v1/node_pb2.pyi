from baton.internal.v1 import kv_pb2 as _kv_pb2
from baton.v1 import generation_pb2 as _generation_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_ROLE_UNSPECIFIED: _ClassVar[NodeRole]
    NODE_ROLE_PREFILL: _ClassVar[NodeRole]
    NODE_ROLE_DECODE: _ClassVar[NodeRole]
    NODE_ROLE_WORKER: _ClassVar[NodeRole]
NODE_ROLE_UNSPECIFIED: NodeRole
NODE_ROLE_PREFILL: NodeRole
NODE_ROLE_DECODE: NodeRole
NODE_ROLE_WORKER: NodeRole

class ModelShape(_message.Message):
    __slots__ = ("layer_count", "linear_parameter_count", "head_parameter_count", "attention_head_count", "kv_head_count", "head_dim", "weight_byte_count", "kv_byte_count_per_token", "max_context_token_count", "vocabulary_size", "attention_element_count", "step_attention_element_count", "state_byte_count")
    LAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    LINEAR_PARAMETER_COUNT_FIELD_NUMBER: _ClassVar[int]
    HEAD_PARAMETER_COUNT_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_HEAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    KV_HEAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    KV_BYTE_COUNT_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_ELEMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    STEP_ATTENTION_ELEMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    layer_count: int
    linear_parameter_count: int
    head_parameter_count: int
    attention_head_count: int
    kv_head_count: int
    head_dim: int
    weight_byte_count: int
    kv_byte_count_per_token: int
    max_context_token_count: int
    vocabulary_size: int
    attention_element_count: int
    step_attention_element_count: int
    state_byte_count: int
    def __init__(self, layer_count: _Optional[int] = ..., linear_parameter_count: _Optional[int] = ..., head_parameter_count: _Optional[int] = ..., attention_head_count: _Optional[int] = ..., kv_head_count: _Optional[int] = ..., head_dim: _Optional[int] = ..., weight_byte_count: _Optional[int] = ..., kv_byte_count_per_token: _Optional[int] = ..., max_context_token_count: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., attention_element_count: _Optional[int] = ..., step_attention_element_count: _Optional[int] = ..., state_byte_count: _Optional[int] = ...) -> None: ...

class NodeProfile(_message.Message):
    __slots__ = ("prefill_flops", "prefill_overhead", "decode_flops", "decode_bytes_per_second", "step_overhead", "measured_at", "source")
    PREFILL_FLOPS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_OVERHEAD_FIELD_NUMBER: _ClassVar[int]
    DECODE_FLOPS_FIELD_NUMBER: _ClassVar[int]
    DECODE_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    STEP_OVERHEAD_FIELD_NUMBER: _ClassVar[int]
    MEASURED_AT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    prefill_flops: float
    prefill_overhead: _duration_pb2.Duration
    decode_flops: float
    decode_bytes_per_second: float
    step_overhead: _duration_pb2.Duration
    measured_at: _timestamp_pb2.Timestamp
    source: str
    def __init__(self, prefill_flops: _Optional[float] = ..., prefill_overhead: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., decode_flops: _Optional[float] = ..., decode_bytes_per_second: _Optional[float] = ..., step_overhead: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., measured_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., source: _Optional[str] = ...) -> None: ...

class NodeDescription(_message.Message):
    __slots__ = ("node_id", "epoch", "role", "address", "engine", "device", "model_id", "kv_layout", "model_shape", "profile", "block_count", "block_token_count", "max_batch_size", "tokenizer_digest", "eos_token_ids", "fast_address", "wire_abilities", "is_cache_private", "adapters", "max_step_token_count", "place", "block_count_cause", "device_id", "model_context_token_count", "text_digest")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    KV_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHAPE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FAST_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WIRE_ABILITIES_FIELD_NUMBER: _ClassVar[int]
    IS_CACHE_PRIVATE_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_CAUSE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_CONTEXT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TEXT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    epoch: int
    role: NodeRole
    address: str
    engine: str
    device: str
    model_id: str
    kv_layout: _kv_pb2.KvLayout
    model_shape: ModelShape
    profile: NodeProfile
    block_count: int
    block_token_count: int
    max_batch_size: int
    tokenizer_digest: str
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    fast_address: str
    wire_abilities: _containers.RepeatedCompositeFieldContainer[WireAbility]
    is_cache_private: bool
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    max_step_token_count: int
    place: KubernetesPlace
    block_count_cause: str
    device_id: str
    model_context_token_count: int
    text_digest: str
    def __init__(self, node_id: _Optional[str] = ..., epoch: _Optional[int] = ..., role: _Optional[_Union[NodeRole, str]] = ..., address: _Optional[str] = ..., engine: _Optional[str] = ..., device: _Optional[str] = ..., model_id: _Optional[str] = ..., kv_layout: _Optional[_Union[_kv_pb2.KvLayout, _Mapping]] = ..., model_shape: _Optional[_Union[ModelShape, _Mapping]] = ..., profile: _Optional[_Union[NodeProfile, _Mapping]] = ..., block_count: _Optional[int] = ..., block_token_count: _Optional[int] = ..., max_batch_size: _Optional[int] = ..., tokenizer_digest: _Optional[str] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., fast_address: _Optional[str] = ..., wire_abilities: _Optional[_Iterable[_Union[WireAbility, _Mapping]]] = ..., is_cache_private: bool = ..., adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., max_step_token_count: _Optional[int] = ..., place: _Optional[_Union[KubernetesPlace, _Mapping]] = ..., block_count_cause: _Optional[str] = ..., device_id: _Optional[str] = ..., model_context_token_count: _Optional[int] = ..., text_digest: _Optional[str] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class KubernetesPlace(_message.Message):
    __slots__ = ("node_name", "labels", "taints", "allocatable", "accelerator_counts")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class AllocatableEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class AcceleratorCountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TAINTS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATABLE_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_COUNTS_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    labels: _containers.ScalarMap[str, str]
    taints: _containers.RepeatedScalarFieldContainer[str]
    allocatable: _containers.ScalarMap[str, str]
    accelerator_counts: _containers.ScalarMap[str, int]
    def __init__(self, node_name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., taints: _Optional[_Iterable[str]] = ..., allocatable: _Optional[_Mapping[str, str]] = ..., accelerator_counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class WireAbility(_message.Message):
    __slots__ = ("dtype", "pack_bytes_per_second", "unpack_bytes_per_second", "key_loss", "value_loss")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    PACK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    UNPACK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    KEY_LOSS_FIELD_NUMBER: _ClassVar[int]
    VALUE_LOSS_FIELD_NUMBER: _ClassVar[int]
    dtype: _generation_pb2.KvDtype
    pack_bytes_per_second: float
    unpack_bytes_per_second: float
    key_loss: float
    value_loss: float
    def __init__(self, dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., pack_bytes_per_second: _Optional[float] = ..., unpack_bytes_per_second: _Optional[float] = ..., key_loss: _Optional[float] = ..., value_loss: _Optional[float] = ...) -> None: ...

class LoadReport(_message.Message):
    __slots__ = ("waiting_request_count", "running_request_count", "pending_prompt_token_count", "free_block_count", "mean_context_token_count", "step_count", "is_draining", "accepted_placement_ids", "system", "tier_rates", "is_sparing_memory", "queued_prompts", "landing_bytes_per_second", "landing_byte_count", "decoding_request_count", "export_request_count", "reading_bytes_per_second", "age", "wanted_block_count")
    WAITING_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    PENDING_PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEAN_CONTEXT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    STEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PLACEMENT_IDS_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    TIER_RATES_FIELD_NUMBER: _ClassVar[int]
    IS_SPARING_MEMORY_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    LANDING_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LANDING_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DECODING_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    EXPORT_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    READING_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    WANTED_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    waiting_request_count: int
    running_request_count: int
    pending_prompt_token_count: int
    free_block_count: int
    mean_context_token_count: float
    step_count: int
    is_draining: bool
    accepted_placement_ids: _containers.RepeatedScalarFieldContainer[str]
    system: SystemSample
    tier_rates: TierRates
    is_sparing_memory: bool
    queued_prompts: _containers.RepeatedCompositeFieldContainer[QueuedPrompt]
    landing_bytes_per_second: float
    landing_byte_count: int
    decoding_request_count: int
    export_request_count: int
    reading_bytes_per_second: float
    age: _duration_pb2.Duration
    wanted_block_count: int
    def __init__(self, waiting_request_count: _Optional[int] = ..., running_request_count: _Optional[int] = ..., pending_prompt_token_count: _Optional[int] = ..., free_block_count: _Optional[int] = ..., mean_context_token_count: _Optional[float] = ..., step_count: _Optional[int] = ..., is_draining: bool = ..., accepted_placement_ids: _Optional[_Iterable[str]] = ..., system: _Optional[_Union[SystemSample, _Mapping]] = ..., tier_rates: _Optional[_Union[TierRates, _Mapping]] = ..., is_sparing_memory: bool = ..., queued_prompts: _Optional[_Iterable[_Union[QueuedPrompt, _Mapping]]] = ..., landing_bytes_per_second: _Optional[float] = ..., landing_byte_count: _Optional[int] = ..., decoding_request_count: _Optional[int] = ..., export_request_count: _Optional[int] = ..., reading_bytes_per_second: _Optional[float] = ..., age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., wanted_block_count: _Optional[int] = ...) -> None: ...

class QueuedPrompt(_message.Message):
    __slots__ = ("placement_id", "done_token_count", "remaining_token_count")
    PLACEMENT_ID_FIELD_NUMBER: _ClassVar[int]
    DONE_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    placement_id: str
    done_token_count: int
    remaining_token_count: int
    def __init__(self, placement_id: _Optional[str] = ..., done_token_count: _Optional[int] = ..., remaining_token_count: _Optional[int] = ...) -> None: ...

class TierRates(_message.Message):
    __slots__ = ("host_bytes_per_second", "disk_bytes_per_second", "max_read_block_count")
    HOST_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MAX_READ_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    host_bytes_per_second: float
    disk_bytes_per_second: float
    max_read_block_count: int
    def __init__(self, host_bytes_per_second: _Optional[float] = ..., disk_bytes_per_second: _Optional[float] = ..., max_read_block_count: _Optional[int] = ...) -> None: ...

class SystemSample(_message.Message):
    __slots__ = ("gpu_usage", "temperature_celsius", "power_watts", "performance_cpu_usage", "efficiency_cpu_usage", "memory_byte_count", "available_memory_byte_count", "swap_byte_count", "available_swap_byte_count", "gpu_power_watts", "ane_power_watts", "cpu_power_watts", "available_gpu_memory_byte_count")
    GPU_USAGE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    PERFORMANCE_CPU_USAGE_FIELD_NUMBER: _ClassVar[int]
    EFFICIENCY_CPU_USAGE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_MEMORY_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SWAP_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_SWAP_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    GPU_POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    ANE_POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    CPU_POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_GPU_MEMORY_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    gpu_usage: float
    temperature_celsius: float
    power_watts: float
    performance_cpu_usage: float
    efficiency_cpu_usage: float
    memory_byte_count: int
    available_memory_byte_count: int
    swap_byte_count: int
    available_swap_byte_count: int
    gpu_power_watts: float
    ane_power_watts: float
    cpu_power_watts: float
    available_gpu_memory_byte_count: int
    def __init__(self, gpu_usage: _Optional[float] = ..., temperature_celsius: _Optional[float] = ..., power_watts: _Optional[float] = ..., performance_cpu_usage: _Optional[float] = ..., efficiency_cpu_usage: _Optional[float] = ..., memory_byte_count: _Optional[int] = ..., available_memory_byte_count: _Optional[int] = ..., swap_byte_count: _Optional[int] = ..., available_swap_byte_count: _Optional[int] = ..., gpu_power_watts: _Optional[float] = ..., ane_power_watts: _Optional[float] = ..., cpu_power_watts: _Optional[float] = ..., available_gpu_memory_byte_count: _Optional[int] = ...) -> None: ...

class LinkMeasurement(_message.Message):
    __slots__ = ("from_node_id", "bytes_per_second", "round_trip", "measured_at")
    FROM_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_FIELD_NUMBER: _ClassVar[int]
    MEASURED_AT_FIELD_NUMBER: _ClassVar[int]
    from_node_id: str
    bytes_per_second: float
    round_trip: _duration_pb2.Duration
    measured_at: _timestamp_pb2.Timestamp
    def __init__(self, from_node_id: _Optional[str] = ..., bytes_per_second: _Optional[float] = ..., round_trip: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., measured_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
