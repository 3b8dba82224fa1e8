from baton.internal.v1 import node_pb2 as _node_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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
