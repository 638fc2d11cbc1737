"""A model lowered to ops, with the known facts about every value, and the states that its ops show."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import onnx

from go_opt.errors import GraphError, ModelError
from go_opt.frontends.onnx.inference.dims import DimTable, with_values
from go_opt.frontends.onnx.inference.file import ModelFile, read_model
from go_opt.frontends.onnx.inference.shapes import ShapeInference
from go_opt.frontends.onnx.inference.values import Value
from go_opt.frontends.onnx.lowering import Context, Scope
from go_opt.frontends.onnx.program import Program
from go_opt.frontends.onnx.structure import GraphReads, inlined
from go_opt.frontends.recording.binding import Trips
from go_opt.frontends.recording.states import Facts, FoundStates, find_states, fits
from go_opt.model.bindings import Bindings


@dataclass(frozen=True)
class LoweredModel:
    """A model and the ops it consists of."""

    file: ModelFile
    model: onnx.ModelProto  # that of the file, with its local functions in place
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    program: Program
    open_dims: tuple[str, ...]  # bound dimensions that no input has

    def states(self, bindings: Bindings) -> FoundStates:
        """The states of the model, by its own names of inputs and outputs and by the ops between them."""
        given = {value.tensor: Facts(value.shape, value.dtype) for value in self.inputs}
        names = [output.name for output in self.model.graph.output]
        outputs = zip(names, self.outputs, strict=True)
        facts = {name: Facts(value.shape, value.dtype) for name, value in outputs}
        weights = {tensor.name: tuple(tensor.dims) for tensor in self.model.graph.initializer}
        by_ops = states_by_ops(self.model.graph, given, facts)
        return find_states(given, facts, bindings.states, weights.__contains__, exact=by_ops, weights=weights)


def lower_model(
    source: str | os.PathLike[str] | onnx.ModelProto | bytes,
    bindings: Bindings,
    checkpoint: Callable[[], None],
) -> LoweredModel:
    """Walk a model whose open dimensions, inputs and loops are bound; errors as of :func:`from_onnx`."""
    lowered = _lowered(source, bindings, checkpoint, frozenset())
    weights = {tensor.name for tensor in lowered.model.graph.initializer}
    held = lowered.states(bindings).reads & weights
    # Weights that are states are no constants, which would be computed with ahead of time.
    return _lowered(lowered.file, bindings, checkpoint, held) if held else lowered


def _lowered(
    source: str | os.PathLike[str] | onnx.ModelProto | bytes | ModelFile,
    bindings: Bindings,
    checkpoint: Callable[[], None],
    held: frozenset[str],
) -> LoweredModel:
    """The model; the initializers ``held`` are no constants."""
    file = source if isinstance(source, ModelFile) else read_model(source)
    model = inlined(file.model)
    if not model.graph.output:
        raise ModelError(f"model {file.name!r} has no outputs.")
    given = model_inputs(model.graph)
    table = DimTable(file.name, bindings.dims, given)
    model = with_values(model, bindings.values, table)
    inputs = model_inputs(model.graph)
    table.check(given, inputs, [*model.graph.value_info, *model.graph.output])

    trips = Trips(bindings.trips)
    scope = Scope(
        Context(file, table, ShapeInference(model), trips, GraphReads(checkpoint), checkpoint, held),
        Program(),
    )
    values = tuple(
        scope.activation(info.name, info.type.tensor_type.elem_type, table.shape_of_input(info))
        for info in inputs
    )
    for value in values:
        if value.tensor in scope.program.sources:
            raise GraphError(f"tensor {value.tensor!r} is defined twice.")
        scope.program.sources[value.tensor] = value.elements, value.dtype, "input"
    scope.lower(model.graph)
    trips.check()
    outputs = tuple(scope.lookup(output.name) for output in model.graph.output)
    return LoweredModel(file, model, values, outputs, scope.program, table.of_no_input(given))


def model_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that are no weights."""
    initialized = {tensor.name for tensor in graph.initializer}
    return [info for info in graph.input if info.name not in initialized]


_Places = tuple[tuple[int, int], ...]  # of an old value among inputs, of the next among outputs
_CELLS: Final = frozenset({"GRU", "LSTM", "RNN"})
_OLD_AND_NEXT: Final[Mapping[tuple[str, str], _Places]] = {
    ("", "Attention"): ((4, 1), (5, 2)),
    ("", "GRU"): ((5, 1),),
    ("", "LSTM"): ((5, 1), (6, 2)),
    ("", "RNN"): ((5, 1),),
    ("", "ScatterElements"): ((0, 0),),
    ("", "ScatterND"): ((0, 0),),
    ("", "TensorScatter"): ((0, 0),),
    ("", "Where"): ((1, 0), (2, 0)),
    ("com.microsoft", "Attention"): ((4, 1),),
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): ((5, 1), (6, 2)),
    ("com.microsoft", "GroupQueryAttention"): ((3, 1), (4, 2)),
    ("com.microsoft", "MultiHeadAttention"): ((6, 1), (7, 2)),
}
_COMPUTES: Final = frozenset({op_type for _, op_type in _OLD_AND_NEXT if "Attention" in op_type} | _CELLS)
# Of their first input.
_MOVES: Final = frozenset(
    {"Cast", "Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
_COUNTS: Final = frozenset({"bool", "int32", "int64"})


def states_by_ops(
    graph: onnx.GraphProto, inputs: Mapping[str, Facts], outputs: Mapping[str, Facts]
) -> dict[str, str]:
    """Input -> output that is its next value, by the op that makes one from the other.

    The model must compute with the next value: an image to which the last op adds a channel is no state.
    """
    source = {name: name for name in inputs}  # an input, however moved -> its name
    old_of: dict[str, set[str]] = {}  # a next value, however moved -> inputs that it may come from
    computed = set[str]()  # inputs with whose next value something is computed
    for node in graph.node:
        if node.op_type in _MOVES and node.input:
            moved, result = node.input[0], node.output[0]
            if moved in source:
                source[result] = source[moved]
            if moved in old_of:
                old_of[result] = old_of[moved]
            continue
        for name in node.input:
            computed |= old_of.get(name, set())
        for old, following in _places(node):
            name = node.input[old] if old < len(node.input) else ""
            if name in source and following < len(node.output):
                old_of.setdefault(node.output[following], set()).add(source[name])
                computed.update({source[name]} if node.op_type in _COMPUTES else ())

    def is_next(old: Facts, following: Facts) -> bool:
        """Whether the shapes allow it; what is appended is not longer than what is kept."""
        is_kept = 2 * math.prod(old.shape) >= math.prod(following.shape)
        return old.dtype not in _COUNTS and is_kept and fits(old, following)

    found = {}
    for name, facts in outputs.items():
        olds = [old for old in old_of.get(name, ()) if old in computed and is_next(inputs[old], facts)]
        if len(olds) == 1:
            found[name] = olds[0]
    times = Counter(found.values())
    return {old: name for name, old in found.items() if times[old] == 1}


def _places(node: onnx.NodeProto) -> Iterable[tuple[int, int]]:
    """Where the op may have an old value among its inputs, and its next among its outputs."""
    if node.op_type == "Concat":
        return [(i, 0) for i in range(len(node.input))]
    return _OLD_AND_NEXT.get((node.domain.removesuffix("ai.onnx"), node.op_type), ())
