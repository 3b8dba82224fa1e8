from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_STARTING: _ClassVar[WorkerState]
    WORKER_STATE_SERVING: _ClassVar[WorkerState]
    WORKER_STATE_BACKING_OFF: _ClassVar[WorkerState]
    WORKER_STATE_STOPPED: _ClassVar[WorkerState]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_STARTING: WorkerState
WORKER_STATE_SERVING: WorkerState
WORKER_STATE_BACKING_OFF: WorkerState
WORKER_STATE_STOPPED: WorkerState

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("node_id", "machine", "worker_state", "worker_process_id", "restart_count", "last_exit_status", "worker_started_at", "memory_byte_count", "sleep_count", "last_sleep")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    WORKER_STATE_FIELD_NUMBER: _ClassVar[int]
    WORKER_PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    RESTART_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_EXIT_STATUS_FIELD_NUMBER: _ClassVar[int]
    WORKER_STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SLEEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_SLEEP_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    machine: str
    worker_state: WorkerState
    worker_process_id: int
    restart_count: int
    last_exit_status: int
    worker_started_at: _timestamp_pb2.Timestamp
    memory_byte_count: int
    sleep_count: int
    last_sleep: _duration_pb2.Duration
    def __init__(self, node_id: _Optional[str] = ..., machine: _Optional[str] = ..., worker_state: _Optional[_Union[WorkerState, str]] = ..., worker_process_id: _Optional[int] = ..., restart_count: _Optional[int] = ..., last_exit_status: _Optional[int] = ..., worker_started_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., memory_byte_count: _Optional[int] = ..., sleep_count: _Optional[int] = ..., last_sleep: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...
