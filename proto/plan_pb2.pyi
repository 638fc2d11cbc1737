from go_opt.proto import graph_pb2 as _graph_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Fidelity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FIDELITY_UNSPECIFIED: _ClassVar[Fidelity]
    FIDELITY_ANALYTICAL: _ClassVar[Fidelity]
    FIDELITY_SIMULATED: _ClassVar[Fidelity]
    FIDELITY_HARDWARE: _ClassVar[Fidelity]
FIDELITY_UNSPECIFIED: Fidelity
FIDELITY_ANALYTICAL: Fidelity
FIDELITY_SIMULATED: Fidelity
FIDELITY_HARDWARE: Fidelity

class Target(_message.Message):
    __slots__ = ("name", "toml", "toml_source")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOML_FIELD_NUMBER: _ClassVar[int]
    TOML_SOURCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    toml: str
    toml_source: str
    def __init__(self, name: _Optional[str] = ..., toml: _Optional[str] = ..., toml_source: _Optional[str] = ...) -> None: ...

class Relay(_message.Message):
    __slots__ = ("tensor", "chips")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    CHIPS_FIELD_NUMBER: _ClassVar[int]
    tensor: str
    chips: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tensor: _Optional[str] = ..., chips: _Optional[_Iterable[int]] = ...) -> None: ...

class Clone(_message.Message):
    __slots__ = ("op", "chip")
    OP_FIELD_NUMBER: _ClassVar[int]
    CHIP_FIELD_NUMBER: _ClassVar[int]
    op: str
    chip: int
    def __init__(self, op: _Optional[str] = ..., chip: _Optional[int] = ...) -> None: ...

class Split(_message.Message):
    __slots__ = ("op", "kind", "parts", "in_parts", "factor", "collective", "bucket", "level")
    OP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    IN_PARTS_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    op: str
    kind: str
    parts: int
    in_parts: bool
    factor: str
    collective: bool
    bucket: int
    level: int
    def __init__(self, op: _Optional[str] = ..., kind: _Optional[str] = ..., parts: _Optional[int] = ..., in_parts: bool = ..., factor: _Optional[str] = ..., collective: bool = ..., bucket: _Optional[int] = ..., level: _Optional[int] = ...) -> None: ...

class Rewrite(_message.Message):
    __slots__ = ("rule", "ops")
    RULE_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    rule: str
    ops: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rule: _Optional[str] = ..., ops: _Optional[_Iterable[str]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("placement", "order", "fusion_group", "replication", "relays", "clones", "provenance", "op_provenance", "graph_fingerprint", "target_fingerprint", "target", "dims", "precision", "model", "op_names", "rewrites", "splits", "values", "trips", "bound_states", "sequences", "host_states", "forwards")
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
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    FUSION_GROUP_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    CLONES_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    OP_PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OP_NAMES_FIELD_NUMBER: _ClassVar[int]
    REWRITES_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TRIPS_FIELD_NUMBER: _ClassVar[int]
    BOUND_STATES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    HOST_STATES_FIELD_NUMBER: _ClassVar[int]
    FORWARDS_FIELD_NUMBER: _ClassVar[int]
    placement: _containers.RepeatedScalarFieldContainer[int]
    order: _containers.RepeatedScalarFieldContainer[int]
    fusion_group: _containers.RepeatedScalarFieldContainer[int]
    replication: _containers.RepeatedScalarFieldContainer[int]
    relays: _containers.RepeatedCompositeFieldContainer[Relay]
    clones: _containers.RepeatedCompositeFieldContainer[Clone]
    provenance: _containers.RepeatedScalarFieldContainer[str]
    op_provenance: _containers.RepeatedScalarFieldContainer[int]
    graph_fingerprint: str
    target_fingerprint: str
    target: str
    dims: _containers.ScalarMap[str, int]
    precision: _graph_pb2.Precision
    model: str
    op_names: _containers.RepeatedScalarFieldContainer[str]
    rewrites: _containers.RepeatedCompositeFieldContainer[Rewrite]
    splits: _containers.RepeatedCompositeFieldContainer[Split]
    values: _containers.MessageMap[str, _graph_pb2.Numbers]
    trips: _containers.ScalarMap[str, int]
    bound_states: _containers.ScalarMap[str, str]
    sequences: int
    host_states: _containers.RepeatedScalarFieldContainer[str]
    forwards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, placement: _Optional[_Iterable[int]] = ..., order: _Optional[_Iterable[int]] = ..., fusion_group: _Optional[_Iterable[int]] = ..., replication: _Optional[_Iterable[int]] = ..., relays: _Optional[_Iterable[_Union[Relay, _Mapping]]] = ..., clones: _Optional[_Iterable[_Union[Clone, _Mapping]]] = ..., provenance: _Optional[_Iterable[str]] = ..., op_provenance: _Optional[_Iterable[int]] = ..., graph_fingerprint: _Optional[str] = ..., target_fingerprint: _Optional[str] = ..., target: _Optional[str] = ..., dims: _Optional[_Mapping[str, int]] = ..., precision: _Optional[_Union[_graph_pb2.Precision, str]] = ..., model: _Optional[str] = ..., op_names: _Optional[_Iterable[str]] = ..., rewrites: _Optional[_Iterable[_Union[Rewrite, _Mapping]]] = ..., splits: _Optional[_Iterable[_Union[Split, _Mapping]]] = ..., values: _Optional[_Mapping[str, _graph_pb2.Numbers]] = ..., trips: _Optional[_Mapping[str, int]] = ..., bound_states: _Optional[_Mapping[str, str]] = ..., sequences: _Optional[int] = ..., host_states: _Optional[_Iterable[str]] = ..., forwards: _Optional[_Iterable[int]] = ...) -> None: ...

class Simulation(_message.Message):
    __slots__ = ("utilisation", "stall_input_s", "stall_host_s", "stall_output_s", "stall_weights_s", "link_utilisation", "link_wait_s", "period", "inferences")
    UTILISATION_FIELD_NUMBER: _ClassVar[int]
    STALL_INPUT_S_FIELD_NUMBER: _ClassVar[int]
    STALL_HOST_S_FIELD_NUMBER: _ClassVar[int]
    STALL_OUTPUT_S_FIELD_NUMBER: _ClassVar[int]
    STALL_WEIGHTS_S_FIELD_NUMBER: _ClassVar[int]
    LINK_UTILISATION_FIELD_NUMBER: _ClassVar[int]
    LINK_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    INFERENCES_FIELD_NUMBER: _ClassVar[int]
    utilisation: _containers.RepeatedScalarFieldContainer[float]
    stall_input_s: _containers.RepeatedScalarFieldContainer[float]
    stall_host_s: _containers.RepeatedScalarFieldContainer[float]
    stall_output_s: _containers.RepeatedScalarFieldContainer[float]
    stall_weights_s: _containers.RepeatedScalarFieldContainer[float]
    link_utilisation: _containers.RepeatedScalarFieldContainer[float]
    link_wait_s: _containers.RepeatedScalarFieldContainer[float]
    period: int
    inferences: int
    def __init__(self, utilisation: _Optional[_Iterable[float]] = ..., stall_input_s: _Optional[_Iterable[float]] = ..., stall_host_s: _Optional[_Iterable[float]] = ..., stall_output_s: _Optional[_Iterable[float]] = ..., stall_weights_s: _Optional[_Iterable[float]] = ..., link_utilisation: _Optional[_Iterable[float]] = ..., link_wait_s: _Optional[_Iterable[float]] = ..., period: _Optional[int] = ..., inferences: _Optional[int] = ...) -> None: ...

class Metrics(_message.Message):
    __slots__ = ("interval_s", "throughput_per_s", "latency_s", "makespan_s", "bottleneck", "compute_s", "link_s", "stream_bytes", "peak_bytes", "weight_bytes", "valid", "reason", "simulation")
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_PER_S_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    MAKESPAN_S_FIELD_NUMBER: _ClassVar[int]
    BOTTLENECK_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    LINK_S_FIELD_NUMBER: _ClassVar[int]
    STREAM_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SIMULATION_FIELD_NUMBER: _ClassVar[int]
    interval_s: float
    throughput_per_s: float
    latency_s: float
    makespan_s: float
    bottleneck: str
    compute_s: _containers.RepeatedScalarFieldContainer[float]
    link_s: _containers.RepeatedScalarFieldContainer[float]
    stream_bytes: _containers.RepeatedScalarFieldContainer[int]
    peak_bytes: _containers.RepeatedScalarFieldContainer[int]
    weight_bytes: _containers.RepeatedScalarFieldContainer[int]
    valid: bool
    reason: str
    simulation: Simulation
    def __init__(self, interval_s: _Optional[float] = ..., throughput_per_s: _Optional[float] = ..., latency_s: _Optional[float] = ..., makespan_s: _Optional[float] = ..., bottleneck: _Optional[str] = ..., compute_s: _Optional[_Iterable[float]] = ..., link_s: _Optional[_Iterable[float]] = ..., stream_bytes: _Optional[_Iterable[int]] = ..., peak_bytes: _Optional[_Iterable[int]] = ..., weight_bytes: _Optional[_Iterable[int]] = ..., valid: bool = ..., reason: _Optional[str] = ..., simulation: _Optional[_Union[Simulation, _Mapping]] = ...) -> None: ...
