from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BlockTier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOCK_TIER_UNSPECIFIED: _ClassVar[BlockTier]
    BLOCK_TIER_HOST: _ClassVar[BlockTier]
    BLOCK_TIER_DISK: _ClassVar[BlockTier]
BLOCK_TIER_UNSPECIFIED: BlockTier
BLOCK_TIER_HOST: BlockTier
BLOCK_TIER_DISK: BlockTier

class PublishRequest(_message.Message):
    __slots__ = ("snapshot", "events")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    snapshot: BlockSnapshot
    events: BlockEvents
    def __init__(self, snapshot: _Optional[_Union[BlockSnapshot, _Mapping]] = ..., events: _Optional[_Union[BlockEvents, _Mapping]] = ...) -> None: ...

class BlockSnapshot(_message.Message):
    __slots__ = ("node_id", "next_sequence_number", "block_hashes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    next_sequence_number: int
    block_hashes: bytes
    def __init__(self, node_id: _Optional[str] = ..., next_sequence_number: _Optional[int] = ..., block_hashes: _Optional[bytes] = ...) -> None: ...

class BlockEvents(_message.Message):
    __slots__ = ("sequence_number", "stored_block_hashes", "removed_block_hashes", "tiers")
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    STORED_BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    REMOVED_BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    sequence_number: int
    stored_block_hashes: bytes
    removed_block_hashes: bytes
    tiers: _containers.RepeatedCompositeFieldContainer[TierEvents]
    def __init__(self, sequence_number: _Optional[int] = ..., stored_block_hashes: _Optional[bytes] = ..., removed_block_hashes: _Optional[bytes] = ..., tiers: _Optional[_Iterable[_Union[TierEvents, _Mapping]]] = ...) -> None: ...

class TierEvents(_message.Message):
    __slots__ = ("tier", "stored_block_hashes", "removed_block_hashes")
    TIER_FIELD_NUMBER: _ClassVar[int]
    STORED_BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    REMOVED_BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    tier: BlockTier
    stored_block_hashes: bytes
    removed_block_hashes: bytes
    def __init__(self, tier: _Optional[_Union[BlockTier, str]] = ..., stored_block_hashes: _Optional[bytes] = ..., removed_block_hashes: _Optional[bytes] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("is_snapshot_needed",)
    IS_SNAPSHOT_NEEDED_FIELD_NUMBER: _ClassVar[int]
    is_snapshot_needed: bool
    def __init__(self, is_snapshot_needed: bool = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("block_hashes",)
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    block_hashes: bytes
    def __init__(self, block_hashes: _Optional[bytes] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("prefixes",)
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    prefixes: _containers.RepeatedCompositeFieldContainer[NodePrefix]
    def __init__(self, prefixes: _Optional[_Iterable[_Union[NodePrefix, _Mapping]]] = ...) -> None: ...

class NodePrefix(_message.Message):
    __slots__ = ("node_id", "block_count", "host_block_count", "lower_block_count", "disk_block_count")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOWER_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    DISK_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    block_count: int
    host_block_count: int
    lower_block_count: int
    disk_block_count: int
    def __init__(self, node_id: _Optional[str] = ..., block_count: _Optional[int] = ..., host_block_count: _Optional[int] = ..., lower_block_count: _Optional[int] = ..., disk_block_count: _Optional[int] = ...) -> None: ...
