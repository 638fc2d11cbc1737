"""What a model consists of, before any target: dimensions, inputs, op types, layers, ops of unknown type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from go_opt.api.inputs import ONNX, as_loaded, suffix_of
from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.frontends.onnx_frontend import OnnxHeader, TensorHeader, read_header
from go_opt.model.bindings import Bindings, Numbers
from go_opt.model.dtypes import DTYPES, size_bytes
from go_opt.model.graph import INPUT, WEIGHT, Graph, UnknownOp, tensor_shapes
from go_opt.model.states import SizedState, sized_states

if TYPE_CHECKING:
    import networkx as nx

MOST_LAYERS: Final = 24


@dataclass(frozen=True)
class OpTypeStats:
    """All ops of one type."""

    op_type: str
    ops: int
    flops: float | None  # of one inference; None: dimensions are not bound


@dataclass(frozen=True)
class Layer:
    """The ops whose names have a prefix in common."""

    name: str  # the prefix; empty: names without one
    ops: int
    flops: float
    weight_bytes: int  # each weight at the first op that reads it, in the model's own types


@dataclass(frozen=True)
class ModelSummary:
    """A model; before its dimensions are bound, op types are those of the file's nodes, without work."""

    name: str
    dims: Mapping[str, int]  # those that are bound
    inputs: tuple[TensorHeader, ...]
    outputs: tuple[TensorHeader, ...]
    weight_bytes: int  # in the model's own types
    op_types: tuple[OpTypeStats, ...]  # most FLOPs first, then most ops
    unbound: tuple[str, ...] = ()  # dimensions that have to be bound before it can be planned
    ops: int | None = None
    flops: float | None = None  # of one inference
    unknown_ops: tuple[UnknownOp, ...] = ()  # whose type no rule has, with what they are taken to cost
    states: tuple[SizedState, ...] = ()  # in the model's own types
    unpaired_states: tuple[str, ...] = ()  # inputs that look like states and are none
    bound_states: Mapping[str, str] = field(default_factory=dict)  # as given
    layers: tuple[Layer, ...] = ()  # in the order of their first ops


def inspect(
    model: Graph | nx.DiGraph | str | Path,
    *,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Numbers] | None = None,
    trips: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
) -> ModelSummary:
    """Says what a model consists of, also if its dimensions are not bound yet.

    Args:
      model: a graph, or an argument of :func:`go_opt.load`.
      dims, values, trips, states: as :func:`go_opt.load`.

    Raises:
      ModelError, GraphError: the model cannot be read; one sentence says why.
    """
    bindings, header = Bindings.of(dims, values, trips, states), None
    if isinstance(model, str | Path) and not str(model).startswith("zoo:"):
        header = read_header(model, bindings) if suffix_of(model) == ONNX else None
    if header is not None and header.unbound:
        return _of_header(header, bindings.dims)
    return _of_graph(as_loaded(model, bindings), header)


def op_type_stats(graph: Graph) -> tuple[OpTypeStats, ...]:
    """The ops of each type, most FLOPs first, then most ops."""
    names, type_of, counts = np.unique(graph.op_types, return_inverse=True, return_counts=True)
    flops = np.bincount(type_of, weights=graph.op_flops)
    rows = [OpTypeStats(str(name), int(n), float(f)) for name, n, f in zip(names, counts, flops, strict=True)]
    return tuple(sorted(rows, key=lambda row: (-(row.flops or 0.0), -row.ops, row.op_type)))


def _of_header(header: OnnxHeader, dims: Mapping[str, int]) -> ModelSummary:
    counts = sorted(header.node_types.items(), key=lambda row: (-row[1], row[0]))
    return ModelSummary(
        name=header.name,
        unbound=header.unbound,
        dims=dict(dims),
        inputs=header.inputs,
        outputs=header.outputs,
        weight_bytes=header.weight_bytes,
        op_types=tuple(OpTypeStats(op_type, count, None) for op_type, count in counts),
    )


def _of_graph(graph: Graph, header: OnnxHeader | None) -> ModelSummary:
    layers = _layers(graph)
    return ModelSummary(
        name=graph.name,
        dims=dict(graph.bindings.dims),
        inputs=header.inputs if header else _tensors(graph, graph.tensor_kind == INPUT),
        outputs=_tensors(graph, graph.tensor_is_output),
        ops=graph.num_ops,
        flops=float(graph.op_flops.sum()),
        weight_bytes=sum(layer.weight_bytes for layer in layers),
        op_types=op_type_stats(graph),
        unknown_ops=graph.unknown_ops,
        states=sized_states(graph),
        unpaired_states=graph.unpaired_states,
        bound_states=dict(graph.bindings.states),
        layers=layers,
    )


def _tensors(graph: Graph, chosen: BoolArray) -> tuple[TensorHeader, ...]:
    names = [(int(k), graph.tensor_names[k]) for k in np.flatnonzero(chosen)]
    return tuple(
        TensorHeader(name, DTYPES[graph.tensor_dtype[k]], tensor_shapes(graph).get(k)) for k, name in names
    )


def _first_readers(graph: Graph) -> tuple[LongArray, IntArray]:
    """The weights that are read, and the first op that reads each."""
    weights = np.flatnonzero((graph.tensor_kind == WEIGHT) & (np.diff(graph.reader_ptr) > 0))
    return weights, graph.reader_op[graph.reader_ptr[weights]]


def _layers(graph: Graph) -> tuple[Layer, ...]:
    """The ops by prefixes of their names: the longest of at most ``MOST_LAYERS``, if that makes several."""
    paths = _paths(graph)
    weights, readers = _first_readers(graph)
    sizes = size_bytes(graph.tensor_elements, graph.tensor_dtype)[weights]
    weight_bytes = np.bincount(readers, weights=sizes, minlength=graph.num_ops)
    longest = max(1, *map(len, paths))
    by_depth = [["/".join(path[:depth]) for path in paths] for depth in range(1, longest + 1)]
    several = [names for names in by_depth if len(set(names)) > 1] or by_depth
    few = [names for names in several if len(set(names)) <= MOST_LAYERS]
    prefixes = few[-1] if few else several[0]
    number = {name: i for i, name in enumerate(dict.fromkeys(prefixes))}
    layer = np.array([number[name] for name in prefixes])
    sums = [np.bincount(layer, weights=row) for row in (np.ones(len(layer)), graph.op_flops, weight_bytes)]
    return tuple(
        Layer(name, int(ops), float(flops), int(size))
        for name, ops, flops, size in zip(number, *sums, strict=True)
    )


def _paths(graph: Graph) -> list[list[str]]:
    """The parts of each op's name but the last; if none, those of its weight, else of the op before it."""
    weight_of = dict[int, str]()  # the first weight that an op is the first to read
    for k, op in zip(*_first_readers(graph), strict=True):
        weight_of.setdefault(int(op), graph.tensor_names[k])
    paths: list[list[str]] = []
    for op, name in enumerate(graph.op_names):
        before = paths[-1] if paths else []
        paths.append(_parts(name) or _parts(weight_of.get(op, "")) or before)
    return paths


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"[/.]", name) if part][:-1]
