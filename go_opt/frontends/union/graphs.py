"""Several models as one graph, each as often as its share of the rate says; copies share their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from go_opt.errors import ModelError
from go_opt.frontends.union.names import SHARED, UNION_PREFIX, prefix_of, shares_of
from go_opt.frontends.union.shared_weights import contents_of, matched_by_content, matched_by_order
from go_opt.model.bindings import Bindings
from go_opt.model.builder import GraphBuilder
from go_opt.model.codecs.graph_columns import with_tensor_order
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import NO_PRODUCER, OP_CLASSES, TENSOR_KINDS, WEIGHT, Graph, UnknownOp


def load_union(name: str, load: Callable[[str], Graph], bindings: Bindings) -> Graph:
    """The union of a name; ``load`` reads each model.

    In ``union:shared:…`` the second model has the weights that are those of the first.
    """
    shares = shares_of(name)
    graphs, copies = [load(model) for _, model in shares], [copies for copies, _ in shares]
    shared: Mapping[int, int] = {}
    if name.startswith(UNION_PREFIX + SHARED):
        if copies != [1, 1]:
            raise ModelError(f"{name[:100]!r} must be of a prompt and a step, once each.", field="model")
        shared = shared_weights(graphs[0], graphs[1], *(model for _, model in shares))
    return union(graphs, copies, name, bindings, shared)


def shared_weights(prompt: Graph, step: Graph, prompt_name: str, step_name: str) -> dict[int, int]:
    """By weight of the step the same of the prompt; by content if both are ONNX files, else by order."""
    if prompt_name.endswith(".onnx") and step_name.endswith(".onnx"):
        contents = [contents_of(Path(name)) for name in (prompt_name, step_name)]
        return matched_by_content(prompt, step, *contents)
    return matched_by_order(prompt, step)


def union(
    graphs: Sequence[Graph],
    copies: Sequence[int],
    name: str,
    bindings: Bindings,
    shared: Mapping[int, int] = MappingProxyType({}),
) -> Graph:
    """The ops of all graphs, each ``copies`` times; names begin with the number of model and copy.

    Args:
      shared: weights of the last graph, each with the weight of the first graph that it is.

    Raises:
      ModelError: a graph has states of the model, or on the host.
    """
    builder, order = GraphBuilder(name, precision=graphs[0].precision, bindings=bindings), list[str]()
    unknown, unpaired = list[UnknownOp](), list[str]()
    for model, (graph, number) in enumerate(zip(graphs, copies, strict=True), 1):
        if graph.has_scope("model") or graph.host_states:
            problem = "has states that are not of sequences, so that it shares a package with no other"
            raise ModelError(f"model {graph.name[:100]!r} {problem}.", field="model")
        first = prefix_of(model, 0)
        unknown += [op._replace(name=first + op.name) for op in graph.unknown_ops]
        unpaired += [first + tensor for tensor in graph.unpaired_states]
        known = shared if model == len(graphs) else {}
        named = {k: prefix_of(1, 0) + graphs[0].tensor_names[of] for k, of in known.items()}
        for copy in range(number):
            prefix = prefix_of(model, copy)
            names = [named.get(k, prefix + tensor) for k, tensor in enumerate(graph.tensor_names)]
            new = [k for k in range(graph.num_tensors) if k not in named]
            order += [names[k] for k in new]
            _add(builder, graph, prefix, names, new)
            named = {k: names[k] for k in np.flatnonzero(graph.tensor_kind == WEIGHT).tolist()}
    made = with_tensor_order(builder.build(), order)
    return replace(made, unknown_ops=tuple(unknown), unpaired_states=tuple(unpaired))


def _add(builder: GraphBuilder, graph: Graph, prefix: str, names: Sequence[str], new: Sequence[int]) -> None:
    """Add a copy of a graph, whose tensors have these names; those that are not ``new`` are there already."""
    elements, dtypes = graph.tensor_elements.tolist(), [DTYPES[code] for code in graph.tensor_dtype]
    for k in new:
        if graph.tensor_producer[k] == NO_PRODUCER:
            builder.add_tensor(names[k], elements[k], dtypes[k], TENSOR_KINDS[graph.tensor_kind[k]])
        elif graph.tensor_is_output[k]:
            builder.mark_output(names[k])
    for op, op_name in enumerate(graph.op_names):
        builder.add_op(
            prefix + op_name,
            graph.op_types[op],
            OP_CLASSES[graph.op_class[op]],
            flops=float(graph.op_flops[op]),
            dtype=DTYPES[graph.op_dtype[op]],
            reads=[(names[k], touched) for k, touched in graph.reads_of(op)],
            writes=[(names[k], elements[k], dtypes[k]) for k in graph.outputs_of(op)],
            measured_s=graph.measured_of(op),
            excluded_kinds=graph.excluded_of(op),
        )
        if row := graph.rule_of(op):
            operands, results = ([names[k] for k in tensors] for tensors in (row.operands, row.results))
            builder.set_rule(prefix + op_name, row.rule, operands, results)
    for state in graph.states:
        builder.add_state(names[state.read], names[state.next], state.scope)
