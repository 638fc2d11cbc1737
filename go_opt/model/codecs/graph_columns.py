"""Decodes a graph message column by column: the fast path for messages that break no rule.

The rules are those of :class:`go_opt.model.builder.GraphBuilder`, checked for all ops or
tensors at once. The builder then reports which rule a message breaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import CodeArray, IntArray, LongArray, frozen
from go_opt.errors import InvalidInputError
from go_opt.model.bindings import Bindings
from go_opt.model.builder import MAX_FLOPS
from go_opt.model.dtypes import dtype_code
from go_opt.model.graph import (
    ACTIVATION,
    MAX_ELEMENTS,
    NO_PRODUCER,
    OP_CLASSES,
    STATE,
    Graph,
    Precision,
    by_kind,
)

if TYPE_CHECKING:
    from go_opt.proto import graph_pb2

_Columns = dict[str, Any]  # of arrays, by field of Graph
_NO_FIELD: Final = 2**31  # no int32 of a message has this value
_NO_KINDS: Final[Mapping[str, bool]] = MappingProxyType({})


def graph_from_columns(message: graph_pb2.Graph, precision: Precision, bindings: Bindings) -> Graph | None:
    """The graph of a message; None if a rule is broken, if ops or reads are unsorted, or if it has states."""
    try:
        _require(not message.states)
        op_names, op_types, ops = _ops(message)
        tensor_names, tensors = _tensors(message, len(op_names))
        columns: _Columns = {field: frozen(column) for field, column in (ops | tensors).items()}
        return Graph(
            name=message.name,
            op_names=op_names,
            op_types=op_types,
            tensor_names=tensor_names,
            bindings=bindings,
            precision=precision,
            **_by_chip_kind(message),
            **columns,
        )
    except (_Unfit, InvalidInputError, OverflowError):
        return None


class _Unfit(Exception):
    """The message needs the builder."""


def _require(holds: object) -> None:
    if not holds:
        raise _Unfit


def _ops(message: graph_pb2.Graph) -> tuple[tuple[str, ...], tuple[str, ...], _Columns]:
    _require(message.ops)
    rows = [(op.name, op.op_type, op.op_class, op.flops, op.dtype) for op in message.ops]
    names, types, classes, flops, dtypes = zip(*rows, strict=True)
    _require(all(names))
    _require(len(set(names)) == len(names))
    columns = {
        "op_class": _between(classes, 1, len(OP_CLASSES), np.int8) - np.int8(1),
        "op_flops": _between(flops, 0, MAX_FLOPS, np.float64),
        "op_dtype": _codes(dtypes),
    }
    return names, types, columns


def _tensors(message: graph_pb2.Graph, num_ops: int) -> tuple[tuple[str, ...], _Columns]:
    rows = [
        (
            tensor.name,
            tensor.elements,
            tensor.dtype,
            tensor.kind,
            # HasField is slow, and needed only for a zero.
            tensor.producer or (0 if tensor.HasField("producer") else _NO_FIELD),
            tensor.is_output,
        )
        for tensor in message.tensors
    ]
    names, elements, dtypes, kinds, producers, is_output = zip(*rows, strict=True) if rows else [()] * 6
    _require(len(set(names)) == len(names))
    has_producer = np.array(producers, np.int64) != _NO_FIELD
    producer = np.full(len(rows), NO_PRODUCER, np.int32)
    producer[has_producer] = _between([p for p in producers if p != _NO_FIELD], 0, num_ops - 1, np.int32)
    kind = _between(kinds, 1, STATE, np.int8) - np.int8(1)
    _require(np.array_equal(has_producer, kind == ACTIVATION))
    columns = {
        "tensor_elements": _between(elements, 0, MAX_ELEMENTS, np.int64),
        "tensor_dtype": _codes(dtypes),
        "tensor_kind": kind,
        "tensor_producer": producer,
        "tensor_is_output": np.array(is_output, np.bool_) & has_producer,
    }
    counts, reads = _reads(message, elements, producer, num_ops)
    is_kept = has_producer | (counts > 0)
    if not is_kept.all():
        names = tuple(name for name, kept in zip(names, is_kept.tolist(), strict=True) if kept)
        columns = {field: column[is_kept] for field, column in columns.items()}
    pointers = np.concatenate([[0], np.cumsum(counts[is_kept])]).astype(np.int64)
    return tuple(names), columns | reads | {"reader_ptr": pointers}


def _reads(
    message: graph_pb2.Graph, elements: Sequence[int], producer: IntArray, num_ops: int
) -> tuple[LongArray, _Columns]:
    """The number of readers of each tensor, and the columns of all reads."""
    readers = [tensor.readers for tensor in message.tensors]
    rows = [
        (reader.op, reader.elements or (0 if reader.HasField("elements") else size))
        for size, row in zip(elements, readers, strict=True)
        for reader in row
    ]
    op_rows, touched_rows = zip(*rows, strict=True) if rows else ((), ())
    op = _between(op_rows, 0, num_ops - 1, np.int32)
    touched = _between(touched_rows, 0, MAX_ELEMENTS, np.int64)
    counts = np.array([len(row) for row in readers], np.int64)
    tensor = np.repeat(np.arange(len(counts)), counts)
    _require((op > producer[tensor]).all())  # the ops are in topological order
    _require(((np.diff(op) > 0) | (np.diff(tensor) > 0)).all())  # ascending and unique in a row
    size = np.array(elements, np.int64)[tensor]
    return counts, {"reader_op": op, "reader_elements": np.minimum(touched, size)}


def _by_chip_kind(message: graph_pb2.Graph) -> dict[str, Any]:
    measured_s = [op.measured_s for op in message.ops]
    seconds = [value for row in measured_s if row for value in row.values()]
    _between(seconds, 0, MAX_FLOPS, np.float64)
    excluded = [
        dict.fromkeys(op.excluded_kinds, True) if op.excluded_kinds else _NO_KINDS for op in message.ops
    ]
    return {
        "measured_s": by_kind(measured_s, np.nan, np.float64),
        "excluded": by_kind(excluded, False, np.bool_),
    }


def _between(values: Sequence[float], low: float, high: float, dtype: type) -> NDArray[Any]:
    array = np.array(values, np.float64 if dtype is np.float64 else np.int64)
    _require(((low <= array) & (array <= high)).all())  # NaN fails every comparison
    return array.astype(dtype, copy=False)


def _codes(dtypes: Sequence[str]) -> CodeArray:
    code = {dtype: dtype_code(dtype) for dtype in set(dtypes)}
    return np.array([code[dtype] for dtype in dtypes], np.int8)
