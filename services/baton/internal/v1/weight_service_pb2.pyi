from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetManifestRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetManifestResponse(_message.Message):
    __slots__ = ("model", "revision", "files")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    model: str
    revision: str
    files: _containers.RepeatedCompositeFieldContainer[WeightFile]
    def __init__(self, model: _Optional[str] = ..., revision: _Optional[str] = ..., files: _Optional[_Iterable[_Union[WeightFile, _Mapping]]] = ...) -> None: ...

class WeightFile(_message.Message):
    __slots__ = ("name", "byte_count", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    byte_count: int
    sha256: str
    def __init__(self, name: _Optional[str] = ..., byte_count: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class FetchFileRequest(_message.Message):
    __slots__ = ("sha256", "begin", "end", "model")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    begin: int
    end: int
    model: str
    def __init__(self, sha256: _Optional[str] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., model: _Optional[str] = ...) -> None: ...

class FetchFileResponse(_message.Message):
    __slots__ = ("content", "content_crc32c")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_CRC32C_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    content_crc32c: int
    def __init__(self, content: _Optional[bytes] = ..., content_crc32c: _Optional[int] = ...) -> None: ...
