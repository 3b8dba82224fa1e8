from baton.internal.v1 import node_pb2 as _node_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InviteRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class InviteResponse(_message.Message):
    __slots__ = ("code", "address", "expires_at", "advice")
    CODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    code: str
    address: str
    expires_at: _timestamp_pb2.Timestamp
    advice: str
    def __init__(self, code: _Optional[str] = ..., address: _Optional[str] = ..., expires_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., advice: _Optional[str] = ...) -> None: ...

class EnterRequest(_message.Message):
    __slots__ = ("begin", "proof")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    begin: EnterBegin
    proof: bytes
    def __init__(self, begin: _Optional[_Union[EnterBegin, _Mapping]] = ..., proof: _Optional[bytes] = ...) -> None: ...

class EnterBegin(_message.Message):
    __slots__ = ("newcomer", "element")
    NEWCOMER_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    newcomer: bytes
    element: bytes
    def __init__(self, newcomer: _Optional[bytes] = ..., element: _Optional[bytes] = ...) -> None: ...

class Newcomer(_message.Message):
    __slots__ = ("code_number", "node_id", "version", "clock", "worker_port")
    CODE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    WORKER_PORT_FIELD_NUMBER: _ClassVar[int]
    code_number: int
    node_id: str
    version: str
    clock: _timestamp_pb2.Timestamp
    worker_port: int
    def __init__(self, code_number: _Optional[int] = ..., node_id: _Optional[str] = ..., version: _Optional[str] = ..., clock: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., worker_port: _Optional[int] = ...) -> None: ...

class EnterResponse(_message.Message):
    __slots__ = ("element", "sealed")
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    element: bytes
    sealed: bytes
    def __init__(self, element: _Optional[bytes] = ..., sealed: _Optional[bytes] = ...) -> None: ...

class EnterOutcome(_message.Message):
    __slots__ = ("token", "problem")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    token: str
    problem: str
    def __init__(self, token: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("secret", "node_id", "certificate_request", "certificate", "service_account_token")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SERVICE_ACCOUNT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    secret: str
    node_id: str
    certificate_request: bytes
    certificate: bytes
    service_account_token: str
    def __init__(self, secret: _Optional[str] = ..., node_id: _Optional[str] = ..., certificate_request: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., service_account_token: _Optional[str] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("certificate", "authorities", "router_address", "cache_index_address", "worker")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    ROUTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CACHE_INDEX_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    authorities: bytes
    router_address: str
    cache_index_address: str
    worker: WorkerAssignment
    def __init__(self, certificate: _Optional[bytes] = ..., authorities: _Optional[bytes] = ..., router_address: _Optional[str] = ..., cache_index_address: _Optional[str] = ..., worker: _Optional[_Union[WorkerAssignment, _Mapping]] = ...) -> None: ...

class WorkerAssignment(_message.Message):
    __slots__ = ("role", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    role: _node_pb2.NodeRole
    settings: _containers.ScalarMap[str, str]
    def __init__(self, role: _Optional[_Union[_node_pb2.NodeRole, str]] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...
