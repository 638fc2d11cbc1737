from go_opt.proto import graph_pb2 as _graph_pb2
from go_opt.proto import plan_pb2 as _plan_pb2
from google.longrunning import operations_pb2 as _operations_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_KIND_UNSPECIFIED: _ClassVar[JobKind]
    JOB_KIND_PRETRAIN: _ClassVar[JobKind]
    JOB_KIND_FINETUNE: _ClassVar[JobKind]

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_QUEUED: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_CANCELLING: _ClassVar[JobState]
    JOB_STATE_SUCCEEDED: _ClassVar[JobState]
    JOB_STATE_FAILED: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]
JOB_KIND_UNSPECIFIED: JobKind
JOB_KIND_PRETRAIN: JobKind
JOB_KIND_FINETUNE: JobKind
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_QUEUED: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_CANCELLING: JobState
JOB_STATE_SUCCEEDED: JobState
JOB_STATE_FAILED: JobState
JOB_STATE_CANCELLED: JobState

class TrainingEnvironment(_message.Message):
    __slots__ = ("fidelity", "address")
    FIDELITY_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    fidelity: _plan_pb2.Fidelity
    address: str
    def __init__(self, fidelity: _Optional[_Union[_plan_pb2.Fidelity, str]] = ..., address: _Optional[str] = ...) -> None: ...

class PretrainRequest(_message.Message):
    __slots__ = ("policy", "request_id", "zoo_graphs", "graphs", "target", "samples", "seed", "environment", "lessons", "generated_share", "most_ops", "shared")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ZOO_GRAPHS_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    LESSONS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_SHARE_FIELD_NUMBER: _ClassVar[int]
    MOST_OPS_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    policy: str
    request_id: str
    zoo_graphs: _containers.RepeatedScalarFieldContainer[str]
    graphs: _containers.RepeatedCompositeFieldContainer[_graph_pb2.Graph]
    target: _plan_pb2.Target
    samples: int
    seed: int
    environment: TrainingEnvironment
    lessons: _containers.RepeatedScalarFieldContainer[str]
    generated_share: float
    most_ops: int
    shared: bool
    def __init__(self, policy: _Optional[str] = ..., request_id: _Optional[str] = ..., zoo_graphs: _Optional[_Iterable[str]] = ..., graphs: _Optional[_Iterable[_Union[_graph_pb2.Graph, _Mapping]]] = ..., target: _Optional[_Union[_plan_pb2.Target, _Mapping]] = ..., samples: _Optional[int] = ..., seed: _Optional[int] = ..., environment: _Optional[_Union[TrainingEnvironment, _Mapping]] = ..., lessons: _Optional[_Iterable[str]] = ..., generated_share: _Optional[float] = ..., most_ops: _Optional[int] = ..., shared: bool = ...) -> None: ...

class FinetuneRequest(_message.Message):
    __slots__ = ("policy", "request_id", "from_policy", "graph", "target", "samples", "seed", "environment", "lessons", "shared")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_POLICY_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    LESSONS_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    policy: str
    request_id: str
    from_policy: str
    graph: _graph_pb2.Graph
    target: _plan_pb2.Target
    samples: int
    seed: int
    environment: TrainingEnvironment
    lessons: _containers.RepeatedScalarFieldContainer[str]
    shared: bool
    def __init__(self, policy: _Optional[str] = ..., request_id: _Optional[str] = ..., from_policy: _Optional[str] = ..., graph: _Optional[_Union[_graph_pb2.Graph, _Mapping]] = ..., target: _Optional[_Union[_plan_pb2.Target, _Mapping]] = ..., samples: _Optional[int] = ..., seed: _Optional[int] = ..., environment: _Optional[_Union[TrainingEnvironment, _Mapping]] = ..., lessons: _Optional[_Iterable[str]] = ..., shared: bool = ...) -> None: ...

class TrainingProgress(_message.Message):
    __slots__ = ("policy", "kind", "state", "create_time", "start_time", "end_time", "step", "steps", "samples", "checkpoint_step", "reward", "best_interval_s", "best_score", "samples_per_s", "left_s", "attempts", "owner", "shared")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    BEST_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    BEST_SCORE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    policy: str
    kind: JobKind
    state: JobState
    create_time: _timestamp_pb2.Timestamp
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    step: int
    steps: int
    samples: int
    checkpoint_step: int
    reward: float
    best_interval_s: float
    best_score: float
    samples_per_s: float
    left_s: float
    attempts: int
    owner: str
    shared: bool
    def __init__(self, policy: _Optional[str] = ..., kind: _Optional[_Union[JobKind, str]] = ..., state: _Optional[_Union[JobState, str]] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., step: _Optional[int] = ..., steps: _Optional[int] = ..., samples: _Optional[int] = ..., checkpoint_step: _Optional[int] = ..., reward: _Optional[float] = ..., best_interval_s: _Optional[float] = ..., best_score: _Optional[float] = ..., samples_per_s: _Optional[float] = ..., left_s: _Optional[float] = ..., attempts: _Optional[int] = ..., owner: _Optional[str] = ..., shared: bool = ...) -> None: ...

class TrainingResult(_message.Message):
    __slots__ = ("policy", "progress", "best_plan", "best_interval_s", "reference_interval_s")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    BEST_PLAN_FIELD_NUMBER: _ClassVar[int]
    BEST_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    policy: str
    progress: TrainingProgress
    best_plan: _plan_pb2.Plan
    best_interval_s: float
    reference_interval_s: float
    def __init__(self, policy: _Optional[str] = ..., progress: _Optional[_Union[TrainingProgress, _Mapping]] = ..., best_plan: _Optional[_Union[_plan_pb2.Plan, _Mapping]] = ..., best_interval_s: _Optional[float] = ..., reference_interval_s: _Optional[float] = ...) -> None: ...
