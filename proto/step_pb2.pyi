from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PipelineSchedule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PIPELINE_SCHEDULE_UNSPECIFIED: _ClassVar[PipelineSchedule]
    PIPELINE_SCHEDULE_1F1B: _ClassVar[PipelineSchedule]
    PIPELINE_SCHEDULE_GPIPE: _ClassVar[PipelineSchedule]
    PIPELINE_SCHEDULE_INTERLEAVED: _ClassVar[PipelineSchedule]

class Recompute(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECOMPUTE_UNSPECIFIED: _ClassVar[Recompute]
    RECOMPUTE_FULL: _ClassVar[Recompute]
    RECOMPUTE_ATTENTION: _ClassVar[Recompute]
    RECOMPUTE_NONE: _ClassVar[Recompute]
PIPELINE_SCHEDULE_UNSPECIFIED: PipelineSchedule
PIPELINE_SCHEDULE_1F1B: PipelineSchedule
PIPELINE_SCHEDULE_GPIPE: PipelineSchedule
PIPELINE_SCHEDULE_INTERLEAVED: PipelineSchedule
RECOMPUTE_UNSPECIFIED: Recompute
RECOMPUTE_FULL: Recompute
RECOMPUTE_ATTENTION: Recompute
RECOMPUTE_NONE: Recompute

class TrainingStep(_message.Message):
    __slots__ = ("model", "batch")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    model: Transformer
    batch: int
    def __init__(self, model: _Optional[_Union[Transformer, _Mapping]] = ..., batch: _Optional[int] = ...) -> None: ...

class Transformer(_message.Message):
    __slots__ = ("hidden", "layers", "heads", "sequence", "vocabulary", "mlp", "kv_heads", "gated", "experts", "experts_per_token")
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    MLP_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    GATED_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    hidden: int
    layers: int
    heads: int
    sequence: int
    vocabulary: int
    mlp: int
    kv_heads: int
    gated: bool
    experts: int
    experts_per_token: int
    def __init__(self, hidden: _Optional[int] = ..., layers: _Optional[int] = ..., heads: _Optional[int] = ..., sequence: _Optional[int] = ..., vocabulary: _Optional[int] = ..., mlp: _Optional[int] = ..., kv_heads: _Optional[int] = ..., gated: bool = ..., experts: _Optional[int] = ..., experts_per_token: _Optional[int] = ...) -> None: ...

class StepConfiguration(_message.Message):
    __slots__ = ("tensor", "pipeline", "data", "expert", "micro_batch", "schedule", "stages_per_device", "zero", "recompute", "sequence_parallel", "overlap", "host_s_per_layer")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    EXPERT_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    STAGES_PER_DEVICE_FIELD_NUMBER: _ClassVar[int]
    ZERO_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    HOST_S_PER_LAYER_FIELD_NUMBER: _ClassVar[int]
    tensor: int
    pipeline: int
    data: int
    expert: int
    micro_batch: int
    schedule: PipelineSchedule
    stages_per_device: int
    zero: int
    recompute: Recompute
    sequence_parallel: bool
    overlap: bool
    host_s_per_layer: float
    def __init__(self, tensor: _Optional[int] = ..., pipeline: _Optional[int] = ..., data: _Optional[int] = ..., expert: _Optional[int] = ..., micro_batch: _Optional[int] = ..., schedule: _Optional[_Union[PipelineSchedule, str]] = ..., stages_per_device: _Optional[int] = ..., zero: _Optional[int] = ..., recompute: _Optional[_Union[Recompute, str]] = ..., sequence_parallel: bool = ..., overlap: bool = ..., host_s_per_layer: _Optional[float] = ...) -> None: ...

class RankLayers(_message.Message):
    __slots__ = ("none", "attention", "full")
    NONE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    none: int
    attention: int
    full: int
    def __init__(self, none: _Optional[int] = ..., attention: _Optional[int] = ..., full: _Optional[int] = ...) -> None: ...

class StepPlan(_message.Message):
    __slots__ = ("configuration", "layers")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    configuration: StepConfiguration
    layers: _containers.RepeatedCompositeFieldContainer[RankLayers]
    def __init__(self, configuration: _Optional[_Union[StepConfiguration, _Mapping]] = ..., layers: _Optional[_Iterable[_Union[RankLayers, _Mapping]]] = ...) -> None: ...

class StepMetrics(_message.Message):
    __slots__ = ("step_s", "terms_s", "memory_bytes", "memory_limit_bytes", "fits", "lacks", "simulated_s")
    class TermsSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    TERMS_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    LACKS_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_S_FIELD_NUMBER: _ClassVar[int]
    step_s: float
    terms_s: _containers.ScalarMap[str, float]
    memory_bytes: _containers.RepeatedScalarFieldContainer[int]
    memory_limit_bytes: int
    fits: bool
    lacks: _containers.RepeatedScalarFieldContainer[str]
    simulated_s: float
    def __init__(self, step_s: _Optional[float] = ..., terms_s: _Optional[_Mapping[str, float]] = ..., memory_bytes: _Optional[_Iterable[int]] = ..., memory_limit_bytes: _Optional[int] = ..., fits: bool = ..., lacks: _Optional[_Iterable[str]] = ..., simulated_s: _Optional[float] = ...) -> None: ...

class StepChoice(_message.Message):
    __slots__ = ("plan", "metrics")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    plan: StepPlan
    metrics: StepMetrics
    def __init__(self, plan: _Optional[_Union[StepPlan, _Mapping]] = ..., metrics: _Optional[_Union[StepMetrics, _Mapping]] = ...) -> None: ...

class StepAnswer(_message.Message):
    __slots__ = ("choices", "configurations", "solved", "is_complete")
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATIONS_FIELD_NUMBER: _ClassVar[int]
    SOLVED_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    choices: _containers.RepeatedCompositeFieldContainer[StepChoice]
    configurations: int
    solved: int
    is_complete: bool
    def __init__(self, choices: _Optional[_Iterable[_Union[StepChoice, _Mapping]]] = ..., configurations: _Optional[int] = ..., solved: _Optional[int] = ..., is_complete: bool = ...) -> None: ...

class LayerRanges(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Transformer
    def __init__(self, model: _Optional[_Union[Transformer, _Mapping]] = ...) -> None: ...

class NodeRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class RangesAnswer(_message.Message):
    __slots__ = ("nodes", "throughput_per_s", "bound_per_s")
    NODES_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_PER_S_FIELD_NUMBER: _ClassVar[int]
    BOUND_PER_S_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeRange]
    throughput_per_s: float
    bound_per_s: float
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeRange, _Mapping]]] = ..., throughput_per_s: _Optional[float] = ..., bound_per_s: _Optional[float] = ...) -> None: ...
