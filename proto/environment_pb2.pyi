from go_opt.proto import graph_pb2 as _graph_pb2
from go_opt.proto import optimizer_pb2 as _optimizer_pb2
from go_opt.proto import plan_pb2 as _plan_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateSessionRequest(_message.Message):
    __slots__ = ("graph", "target", "fidelity", "objective")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    FIDELITY_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    graph: _graph_pb2.Graph
    target: _plan_pb2.Target
    fidelity: _plan_pb2.Fidelity
    objective: _optimizer_pb2.Objective
    def __init__(self, graph: _Optional[_Union[_graph_pb2.Graph, _Mapping]] = ..., target: _Optional[_Union[_plan_pb2.Target, _Mapping]] = ..., fidelity: _Optional[_Union[_plan_pb2.Fidelity, str]] = ..., objective: _Optional[_Union[_optimizer_pb2.Objective, str]] = ...) -> None: ...

class CreateSessionResponse(_message.Message):
    __slots__ = ("session_id", "max_batch_plans", "idle_timeout_s", "graph_fingerprint", "target_fingerprint", "op_names", "reference_interval_s", "reference_makespan_s")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_PLANS_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    OP_NAMES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_MAKESPAN_S_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    max_batch_plans: int
    idle_timeout_s: float
    graph_fingerprint: str
    target_fingerprint: str
    op_names: _containers.RepeatedScalarFieldContainer[str]
    reference_interval_s: float
    reference_makespan_s: float
    def __init__(self, session_id: _Optional[str] = ..., max_batch_plans: _Optional[int] = ..., idle_timeout_s: _Optional[float] = ..., graph_fingerprint: _Optional[str] = ..., target_fingerprint: _Optional[str] = ..., op_names: _Optional[_Iterable[str]] = ..., reference_interval_s: _Optional[float] = ..., reference_makespan_s: _Optional[float] = ...) -> None: ...

class EvaluateBatchRequest(_message.Message):
    __slots__ = ("session_id", "batch_id", "plans")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    batch_id: int
    plans: _containers.RepeatedCompositeFieldContainer[_plan_pb2.Plan]
    def __init__(self, session_id: _Optional[str] = ..., batch_id: _Optional[int] = ..., plans: _Optional[_Iterable[_Union[_plan_pb2.Plan, _Mapping]]] = ...) -> None: ...

class EvaluateBatchResponse(_message.Message):
    __slots__ = ("batch_id", "metrics", "wall_s", "rewards")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    metrics: _containers.RepeatedCompositeFieldContainer[_plan_pb2.Metrics]
    wall_s: float
    rewards: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, batch_id: _Optional[int] = ..., metrics: _Optional[_Iterable[_Union[_plan_pb2.Metrics, _Mapping]]] = ..., wall_s: _Optional[float] = ..., rewards: _Optional[_Iterable[float]] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ("plans_evaluated",)
    PLANS_EVALUATED_FIELD_NUMBER: _ClassVar[int]
    plans_evaluated: int
    def __init__(self, plans_evaluated: _Optional[int] = ...) -> None: ...
