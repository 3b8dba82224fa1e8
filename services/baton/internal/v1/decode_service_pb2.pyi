from baton.internal.v1 import router_service_pb2 as _router_service_pb2
from baton.v1 import generation_pb2 as _generation_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecodeServiceGenerateRequest(_message.Message):
    __slots__ = ("request_id", "attempt", "model_id", "model_revision_digest", "prompt_token_ids", "output_token_ids", "sampling", "placement", "cache_salt", "bypass_prefix_cache", "priority", "timeout", "adapter", "is_suspect", "tenant", "tenant_weight", "wants_kv_timeline")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    BYPASS_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    IS_SUSPECT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TENANT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    WANTS_KV_TIMELINE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    model_id: str
    model_revision_digest: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _generation_pb2.SamplingParameters
    placement: _router_service_pb2.Placement
    cache_salt: str
    bypass_prefix_cache: bool
    priority: int
    timeout: _duration_pb2.Duration
    adapter: str
    is_suspect: bool
    tenant: str
    tenant_weight: int
    wants_kv_timeline: bool
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., model_id: _Optional[str] = ..., model_revision_digest: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., output_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_generation_pb2.SamplingParameters, _Mapping]] = ..., placement: _Optional[_Union[_router_service_pb2.Placement, _Mapping]] = ..., cache_salt: _Optional[str] = ..., bypass_prefix_cache: bool = ..., priority: _Optional[int] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., adapter: _Optional[str] = ..., is_suspect: bool = ..., tenant: _Optional[str] = ..., tenant_weight: _Optional[int] = ..., wants_kv_timeline: bool = ...) -> None: ...

class DecodeServiceGenerateResponse(_message.Message):
    __slots__ = ("accepted", "tokens", "prompt", "finished")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    tokens: TokenChunk
    prompt: PromptChunk
    finished: Finished
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., tokens: _Optional[_Union[TokenChunk, _Mapping]] = ..., prompt: _Optional[_Union[PromptChunk, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class TokenChunk(_message.Message):
    __slots__ = ("output_index", "token_ids", "logprobs")
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    output_index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_generation_pb2.TokenLogprob]
    def __init__(self, output_index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_generation_pb2.TokenLogprob, _Mapping]]] = ...) -> None: ...

class PromptChunk(_message.Message):
    __slots__ = ("position", "logprobs")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    position: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_generation_pb2.TokenLogprob]
    def __init__(self, position: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_generation_pb2.TokenLogprob, _Mapping]]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "stop_token_id", "usage", "summary")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    reason: _generation_pb2.FinishReason
    stop_token_id: int
    usage: _generation_pb2.Usage
    summary: _generation_pb2.PlacementSummary
    def __init__(self, reason: _Optional[_Union[_generation_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ..., summary: _Optional[_Union[_generation_pb2.PlacementSummary, _Mapping]] = ...) -> None: ...

class ServeRequest(_message.Message):
    __slots__ = ("starts", "cancelled_stream_ids", "beat_interval")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    BEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedCompositeFieldContainer[StreamStart]
    cancelled_stream_ids: _containers.RepeatedScalarFieldContainer[int]
    beat_interval: _duration_pb2.Duration
    def __init__(self, starts: _Optional[_Iterable[_Union[StreamStart, _Mapping]]] = ..., cancelled_stream_ids: _Optional[_Iterable[int]] = ..., beat_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class StreamStart(_message.Message):
    __slots__ = ("stream_id", "request", "trace_context")
    class TraceContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    request: DecodeServiceGenerateRequest
    trace_context: _containers.ScalarMap[str, str]
    def __init__(self, stream_id: _Optional[int] = ..., request: _Optional[_Union[DecodeServiceGenerateRequest, _Mapping]] = ..., trace_context: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ServeResponse(_message.Message):
    __slots__ = ("accepted_stream_ids", "prompts", "token_stream_ids", "token_output_indexes", "token_ids", "tokens", "finished", "failed", "is_engine_alive", "alone_stream_id", "is_leaving")
    ACCEPTED_STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_OUTPUT_INDEXES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    IS_ENGINE_ALIVE_FIELD_NUMBER: _ClassVar[int]
    ALONE_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    IS_LEAVING_FIELD_NUMBER: _ClassVar[int]
    accepted_stream_ids: _containers.RepeatedScalarFieldContainer[int]
    prompts: _containers.RepeatedCompositeFieldContainer[StreamPrompt]
    token_stream_ids: _containers.RepeatedScalarFieldContainer[int]
    token_output_indexes: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedCompositeFieldContainer[StreamTokens]
    finished: _containers.RepeatedCompositeFieldContainer[StreamFinished]
    failed: _containers.RepeatedCompositeFieldContainer[StreamFailed]
    is_engine_alive: bool
    alone_stream_id: int
    is_leaving: bool
    def __init__(self, accepted_stream_ids: _Optional[_Iterable[int]] = ..., prompts: _Optional[_Iterable[_Union[StreamPrompt, _Mapping]]] = ..., token_stream_ids: _Optional[_Iterable[int]] = ..., token_output_indexes: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[_Union[StreamTokens, _Mapping]]] = ..., finished: _Optional[_Iterable[_Union[StreamFinished, _Mapping]]] = ..., failed: _Optional[_Iterable[_Union[StreamFailed, _Mapping]]] = ..., is_engine_alive: bool = ..., alone_stream_id: _Optional[int] = ..., is_leaving: bool = ...) -> None: ...

class StreamPrompt(_message.Message):
    __slots__ = ("stream_id", "chunk")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    chunk: PromptChunk
    def __init__(self, stream_id: _Optional[int] = ..., chunk: _Optional[_Union[PromptChunk, _Mapping]] = ...) -> None: ...

class StreamTokens(_message.Message):
    __slots__ = ("stream_id", "chunk")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    chunk: TokenChunk
    def __init__(self, stream_id: _Optional[int] = ..., chunk: _Optional[_Union[TokenChunk, _Mapping]] = ...) -> None: ...

class StreamFinished(_message.Message):
    __slots__ = ("stream_id", "finished")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    finished: Finished
    def __init__(self, stream_id: _Optional[int] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class StreamFailed(_message.Message):
    __slots__ = ("stream_id", "code", "message", "reason", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    code: int
    message: str
    reason: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, stream_id: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., reason: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...
