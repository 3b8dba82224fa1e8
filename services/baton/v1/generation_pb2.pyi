from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALLS: _ClassVar[FinishReason]

class KvDtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KV_DTYPE_UNSPECIFIED: _ClassVar[KvDtype]
    KV_DTYPE_FLOAT32: _ClassVar[KvDtype]
    KV_DTYPE_FLOAT16: _ClassVar[KvDtype]
    KV_DTYPE_BFLOAT16: _ClassVar[KvDtype]
    KV_DTYPE_INT8: _ClassVar[KvDtype]
    KV_DTYPE_AFFINE8: _ClassVar[KvDtype]
    KV_DTYPE_FP8: _ClassVar[KvDtype]

class KvTransport(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KV_TRANSPORT_UNSPECIFIED: _ClassVar[KvTransport]
    KV_TRANSPORT_GRPC: _ClassVar[KvTransport]
    KV_TRANSPORT_FAST: _ClassVar[KvTransport]
    KV_TRANSPORT_SHARED: _ClassVar[KvTransport]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_TOOL_CALLS: FinishReason
KV_DTYPE_UNSPECIFIED: KvDtype
KV_DTYPE_FLOAT32: KvDtype
KV_DTYPE_FLOAT16: KvDtype
KV_DTYPE_BFLOAT16: KvDtype
KV_DTYPE_INT8: KvDtype
KV_DTYPE_AFFINE8: KvDtype
KV_DTYPE_FP8: KvDtype
KV_TRANSPORT_UNSPECIFIED: KvTransport
KV_TRANSPORT_GRPC: KvTransport
KV_TRANSPORT_FAST: KvTransport
KV_TRANSPORT_SHARED: KvTransport

class SamplingParameters(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "stop_token_ids", "ignore_eos", "min_token_count", "max_token_count", "top_logprob_count", "prompt_logprob_count", "structured_output", "bad_words")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROB_COUNT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROB_COUNT_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    min_token_count: int
    max_token_count: int
    top_logprob_count: int
    prompt_logprob_count: int
    structured_output: StructuredOutput
    bad_words: _containers.RepeatedCompositeFieldContainer[BadWord]
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., min_token_count: _Optional[int] = ..., max_token_count: _Optional[int] = ..., top_logprob_count: _Optional[int] = ..., prompt_logprob_count: _Optional[int] = ..., structured_output: _Optional[_Union[StructuredOutput, _Mapping]] = ..., bad_words: _Optional[_Iterable[_Union[BadWord, _Mapping]]] = ...) -> None: ...

class BadWord(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class StructuredOutput(_message.Message):
    __slots__ = ("json_schema", "regex", "lark")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    LARK_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    regex: str
    lark: str
    def __init__(self, json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., lark: _Optional[str] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob", "alternatives", "rank", "text", "token_bytes")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    alternatives: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    rank: int
    text: str
    token_bytes: bytes
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., alternatives: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., rank: _Optional[int] = ..., text: _Optional[str] = ..., token_bytes: _Optional[bytes] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_token_count", "cached_token_count", "completion_token_count", "seed", "reasoning_token_count")
    PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    prompt_token_count: int
    cached_token_count: int
    completion_token_count: int
    seed: int
    reasoning_token_count: int
    def __init__(self, prompt_token_count: _Optional[int] = ..., cached_token_count: _Optional[int] = ..., completion_token_count: _Optional[int] = ..., seed: _Optional[int] = ..., reasoning_token_count: _Optional[int] = ...) -> None: ...

class PlacementSummary(_message.Message):
    __slots__ = ("decode_node_id", "prefill_node_id", "placement_id", "decode_cached_token_count", "prefill_cached_token_count", "kv_byte_count", "kv_frame_count", "queue_duration", "prefill_duration", "transfer_duration", "exposed_duration", "decode_duration", "fallback_reason", "preemption_count", "completion_token_count", "decode_peak_memory_byte_count", "prefill_peak_memory_byte_count", "prefill_energy_joules", "decode_energy_joules", "kv_transport", "kv_transport_reason", "kv_break_reasons", "kv_resume_count", "kv_kept_token_count", "kv_timeline", "key_wire_dtype", "value_wire_dtype", "pull_node_id", "pulled_token_count", "pull_duration", "shared_token_count", "join_duration", "mean_batch_size")
    DECODE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_ID_FIELD_NUMBER: _ClassVar[int]
    DECODE_CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    KV_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    KV_FRAME_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DURATION_FIELD_NUMBER: _ClassVar[int]
    PREFILL_DURATION_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_DURATION_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_DURATION_FIELD_NUMBER: _ClassVar[int]
    DECODE_DURATION_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    PREEMPTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DECODE_PEAK_MEMORY_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_PEAK_MEMORY_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ENERGY_JOULES_FIELD_NUMBER: _ClassVar[int]
    DECODE_ENERGY_JOULES_FIELD_NUMBER: _ClassVar[int]
    KV_TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    KV_TRANSPORT_REASON_FIELD_NUMBER: _ClassVar[int]
    KV_BREAK_REASONS_FIELD_NUMBER: _ClassVar[int]
    KV_RESUME_COUNT_FIELD_NUMBER: _ClassVar[int]
    KV_KEPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    KV_TIMELINE_FIELD_NUMBER: _ClassVar[int]
    KEY_WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    PULL_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PULLED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    PULL_DURATION_FIELD_NUMBER: _ClassVar[int]
    SHARED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    JOIN_DURATION_FIELD_NUMBER: _ClassVar[int]
    MEAN_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    decode_node_id: str
    prefill_node_id: str
    placement_id: str
    decode_cached_token_count: int
    prefill_cached_token_count: int
    kv_byte_count: int
    kv_frame_count: int
    queue_duration: _duration_pb2.Duration
    prefill_duration: _duration_pb2.Duration
    transfer_duration: _duration_pb2.Duration
    exposed_duration: _duration_pb2.Duration
    decode_duration: _duration_pb2.Duration
    fallback_reason: str
    preemption_count: int
    completion_token_count: int
    decode_peak_memory_byte_count: int
    prefill_peak_memory_byte_count: int
    prefill_energy_joules: float
    decode_energy_joules: float
    kv_transport: KvTransport
    kv_transport_reason: str
    kv_break_reasons: _containers.RepeatedScalarFieldContainer[str]
    kv_resume_count: int
    kv_kept_token_count: int
    kv_timeline: KvTimeline
    key_wire_dtype: KvDtype
    value_wire_dtype: KvDtype
    pull_node_id: str
    pulled_token_count: int
    pull_duration: _duration_pb2.Duration
    shared_token_count: int
    join_duration: _duration_pb2.Duration
    mean_batch_size: float
    def __init__(self, decode_node_id: _Optional[str] = ..., prefill_node_id: _Optional[str] = ..., placement_id: _Optional[str] = ..., decode_cached_token_count: _Optional[int] = ..., prefill_cached_token_count: _Optional[int] = ..., kv_byte_count: _Optional[int] = ..., kv_frame_count: _Optional[int] = ..., queue_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., prefill_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., transfer_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., exposed_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., decode_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., fallback_reason: _Optional[str] = ..., preemption_count: _Optional[int] = ..., completion_token_count: _Optional[int] = ..., decode_peak_memory_byte_count: _Optional[int] = ..., prefill_peak_memory_byte_count: _Optional[int] = ..., prefill_energy_joules: _Optional[float] = ..., decode_energy_joules: _Optional[float] = ..., kv_transport: _Optional[_Union[KvTransport, str]] = ..., kv_transport_reason: _Optional[str] = ..., kv_break_reasons: _Optional[_Iterable[str]] = ..., kv_resume_count: _Optional[int] = ..., kv_kept_token_count: _Optional[int] = ..., kv_timeline: _Optional[_Union[KvTimeline, _Mapping]] = ..., key_wire_dtype: _Optional[_Union[KvDtype, str]] = ..., value_wire_dtype: _Optional[_Union[KvDtype, str]] = ..., pull_node_id: _Optional[str] = ..., pulled_token_count: _Optional[int] = ..., pull_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., shared_token_count: _Optional[int] = ..., join_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., mean_batch_size: _Optional[float] = ...) -> None: ...

class KvTimeline(_message.Message):
    __slots__ = ("frames", "computed_micros")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_MICROS_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[KvFrameTiming]
    computed_micros: int
    def __init__(self, frames: _Optional[_Iterable[_Union[KvFrameTiming, _Mapping]]] = ..., computed_micros: _Optional[int] = ...) -> None: ...

class KvFrameTiming(_message.Message):
    __slots__ = ("layer_begin", "layer_count", "token_begin", "token_count", "byte_count", "ready_micros", "arrived_micros")
    LAYER_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BEGIN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    READY_MICROS_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_MICROS_FIELD_NUMBER: _ClassVar[int]
    layer_begin: int
    layer_count: int
    token_begin: int
    token_count: int
    byte_count: int
    ready_micros: int
    arrived_micros: int
    def __init__(self, layer_begin: _Optional[int] = ..., layer_count: _Optional[int] = ..., token_begin: _Optional[int] = ..., token_count: _Optional[int] = ..., byte_count: _Optional[int] = ..., ready_micros: _Optional[int] = ..., arrived_micros: _Optional[int] = ...) -> None: ...
