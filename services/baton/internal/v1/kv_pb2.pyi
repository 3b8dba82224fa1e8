from baton.v1 import generation_pb2 as _generation_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttentionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTENTION_KIND_UNSPECIFIED: _ClassVar[AttentionKind]
    ATTENTION_KIND_FULL: _ClassVar[AttentionKind]
    ATTENTION_KIND_SLIDING: _ClassVar[AttentionKind]
    ATTENTION_KIND_STATE: _ClassVar[AttentionKind]

class RopeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROPE_STATE_UNSPECIFIED: _ClassVar[RopeState]
    ROPE_STATE_ROTATED_HALF: _ClassVar[RopeState]
    ROPE_STATE_NONE: _ClassVar[RopeState]

class FrameKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FRAME_KIND_UNSPECIFIED: _ClassVar[FrameKind]
    FRAME_KIND_KV: _ClassVar[FrameKind]
    FRAME_KIND_STATE: _ClassVar[FrameKind]
ATTENTION_KIND_UNSPECIFIED: AttentionKind
ATTENTION_KIND_FULL: AttentionKind
ATTENTION_KIND_SLIDING: AttentionKind
ATTENTION_KIND_STATE: AttentionKind
ROPE_STATE_UNSPECIFIED: RopeState
ROPE_STATE_ROTATED_HALF: RopeState
ROPE_STATE_NONE: RopeState
FRAME_KIND_UNSPECIFIED: FrameKind
FRAME_KIND_KV: FrameKind
FRAME_KIND_STATE: FrameKind

class StateTensor(_message.Message):
    __slots__ = ("name", "shape", "dtype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: _generation_pb2.KvDtype
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ...) -> None: ...

class KvLayerSpec(_message.Message):
    __slots__ = ("attention_kind", "kv_head_count", "key_head_dim", "value_head_dim", "sliding_window_token_count", "state_tensors")
    ATTENTION_KIND_FIELD_NUMBER: _ClassVar[int]
    KV_HEAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEY_HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    VALUE_HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    SLIDING_WINDOW_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATE_TENSORS_FIELD_NUMBER: _ClassVar[int]
    attention_kind: AttentionKind
    kv_head_count: int
    key_head_dim: int
    value_head_dim: int
    sliding_window_token_count: int
    state_tensors: _containers.RepeatedCompositeFieldContainer[StateTensor]
    def __init__(self, attention_kind: _Optional[_Union[AttentionKind, str]] = ..., kv_head_count: _Optional[int] = ..., key_head_dim: _Optional[int] = ..., value_head_dim: _Optional[int] = ..., sliding_window_token_count: _Optional[int] = ..., state_tensors: _Optional[_Iterable[_Union[StateTensor, _Mapping]]] = ...) -> None: ...

class KvLayout(_message.Message):
    __slots__ = ("protocol_version", "model_id", "model_revision_digest", "tokenizer_digest", "layers", "rope_state", "dtype", "wire_dtype", "value_wire_dtype", "weight_rounding")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    ROPE_STATE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_ROUNDING_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model_id: str
    model_revision_digest: str
    tokenizer_digest: str
    layers: _containers.RepeatedCompositeFieldContainer[KvLayerSpec]
    rope_state: RopeState
    dtype: _generation_pb2.KvDtype
    wire_dtype: _generation_pb2.KvDtype
    value_wire_dtype: _generation_pb2.KvDtype
    weight_rounding: str
    def __init__(self, protocol_version: _Optional[int] = ..., model_id: _Optional[str] = ..., model_revision_digest: _Optional[str] = ..., tokenizer_digest: _Optional[str] = ..., layers: _Optional[_Iterable[_Union[KvLayerSpec, _Mapping]]] = ..., rope_state: _Optional[_Union[RopeState, str]] = ..., dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., wire_dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., value_wire_dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., weight_rounding: _Optional[str] = ...) -> None: ...

class TransferClaims(_message.Message):
    __slots__ = ("request_id", "source_node_id", "destination_node_id", "salt_digest", "token_count", "blocks_digest", "expires_at")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SALT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    source_node_id: str
    destination_node_id: str
    salt_digest: bytes
    token_count: int
    blocks_digest: bytes
    expires_at: _timestamp_pb2.Timestamp
    def __init__(self, request_id: _Optional[str] = ..., source_node_id: _Optional[str] = ..., destination_node_id: _Optional[str] = ..., salt_digest: _Optional[bytes] = ..., token_count: _Optional[int] = ..., blocks_digest: _Optional[bytes] = ..., expires_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class TransferGrant(_message.Message):
    __slots__ = ("claims", "ask_code", "answer_code", "take_code")
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    ASK_CODE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_CODE_FIELD_NUMBER: _ClassVar[int]
    TAKE_CODE_FIELD_NUMBER: _ClassVar[int]
    claims: bytes
    ask_code: bytes
    answer_code: bytes
    take_code: bytes
    def __init__(self, claims: _Optional[bytes] = ..., ask_code: _Optional[bytes] = ..., answer_code: _Optional[bytes] = ..., take_code: _Optional[bytes] = ...) -> None: ...

class SharedMemoryOffer(_message.Message):
    __slots__ = ("address", "token")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    address: bytes
    token: bytes
    def __init__(self, address: _Optional[bytes] = ..., token: _Optional[bytes] = ...) -> None: ...

class SharedPayload(_message.Message):
    __slots__ = ("offset", "key_scales_byte_count", "value_scales_byte_count", "keys_byte_count", "values_byte_count")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEY_SCALES_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    VALUE_SCALES_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEYS_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    VALUES_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    offset: int
    key_scales_byte_count: int
    value_scales_byte_count: int
    keys_byte_count: int
    values_byte_count: int
    def __init__(self, offset: _Optional[int] = ..., key_scales_byte_count: _Optional[int] = ..., value_scales_byte_count: _Optional[int] = ..., keys_byte_count: _Optional[int] = ..., values_byte_count: _Optional[int] = ...) -> None: ...

class KvFrame(_message.Message):
    __slots__ = ("sequence_number", "layer_begin", "layer_count", "token_begin", "token_count", "crc32c", "ready_offset", "header_crc32c", "shared", "kind", "state_tensors", "key_scales", "value_scales", "keys", "values")
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    LAYER_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BEGIN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    READY_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HEADER_CRC32C_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_TENSORS_FIELD_NUMBER: _ClassVar[int]
    KEY_SCALES_FIELD_NUMBER: _ClassVar[int]
    VALUE_SCALES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    sequence_number: int
    layer_begin: int
    layer_count: int
    token_begin: int
    token_count: int
    crc32c: int
    ready_offset: _duration_pb2.Duration
    header_crc32c: int
    shared: SharedPayload
    kind: FrameKind
    state_tensors: _containers.RepeatedCompositeFieldContainer[StateTensor]
    key_scales: bytes
    value_scales: bytes
    keys: bytes
    values: bytes
    def __init__(self, sequence_number: _Optional[int] = ..., layer_begin: _Optional[int] = ..., layer_count: _Optional[int] = ..., token_begin: _Optional[int] = ..., token_count: _Optional[int] = ..., crc32c: _Optional[int] = ..., ready_offset: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., header_crc32c: _Optional[int] = ..., shared: _Optional[_Union[SharedPayload, _Mapping]] = ..., kind: _Optional[_Union[FrameKind, str]] = ..., state_tensors: _Optional[_Iterable[_Union[StateTensor, _Mapping]]] = ..., key_scales: _Optional[bytes] = ..., value_scales: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class KvSummary(_message.Message):
    __slots__ = ("frame_count", "byte_count", "token_begin", "token_end", "cached_token_count", "queue_duration", "compute_duration", "frames_crc32c", "peak_memory_byte_count", "energy_joules", "shared_token_count")
    FRAME_COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BEGIN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_END_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DURATION_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_DURATION_FIELD_NUMBER: _ClassVar[int]
    FRAMES_CRC32C_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ENERGY_JOULES_FIELD_NUMBER: _ClassVar[int]
    SHARED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    frame_count: int
    byte_count: int
    token_begin: int
    token_end: int
    cached_token_count: int
    queue_duration: _duration_pb2.Duration
    compute_duration: _duration_pb2.Duration
    frames_crc32c: int
    peak_memory_byte_count: int
    energy_joules: float
    shared_token_count: int
    def __init__(self, frame_count: _Optional[int] = ..., byte_count: _Optional[int] = ..., token_begin: _Optional[int] = ..., token_end: _Optional[int] = ..., cached_token_count: _Optional[int] = ..., queue_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., compute_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., frames_crc32c: _Optional[int] = ..., peak_memory_byte_count: _Optional[int] = ..., energy_joules: _Optional[float] = ..., shared_token_count: _Optional[int] = ...) -> None: ...
