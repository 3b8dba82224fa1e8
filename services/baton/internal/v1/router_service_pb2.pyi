from baton.internal.v1 import kv_pb2 as _kv_pb2
from baton.internal.v1 import node_pb2 as _node_pb2
from baton.v1 import generation_pb2 as _generation_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterRequest(_message.Message):
    __slots__ = ("node", "load", "link", "outcomes", "transfer_key")
    NODE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_KEY_FIELD_NUMBER: _ClassVar[int]
    node: _node_pb2.NodeDescription
    load: _node_pb2.LoadReport
    link: _node_pb2.LinkMeasurement
    outcomes: Outcomes
    transfer_key: bytes
    def __init__(self, node: _Optional[_Union[_node_pb2.NodeDescription, _Mapping]] = ..., load: _Optional[_Union[_node_pb2.LoadReport, _Mapping]] = ..., link: _Optional[_Union[_node_pb2.LinkMeasurement, _Mapping]] = ..., outcomes: _Optional[_Union[Outcomes, _Mapping]] = ..., transfer_key: _Optional[bytes] = ...) -> None: ...

class Outcomes(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[_generation_pb2.PlacementSummary]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[_generation_pb2.PlacementSummary, _Mapping]]] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("registered", "peers")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    registered: Registered
    peers: Peers
    def __init__(self, registered: _Optional[_Union[Registered, _Mapping]] = ..., peers: _Optional[_Union[Peers, _Mapping]] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("report_interval",)
    REPORT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    report_interval: _duration_pb2.Duration
    def __init__(self, report_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Peers(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, nodes: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("node_id", "address", "epoch", "fast_address", "role")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FAST_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    epoch: int
    fast_address: str
    role: _node_pb2.NodeRole
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ..., epoch: _Optional[int] = ..., fast_address: _Optional[str] = ..., role: _Optional[_Union[_node_pb2.NodeRole, str]] = ...) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("request_id", "model_id", "prompt_token_count", "max_token_count", "block_hashes", "excluded_node_ids", "bypass_prefix_cache", "is_dry_run", "pins", "needs_local_prefill", "adapter", "tenant", "ttft_objective", "tpot_objective", "is_admitted", "session", "salt_digest", "tenant_weight")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    BYPASS_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    IS_DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    NEEDS_LOCAL_PREFILL_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TTFT_OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    TPOT_OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    IS_ADMITTED_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SALT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TENANT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model_id: str
    prompt_token_count: int
    max_token_count: int
    block_hashes: bytes
    excluded_node_ids: _containers.RepeatedScalarFieldContainer[str]
    bypass_prefix_cache: bool
    is_dry_run: bool
    pins: _containers.RepeatedCompositeFieldContainer[PlacementPin]
    needs_local_prefill: bool
    adapter: _node_pb2.Adapter
    tenant: str
    ttft_objective: _duration_pb2.Duration
    tpot_objective: _duration_pb2.Duration
    is_admitted: bool
    session: bytes
    salt_digest: bytes
    tenant_weight: int
    def __init__(self, request_id: _Optional[str] = ..., model_id: _Optional[str] = ..., prompt_token_count: _Optional[int] = ..., max_token_count: _Optional[int] = ..., block_hashes: _Optional[bytes] = ..., excluded_node_ids: _Optional[_Iterable[str]] = ..., bypass_prefix_cache: bool = ..., is_dry_run: bool = ..., pins: _Optional[_Iterable[_Union[PlacementPin, _Mapping]]] = ..., needs_local_prefill: bool = ..., adapter: _Optional[_Union[_node_pb2.Adapter, _Mapping]] = ..., tenant: _Optional[str] = ..., ttft_objective: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., tpot_objective: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., is_admitted: bool = ..., session: _Optional[bytes] = ..., salt_digest: _Optional[bytes] = ..., tenant_weight: _Optional[int] = ...) -> None: ...

class PlacementPin(_message.Message):
    __slots__ = ("decode_node_id", "prefill_node_id")
    DECODE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    decode_node_id: str
    prefill_node_id: str
    def __init__(self, decode_node_id: _Optional[str] = ..., prefill_node_id: _Optional[str] = ...) -> None: ...

class PlaceResponse(_message.Message):
    __slots__ = ("placement", "candidates")
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    placement: Placement
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    def __init__(self, placement: _Optional[_Union[Placement, _Mapping]] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("placement_id", "decode_node_id", "decode_address", "prefill_node_id", "wire_dtype", "layers_per_frame", "estimate", "alternatives", "value_wire_dtype", "prefix_pull", "chunk_token_count", "degraded_max_token_count", "degraded_reason", "transfer")
    PLACEMENT_ID_FIELD_NUMBER: _ClassVar[int]
    DECODE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DECODE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_PER_FRAME_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    VALUE_WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_PULL_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_MAX_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    placement_id: str
    decode_node_id: str
    decode_address: str
    prefill_node_id: str
    wire_dtype: _generation_pb2.KvDtype
    layers_per_frame: int
    estimate: CostEstimate
    alternatives: _containers.RepeatedCompositeFieldContainer[PrefillAlternative]
    value_wire_dtype: _generation_pb2.KvDtype
    prefix_pull: PrefixPull
    chunk_token_count: int
    degraded_max_token_count: int
    degraded_reason: str
    transfer: _kv_pb2.TransferGrant
    def __init__(self, placement_id: _Optional[str] = ..., decode_node_id: _Optional[str] = ..., decode_address: _Optional[str] = ..., prefill_node_id: _Optional[str] = ..., wire_dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., layers_per_frame: _Optional[int] = ..., estimate: _Optional[_Union[CostEstimate, _Mapping]] = ..., alternatives: _Optional[_Iterable[_Union[PrefillAlternative, _Mapping]]] = ..., value_wire_dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., prefix_pull: _Optional[_Union[PrefixPull, _Mapping]] = ..., chunk_token_count: _Optional[int] = ..., degraded_max_token_count: _Optional[int] = ..., degraded_reason: _Optional[str] = ..., transfer: _Optional[_Union[_kv_pb2.TransferGrant, _Mapping]] = ...) -> None: ...

class PrefixPull(_message.Message):
    __slots__ = ("node_id", "block_count", "wire_dtype", "value_wire_dtype", "layers_per_frame", "transfer")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_PER_FRAME_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    block_count: int
    wire_dtype: _generation_pb2.KvDtype
    value_wire_dtype: _generation_pb2.KvDtype
    layers_per_frame: int
    transfer: _kv_pb2.TransferGrant
    def __init__(self, node_id: _Optional[str] = ..., block_count: _Optional[int] = ..., wire_dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., value_wire_dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., layers_per_frame: _Optional[int] = ..., transfer: _Optional[_Union[_kv_pb2.TransferGrant, _Mapping]] = ...) -> None: ...

class PrefillAlternative(_message.Message):
    __slots__ = ("prefill_node_id", "wire_dtype", "layers_per_frame", "estimate", "value_wire_dtype", "chunk_token_count", "transfer")
    PREFILL_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_PER_FRAME_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    VALUE_WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    prefill_node_id: str
    wire_dtype: _generation_pb2.KvDtype
    layers_per_frame: int
    estimate: CostEstimate
    value_wire_dtype: _generation_pb2.KvDtype
    chunk_token_count: int
    transfer: _kv_pb2.TransferGrant
    def __init__(self, prefill_node_id: _Optional[str] = ..., wire_dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., layers_per_frame: _Optional[int] = ..., estimate: _Optional[_Union[CostEstimate, _Mapping]] = ..., value_wire_dtype: _Optional[_Union[_generation_pb2.KvDtype, str]] = ..., chunk_token_count: _Optional[int] = ..., transfer: _Optional[_Union[_kv_pb2.TransferGrant, _Mapping]] = ...) -> None: ...

class CostEstimate(_message.Message):
    __slots__ = ("queue_seconds", "prefill_seconds", "transfer_seconds", "exposed_seconds", "time_to_first_token_seconds", "start_seconds", "step_seconds", "expected_output_token_count", "decode_seconds", "imposed_seconds", "total_seconds", "pull_seconds", "restore_seconds", "uncertainty_seconds", "join_seconds")
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    START_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DECODE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IMPOSED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PULL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNCERTAINTY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    JOIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    queue_seconds: float
    prefill_seconds: float
    transfer_seconds: float
    exposed_seconds: float
    time_to_first_token_seconds: float
    start_seconds: float
    step_seconds: float
    expected_output_token_count: float
    decode_seconds: float
    imposed_seconds: float
    total_seconds: float
    pull_seconds: float
    restore_seconds: float
    uncertainty_seconds: float
    join_seconds: float
    def __init__(self, queue_seconds: _Optional[float] = ..., prefill_seconds: _Optional[float] = ..., transfer_seconds: _Optional[float] = ..., exposed_seconds: _Optional[float] = ..., time_to_first_token_seconds: _Optional[float] = ..., start_seconds: _Optional[float] = ..., step_seconds: _Optional[float] = ..., expected_output_token_count: _Optional[float] = ..., decode_seconds: _Optional[float] = ..., imposed_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ..., pull_seconds: _Optional[float] = ..., restore_seconds: _Optional[float] = ..., uncertainty_seconds: _Optional[float] = ..., join_seconds: _Optional[float] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("decode_node_id", "prefill_node_id", "decode_cached_token_count", "prefill_cached_token_count", "estimate", "infeasible_reason", "kv_byte_count", "is_link_declared", "wire", "pull_node_id", "pulled_token_count", "decode_restored_token_count", "prefill_restored_token_count")
    DECODE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DECODE_CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    INFEASIBLE_REASON_FIELD_NUMBER: _ClassVar[int]
    KV_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_LINK_DECLARED_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    PULL_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PULLED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DECODE_RESTORED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_RESTORED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    decode_node_id: str
    prefill_node_id: str
    decode_cached_token_count: int
    prefill_cached_token_count: int
    estimate: CostEstimate
    infeasible_reason: str
    kv_byte_count: int
    is_link_declared: bool
    wire: WireEstimate
    pull_node_id: str
    pulled_token_count: int
    decode_restored_token_count: int
    prefill_restored_token_count: int
    def __init__(self, decode_node_id: _Optional[str] = ..., prefill_node_id: _Optional[str] = ..., decode_cached_token_count: _Optional[int] = ..., prefill_cached_token_count: _Optional[int] = ..., estimate: _Optional[_Union[CostEstimate, _Mapping]] = ..., infeasible_reason: _Optional[str] = ..., kv_byte_count: _Optional[int] = ..., is_link_declared: bool = ..., wire: _Optional[_Union[WireEstimate, _Mapping]] = ..., pull_node_id: _Optional[str] = ..., pulled_token_count: _Optional[int] = ..., decode_restored_token_count: _Optional[int] = ..., prefill_restored_token_count: _Optional[int] = ...) -> None: ...

class WireEstimate(_message.Message):
    __slots__ = ("key_dtype", "value_dtype", "key_byte_count", "value_byte_count", "key_seconds", "value_seconds", "pack_seconds", "loss", "reason", "state_byte_count", "state_seconds")
    KEY_DTYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    KEY_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VALUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PACK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    key_dtype: str
    value_dtype: str
    key_byte_count: int
    value_byte_count: int
    key_seconds: float
    value_seconds: float
    pack_seconds: float
    loss: float
    reason: str
    state_byte_count: int
    state_seconds: float
    def __init__(self, key_dtype: _Optional[str] = ..., value_dtype: _Optional[str] = ..., key_byte_count: _Optional[int] = ..., value_byte_count: _Optional[int] = ..., key_seconds: _Optional[float] = ..., value_seconds: _Optional[float] = ..., pack_seconds: _Optional[float] = ..., loss: _Optional[float] = ..., reason: _Optional[str] = ..., state_byte_count: _Optional[int] = ..., state_seconds: _Optional[float] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeState]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeState, _Mapping]]] = ...) -> None: ...

class NodeState(_message.Message):
    __slots__ = ("node", "load", "links", "prefill_calibration", "decode_calibration", "unusable_reason", "report_age", "heard_for")
    NODE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    DECODE_CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_REASON_FIELD_NUMBER: _ClassVar[int]
    REPORT_AGE_FIELD_NUMBER: _ClassVar[int]
    HEARD_FOR_FIELD_NUMBER: _ClassVar[int]
    node: _node_pb2.NodeDescription
    load: _node_pb2.LoadReport
    links: _containers.RepeatedCompositeFieldContainer[_node_pb2.LinkMeasurement]
    prefill_calibration: float
    decode_calibration: float
    unusable_reason: str
    report_age: _duration_pb2.Duration
    heard_for: _duration_pb2.Duration
    def __init__(self, node: _Optional[_Union[_node_pb2.NodeDescription, _Mapping]] = ..., load: _Optional[_Union[_node_pb2.LoadReport, _Mapping]] = ..., links: _Optional[_Iterable[_Union[_node_pb2.LinkMeasurement, _Mapping]]] = ..., prefill_calibration: _Optional[float] = ..., decode_calibration: _Optional[float] = ..., unusable_reason: _Optional[str] = ..., report_age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., heard_for: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[PlacementRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[PlacementRecord, _Mapping]]] = ...) -> None: ...

class PlacementRecord(_message.Message):
    __slots__ = ("request_id", "placement_id", "decided_at", "model_id", "prompt_token_count", "max_token_count", "excluded_node_ids", "choice", "refusal", "others", "candidate_count", "infeasible_reasons", "nodes", "link", "outcome", "terms", "regret_seconds", "incomparable_reason", "degraded_max_token_count")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_ID_FIELD_NUMBER: _ClassVar[int]
    DECIDED_AT_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_COUNT_FIELD_NUMBER: _ClassVar[int]
    INFEASIBLE_REASONS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    REGRET_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INCOMPARABLE_REASON_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_MAX_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    placement_id: str
    decided_at: _timestamp_pb2.Timestamp
    model_id: str
    prompt_token_count: int
    max_token_count: int
    excluded_node_ids: _containers.RepeatedScalarFieldContainer[str]
    choice: Candidate
    refusal: str
    others: _containers.RepeatedCompositeFieldContainer[Candidate]
    candidate_count: int
    infeasible_reasons: _containers.RepeatedScalarFieldContainer[str]
    nodes: _containers.RepeatedCompositeFieldContainer[KnownNode]
    link: KnownLink
    outcome: _generation_pb2.PlacementSummary
    terms: _containers.RepeatedCompositeFieldContainer[TermComparison]
    regret_seconds: float
    incomparable_reason: str
    degraded_max_token_count: int
    def __init__(self, request_id: _Optional[str] = ..., placement_id: _Optional[str] = ..., decided_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., model_id: _Optional[str] = ..., prompt_token_count: _Optional[int] = ..., max_token_count: _Optional[int] = ..., excluded_node_ids: _Optional[_Iterable[str]] = ..., choice: _Optional[_Union[Candidate, _Mapping]] = ..., refusal: _Optional[str] = ..., others: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., candidate_count: _Optional[int] = ..., infeasible_reasons: _Optional[_Iterable[str]] = ..., nodes: _Optional[_Iterable[_Union[KnownNode, _Mapping]]] = ..., link: _Optional[_Union[KnownLink, _Mapping]] = ..., outcome: _Optional[_Union[_generation_pb2.PlacementSummary, _Mapping]] = ..., terms: _Optional[_Iterable[_Union[TermComparison, _Mapping]]] = ..., regret_seconds: _Optional[float] = ..., incomparable_reason: _Optional[str] = ..., degraded_max_token_count: _Optional[int] = ...) -> None: ...

class KnownNode(_message.Message):
    __slots__ = ("node_id", "running_request_count", "waiting_request_count", "pending_prompt_token_count", "free_block_count", "report_age_seconds", "prefill_calibration", "decode_calibration")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    PENDING_PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPORT_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    DECODE_CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    running_request_count: int
    waiting_request_count: int
    pending_prompt_token_count: int
    free_block_count: int
    report_age_seconds: float
    prefill_calibration: float
    decode_calibration: float
    def __init__(self, node_id: _Optional[str] = ..., running_request_count: _Optional[int] = ..., waiting_request_count: _Optional[int] = ..., pending_prompt_token_count: _Optional[int] = ..., free_block_count: _Optional[int] = ..., report_age_seconds: _Optional[float] = ..., prefill_calibration: _Optional[float] = ..., decode_calibration: _Optional[float] = ...) -> None: ...

class KnownLink(_message.Message):
    __slots__ = ("from_node_id", "to_node_id", "bytes_per_second", "round_trip_seconds", "is_measured", "calibration")
    FROM_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IS_MEASURED_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    from_node_id: str
    to_node_id: str
    bytes_per_second: float
    round_trip_seconds: float
    is_measured: bool
    calibration: float
    def __init__(self, from_node_id: _Optional[str] = ..., to_node_id: _Optional[str] = ..., bytes_per_second: _Optional[float] = ..., round_trip_seconds: _Optional[float] = ..., is_measured: bool = ..., calibration: _Optional[float] = ...) -> None: ...

class TermComparison(_message.Message):
    __slots__ = ("term", "estimated_seconds", "measured_seconds")
    TERM_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    term: str
    estimated_seconds: float
    measured_seconds: float
    def __init__(self, term: _Optional[str] = ..., estimated_seconds: _Optional[float] = ..., measured_seconds: _Optional[float] = ...) -> None: ...
