from baton.internal.v1 import kv_pb2 as _kv_pb2
from baton.v1 import generation_pb2 as _generation_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PullBlocksRequest(_message.Message):
    __slots__ = ("request_id", "attempt", "block_hashes", "block_begin", "block_token_count", "expected_layout", "wire_dtype", "value_wire_dtype", "layers_per_frame", "leading_block_hashes", "transfer")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BEGIN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_PER_FRAME_FIELD_NUMBER: _ClassVar[int]
    LEADING_BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    block_hashes: bytes
    block_begin: int
    block_token_count: int
    expected_layout: _kv_pb2.KvLayout
    wire_dtype: _generation_pb2.KvDtype
    value_wire_dtype: _generation_pb2.KvDtype
    layers_per_frame: int
    leading_block_hashes: bytes
    transfer: _kv_pb2.TransferGrant
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., block_hashes: _Optional[bytes] = ..., block_begin: _Optional[int] = ..., block_token_count: _Optional[int] = ..., expected_layout: _Optional[_Union[_kv_pb2.KvLayout, _Mapping]] = ..., wire_dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., value_wire_dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., layers_per_frame: _Optional[int] = ..., leading_block_hashes: _Optional[bytes] = ..., transfer: _Optional[_Union[_kv_pb2.TransferGrant, _Mapping]] = ...) -> None: ...

class PullBlocksResponse(_message.Message):
    __slots__ = ("layout", "frame", "summary", "request_crc32c", "block_count", "transfer_answer", "clock")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CRC32C_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_ANSWER_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    layout: _kv_pb2.KvLayout
    frame: _kv_pb2.KvFrame
    summary: _kv_pb2.KvSummary
    request_crc32c: int
    block_count: int
    transfer_answer: bytes
    clock: _duration_pb2.Duration
    def __init__(self, layout: _Optional[_Union[_kv_pb2.KvLayout, _Mapping]] = ..., frame: _Optional[_Union[_kv_pb2.KvFrame, _Mapping]] = ..., summary: _Optional[_Union[_kv_pb2.KvSummary, _Mapping]] = ..., request_crc32c: _Optional[int] = ..., block_count: _Optional[int] = ..., transfer_answer: _Optional[bytes] = ..., clock: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class BlockServiceProbeLinkRequest(_message.Message):
    __slots__ = ("byte_count", "message_byte_count")
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    byte_count: int
    message_byte_count: int
    def __init__(self, byte_count: _Optional[int] = ..., message_byte_count: _Optional[int] = ...) -> None: ...

class BlockServiceProbeLinkResponse(_message.Message):
    __slots__ = ("payload",)
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    def __init__(self, payload: _Optional[bytes] = ...) -> None: ...
