from baton.internal.v1 import kv_pb2 as _kv_pb2
from baton.v1 import generation_pb2 as _generation_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrefillRequest(_message.Message):
    __slots__ = ("request_id", "attempt", "token_ids", "output_token_count", "kv_token_begin", "expected_layout", "sampling", "layers_per_frame", "wire_dtype", "cache_salt", "bypass_prefix_cache", "chunk_token_count", "priority", "stream_number", "layer_token_begins", "value_wire_dtype", "shared_memory", "adapter", "placement_id", "transfer", "tenant", "tenant_weight")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    KV_TOKEN_BEGIN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LAYERS_PER_FRAME_FIELD_NUMBER: _ClassVar[int]
    WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    BYPASS_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    STREAM_NUMBER_FIELD_NUMBER: _ClassVar[int]
    LAYER_TOKEN_BEGINS_FIELD_NUMBER: _ClassVar[int]
    VALUE_WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TENANT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    output_token_count: int
    kv_token_begin: int
    expected_layout: _kv_pb2.KvLayout
    sampling: _generation_pb2.SamplingParameters
    layers_per_frame: int
    wire_dtype: _generation_pb2.KvDtype
    cache_salt: str
    bypass_prefix_cache: bool
    chunk_token_count: int
    priority: int
    stream_number: int
    layer_token_begins: _containers.RepeatedScalarFieldContainer[int]
    value_wire_dtype: _generation_pb2.KvDtype
    shared_memory: _kv_pb2.SharedMemoryOffer
    adapter: str
    placement_id: str
    transfer: _kv_pb2.TransferGrant
    tenant: str
    tenant_weight: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., output_token_count: _Optional[int] = ..., kv_token_begin: _Optional[int] = ..., expected_layout: _Optional[_Union[_kv_pb2.KvLayout, _Mapping]] = ..., sampling: _Optional[_Union[_generation_pb2.SamplingParameters, _Mapping]] = ..., layers_per_frame: _Optional[int] = ..., wire_dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., cache_salt: _Optional[str] = ..., bypass_prefix_cache: bool = ..., chunk_token_count: _Optional[int] = ..., priority: _Optional[int] = ..., stream_number: _Optional[int] = ..., layer_token_begins: _Optional[_Iterable[int]] = ..., value_wire_dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., shared_memory: _Optional[_Union[_kv_pb2.SharedMemoryOffer, _Mapping]] = ..., adapter: _Optional[str] = ..., placement_id: _Optional[str] = ..., transfer: _Optional[_Union[_kv_pb2.TransferGrant, _Mapping]] = ..., tenant: _Optional[str] = ..., tenant_weight: _Optional[int] = ...) -> None: ...

class PrefillResponse(_message.Message):
    __slots__ = ("layout", "frame", "first_token", "summary", "request_crc32c", "uses_shared_memory", "transfer_answer", "clock")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CRC32C_FIELD_NUMBER: _ClassVar[int]
    USES_SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_ANSWER_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    layout: _kv_pb2.KvLayout
    frame: _kv_pb2.KvFrame
    first_token: FirstToken
    summary: _kv_pb2.KvSummary
    request_crc32c: int
    uses_shared_memory: bool
    transfer_answer: bytes
    clock: _duration_pb2.Duration
    def __init__(self, layout: _Optional[_Union[_kv_pb2.KvLayout, _Mapping]] = ..., frame: _Optional[_Union[_kv_pb2.KvFrame, _Mapping]] = ..., first_token: _Optional[_Union[FirstToken, _Mapping]] = ..., summary: _Optional[_Union[_kv_pb2.KvSummary, _Mapping]] = ..., request_crc32c: _Optional[int] = ..., uses_shared_memory: bool = ..., transfer_answer: _Optional[bytes] = ..., clock: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("token", "crc32c", "queue_duration", "compute_duration", "cached_token_count", "shared_token_count")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DURATION_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_DURATION_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHARED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    token: _generation_pb2.TokenLogprob
    crc32c: int
    queue_duration: _duration_pb2.Duration
    compute_duration: _duration_pb2.Duration
    cached_token_count: int
    shared_token_count: int
    def __init__(self, token: _Optional[_Union[_generation_pb2.TokenLogprob, _Mapping]] = ..., crc32c: _Optional[int] = ..., queue_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., compute_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., cached_token_count: _Optional[int] = ..., shared_token_count: _Optional[int] = ...) -> None: ...

class ProbeLinkRequest(_message.Message):
    __slots__ = ("byte_count", "message_byte_count")
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    byte_count: int
    message_byte_count: int
    def __init__(self, byte_count: _Optional[int] = ..., message_byte_count: _Optional[int] = ...) -> None: ...

class ProbeLinkResponse(_message.Message):
    __slots__ = ("payload",)
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    def __init__(self, payload: _Optional[bytes] = ...) -> None: ...
