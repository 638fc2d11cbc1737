from go_opt.proto import graph_pb2 as _graph_pb2
from go_opt.proto import plan_pb2 as _plan_pb2
from go_opt.proto import step_pb2 as _step_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Objective(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECTIVE_UNSPECIFIED: _ClassVar[Objective]
    OBJECTIVE_THROUGHPUT: _ClassVar[Objective]
    OBJECTIVE_LATENCY: _ClassVar[Objective]
    OBJECTIVE_STEP: _ClassVar[Objective]

class Decide(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECIDE_UNSPECIFIED: _ClassVar[Decide]
    DECIDE_ALL: _ClassVar[Decide]
    DECIDE_PLACEMENT: _ClassVar[Decide]

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_UNSPECIFIED: _ClassVar[Status]
    STATUS_OPTIMAL: _ClassVar[Status]
    STATUS_FEASIBLE: _ClassVar[Status]
    STATUS_HEURISTIC: _ClassVar[Status]
    STATUS_INFEASIBLE: _ClassVar[Status]
OBJECTIVE_UNSPECIFIED: Objective
OBJECTIVE_THROUGHPUT: Objective
OBJECTIVE_LATENCY: Objective
OBJECTIVE_STEP: Objective
DECIDE_UNSPECIFIED: Decide
DECIDE_ALL: Decide
DECIDE_PLACEMENT: Decide
STATUS_UNSPECIFIED: Status
STATUS_OPTIMAL: Status
STATUS_FEASIBLE: Status
STATUS_HEURISTIC: Status
STATUS_INFEASIBLE: Status

class OnnxModel(_message.Message):
    __slots__ = ("file", "dims", "precision", "values", "trips", "bound_states")
    class DimsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _graph_pb2.Numbers
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_graph_pb2.Numbers, _Mapping]] = ...) -> None: ...
    class TripsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class BoundStatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FILE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TRIPS_FIELD_NUMBER: _ClassVar[int]
    BOUND_STATES_FIELD_NUMBER: _ClassVar[int]
    file: bytes
    dims: _containers.ScalarMap[str, int]
    precision: _graph_pb2.Precision
    values: _containers.MessageMap[str, _graph_pb2.Numbers]
    trips: _containers.ScalarMap[str, int]
    bound_states: _containers.ScalarMap[str, str]
    def __init__(self, file: _Optional[bytes] = ..., dims: _Optional[_Mapping[str, int]] = ..., precision: _Optional[_Union[_graph_pb2.Precision, str]] = ..., values: _Optional[_Mapping[str, _graph_pb2.Numbers]] = ..., trips: _Optional[_Mapping[str, int]] = ..., bound_states: _Optional[_Mapping[str, str]] = ...) -> None: ...

class OptimizeRequest(_message.Message):
    __slots__ = ("graph", "target", "objective", "budget_s", "max_evaluations", "seed", "decide", "no_relays", "no_replication", "policy", "fidelity", "constraints", "max_latency_s", "onnx", "no_simulate", "no_splits", "output_parts", "start", "fewest_chips", "no_early_end", "sequences", "rewrite", "step", "ranges", "no_rewrite")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_S_FIELD_NUMBER: _ClassVar[int]
    MAX_EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DECIDE_FIELD_NUMBER: _ClassVar[int]
    NO_RELAYS_FIELD_NUMBER: _ClassVar[int]
    NO_REPLICATION_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    FIDELITY_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    MAX_LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    ONNX_FIELD_NUMBER: _ClassVar[int]
    NO_SIMULATE_FIELD_NUMBER: _ClassVar[int]
    NO_SPLITS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_PARTS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    FEWEST_CHIPS_FIELD_NUMBER: _ClassVar[int]
    NO_EARLY_END_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    REWRITE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    NO_REWRITE_FIELD_NUMBER: _ClassVar[int]
    graph: _graph_pb2.Graph
    target: _plan_pb2.Target
    objective: Objective
    budget_s: float
    max_evaluations: int
    seed: int
    decide: Decide
    no_relays: bool
    no_replication: bool
    policy: str
    fidelity: _plan_pb2.Fidelity
    constraints: _containers.RepeatedCompositeFieldContainer[Constraint]
    max_latency_s: float
    onnx: OnnxModel
    no_simulate: bool
    no_splits: bool
    output_parts: bool
    start: Start
    fewest_chips: FewestChips
    no_early_end: bool
    sequences: int
    rewrite: bool
    step: _step_pb2.TrainingStep
    ranges: _step_pb2.LayerRanges
    no_rewrite: bool
    def __init__(self, graph: _Optional[_Union[_graph_pb2.Graph, _Mapping]] = ..., target: _Optional[_Union[_plan_pb2.Target, _Mapping]] = ..., objective: _Optional[_Union[Objective, str]] = ..., budget_s: _Optional[float] = ..., max_evaluations: _Optional[int] = ..., seed: _Optional[int] = ..., decide: _Optional[_Union[Decide, str]] = ..., no_relays: bool = ..., no_replication: bool = ..., policy: _Optional[str] = ..., fidelity: _Optional[_Union[_plan_pb2.Fidelity, str]] = ..., constraints: _Optional[_Iterable[_Union[Constraint, _Mapping]]] = ..., max_latency_s: _Optional[float] = ..., onnx: _Optional[_Union[OnnxModel, _Mapping]] = ..., no_simulate: bool = ..., no_splits: bool = ..., output_parts: bool = ..., start: _Optional[_Union[Start, _Mapping]] = ..., fewest_chips: _Optional[_Union[FewestChips, _Mapping]] = ..., no_early_end: bool = ..., sequences: _Optional[int] = ..., rewrite: bool = ..., step: _Optional[_Union[_step_pb2.TrainingStep, _Mapping]] = ..., ranges: _Optional[_Union[_step_pb2.LayerRanges, _Mapping]] = ..., no_rewrite: bool = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("ops", "plan")
    OPS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ops: _containers.RepeatedCompositeFieldContainer[OpStart]
    plan: _plan_pb2.Plan
    def __init__(self, ops: _Optional[_Iterable[_Union[OpStart, _Mapping]]] = ..., plan: _Optional[_Union[_plan_pb2.Plan, _Mapping]] = ...) -> None: ...

class OpStart(_message.Message):
    __slots__ = ("op", "chip", "replication", "kernel", "rank")
    OP_FIELD_NUMBER: _ClassVar[int]
    CHIP_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    op: str
    chip: int
    replication: int
    kernel: int
    rank: int
    def __init__(self, op: _Optional[str] = ..., chip: _Optional[int] = ..., replication: _Optional[int] = ..., kernel: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class FewestChips(_message.Message):
    __slots__ = ("rate_per_s",)
    RATE_PER_S_FIELD_NUMBER: _ClassVar[int]
    rate_per_s: float
    def __init__(self, rate_per_s: _Optional[float] = ...) -> None: ...

class Conflict(_message.Message):
    __slots__ = ("is_proven", "constraints")
    IS_PROVEN_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    is_proven: bool
    constraints: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, is_proven: bool = ..., constraints: _Optional[_Iterable[str]] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("pin", "forbid", "colocate", "cut_after", "limit", "stages")
    PIN_FIELD_NUMBER: _ClassVar[int]
    FORBID_FIELD_NUMBER: _ClassVar[int]
    COLOCATE_FIELD_NUMBER: _ClassVar[int]
    CUT_AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    pin: Pin
    forbid: Forbid
    colocate: Colocate
    cut_after: CutAfter
    limit: ChipLimit
    stages: Stages
    def __init__(self, pin: _Optional[_Union[Pin, _Mapping]] = ..., forbid: _Optional[_Union[Forbid, _Mapping]] = ..., colocate: _Optional[_Union[Colocate, _Mapping]] = ..., cut_after: _Optional[_Union[CutAfter, _Mapping]] = ..., limit: _Optional[_Union[ChipLimit, _Mapping]] = ..., stages: _Optional[_Union[Stages, _Mapping]] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("ops", "chip", "op_types")
    OPS_FIELD_NUMBER: _ClassVar[int]
    CHIP_FIELD_NUMBER: _ClassVar[int]
    OP_TYPES_FIELD_NUMBER: _ClassVar[int]
    ops: _containers.RepeatedScalarFieldContainer[str]
    chip: int
    op_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ops: _Optional[_Iterable[str]] = ..., chip: _Optional[int] = ..., op_types: _Optional[_Iterable[str]] = ...) -> None: ...

class Forbid(_message.Message):
    __slots__ = ("ops", "chips", "op_types")
    OPS_FIELD_NUMBER: _ClassVar[int]
    CHIPS_FIELD_NUMBER: _ClassVar[int]
    OP_TYPES_FIELD_NUMBER: _ClassVar[int]
    ops: _containers.RepeatedScalarFieldContainer[str]
    chips: _containers.RepeatedScalarFieldContainer[int]
    op_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ops: _Optional[_Iterable[str]] = ..., chips: _Optional[_Iterable[int]] = ..., op_types: _Optional[_Iterable[str]] = ...) -> None: ...

class Colocate(_message.Message):
    __slots__ = ("ops", "op_types")
    OPS_FIELD_NUMBER: _ClassVar[int]
    OP_TYPES_FIELD_NUMBER: _ClassVar[int]
    ops: _containers.RepeatedScalarFieldContainer[str]
    op_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ops: _Optional[_Iterable[str]] = ..., op_types: _Optional[_Iterable[str]] = ...) -> None: ...

class CutAfter(_message.Message):
    __slots__ = ("ops", "op_types")
    OPS_FIELD_NUMBER: _ClassVar[int]
    OP_TYPES_FIELD_NUMBER: _ClassVar[int]
    ops: _containers.RepeatedScalarFieldContainer[str]
    op_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ops: _Optional[_Iterable[str]] = ..., op_types: _Optional[_Iterable[str]] = ...) -> None: ...

class ChipLimit(_message.Message):
    __slots__ = ("chip", "at_most_bytes", "at_least_bytes", "at_most_s", "at_least_s", "at_most_ops", "at_most_kernels")
    CHIP_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_BYTES_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_S_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_S_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_OPS_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_KERNELS_FIELD_NUMBER: _ClassVar[int]
    chip: int
    at_most_bytes: float
    at_least_bytes: float
    at_most_s: float
    at_least_s: float
    at_most_ops: float
    at_most_kernels: float
    def __init__(self, chip: _Optional[int] = ..., at_most_bytes: _Optional[float] = ..., at_least_bytes: _Optional[float] = ..., at_most_s: _Optional[float] = ..., at_least_s: _Optional[float] = ..., at_most_ops: _Optional[float] = ..., at_most_kernels: _Optional[float] = ...) -> None: ...

class Stages(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("method", "objective_s", "best_s", "evaluations", "elapsed_s")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_S_FIELD_NUMBER: _ClassVar[int]
    BEST_S_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    method: str
    objective_s: float
    best_s: float
    evaluations: int
    elapsed_s: float
    def __init__(self, method: _Optional[str] = ..., objective_s: _Optional[float] = ..., best_s: _Optional[float] = ..., evaluations: _Optional[int] = ..., elapsed_s: _Optional[float] = ...) -> None: ...

class SizedState(_message.Message):
    __slots__ = ("read", "next", "scope", "bytes", "on_host")
    READ_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ON_HOST_FIELD_NUMBER: _ClassVar[int]
    read: str
    next: str
    scope: _graph_pb2.StateScope
    bytes: int
    on_host: bool
    def __init__(self, read: _Optional[str] = ..., next: _Optional[str] = ..., scope: _Optional[_Union[_graph_pb2.StateScope, str]] = ..., bytes: _Optional[int] = ..., on_host: bool = ...) -> None: ...

class OptimizeResponse(_message.Message):
    __slots__ = ("plan", "metrics", "objective", "status", "lower_bound_s", "bound_reason", "gap", "method", "history", "evaluations", "wall_s", "reference_s", "is_cached", "seed", "version", "nodes_without_op", "simulated_interval_s", "simulated_makespan_s", "simulation_note", "dropped_methods", "states", "unpaired_states", "unknown_ops", "chips_needed", "step", "ranges")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LOWER_BOUND_S_FIELD_NUMBER: _ClassVar[int]
    BOUND_REASON_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_S_FIELD_NUMBER: _ClassVar[int]
    IS_CACHED_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODES_WITHOUT_OP_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_MAKESPAN_S_FIELD_NUMBER: _ClassVar[int]
    SIMULATION_NOTE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_METHODS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    UNPAIRED_STATES_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_OPS_FIELD_NUMBER: _ClassVar[int]
    CHIPS_NEEDED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    plan: _plan_pb2.Plan
    metrics: _plan_pb2.Metrics
    objective: Objective
    status: Status
    lower_bound_s: float
    bound_reason: str
    gap: float
    method: str
    history: _containers.RepeatedCompositeFieldContainer[Step]
    evaluations: int
    wall_s: float
    reference_s: float
    is_cached: bool
    seed: int
    version: str
    nodes_without_op: _containers.RepeatedCompositeFieldContainer[_graph_pb2.NodeWithoutOp]
    simulated_interval_s: float
    simulated_makespan_s: float
    simulation_note: str
    dropped_methods: _containers.RepeatedScalarFieldContainer[str]
    states: _containers.RepeatedCompositeFieldContainer[SizedState]
    unpaired_states: _containers.RepeatedScalarFieldContainer[str]
    unknown_ops: _containers.RepeatedCompositeFieldContainer[_graph_pb2.UnknownOp]
    chips_needed: ChipsNeeded
    step: _step_pb2.StepAnswer
    ranges: _step_pb2.RangesAnswer
    def __init__(self, plan: _Optional[_Union[_plan_pb2.Plan, _Mapping]] = ..., metrics: _Optional[_Union[_plan_pb2.Metrics, _Mapping]] = ..., objective: _Optional[_Union[Objective, str]] = ..., status: _Optional[_Union[Status, str]] = ..., lower_bound_s: _Optional[float] = ..., bound_reason: _Optional[str] = ..., gap: _Optional[float] = ..., method: _Optional[str] = ..., history: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., evaluations: _Optional[int] = ..., wall_s: _Optional[float] = ..., reference_s: _Optional[float] = ..., is_cached: bool = ..., seed: _Optional[int] = ..., version: _Optional[str] = ..., nodes_without_op: _Optional[_Iterable[_Union[_graph_pb2.NodeWithoutOp, _Mapping]]] = ..., simulated_interval_s: _Optional[float] = ..., simulated_makespan_s: _Optional[float] = ..., simulation_note: _Optional[str] = ..., dropped_methods: _Optional[_Iterable[str]] = ..., states: _Optional[_Iterable[_Union[SizedState, _Mapping]]] = ..., unpaired_states: _Optional[_Iterable[str]] = ..., unknown_ops: _Optional[_Iterable[_Union[_graph_pb2.UnknownOp, _Mapping]]] = ..., chips_needed: _Optional[_Union[ChipsNeeded, _Mapping]] = ..., step: _Optional[_Union[_step_pb2.StepAnswer, _Mapping]] = ..., ranges: _Optional[_Union[_step_pb2.RangesAnswer, _Mapping]] = ...) -> None: ...

class ChipsNeeded(_message.Message):
    __slots__ = ("chips", "is_proven", "tried")
    CHIPS_FIELD_NUMBER: _ClassVar[int]
    IS_PROVEN_FIELD_NUMBER: _ClassVar[int]
    TRIED_FIELD_NUMBER: _ClassVar[int]
    chips: int
    is_proven: bool
    tried: _containers.RepeatedCompositeFieldContainer[ChipCount]
    def __init__(self, chips: _Optional[int] = ..., is_proven: bool = ..., tried: _Optional[_Iterable[_Union[ChipCount, _Mapping]]] = ...) -> None: ...

class ChipCount(_message.Message):
    __slots__ = ("chips", "result", "is_proven", "reason")
    CHIPS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    IS_PROVEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    chips: int
    result: OptimizeResponse
    is_proven: bool
    reason: str
    def __init__(self, chips: _Optional[int] = ..., result: _Optional[_Union[OptimizeResponse, _Mapping]] = ..., is_proven: bool = ..., reason: _Optional[str] = ...) -> None: ...

class OptimizeUpdate(_message.Message):
    __slots__ = ("improvement", "result")
    IMPROVEMENT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    improvement: OptimizeResponse
    result: OptimizeResponse
    def __init__(self, improvement: _Optional[_Union[OptimizeResponse, _Mapping]] = ..., result: _Optional[_Union[OptimizeResponse, _Mapping]] = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ("graph", "target", "plan", "fidelity", "seed", "constraints", "step", "step_plan")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    FIDELITY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_PLAN_FIELD_NUMBER: _ClassVar[int]
    graph: _graph_pb2.Graph
    target: _plan_pb2.Target
    plan: _plan_pb2.Plan
    fidelity: _plan_pb2.Fidelity
    seed: int
    constraints: _containers.RepeatedCompositeFieldContainer[Constraint]
    step: _step_pb2.TrainingStep
    step_plan: _step_pb2.StepPlan
    def __init__(self, graph: _Optional[_Union[_graph_pb2.Graph, _Mapping]] = ..., target: _Optional[_Union[_plan_pb2.Target, _Mapping]] = ..., plan: _Optional[_Union[_plan_pb2.Plan, _Mapping]] = ..., fidelity: _Optional[_Union[_plan_pb2.Fidelity, str]] = ..., seed: _Optional[int] = ..., constraints: _Optional[_Iterable[_Union[Constraint, _Mapping]]] = ..., step: _Optional[_Union[_step_pb2.TrainingStep, _Mapping]] = ..., step_plan: _Optional[_Union[_step_pb2.StepPlan, _Mapping]] = ...) -> None: ...

class EvaluateResponse(_message.Message):
    __slots__ = ("metrics", "step")
    METRICS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    metrics: _plan_pb2.Metrics
    step: _step_pb2.StepMetrics
    def __init__(self, metrics: _Optional[_Union[_plan_pb2.Metrics, _Mapping]] = ..., step: _Optional[_Union[_step_pb2.StepMetrics, _Mapping]] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("graph", "target", "plan", "constraints", "step", "step_plan")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_PLAN_FIELD_NUMBER: _ClassVar[int]
    graph: _graph_pb2.Graph
    target: _plan_pb2.Target
    plan: _plan_pb2.Plan
    constraints: _containers.RepeatedCompositeFieldContainer[Constraint]
    step: _step_pb2.TrainingStep
    step_plan: _step_pb2.StepPlan
    def __init__(self, graph: _Optional[_Union[_graph_pb2.Graph, _Mapping]] = ..., target: _Optional[_Union[_plan_pb2.Target, _Mapping]] = ..., plan: _Optional[_Union[_plan_pb2.Plan, _Mapping]] = ..., constraints: _Optional[_Iterable[_Union[Constraint, _Mapping]]] = ..., step: _Optional[_Union[_step_pb2.TrainingStep, _Mapping]] = ..., step_plan: _Optional[_Union[_step_pb2.StepPlan, _Mapping]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("violations",)
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    violations: _containers.RepeatedCompositeFieldContainer[Violation]
    def __init__(self, violations: _Optional[_Iterable[_Union[Violation, _Mapping]]] = ...) -> None: ...

class Violation(_message.Message):
    __slots__ = ("constraint", "message")
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    constraint: str
    message: str
    def __init__(self, constraint: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("graph", "target", "plan", "op", "constraints", "objective", "step", "step_plan")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_PLAN_FIELD_NUMBER: _ClassVar[int]
    graph: _graph_pb2.Graph
    target: _plan_pb2.Target
    plan: _plan_pb2.Plan
    op: str
    constraints: _containers.RepeatedCompositeFieldContainer[Constraint]
    objective: Objective
    step: _step_pb2.TrainingStep
    step_plan: _step_pb2.StepPlan
    def __init__(self, graph: _Optional[_Union[_graph_pb2.Graph, _Mapping]] = ..., target: _Optional[_Union[_plan_pb2.Target, _Mapping]] = ..., plan: _Optional[_Union[_plan_pb2.Plan, _Mapping]] = ..., op: _Optional[str] = ..., constraints: _Optional[_Iterable[_Union[Constraint, _Mapping]]] = ..., objective: _Optional[_Union[Objective, str]] = ..., step: _Optional[_Union[_step_pb2.TrainingStep, _Mapping]] = ..., step_plan: _Optional[_Union[_step_pb2.StepPlan, _Mapping]] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("explanation",)
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    explanation: _struct_pb2.Struct
    def __init__(self, explanation: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class ListTargetsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTargetsResponse(_message.Message):
    __slots__ = ("targets",)
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    targets: _containers.RepeatedCompositeFieldContainer[TargetSummary]
    def __init__(self, targets: _Optional[_Iterable[_Union[TargetSummary, _Mapping]]] = ...) -> None: ...

class TargetSummary(_message.Message):
    __slots__ = ("name", "description", "num_chips", "topology", "native_dtype", "power_w", "fingerprint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    NUM_CHIPS_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    NATIVE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    num_chips: int
    topology: str
    native_dtype: str
    power_w: float
    fingerprint: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., num_chips: _Optional[int] = ..., topology: _Optional[str] = ..., native_dtype: _Optional[str] = ..., power_w: _Optional[float] = ..., fingerprint: _Optional[str] = ...) -> None: ...
