from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OP_CLASS_UNSPECIFIED: _ClassVar[OpClass]
    OP_CLASS_MATRIX: _ClassVar[OpClass]
    OP_CLASS_VECTOR: _ClassVar[OpClass]
    OP_CLASS_DATA_MOVEMENT: _ClassVar[OpClass]

class TensorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TENSOR_KIND_UNSPECIFIED: _ClassVar[TensorKind]
    TENSOR_KIND_ACTIVATION: _ClassVar[TensorKind]
    TENSOR_KIND_WEIGHT: _ClassVar[TensorKind]
    TENSOR_KIND_INPUT: _ClassVar[TensorKind]
    TENSOR_KIND_STATE: _ClassVar[TensorKind]

class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRECISION_UNSPECIFIED: _ClassVar[Precision]
    PRECISION_NATIVE: _ClassVar[Precision]
    PRECISION_AS_IS: _ClassVar[Precision]

class FactorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FACTOR_KIND_UNSPECIFIED: _ClassVar[FactorKind]
    FACTOR_KIND_PARALLEL: _ClassVar[FactorKind]
    FACTOR_KIND_REDUCTION: _ClassVar[FactorKind]
    FACTOR_KIND_WINDOW: _ClassVar[FactorKind]
    FACTOR_KIND_WHOLE: _ClassVar[FactorKind]

class StateScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_SCOPE_UNSPECIFIED: _ClassVar[StateScope]
    STATE_SCOPE_SEQUENCE: _ClassVar[StateScope]
    STATE_SCOPE_MODEL: _ClassVar[StateScope]
OP_CLASS_UNSPECIFIED: OpClass
OP_CLASS_MATRIX: OpClass
OP_CLASS_VECTOR: OpClass
OP_CLASS_DATA_MOVEMENT: OpClass
TENSOR_KIND_UNSPECIFIED: TensorKind
TENSOR_KIND_ACTIVATION: TensorKind
TENSOR_KIND_WEIGHT: TensorKind
TENSOR_KIND_INPUT: TensorKind
TENSOR_KIND_STATE: TensorKind
PRECISION_UNSPECIFIED: Precision
PRECISION_NATIVE: Precision
PRECISION_AS_IS: Precision
FACTOR_KIND_UNSPECIFIED: FactorKind
FACTOR_KIND_PARALLEL: FactorKind
FACTOR_KIND_REDUCTION: FactorKind
FACTOR_KIND_WINDOW: FactorKind
FACTOR_KIND_WHOLE: FactorKind
STATE_SCOPE_UNSPECIFIED: StateScope
STATE_SCOPE_SEQUENCE: StateScope
STATE_SCOPE_MODEL: StateScope

class Factor(_message.Message):
    __slots__ = ("name", "kind", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: FactorKind
    size: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[FactorKind, str]] = ..., size: _Optional[int] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("factor", "window", "stride", "dilation", "before", "size")
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    DILATION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    factor: int
    window: int
    stride: int
    dilation: int
    before: int
    size: int
    def __init__(self, factor: _Optional[int] = ..., window: _Optional[int] = ..., stride: _Optional[int] = ..., dilation: _Optional[int] = ..., before: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("factor", "window")
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    factor: int
    window: Window
    def __init__(self, factor: _Optional[int] = ..., window: _Optional[_Union[Window, _Mapping]] = ...) -> None: ...

class Dimension(_message.Message):
    __slots__ = ("pieces",)
    PIECES_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    def __init__(self, pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ...) -> None: ...

class Access(_message.Message):
    __slots__ = ("dimensions",)
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    dimensions: _containers.RepeatedCompositeFieldContainer[Dimension]
    def __init__(self, dimensions: _Optional[_Iterable[_Union[Dimension, _Mapping]]] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("factors", "operands", "results")
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    factors: _containers.RepeatedCompositeFieldContainer[Factor]
    operands: _containers.RepeatedCompositeFieldContainer[Access]
    results: _containers.RepeatedCompositeFieldContainer[Access]
    def __init__(self, factors: _Optional[_Iterable[_Union[Factor, _Mapping]]] = ..., operands: _Optional[_Iterable[_Union[Access, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[Access, _Mapping]]] = ...) -> None: ...

class Op(_message.Message):
    __slots__ = ("name", "op_type", "op_class", "flops", "dtype", "measured_s", "excluded_kinds", "window", "heads", "rule", "operands", "results")
    class MeasuredSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    OP_CLASS_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MEASURED_S_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_KINDS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    op_type: str
    op_class: OpClass
    flops: float
    dtype: str
    measured_s: _containers.ScalarMap[str, float]
    excluded_kinds: _containers.RepeatedScalarFieldContainer[str]
    window: _containers.RepeatedScalarFieldContainer[int]
    heads: Heads
    rule: int
    operands: _containers.RepeatedScalarFieldContainer[int]
    results: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., op_type: _Optional[str] = ..., op_class: _Optional[_Union[OpClass, str]] = ..., flops: _Optional[float] = ..., dtype: _Optional[str] = ..., measured_s: _Optional[_Mapping[str, float]] = ..., excluded_kinds: _Optional[_Iterable[str]] = ..., window: _Optional[_Iterable[int]] = ..., heads: _Optional[_Union[Heads, _Mapping]] = ..., rule: _Optional[int] = ..., operands: _Optional[_Iterable[int]] = ..., results: _Optional[_Iterable[int]] = ...) -> None: ...

class Heads(_message.Message):
    __slots__ = ("number", "behind")
    class BehindEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    number: int
    behind: _containers.ScalarMap[str, int]
    def __init__(self, number: _Optional[int] = ..., behind: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Reader(_message.Message):
    __slots__ = ("op", "elements")
    OP_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    op: int
    elements: int
    def __init__(self, op: _Optional[int] = ..., elements: _Optional[int] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "elements", "dtype", "kind", "producer", "readers", "is_output", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    IS_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    elements: int
    dtype: str
    kind: TensorKind
    producer: int
    readers: _containers.RepeatedCompositeFieldContainer[Reader]
    is_output: bool
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., elements: _Optional[int] = ..., dtype: _Optional[str] = ..., kind: _Optional[_Union[TensorKind, str]] = ..., producer: _Optional[int] = ..., readers: _Optional[_Iterable[_Union[Reader, _Mapping]]] = ..., is_output: bool = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class NodeWithoutOp(_message.Message):
    __slots__ = ("name", "became", "op")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BECAME_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    name: str
    became: str
    op: str
    def __init__(self, name: _Optional[str] = ..., became: _Optional[str] = ..., op: _Optional[str] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("read", "next", "scope")
    READ_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    read: int
    next: int
    scope: StateScope
    def __init__(self, read: _Optional[int] = ..., next: _Optional[int] = ..., scope: _Optional[_Union[StateScope, str]] = ...) -> None: ...

class UnknownOp(_message.Message):
    __slots__ = ("name", "op_type", "flops")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    op_type: str
    flops: float
    def __init__(self, name: _Optional[str] = ..., op_type: _Optional[str] = ..., flops: _Optional[float] = ...) -> None: ...

class Numbers(_message.Message):
    __slots__ = ("numbers",)
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, numbers: _Optional[_Iterable[float]] = ...) -> None: ...

class Graph(_message.Message):
    __slots__ = ("name", "ops", "tensors", "precision", "dims", "values", "trips", "rules", "bound_states", "states", "unpaired_states", "unknown_ops")
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
        value: Numbers
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Numbers, _Mapping]] = ...) -> None: ...
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
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TRIPS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    BOUND_STATES_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    UNPAIRED_STATES_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_OPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    ops: _containers.RepeatedCompositeFieldContainer[Op]
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    precision: Precision
    dims: _containers.ScalarMap[str, int]
    values: _containers.MessageMap[str, Numbers]
    trips: _containers.ScalarMap[str, int]
    rules: _containers.RepeatedCompositeFieldContainer[Rule]
    bound_states: _containers.ScalarMap[str, str]
    states: _containers.RepeatedCompositeFieldContainer[State]
    unpaired_states: _containers.RepeatedScalarFieldContainer[str]
    unknown_ops: _containers.RepeatedCompositeFieldContainer[UnknownOp]
    def __init__(self, name: _Optional[str] = ..., ops: _Optional[_Iterable[_Union[Op, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., precision: _Optional[_Union[Precision, str]] = ..., dims: _Optional[_Mapping[str, int]] = ..., values: _Optional[_Mapping[str, Numbers]] = ..., trips: _Optional[_Mapping[str, int]] = ..., rules: _Optional[_Iterable[_Union[Rule, _Mapping]]] = ..., bound_states: _Optional[_Mapping[str, str]] = ..., states: _Optional[_Iterable[_Union[State, _Mapping]]] = ..., unpaired_states: _Optional[_Iterable[str]] = ..., unknown_ops: _Optional[_Iterable[_Union[UnknownOp, _Mapping]]] = ...) -> None: ...
