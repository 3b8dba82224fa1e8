from baton.internal.v1 import node_pb2 as _node_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STAGE_UNSPECIFIED: _ClassVar[ModelStage]
    MODEL_STAGE_ABSENT: _ClassVar[ModelStage]
    MODEL_STAGE_FETCHING: _ClassVar[ModelStage]
    MODEL_STAGE_STORED: _ClassVar[ModelStage]
    MODEL_STAGE_LOADED: _ClassVar[ModelStage]
    MODEL_STAGE_SERVING: _ClassVar[ModelStage]
    MODEL_STAGE_DRAINING: _ClassVar[ModelStage]
    MODEL_STAGE_FAILED: _ClassVar[ModelStage]
MODEL_STAGE_UNSPECIFIED: ModelStage
MODEL_STAGE_ABSENT: ModelStage
MODEL_STAGE_FETCHING: ModelStage
MODEL_STAGE_STORED: ModelStage
MODEL_STAGE_LOADED: ModelStage
MODEL_STAGE_SERVING: ModelStage
MODEL_STAGE_DRAINING: ModelStage
MODEL_STAGE_FAILED: ModelStage

class DesiredModel(_message.Message):
    __slots__ = ("name", "source", "min_replica_count", "max_replica_count", "pinned_machines", "excluded_machines", "is_on_demand", "keep_alive", "is_unloaded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MIN_REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    PINNED_MACHINES_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_MACHINES_FIELD_NUMBER: _ClassVar[int]
    IS_ON_DEMAND_FIELD_NUMBER: _ClassVar[int]
    KEEP_ALIVE_FIELD_NUMBER: _ClassVar[int]
    IS_UNLOADED_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    min_replica_count: int
    max_replica_count: int
    pinned_machines: _containers.RepeatedScalarFieldContainer[str]
    excluded_machines: _containers.RepeatedScalarFieldContainer[str]
    is_on_demand: bool
    keep_alive: _duration_pb2.Duration
    is_unloaded: bool
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., min_replica_count: _Optional[int] = ..., max_replica_count: _Optional[int] = ..., pinned_machines: _Optional[_Iterable[str]] = ..., excluded_machines: _Optional[_Iterable[str]] = ..., is_on_demand: bool = ..., keep_alive: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., is_unloaded: bool = ...) -> None: ...

class MachineModel(_message.Message):
    __slots__ = ("name", "stage", "done_byte_count", "total_byte_count", "problem", "shape", "weight_byte_count", "held_byte_count", "node_id", "kv_byte_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    KV_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    stage: ModelStage
    done_byte_count: int
    total_byte_count: int
    problem: str
    shape: _node_pb2.ModelShape
    weight_byte_count: int
    held_byte_count: int
    node_id: str
    kv_byte_count: int
    def __init__(self, name: _Optional[str] = ..., stage: _Optional[_Union[ModelStage, str]] = ..., done_byte_count: _Optional[int] = ..., total_byte_count: _Optional[int] = ..., problem: _Optional[str] = ..., shape: _Optional[_Union[_node_pb2.ModelShape, _Mapping]] = ..., weight_byte_count: _Optional[int] = ..., held_byte_count: _Optional[int] = ..., node_id: _Optional[str] = ..., kv_byte_count: _Optional[int] = ...) -> None: ...

class ModelState(_message.Message):
    __slots__ = ("desired", "stage", "machines", "serving_count", "ready_in", "problem")
    class MachinesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: MachineModel
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[MachineModel, _Mapping]] = ...) -> None: ...
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    SERVING_COUNT_FIELD_NUMBER: _ClassVar[int]
    READY_IN_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    desired: DesiredModel
    stage: ModelStage
    machines: _containers.MessageMap[str, MachineModel]
    serving_count: int
    ready_in: _duration_pb2.Duration
    problem: str
    def __init__(self, desired: _Optional[_Union[DesiredModel, _Mapping]] = ..., stage: _Optional[_Union[ModelStage, str]] = ..., machines: _Optional[_Mapping[str, MachineModel]] = ..., serving_count: _Optional[int] = ..., ready_in: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., problem: _Optional[str] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "machine_free_byte_counts", "plan", "epoch")
    class MachineFreeByteCountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODELS_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FREE_BYTE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelState]
    machine_free_byte_counts: _containers.ScalarMap[str, int]
    plan: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    def __init__(self, models: _Optional[_Iterable[_Union[ModelState, _Mapping]]] = ..., machine_free_byte_counts: _Optional[_Mapping[str, int]] = ..., plan: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ...) -> None: ...

class ChangeModelRequest(_message.Message):
    __slots__ = ("load", "use", "unload", "pin", "forget", "is_dry_run")
    LOAD_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    UNLOAD_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    IS_DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    load: DesiredModel
    use: str
    unload: str
    pin: DesiredModel
    forget: str
    is_dry_run: bool
    def __init__(self, load: _Optional[_Union[DesiredModel, _Mapping]] = ..., use: _Optional[str] = ..., unload: _Optional[str] = ..., pin: _Optional[_Union[DesiredModel, _Mapping]] = ..., forget: _Optional[str] = ..., is_dry_run: bool = ...) -> None: ...

class ChangeModelResponse(_message.Message):
    __slots__ = ("model", "forecast")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FORECAST_FIELD_NUMBER: _ClassVar[int]
    model: ModelState
    forecast: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[_Union[ModelState, _Mapping]] = ..., forecast: _Optional[_Iterable[str]] = ...) -> None: ...

class SuperviseRequest(_message.Message):
    __slots__ = ("machine_id", "free_byte_count", "models", "profile", "epoch", "weight_address")
    MACHINE_ID_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    machine_id: str
    free_byte_count: int
    models: _containers.RepeatedCompositeFieldContainer[MachineModel]
    profile: _node_pb2.NodeProfile
    epoch: int
    weight_address: str
    def __init__(self, machine_id: _Optional[str] = ..., free_byte_count: _Optional[int] = ..., models: _Optional[_Iterable[_Union[MachineModel, _Mapping]]] = ..., profile: _Optional[_Union[_node_pb2.NodeProfile, _Mapping]] = ..., epoch: _Optional[int] = ..., weight_address: _Optional[str] = ...) -> None: ...

class ModelOrder(_message.Message):
    __slots__ = ("name", "source", "is_served", "kv_byte_count", "weight_addresses", "attempt")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    IS_SERVED_FIELD_NUMBER: _ClassVar[int]
    KV_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    is_served: bool
    kv_byte_count: int
    weight_addresses: _containers.RepeatedScalarFieldContainer[str]
    attempt: int
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., is_served: bool = ..., kv_byte_count: _Optional[int] = ..., weight_addresses: _Optional[_Iterable[str]] = ..., attempt: _Optional[int] = ...) -> None: ...

class SuperviseResponse(_message.Message):
    __slots__ = ("epoch", "orders")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    orders: _containers.RepeatedCompositeFieldContainer[ModelOrder]
    def __init__(self, epoch: _Optional[int] = ..., orders: _Optional[_Iterable[_Union[ModelOrder, _Mapping]]] = ...) -> None: ...
